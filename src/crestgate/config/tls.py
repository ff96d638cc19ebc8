"""TLS settings: certificate and key, loaded with the settings, so that all errors are reported together.

Files are in PEM format; the certificate's may contain the chain up to a root. With `grpc_client_ca`, gRPC clients must
present a certificate signed by one in that file. Relative paths are relative to the working directory.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from crestgate.config.section import field_names, section
from crestgate.loader.fields import Fields, describe

__all__ = ["Tls", "read_tls"]


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
    certificate, key = _path(inner, "certificate"), _path(inner, "key")
    client_ca = _path(inner, "grpc_client_ca") if inner.has("grpc_client_ca") else None
    if certificate is None or key is None or (client_ca is None and inner.has("grpc_client_ca")):
        return None
    valid = [
        _check_certificate(inner, "certificate", certificate) and _check_pair(inner, certificate, key),
        client_ca is None or _check_certificate(inner, "grpc_client_ca", client_ca),
    ]
    return Tls(certificate, key, client_ca) if all(valid) else None


def _check_certificate(fields: Fields, name: str, path: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
        if context.cert_store_stats()["x509"]:  # and not only a CRL
            return True
    except ssl.SSLError:
        pass
    fields.report(name, f"{describe(path)} contains no certificate: write the path of one in PEM format")
    return False


def _check_pair(fields: Fields, certificate: str, key: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except _PasswordError:
        fields.report("key", f"{describe(key)} is encrypted: write the path of a key without a password")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            fields.report(
                "key", f"{describe(key)} is not the key of {describe(certificate)}: write the path of the matching key"
            )
        elif error.reason in (None, "NO_START_LINE", "PEM_LIB", "UNSUPPORTED"):
            fields.report("key", f"{describe(key)} contains no private key: write the path of one in PEM format")
        else:
            fields.report(
                "certificate", f"{describe(certificate)} cannot be used ({error.reason}): write the path of another"
            )
    else:
        return True
    return False


def _path(fields: Fields, name: str) -> str | None:
    """The path of a readable file; None, and reported, otherwise."""
    path: str | None = fields.text(name)
    if path is None:
        if fields.is_mapping and not fields.has(name):
            fields.report(name, "is missing: write the path of a file in PEM format")
        return None
    try:
        with open(path, "rb"):
            return path
    except FileNotFoundError:
        fields.report(name, f"there is no file {describe(path)}: create it, or correct the path")
    except IsADirectoryError:
        fields.report(name, f"{describe(path)} is a folder: name the file in it")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fields.report(
            name, f"{describe(path)} cannot be read ({reason}): give the service read permission, or correct the path"
        )
    return None


def _no_password() -> str:
    raise _PasswordError
