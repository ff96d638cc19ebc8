# mypyc: compile
"""The interface between the transport and the gRPC services: calls, methods, statuses.

The transport knows HTTP/2 and gRPC framing; handlers know messages, as bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol, final

__all__ = ["AwaitableResponse", "Metadata", "Method", "RpcCall", "RpcError", "RpcStatus", "Send", "Streaming", "Unary"]

Metadata = Sequence[tuple[bytes, bytes]]
"""Headers in order; names in lower case, without pseudo-headers."""


class RpcStatus(IntEnum):
    """The gRPC status codes that are used here."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """Ends a call with a status other than OK, and with these trailers."""

    def __init__(self, status: RpcStatus, message: str, trailers: Metadata = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.trailers = trailers


@final
class RpcCall:
    """One call: method, headers, peer and deadline."""

    __slots__ = ("deadline", "fields", "metadata", "path", "peer", "response_headers")

    def __init__(
        self,
        path: bytes,
        metadata: Metadata,
        peer: str | None,
        deadline: float | None,
        fields: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.path = path
        """Such as `/package.Service/Method`."""
        self.metadata = metadata
        self.fields: Mapping[bytes, bytes] = dict(metadata) if fields is None else fields
        """Metadata by name; of several with one name, the last. Repeated header blocks share it."""
        self.peer = peer
        """IP address of the peer; None for other sockets."""
        self.deadline = deadline
        """In the event loop's time; None without a deadline."""
        self.response_headers: Metadata = ()
        """To be set before the first message is sent."""


class AwaitableResponse(Protocol):
    """A response to be awaited, such as a coroutine. `close` is called when it will not be awaited any more, and does
    nothing to one that has ended."""

    def __await__(self) -> Generator[Any, Any, bytes]: ...

    def close(self) -> None: ...


Unary = Callable[[RpcCall, bytes], bytes | AwaitableResponse]
"""Returns the response message, or one to be awaited."""
Send = Callable[[bytes], Awaitable[None]]
Streaming = Callable[[RpcCall, AsyncIterator[bytes], Send], Awaitable[None]]
"""Handles the messages of a call as they arrive. It is cancelled when the client disconnects."""


@final
class Method:
    """The handler of one path: `unary` or `streaming`.

    Both raise RpcError for a status other than OK. When the deadline passes, the transport cancels them.
    """

    __slots__ = ("streaming", "unary")

    def __init__(self, unary: Unary | None = None, streaming: Streaming | None = None) -> None:
        self.unary = unary
        self.streaming = streaming
