"""The certificates of a worker, reloaded when their files change.

A background thread watches the files (loader/file_reloader.py): edits in place, new files in place of old ones, and
switched links, as Kubernetes and certbot make them. Valid files become new TLS contexts, which listeners use for the
next connections. Open connections keep theirs: TLS has no way to change the certificate of a connection.

Invalid files change nothing: the previous certificate stays in use, and the error is logged and counted. A certificate
and its key are two files, so for a moment one of them may be new and the other old. That is such an error, too, and is
over with the next look at the files.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from dataclasses import dataclass, field
from hashlib import sha256

from crestgate.config.settings import Tls
from crestgate.config.tls import find_problems
from crestgate.errors import Problem, ValidationError
from crestgate.loader.background_refresh import REFRESH_SECONDS, BackgroundRefresh, Reloaded, ReloadMessages
from crestgate.loader.document import digest_of, stamp_of
from crestgate.loader.file_reloader import FileReloader, PathState
from crestgate.service.certificate_expiry import expiry_of
from crestgate.service.grpc.transport.tls import create_tls_context
from crestgate.service.http.tls import create_http_context

__all__ = ["CertificateFiles", "Certificates", "read_certificates"]

RELOAD_MESSAGES = ReloadMessages(
    "certificate reload failed, keeping the previous certificate: %s", "certificate reload recovered: %s"
)
_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_log = logging.getLogger("crestgate")


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """What new connections use."""

    http: ssl.SSLContext
    grpc: ssl.SSLContext


@dataclass(slots=True)
class CertificateFiles:
    """The files at one time, and the states by which changes are detected."""

    contexts: TlsContexts | None = None
    """None if there are problems."""
    fingerprint: str = "unknown"
    """SHA-256 of the certificate, as `openssl x509 -fingerprint -sha256` shows it."""
    expires_at: int | None = None
    """Unix time at which the certificate expires; None if it is in a form that cannot be read for that."""
    problems: list[Problem] = field(default_factory=list)
    states: dict[str, PathState] = field(default_factory=dict)
    digests: dict[str, bytes | None] = field(default_factory=dict)


def read_certificates(tls: Tls) -> CertificateFiles:
    """Read and validate the files. Errors are in `problems`."""
    files = CertificateFiles()
    paths = {"certificate": tls.certificate, "key": tls.key, "grpc_client_ca": tls.grpc_client_ca}
    for path in paths.values():
        if path is not None:  # before they are read: a change meanwhile is seen at the next look
            files.states[path] = stamp_of(path)
            files.digests[path] = digest_of(path)
    files.problems += [Problem(f"server.tls.{name}", message, paths[name]) for name, message in find_problems(tls)]
    if files.problems:
        return files
    try:
        http = create_http_context(tls.certificate, tls.key)
        files.contexts = TlsContexts(http, create_tls_context(tls.certificate, tls.key, tls.grpc_client_ca))
        der = _first_certificate(tls.certificate)
        if der is not None:
            files.fingerprint = sha256(der).hexdigest().upper()
            files.expires_at = expiry_of(der)
    except OSError as error:  # replaced since they were validated
        files.contexts = None
        files.problems.append(Problem("server.tls", f"changed while it was read ({error})", tls.certificate))
    return files


class Certificates:
    """The current TLS contexts of both listeners. ValidationError, with all errors, if the files are invalid now."""

    def __init__(self, tls: Tls, refresh_seconds: float = REFRESH_SECONDS) -> None:
        client_ca = None if tls.grpc_client_ca is None else os.path.abspath(tls.grpc_client_ca)
        absolute = Tls(os.path.abspath(tls.certificate), os.path.abspath(tls.key), client_ca)
        files = read_certificates(absolute)
        if files.contexts is None:
            raise ValidationError(files.problems)
        self._current = files.contexts
        self.expires_at = files.expires_at
        """Unix time at which the certificate in use expires, if that is known."""
        self.title = tls.certificate
        self.files = FileReloader(lambda: read_certificates(absolute), stamp_of, files)
        self.background = BackgroundRefresh(
            self,
            Certificates._load,
            messages=RELOAD_MESSAGES,
            title=tls.certificate,
            seconds=refresh_seconds,
            thread_name="crestgate-certificates",
        )
        self.background.start()

    def http_context(self) -> ssl.SSLContext:
        """For the next HTTP connection."""
        return self._current.http

    def grpc_context(self) -> ssl.SSLContext:
        """For the next gRPC connection."""
        return self._current.grpc

    @property
    def failures(self) -> int:
        """How many refreshes have failed."""
        return self.background.failures

    def refresh(self) -> bool:
        """Refresh now; whether anything was new. Errors are logged, and the previous certificate stays."""
        return self.background.refresh()

    def reload(self) -> None:
        """Read the files soon, changed or not, in the thread. A signal handler may call it."""
        self.files.force()
        self.background.wake()

    def close(self) -> None:
        """End the thread. The current certificate stays in use."""
        self.background.close()

    def _load(self) -> Reloaded | None:
        if not self.files.refresh():
            return None
        _, files = self.files.latest()
        assert files is not None
        assert files.contexts is not None
        self._current = files.contexts
        self.expires_at = files.expires_at
        _log.info("certificates reloaded: %s: SHA-256 fingerprint %s", self.title, files.fingerprint)
        return Reloaded(0, 0)  # logged here


def _first_certificate(path: str) -> bytes | None:
    """In DER; None if it is in one of the older forms of PEM."""
    with open(path, encoding="latin-1") as file:
        block = _BLOCK.search(file.read())
    return None if block is None else ssl.PEM_cert_to_DER_cert(block[0])
