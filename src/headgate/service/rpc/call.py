"""What a call is to whoever answers it: bytes in, bytes out, and a status when something is wrong.

The listener knows HTTP/2 and gRPC's framing, and nothing of limits; what is called knows messages, and nothing of
frames. Between them stand the types of this file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import final

__all__ = ["AtOnce", "InTime", "Metadata", "Method", "RpcCall", "RpcError", "Send", "Status", "Streaming"]

Metadata = Sequence[tuple[bytes, bytes]]
"""Headers in their order; names in lower case, without those that begin with a colon."""


class Status(IntEnum):
    """gRPC's status codes, as far as any is used here."""

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
    """A call that is answered with a status other than OK. `trailers` go along with it."""

    def __init__(self, status: Status, message: str, trailers: Metadata = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.trailers = trailers


@final
class RpcCall:
    """One call: what is called, by whom, and until when it is waited for."""

    __slots__ = ("deadline", "fields", "metadata", "path", "peer", "said")

    def __init__(
        self,
        path: bytes,
        metadata: Metadata,
        peer: str | None,
        deadline: float | None,
        fields: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.path = path
        """As in `/package.Service/Method`."""
        self.metadata = metadata
        self.fields: Mapping[bytes, bytes] = dict(metadata) if fields is None else fields
        """The same by name; of several with one name, the last. Headers that are sent again are taken apart once."""
        self.peer = peer
        """The address that the connection came from; None for a socket without."""
        self.deadline = deadline
        """In the event loop's time; None when the caller waits for ever."""
        self.said: Metadata = ()
        """Headers of the answer, to be set before the first message is sent."""


AtOnce = Callable[[RpcCall, bytes], "bytes | None"]
"""Answers a message without waiting for anything, or says None, and then the method's `in_time` is asked."""
InTime = Callable[[RpcCall, bytes], Awaitable[bytes]]
Send = Callable[[bytes], Awaitable[None]]
Streaming = Callable[[RpcCall, AsyncIterator[bytes], Send], Awaitable[None]]
"""Answers the messages of a call as they come, with as many as it likes. It is cancelled when the caller goes."""


@final
class Method:
    """What answers at one path: unary (`in_time`, and perhaps `at_once`), or `streaming`.

    All of them raise RpcError to answer with another status than OK. When a deadline passes, the listener cancels what
    is under way and says so.
    """

    __slots__ = ("at_once", "in_time", "streaming")

    def __init__(
        self, in_time: InTime | None = None, at_once: AtOnce | None = None, streaming: Streaming | None = None
    ) -> None:
        self.in_time = in_time
        self.at_once = at_once
        self.streaming = streaming
