"""One call while it is under way: what has come of it, and what is still to be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, final

from headgate.service.rpc.call import Method, RpcCall, RpcError, Status
from headgate.service.rpc.memory import FREE_BYTES, Held

__all__ = ["MOST_MESSAGE_BYTES", "STREAM_WINDOW", "Stream"]

MOST_MESSAGE_BYTES: Final = 1024 * 1024
"""As large as a body over HTTP may be."""
PREFIX_BYTES: Final = 5
"""Of a message: whether it is compressed, and its length."""
KEPT_BYTES: Final = 64
"""What it takes to keep a message, beside its bytes: many small ones are much."""
STREAM_WINDOW: Final = MOST_MESSAGE_BYTES + 65_536
"""What a caller may send of one stream before any of it is used: a message, and room for what goes around it."""


@final
class Stream:
    """A call's stream. The connection moves its bytes; this puts messages together."""

    def __init__(
        self, number: int, call: RpcCall, method: Method, window: int, held: Held, holding: int, since: float
    ) -> None:
        """`holding` is what it holds in memory from the start, which `held` may not have reserved yet."""
        self.number = number
        self.since = since
        """When it began; or when its answer began to wait for the caller, once that is all that is left to do."""
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
        self.sent = 0
        """How many bytes of it are sent already."""
        self.receivable = STREAM_WINDOW
        """How many bytes the caller may send at present."""
        self.uncredited = 0
        """Bytes that were used since the caller was told last that it may send as many again."""
        self.trailers: bytes | None = None
        """How the call ends, once that is known."""
        self.ended = False
        self.counted = False
        """Whether it is counted among the streaming calls of its connection and worker."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.room: asyncio.Event | None = None
        """Set when there is something to send again for who sends many messages."""
        self._held = held
        held.size += holding
        self._holding = holding
        """The part of what is held that is this stream's."""
        self._begun: bytearray | None = None
        """The beginning of a message, and the length from which on it is worth a look."""
        self._enough = 0
        self._messages: deque[bytes] = deque()
        self._arrived: asyncio.Event | None = None

    def take(self, data: bytes) -> None:
        """Put what has come to what was there. RpcError for what cannot be a message, or is too much."""
        self.hold(len(data))
        begun = self._begun
        if begun is not None:
            begun += data
            if len(begun) < self._enough:
                return
            data = bytes(begun)
            self._begun = None
        at, total = 0, len(data)
        while total - at >= PREFIX_BYTES:
            size = int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
            if data[at] or size > MOST_MESSAGE_BYTES:
                raise _refused(bool(data[at]), size)
            end = at + PREFIX_BYTES + size
            if end > total:
                break
            self.hold(KEPT_BYTES)
            self._messages.append(data[at + PREFIX_BYTES : end])
            at = end
        if at < total:
            self._begin(data[at:])
        if self._arrived is not None:
            self._arrived.set()

    def hold(self, size: int) -> None:
        """Count bytes that this stream holds. RpcError when that is too much."""
        held = self._held
        self._holding += size
        held.size += size
        if held.size > held.reserved:
            held.reserve()

    def _begin(self, data: bytes) -> None:
        """Keep the beginning of a message."""
        self._begun = bytearray(data)
        told = len(data) >= PREFIX_BYTES
        self._enough = PREFIX_BYTES + (int.from_bytes(data[1:PREFIX_BYTES], "big") if told else 0)

    def end(self) -> None:
        """The caller has sent everything."""
        self.complete = True
        if self._arrived is not None:
            self._arrived.set()

    def only_message(self) -> bytes:
        """The message of a unary call, which is complete."""
        if len(self._messages) != 1 or self._begun is not None:
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
        used = PREFIX_BYTES + len(message)
        self.uncredited += used
        self._let_go(used + KEPT_BYTES)
        return message

    def _let_go(self, size: int) -> None:
        held = self._held
        self._holding -= size
        held.size -= size
        if held.reserved > FREE_BYTES:
            held.shrink()

    def stop(self) -> None:
        """Nobody waits for this any longer."""
        self.ended = True
        held = self._held
        held.size -= self._holding
        self._holding = 0
        if held.reserved > FREE_BYTES:
            held.shrink()
        self._begun = None
        self._messages.clear()
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()


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
