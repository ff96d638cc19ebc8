"""The certificate that the service shows, and its key: tried when they are read, so that a start does not fail on them.

Both are files in PEM form; the certificate's may hold the chain up to a root. A relative path is seen from the folder
in which the program was started.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headgate.config.section import names_of, section
from headgate.reading.fields import Fields

__all__ = ["Tls", "read_tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Two files that belong together."""

    certificate: str
    key: str


class _Locked(Exception):  # noqa: N818 - a signal between functions of this file
    """A key asks for a password."""


def read_tls(fields: Fields, name: str) -> Tls | None:
    """The section, or None; files that are not there or do not go together are noted."""
    if not fields.given(name):
        return None
    inner = section(fields, name, names_of(Tls))
    certificate, key = inner.text("certificate", required=True), inner.text("key", required=True)
    readable = [_readable(inner, "certificate", certificate), _readable(inner, "key", key)]
    if not all(readable):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        inner.wrong("certificate", f"{certificate!r} holds no certificate: write the path of one in PEM form")
        return None
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except _Locked:
        inner.wrong("key", f"{key!r} is locked with a password: write the path of a key without one")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            inner.wrong("key", f"{key!r} is not the key of {certificate!r}: write the one that it was made with")
        elif error.reason in (None, "NO_START_LINE", "PEM_LIB", "UNSUPPORTED"):
            inner.wrong("key", f"{key!r} holds no private key: write the path of one in PEM form")
        else:
            inner.wrong("certificate", f"{certificate!r} cannot be used ({error.reason}): write the path of another")
    else:
        return Tls(certificate, key)
    return None


def _readable(fields: Fields, name: str, path: str | None) -> bool:
    if path is None:
        return False
    try:
        with open(path, "rb"):
            return True
    except FileNotFoundError:
        fields.wrong(name, f"there is no file {path!r}: make it, or mend the path")
    except IsADirectoryError:
        fields.wrong(name, f"{path!r} is a folder: name the file in it")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        fields.wrong(name, f"{path!r} cannot be read ({why}): let the service read it, or mend the path")
    return False


def _no_password() -> str:
    raise _Locked
