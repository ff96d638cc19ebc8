"""One call while it is under way: what has come of it, and what is still to be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, final

from headgate.service.rpc.call import Method, RpcCall, RpcError, Status

__all__ = ["MOST_MESSAGE_BYTES", "Held", "Messages", "Stream"]

MOST_MESSAGE_BYTES: Final = 1024 * 1024
"""As large as a body over HTTP may be."""
MOST_HELD_BYTES: Final = 32 * 1024 * 1024
"""What has come on one connection and is not used yet."""
PREFIX_BYTES: Final = 5
"""Of a message: whether it is compressed, and its length."""


@final
class Held:
    """How many bytes of calls a connection holds."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


@final
class Stream:
    """A call's stream. The connection moves its bytes; this puts messages together."""

    def __init__(self, number: int, call: RpcCall, method: Method, window: int, held: Held, since: float) -> None:
        self.number = number
        self.since = since
        self.call = call
        self.method = method
        self.window = window
        """How many bytes the caller takes at present; below zero when it has changed its mind."""
        self.announced: int | None = None
        """Bytes that are still to come, by what the headers have told; None when they told nothing."""
        self.complete = False
        """Whether the caller has sent everything."""
        self.answering = False
        """Whether the headers of the answer are on their way."""
        self.pending = b""
        """What is to be sent when the caller takes more."""
        self.trailers: bytes | None = None
        """How the call ends, once that is known."""
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.room: asyncio.Event | None = None
        """Set when there is something to send again for who sends many messages."""
        self._held = held
        self._received = b""
        self._messages: deque[bytes] = deque()
        self._arrived: asyncio.Event | None = None

    def take(self, data: bytes) -> None:
        """Put what has come to what was there. RpcError for what cannot be a message, or is too much."""
        held = self._received + data if self._received else data
        self._held.size += len(data)
        while len(held) >= PREFIX_BYTES:
            size = int.from_bytes(held[1:PREFIX_BYTES], "big")
            if held[0] or size > MOST_MESSAGE_BYTES:
                raise _refused(bool(held[0]), size)
            end = PREFIX_BYTES + size
            if len(held) < end:
                break
            self._messages.append(held[PREFIX_BYTES:end])
            held = held[end:]
        self._received = held
        if self._held.size > MOST_HELD_BYTES:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"calls of more than {MOST_HELD_BYTES:,} bytes are under way on this connection: send fewer at once",
            )
        if self._arrived is not None:
            self._arrived.set()

    def end(self) -> None:
        """The caller has sent everything."""
        self.complete = True
        if self._arrived is not None:
            self._arrived.set()

    def only_message(self) -> bytes:
        """The message of a unary call, which is complete."""
        if len(self._messages) != 1 or self._received:
            raise RpcError(Status.INVALID_ARGUMENT, "the call has no whole message, or more than one: send just one")
        return self._messages[0]

    async def next_message(self) -> bytes | None:
        """The next message of a streaming call; None when there are no more."""
        if self._arrived is None:
            self._arrived = asyncio.Event()
        while not self._messages:
            if self.complete:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._held.size -= PREFIX_BYTES + len(message)
        return message

    def stop(self) -> None:
        """Nobody waits for this any longer."""
        self.ended = True
        self._held.size -= len(self._received) + sum([PREFIX_BYTES + len(message) for message in self._messages])
        self._received = b""
        self._messages.clear()
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()


@final
class Messages:
    """The messages of a streaming call as they come (mypyc compiles no generators that wait)."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> bytes:
        message = await self._stream.next_message()
        if message is None:
            raise StopAsyncIteration
        return message


def _refused(compressed: bool, size: int) -> RpcError:
    if compressed:
        return RpcError(
            Status.UNIMPLEMENTED,
            "compressed messages are not read here: send them as they are",
            ((b"grpc-accept-encoding", b"identity"),),
        )
    return RpcError(
        Status.RESOURCE_EXHAUSTED,
        f"the message has {size:,} bytes, and may have {MOST_MESSAGE_BYTES:,}: send less at once",
    )
