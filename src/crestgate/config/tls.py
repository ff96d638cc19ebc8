"""TLS settings: certificate and key, loaded with the settings, so that all errors are reported together.

Files are in PEM format; the certificate's may contain the chain up to a root. With `grpc_client_ca`, gRPC clients must
present a certificate signed by one in that file. Relative paths are relative to the working directory. A running
service reads the files again when they change: see service/certificates.py.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from crestgate.config.section import field_names, section
from crestgate.loader.fields import Fields, describe

__all__ = ["Tls", "find_problems", "read_tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files."""

    certificate: str
    key: str
    grpc_client_ca: str | None = None
    """None: gRPC clients need no certificate."""


class _PasswordError(Exception):
    """The key is encrypted."""


def read_tls(fields: Fields, name: str) -> Tls | None:
    """The section, or None if it is absent or invalid."""
    if not fields.has(name):
        return None
    inner = section(fields, name, field_names(Tls))
    paths = {field: inner.text(field) for field in ("certificate", "key")}
    if inner.has("grpc_client_ca"):
        paths["grpc_client_ca"] = inner.text("grpc_client_ca")
    for field, path in paths.items():
        if path is None and inner.is_mapping and not inner.has(field):
            inner.report(field, "is missing: write the path of a file in PEM format")
    given = {field: path for field, path in paths.items() if path is not None}
    problems = find_unreadable(given)
    certificate, key = given.get("certificate"), given.get("key")
    if certificate is None or key is None or len(given) < len(paths):
        tls = None
    else:
        tls = Tls(certificate, key, given.get("grpc_client_ca"))
        problems = problems or find_invalid(tls)
    for field, message in problems:
        inner.report(field, message)
    return None if problems else tls


def find_problems(tls: Tls) -> list[tuple[str, str]]:
    """What is wrong with the files now: the field of each, and the message. Empty if they can be used."""
    paths = {"certificate": tls.certificate, "key": tls.key, "grpc_client_ca": tls.grpc_client_ca}
    return find_unreadable({field: path for field, path in paths.items() if path is not None}) or find_invalid(tls)


def find_unreadable(paths: Mapping[str, str]) -> list[tuple[str, str]]:
    """The fields whose files cannot be read, with messages."""
    return [(field, message) for field, path in paths.items() if (message := _read_problem(path)) is not None]


def find_invalid(tls: Tls) -> list[tuple[str, str]]:
    """The fields whose files can be read and have the wrong contents, with messages."""
    problems = [] if _has_certificate(tls.certificate) else [("certificate", _no_certificate(tls.certificate))]
    if not problems:
        problems += _pair_problems(tls.certificate, tls.key)
    if tls.grpc_client_ca is not None and not _has_certificate(tls.grpc_client_ca):
        problems.append(("grpc_client_ca", _no_certificate(tls.grpc_client_ca)))
    return problems


def _has_certificate(path: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
    except OSError:  # SSLError, or the file is gone
        return False
    return bool(context.cert_store_stats()["x509"])  # and not only a CRL


def _no_certificate(path: str) -> str:
    return f"{describe(path)} contains no certificate: write the path of one in PEM format"


def _pair_problems(certificate: str, key: str) -> list[tuple[str, str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except _PasswordError:
        return [("key", f"{describe(key)} is encrypted: write the path of a key without a password")]
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"{describe(key)} is not the key of {describe(certificate)}: write the path of the matching key"
            return [("key", message)]
        if error.reason in (None, "NO_START_LINE", "PEM_LIB", "UNSUPPORTED"):
            return [("key", f"{describe(key)} contains no private key: write the path of one in PEM format")]
        message = f"{describe(certificate)} cannot be used ({error.reason}): write the path of another"
        return [("certificate", message)]
    except OSError as error:  # one of them was deleted meanwhile
        return [("certificate", f"{describe(certificate)} cannot be loaded with its key ({error.strerror})")]
    return []


def _read_problem(path: str) -> str | None:
    """Why a file cannot be read; None if it can."""
    try:
        with open(path, "rb"):
            return None
    except FileNotFoundError:
        return f"there is no file {describe(path)}: create it, or correct the path"
    except IsADirectoryError:
        return f"{describe(path)} is a folder: name the file in it"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return f"{describe(path)} cannot be read ({reason}): give the service read permission, or correct the path"


def _no_password() -> str:
    raise _PasswordError
