"""Certificate authorities for client certificates, made by openssl."""

from __future__ import annotations

from pathlib import Path

from servers.machine import find, run

__all__ = ["Signer"]

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Signer:
    """A test authority, optionally signed by another one. Its files are in a folder."""

    def __init__(self, folder: Path, name: str, above: Signer | None = None) -> None:
        self._folder = folder
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        if above is None:
            self._openssl("req", "-x509", "-days", "2", *_KEY, *self._files(name))
        else:
            above.sign(name, "basicConstraints=critical,CA:TRUE")

    def sign(self, name: str, extension: str = "extendedKeyUsage=clientAuth") -> tuple[Path, Path]:
        """A new certificate with this name, and its key."""
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"{extension}\n")
        self._openssl("req", "-new", *_KEY, *self._files(name, ".csr"))
        signed = ["-in", str(request), "-out", str(self._folder / f"{name}.pem"), "-days", "2", "-CAcreateserial"]
        issuer = ["-CA", str(self.certificate), "-CAkey", str(self.key), "-extfile", str(extensions)]
        self._openssl("x509", "-req", *signed, *issuer)
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _files(self, name: str, suffix: str = ".pem") -> list[str]:
        out, key = self._folder / f"{name}{suffix}", self._folder / f"{name}.key"
        return ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(out)]

    def _openssl(self, *arguments: str) -> None:
        run([find("openssl", "openssl"), *arguments])
