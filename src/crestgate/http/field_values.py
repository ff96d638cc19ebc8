# mypyc: compile
"""Header values as names: one caller has one spelling, whatever stands around the value.

A limit counts by the text of a header, and an application behind it compares the same header with what it knows. If the
application ignores more of the value than the limit does, every ignored spelling is a fresh counter: `secret`,
`secret<TAB>` and `secret<TAB><TAB>` open the same door. Servers and proxies remove different things: RFC 9110 says that
spaces and tabs around a value are not part of it, but nginx passes trailing tabs on; `String.trim` of Java removes all
control characters, `str.strip` of Python the no-break space and the next-line character as well. So all of these are
removed here, and a value of nothing else counts as absent.

Inside a value every character counts, with two exceptions, since they have several spellings by definition:

    Authorization, Proxy-Authorization    the scheme in any case, any number of spaces behind it
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
    """A header value as text, without what surrounds it; None when nothing is left.

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
    """The same as bytes, as they came."""
    try:
        return value.decode().strip(_BLANKS).encode()
    except UnicodeDecodeError:
        pass
    # UTF-8 with Latin-1 blanks around it, or Latin-1. A letter may end in up to three bytes that Latin-1 calls blanks.
    value = value.lstrip(_BLANK_BYTES)
    bare = value.rstrip(_BLANK_BYTES)
    for length in range(len(bare), len(bare) + 4):
        try:
            return value[:length].decode().strip(_BLANKS).encode()
        except UnicodeDecodeError:
            pass
    return bare


def trimmed(text: str) -> str | None:
    """A name that an application has read out of a request itself; None when nothing is left.

    Only ASCII is removed: frameworks decode headers as Latin-1, and there a no-break space may be half of a letter.
    """
    return text.strip(_CONTROLS) or None


def header_name_value(name: bytes, value: bytes) -> str | None:
    """What the value of a header counts as, by the header's lower-case name; None when it says nothing.

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
    """One spelling of a host. The colons of an IPv6 address, with brackets or without, are not a port's."""
    host, colon, port = text.rpartition(":")
    if not colon or (port and not port.isdigit()) or (":" in host and not host.endswith("]")):
        host = text
    return host.lower().removesuffix(".") or text
