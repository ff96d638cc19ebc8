"""The certificate that the service shows, and its key: tried when they are read, so that a start does not fail on them.

Both are files in PEM form; the certificate's may hold the chain up to a root. A third file may say who calls over gRPC:
only those may then who show a certificate that was signed with one in it. A relative path is seen from the folder in
which the program was started.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headgate.config.section import names_of, section
from headgate.reading.fields import Fields, kind_of

__all__ = ["Tls", "read_tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Two files that belong together, and one of those who sign certificates of callers."""

    certificate: str
    key: str
    grpc_client_ca: str | None = None
    """None: whoever calls over gRPC need not show any."""


class _Locked(Exception):  # noqa: N818 - a signal between functions of this file
    """A key asks for a password."""


def read_tls(fields: Fields, name: str) -> Tls | None:
    """The section, or None; files that are not there or do not go together are noted."""
    if not fields.given(name):
        return None
    inner = section(fields, name, names_of(Tls))
    certificate, key = _path(inner, "certificate"), _path(inner, "key")
    signers = _path(inner, "grpc_client_ca") if inner.given("grpc_client_ca") else None
    if certificate is None or key is None or (signers is None and inner.given("grpc_client_ca")):
        return None
    right = [
        _holds_certificate(inner, "certificate", certificate) and _belong_together(inner, certificate, key),
        signers is None or _holds_certificate(inner, "grpc_client_ca", signers),
    ]
    return Tls(certificate, key, signers) if all(right) else None


def _holds_certificate(fields: Fields, name: str, path: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
        if context.cert_store_stats()["x509"]:  # and not only a list of revoked ones
            return True
    except ssl.SSLError:
        pass
    fields.wrong(name, f"{kind_of(path)} holds no certificate: write the path of one in PEM form")
    return False


def _belong_together(fields: Fields, certificate: str, key: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except _Locked:
        fields.wrong("key", f"{kind_of(key)} is locked with a password: write the path of a key without one")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            fields.wrong(
                "key", f"{kind_of(key)} is not the key of {kind_of(certificate)}: write the one that it was made with"
            )
        elif error.reason in (None, "NO_START_LINE", "PEM_LIB", "UNSUPPORTED"):
            fields.wrong("key", f"{kind_of(key)} holds no private key: write the path of one in PEM form")
        else:
            fields.wrong(
                "certificate", f"{kind_of(certificate)} cannot be used ({error.reason}): write the path of another"
            )
    else:
        return True
    return False


def _path(fields: Fields, name: str) -> str | None:
    """The path of a file that can be read; None, and noted, when it is none."""
    path: str | None = fields.text(name)
    if path is None:
        if fields.is_mapping and not fields.given(name):
            fields.wrong(name, "is missing: write the path of a file in PEM form")
        return None
    try:
        with open(path, "rb"):
            return path
    except FileNotFoundError:
        fields.wrong(name, f"there is no file {kind_of(path)}: make it, or mend the path")
    except IsADirectoryError:
        fields.wrong(name, f"{kind_of(path)} is a folder: name the file in it")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        fields.wrong(name, f"{kind_of(path)} cannot be read ({why}): let the service read it, or mend the path")
    return None


def _no_password() -> str:
    raise _Locked
