"""A request as rules see it, whatever framework it came through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["ContextFields", "RequestContext"]


class ContextFields(Protocol):
    """Any object with the fields of a RequestContext."""

    @property
    def ip(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def client(self) -> str | None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def method(self) -> str | None: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Who requests what. A field is None when it is not known.

    `path` is the request's path as received; `tier` is the user's tier, where the program knows it better than the
    rules do; `key` is an opaque key whose policy applies. `attributes` are dimensions of the program's own, by name:
    `{"org": "acme", "model": "large"}`.
    """

    ip: str | None = None
    user: str | None = None
    api_key: str | None = field(default=None, repr=False)  # it is a secret
    client: str | None = None
    path: str | None = None
    method: str | None = None
    tier: str | None = None
    key: str | None = None
    attributes: Mapping[str, str] | None = field(default=None, hash=False)
