"""Registry of storages by URL scheme, and the parts of a storage URL.

The module has its name from `limits`, where it is private, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.runtime.url_options import redact_url

__all__ = ["SCHEMES", "StorageURIOptions", "parse_storage_uri", "register_schemes"]

SCHEMES: dict[str, Callable[..., Any]] = {}
"""The storage class of each scheme, sync and async ones."""


def register_schemes(storage: type) -> None:
    """Register a storage class under the schemes of its own `STORAGE_SCHEME`."""
    schemes = storage.__dict__.get("STORAGE_SCHEME") or ()
    for scheme in (schemes,) if isinstance(schemes, str) else schemes:
        SCHEMES[scheme] = storage


@dataclass
class StorageURIOptions:
    """The parts of a storage URL."""

    scheme: str
    username: str | None
    password: str | None
    locations: list[tuple[str, int]]
    path: str | None
    query: dict[str, list[str]]


def parse_storage_uri(uri: str) -> StorageURIOptions:
    """For storages of your own: the parts of `scheme://user:password@host:port,host:port/path?option=value`."""
    parts = urlsplit(uri)
    _, _, servers = parts.netloc.rpartition("@")
    locations = []
    for server in servers.split(",") if servers else []:
        try:
            location = urlsplit(f"//{server.strip()}")
            host, port = location.hostname, location.port
        except ValueError as error:
            raise ConfigurationError(f"Unable to parse storage uri {redact_url(uri)}: {error}") from None
        if host is None or port is None:
            raise ConfigurationError(f"Missing host or port in location {server!r} of {redact_url(uri)}")
        locations.append((host, port))
    return StorageURIOptions(parts.scheme, parts.username, parts.password, locations, parts.path, parse_qs(parts.query))
