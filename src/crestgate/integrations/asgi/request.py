"""A request as ASGI has it: the scope, read when somebody asks.

No framework is needed for any of it. Where Starlette is installed, what is not asked for here is that of its
connection (`request.client.host`, `request.state.tenant`, `request.cookies`); `request["path"]` is the scope's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from crestgate.integrations.asgi.routes import template_of
from crestgate.integrations.request import RawHeaders, Request, encoded_path, is_plain_path

__all__ = ["App", "AsgiRequest", "Message", "Receive", "Scope", "Send"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""Called with a scope, `receive` and `send`, which every framework has types of its own for."""

_NAMES = ("identity", "id", "username", "display_name")
"""Where users of the usual kinds have what tells them apart, the best first."""


class AsgiRequest(Request):
    """What a scope is to limits."""

    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.native.get("method", "GET")  # a websocket begins as a GET
        return method

    @property
    def path(self) -> str:
        path: str = self.native["path"]
        if is_plain_path(path):
            return path
        return encoded_path(path.encode("utf-8", "surrogatepass"))

    @property
    def raw_headers(self) -> RawHeaders:
        headers: RawHeaders = self.native["headers"]
        return headers

    @property
    def peer(self) -> str | None:
        client = self.native.get("client")
        return client[0] if client else None

    @property
    def route(self) -> str | None:
        return template_of(self.native)

    @property
    def principal(self) -> str | None:
        user = self.native.get("user")
        return None if user is None else _name_of(user)

    def framework(self) -> Any:
        try:
            from starlette.requests import HTTPConnection
        except ImportError:
            return self.native
        return HTTPConnection(self.native)


def _name_of(user: Any) -> str | None:
    """A user's id; None for nobody. Users are the application's objects, and some have attributes that only raise."""
    if isinstance(user, str | int):
        return str(user) or None
    if not _read(user, "is_authenticated", True):
        return None
    for name in _NAMES:
        value = _read(user, name, None)
        if value is not None and value != "":
            return str(value)
    return None


def _read(user: Any, name: str, absent: object) -> Any:
    try:
        return user[name] if isinstance(user, dict) else getattr(user, name)
    except Exception:  # noqa: BLE001 - Starlette's own users raise NotImplementedError where they have no identity
        return absent
