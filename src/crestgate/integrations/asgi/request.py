"""The Request over an ASGI scope.

It needs no framework. If Starlette is installed, all other attributes are those of its HTTPConnection
(`request.client.host`, `request.state.tenant`, `request.cookies`); `request["path"]` reads the scope.
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
"""Called with a scope, `receive` and `send`. Each framework has its own types for these."""

_ID_ATTRIBUTES = ("identity", "id", "username", "display_name")
"""Attributes of user objects that identify the user, in order of preference."""


class AsgiRequest(Request):
    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.native.get("method", "GET")  # a websocket starts with a GET
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
        return None if user is None else _user_id(user)

    def framework(self) -> Any:
        try:
            from starlette.requests import HTTPConnection
        except ImportError:
            return self.native
        return HTTPConnection(self.native)


def _user_id(user: Any) -> str | None:
    """A user's id; None for an anonymous user. Users are the application's objects, whose attributes may raise."""
    if isinstance(user, str | int):
        return str(user) or None
    if not _read(user, "is_authenticated", True):
        return None
    for name in _ID_ATTRIBUTES:
        value = _read(user, name, None)
        if value is not None and value != "":
            return str(value)
    return None


def _read(user: Any, name: str, absent: object) -> Any:
    try:
        return user[name] if isinstance(user, dict) else getattr(user, name)
    except Exception:  # noqa: BLE001 - Starlette's own users raise NotImplementedError if they have no identity
        return absent
