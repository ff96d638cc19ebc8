"""Which hosts the service answers for, and which web pages may call it: `server.allowed_hosts`, `allowed_origins`."""

from __future__ import annotations

from collections.abc import Callable

from headgate.http.host import host_address, host_name, read_origin
from headgate.reading.fields import Fields, kind_of

__all__ = ["ANY_LABEL", "read_allowed_hosts", "read_allowed_origins"]

ANY_LABEL = "*."
"""Stands at the beginning of a name for any name below it."""


def read_allowed_hosts(fields: Fields, name: str) -> tuple[str, ...]:
    """Names and addresses as they are compared; mistakes are noted."""
    return _texts(fields, name, "a host such as gate.example.com or *.example.com", _host)


def read_allowed_origins(fields: Fields, name: str) -> tuple[str, ...]:
    """Origins as they are compared; mistakes are noted."""
    return _texts(fields, name, "an origin such as https://gate.example.com", read_origin)


def _texts(fields: Fields, name: str, wanted: str, read: Callable[[str], str | None]) -> tuple[str, ...]:
    """A text or a list of texts, each as `read` gives it."""
    value = fields.values.get(name)
    if value is None:
        return ()
    if isinstance(value, list):
        entries = [(f"{fields.way(name)}[{position}]", item) for position, item in enumerate(value)]
    else:
        entries = [(fields.way(name), value)]
        wanted += ", or a list of them"
    found = []
    for way, text in entries:
        entry = read(text) if isinstance(text, str) else None
        if entry is None:
            fields.problems.add(way, f"must be {wanted}, not {kind_of(text)}")
        else:
            found.append(entry)
    return tuple(found)


def _host(text: str) -> str | None:
    """A name, a name below which all are meant, or an address. There is no port: it is not compared."""
    if host_address(text.strip("[]")) is not None:
        return host_name(f"[{text.strip('[]')}]" if ":" in text else text)
    below = text.startswith(ANY_LABEL)
    rest = text[len(ANY_LABEL) :] if below else text
    name = host_name(rest) if ":" not in rest and "*" not in rest else None
    if not name:
        return None
    return ANY_LABEL + name if below else name
