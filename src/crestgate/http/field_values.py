# mypyc: compile
"""Normalised header values, so that one caller has one counter.

A limit counts by the text of a header, and the application authenticates by the same header. If the application ignores
more of the value than the limit does, every ignored spelling is a fresh counter: `secret`, `secret<TAB>` and
`secret<TAB><TAB>` are the same API key. Servers and proxies trim differently: RFC 9110 says that spaces and tabs around
a value are not part of it, but nginx passes trailing tabs on; Java's `String.trim` removes all control characters,
Python's `str.strip` also the no-break space and the next-line character. So all of these are removed here, and a value
that consists only of them counts as absent.

Inside a value every character counts, except in headers that have several spellings by definition:

    Authorization, Proxy-Authorization    the scheme in any case, any number of spaces after it
    Host, X-Forwarded-Host                any case, with or without a final dot, with or without a port
"""

from __future__ import annotations

from typing import Final

__all__ = ["header_name_value", "header_text", "trimmed", "trimmed_bytes"]

_CONTROLS: Final = "".join([chr(code) for code in range(0x21)]) + "\x7f"
_BLANKS: Final = (
    _CONTROLS
    + "".join([chr(code) for code in range(0x80, 0xA1)])
    + "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_BLANK_BYTES: Final = bytes([*range(0x21), 0x7F, *range(0x80, 0xA1)])
_CREDENTIALS: Final = (b"authorization", b"proxy-authorization")
_HOSTS: Final = (b"host", b"x-forwarded-host")


def header_text(value: bytes) -> str | None:
    """A header value as trimmed text; None when nothing is left.

    >>> header_text(b" secret\\t\\t"), header_text(b"caf\\xc3\\xa9 "), header_text(b"secret\\xa0"), header_text(b"\\t")
    ('secret', 'café', 'secret', None)
    """
    try:
        text = value.decode().strip(_BLANKS)
    except UnicodeDecodeError:
        value = trimmed_bytes(value)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
    return text or None


def trimmed_bytes(value: bytes) -> bytes:
    """The trimmed value in its original encoding."""
    try:
        return value.decode().strip(_BLANKS).encode()
    except UnicodeDecodeError:
        pass
    # UTF-8 with Latin-1 blanks around it, or Latin-1. A character may end in up to three bytes that are Latin-1 blanks.
    value = value.lstrip(_BLANK_BYTES)
    bare = value.rstrip(_BLANK_BYTES)
    for length in range(len(bare), len(bare) + 4):
        try:
            return value[:length].decode().strip(_BLANKS).encode()
        except UnicodeDecodeError:
            pass
    return bare


def trimmed(text: str) -> str | None:
    """A name that the application itself read from a request, trimmed; None when nothing is left.

    Only ASCII is removed: frameworks decode headers as Latin-1, where a no-break space may be half of a character.
    """
    return text.strip(_CONTROLS) or None


def header_name_value(name: bytes, value: bytes) -> str | None:
    """The normalised value of the header with this lower-case name; None when it is blank.

    >>> header_name_value(b"authorization", b"BEARER   xyz "), header_name_value(b"host", b"Example.COM.:8080")
    ('bearer xyz', 'example.com')
    """
    text = header_text(value)
    if text is None:
        return None
    if name in _CREDENTIALS:
        scheme, *rest = text.split(None, 1)
        return " ".join([scheme.lower(), *rest])
    return _host(text) if name in _HOSTS else text


def _host(text: str) -> str:
    """Normalised host. The colons of an IPv6 address, with brackets or without, do not start a port."""
    host, colon, port = text.rpartition(":")
    if not colon or (port and not port.isdigit()) or (":" in host and not host.endswith("]")):
        host = text
    return host.lower().removesuffix(".") or text
