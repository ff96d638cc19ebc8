"""Normalised hosts and origins of HTTP requests (RFC 9110, RFC 6454).

Names are compared ignoring case and one trailing dot: `Gate.Example.` is `gate.example`. The port is not part of the
host.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

__all__ = ["host_address", "host_name", "read_origin", "same_origin"]

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.~%!$&'()*+,;=-]*))(?::([0-9]{0,5}))?", re.ASCII)
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#@\s]+)")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def host_name(value: str) -> str | None:
    """The name or address in a `Host` header, without its port; None when it is malformed.

    >>> host_name("LocalHost:8080"), host_name("gate.example."), host_name("[::1]:80"), host_name("a/b")
    ('localhost', 'gate.example', '::1', None)
    """
    match = _HOST.fullmatch(value)
    return None if match is None else _name(match)


def host_address(name: str) -> IPv4Address | IPv6Address | None:
    """The host as an IP address, or None if it is a name. IPv4-mapped IPv6 becomes IPv4.

    >>> host_address("127.0.0.1"), host_address("::ffff:127.0.0.1"), host_address("localhost")
    (IPv4Address('127.0.0.1'), IPv4Address('127.0.0.1'), None)
    """
    try:
        address = ip_address(name)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def read_origin(value: str) -> str | None:
    """A normalised origin, without the default port of its scheme; None when it is malformed, or `null`.

    >>> read_origin("HTTPS://Gate.example:443"), read_origin("http://[::1]:8080"), read_origin("null")
    ('https://gate.example', 'http://[::1]:8080', None)
    """
    match = _ORIGIN.fullmatch(value)
    if match is None:
        return None
    scheme = match[1].lower()
    authority = _authority(match[2], scheme)
    return None if authority is None else f"{scheme}://{authority}"


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of `origin` has called its own host. The scheme is not compared: a proxy may have terminated TLS.

    >>> same_origin("https://gate.example", "gate.example"), same_origin("http://gate.example:81", "gate.example")
    (True, False)
    """
    read = read_origin(origin)
    if read is None:
        return False
    scheme, _, authority = read.partition("://")
    return authority == _authority(host, scheme)


def _authority(value: str, scheme: str) -> str | None:
    """Normalised host and port."""
    match = _HOST.fullmatch(value)
    if match is None:
        return None
    name = _name(match)
    host = f"[{name}]" if match[1] else name
    return host if not match[3] or match[3] == _DEFAULT_PORTS.get(scheme) else f"{host}:{int(match[3])}"


def _name(match: re.Match[str]) -> str:
    return (match[1] or match[2] or "").lower().removesuffix(".")
