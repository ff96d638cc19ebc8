# mypyc: compile
"""One HTTP/2 stream, which is one gRPC call: its messages, flow control windows and response."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, final

from crestgate.service.grpc.transport.call import Method, RpcCall, RpcError, RpcStatus
from crestgate.service.grpc.transport.memory import FREE_BYTES, HeldBytes

__all__ = ["MAX_MESSAGE_BYTES", "STREAM_WINDOW", "Stream"]

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""As large as an HTTP body may be."""
PREFIX_BYTES: Final = 5
"""Of a message: compressed flag, and length."""
MESSAGE_OVERHEAD: Final = 64
"""Memory of a message, beside its bytes: many small ones add up."""
STREAM_WINDOW: Final = MAX_MESSAGE_BYTES + 65_536
"""Bytes that a client may send on a stream before any are consumed: a message, and some more."""


@final
class Stream:
    """One call. The connection moves its bytes; this class assembles messages."""

    def __init__(
        self, stream_id: int, call: RpcCall, method: Method, window: int, held: HeldBytes, size: int, now: float
    ) -> None:
        """`size` is its memory from the start, which `held` may not have reserved yet."""
        self.stream_id = stream_id
        self.started_at = now
        """Also set when the call is done and only its response waits for the client."""
        self.call = call
        self.method = method
        self.window = window
        """Bytes that the client accepts; negative after it has reduced INITIAL_WINDOW_SIZE."""
        self.content_left: int | None = None
        """Bytes to come, by the content-length header; None without one."""
        self.complete = False
        """Whether the client has sent END_STREAM."""
        self.headers_sent = False
        """Whether the response headers are sent."""
        self.pending = b""
        """Response data that waits for the client's window."""
        self.sent = 0
        """Bytes of it that are sent already."""
        self.receive_window = STREAM_WINDOW
        """Bytes that the client may send."""
        self.consumed = 0
        """Bytes consumed since the last WINDOW_UPDATE."""
        self.trailers: bytes | None = None
        """The end of the response, when it is known."""
        self.ended = False
        self.is_counted = False
        """Whether it is counted among the streaming calls of its connection and worker."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.writable: asyncio.Event | None = None
        """Set when a streaming handler may send again."""
        self._held = held
        held.size += size
        self._size = size
        """Bytes held by this stream."""
        self._partial: bytearray | None = None
        """An incomplete message, and the length at which it is parsed again."""
        self._needed = 0
        self._messages: deque[bytes] = deque()
        self._arrived: asyncio.Event | None = None

    def receive(self, data: bytes) -> None:
        """Add data of the client; RpcError if it is invalid or too large."""
        self._hold(len(data))
        partial = self._partial
        if partial is not None:
            partial += data
            if len(partial) < self._needed:
                return
            data = bytes(partial)
            self._partial = None
        offset, total = 0, len(data)
        while total - offset >= PREFIX_BYTES:
            size = int.from_bytes(data[offset + 1 : offset + PREFIX_BYTES], "big")
            if data[offset] or size > MAX_MESSAGE_BYTES:
                raise _message_error(bool(data[offset]), size)
            end = offset + PREFIX_BYTES + size
            if end > total:
                break
            self._hold(MESSAGE_OVERHEAD)
            self._messages.append(data[offset + PREFIX_BYTES : end])
            offset = end
        if offset < total:
            self._keep_partial(data[offset:])
        if self._arrived is not None:
            self._arrived.set()

    def _hold(self, size: int) -> None:
        held = self._held
        self._size += size
        held.size += size
        if held.size > held.reserved:
            held.reserve()

    def _keep_partial(self, data: bytes) -> None:
        self._partial = bytearray(data)
        has_prefix = len(data) >= PREFIX_BYTES
        self._needed = PREFIX_BYTES + (int.from_bytes(data[1:PREFIX_BYTES], "big") if has_prefix else 0)

    def end_input(self) -> None:
        """The client has sent END_STREAM."""
        self.complete = True
        if self._arrived is not None:
            self._arrived.set()

    def only_message(self) -> bytes:
        """The message of a complete unary call."""
        if len(self._messages) != 1 or self._partial is not None:
            raise RpcError(RpcStatus.INVALID_ARGUMENT, "a unary call must have exactly one complete message")
        return self._messages[0]

    async def next_message(self) -> bytes | None:
        """The next message of a streaming call; None at the end."""
        if self._arrived is None:
            self._arrived = asyncio.Event()
        while not self._messages:
            if self.complete:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        consumed = PREFIX_BYTES + len(message)
        self.consumed += consumed
        held = self._held
        self._size -= consumed + MESSAGE_OVERHEAD
        held.size -= consumed + MESSAGE_OVERHEAD
        if held.reserved > FREE_BYTES:
            held.shrink()
        return message

    def stop(self) -> None:
        """Release everything, and cancel the handler."""
        self.ended = True
        held = self._held
        held.size -= self._size
        self._size = 0
        if held.reserved > FREE_BYTES:
            held.shrink()
        self._partial = None
        self._messages.clear()
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()


def _message_error(compressed: bool, size: int) -> RpcError:
    if compressed:
        return RpcError(
            RpcStatus.UNIMPLEMENTED,
            "compressed messages are not supported: send them uncompressed",
            ((b"grpc-accept-encoding", b"identity"),),
        )
    return RpcError(
        RpcStatus.RESOURCE_EXHAUSTED,
        f"the message has {size:,} bytes, and the limit is {MAX_MESSAGE_BYTES:,}: send smaller messages",
    )
