"""Host and origin allowlists: `server.allowed_hosts`, `server.allowed_origins`."""

from __future__ import annotations

from collections.abc import Callable

from crestgate.http.host import host_address, host_name, read_origin
from crestgate.loader.fields import Fields, describe

__all__ = ["ANY_LABEL", "read_allowed_hosts", "read_allowed_origins"]

ANY_LABEL = "*."
"""Prefix for all subdomains of a name."""


def read_allowed_hosts(fields: Fields, name: str) -> tuple[str, ...]:
    """Normalised names and addresses."""
    return _texts(fields, name, "a host such as gate.example.com or *.example.com", _host)


def read_allowed_origins(fields: Fields, name: str) -> tuple[str, ...]:
    """Normalised origins."""
    return _texts(fields, name, "an origin such as https://gate.example.com", read_origin)


def _texts(fields: Fields, name: str, expected: str, read: Callable[[str], str | None]) -> tuple[str, ...]:
    """A string or a list of strings, each normalised by `read`."""
    value = fields.values.get(name)
    if value is None:
        return ()
    if isinstance(value, list):
        entries = [(f"{fields.path(name)}[{position}]", item) for position, item in enumerate(value)]
    else:
        entries = [(fields.path(name), value)]
        expected += ", or a list of them"
    values = []
    for path, text in entries:
        entry = read(text) if isinstance(text, str) else None
        if entry is None:
            fields.problems.add(path, f"must be {expected}, not {describe(text)}")
        else:
            values.append(entry)
    return tuple(values)


def _host(text: str) -> str | None:
    """A name, a wildcard for subdomains, or an address, without a port."""
    if host_address(text.strip("[]")) is not None:
        return host_name(f"[{text.strip('[]')}]" if ":" in text else text)
    wildcard = text.startswith(ANY_LABEL)
    rest = text[len(ANY_LABEL) :] if wildcard else text
    name = host_name(rest) if ":" not in rest and "*" not in rest else None
    if not name:
        return None
    return ANY_LABEL + name if wildcard else name
