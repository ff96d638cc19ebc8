# mypyc: compile
"""One request to the service, over HTTP or gRPC: its headers and who makes it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from crestgate.rules.port import Actor

if TYPE_CHECKING:
    from crestgate.service.auth.keys import Caller

__all__ = ["CallContext", "Fields", "Headers", "Scope"]

Scope: TypeAlias = MutableMapping[str, Any]
"""As ASGI has it. That of a gRPC call has its method, path and headers."""
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""
Fields: TypeAlias = Mapping[bytes, bytes]
"""Headers by name; of several with one name, the last."""


@final
class CallContext:
    """One request. The guard sets `caller` and `address`; `scope["crestgate"]` has it behind the guard.

    A check sets `subject` and `allowed`, for the request log.
    """

    __slots__ = ("address", "allowed", "caller", "fields", "request_id", "scope", "started", "subject")

    def __init__(self, scope: Scope, fields: Fields, request_id: str) -> None:
        self.scope = scope
        self.fields = fields
        self.request_id = request_id
        self.caller: Caller | None = None
        """None without a key."""
        self.address: str | None = None
        """Of the client, as far as proxies are trusted to tell it."""
        self.subject: str | None = None
        self.allowed: bool | None = None
        self.started = 0.0
        """When its handler was called (`time.perf_counter`)."""

    @property
    def peer(self) -> str | None:
        """The address that the connection came from."""
        client = self.scope.get("client")
        return client[0] if client else None

    @property
    def key_id(self) -> str:
        """Of the caller's API key; empty without one."""
        return "" if self.caller is None else self.caller.key_id

    @property
    def may_write(self) -> bool:
        """Whether the caller's key has the scope write."""
        return self.caller is not None and self.caller.scope == "write"

    @property
    def actor(self) -> Actor:
        """In whose name something is written."""
        return Actor("anonymous" if self.caller is None else f"key:{self.caller.name}", self.address or "")
