"""What one connection sends: answers, as far as the peer takes them, in the order in which they are there.

HTTP/2 lets a peer say how many bytes it takes, of each stream and of all together. An answer that fits goes out as one
piece; of others, what the peer does not take yet waits with its stream.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

from headgate.service.rpc.call import RpcError, Status
from headgate.service.rpc.frames import (
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    Broken,
    StreamBroken,
    frame,
    window_update,
)
from headgate.service.rpc.headers import ANSWER, DONE, block, refusal
from headgate.service.rpc.memory import FREE_BYTES
from headgate.service.rpc.stream import Stream

if TYPE_CHECKING:
    from headgate.service.rpc.connection import Connection

__all__ = ["Replies"]

MOST_PENDING_BYTES: Final = 65_536
"""What a call with many answers may have waiting before it waits itself."""
MAX_UNSENT_BYTES: Final = 256 * 1024
"""What is made ready of responses that waited, before it is sent: only then is it seen whether the peer reads."""
CREDIT_BYTES: Final = 32_768
"""What is used of a stream before its caller is told that it may send more: less than a stream has room for beside a
message, so that nobody waits who is in the middle of one."""
LAST: Final = END_HEADERS | END_STREAM
WRONG_HERE: Final = "something went wrong here: the log says what"
_log = logging.getLogger("headgate.grpc")


@final
class Replies:
    """The sending side of one connection."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.out: list[bytes] = []
        """Frames that are ready to go."""
        self.initial = DEFAULT_WINDOW
        """What the peer takes of a new stream."""
        self.longest = DEFAULT_FRAME
        self.paused = False
        """Whether the peer does not read."""
        self._window = DEFAULT_WINDOW
        self._waiting: dict[int, Stream] = {}
        """Those that the peer would take more of, if it took more of all together; who waits longest comes first."""
        self._held = connection.held
        """Counts the bytes that wait with their streams, too."""
        self._unsent = 0
        self._connection = connection
        self._loop = loop

    def answer(self, stream: Stream, message: bytes) -> None:
        """The one message of a unary call, and its end."""
        size = 5 + len(message)
        if size > self._window or size > stream.window or size > self.longest or self.paused:
            self._send(stream, message)
            self._finish(stream, DONE)
            return
        number = stream.number
        said = stream.call.said
        head = ANSWER + block(said) if said else ANSWER
        self._window -= size
        self.out.append(
            HEAD.pack(len(head) << 8 | HEADERS, END_HEADERS, number)
            + head
            + HEAD.pack(size << 8 | DATA, 0, number)
            + (size - 5).to_bytes(5, "big")  # the first of them says that it is not compressed
            + message
            + HEAD.pack(len(DONE) << 8 | HEADERS, LAST, number)
            + DONE
        )
        self._connection.ended(stream)

    def refuse(self, stream: Stream, error: RpcError) -> None:
        """End a call with a status and why. What of an answer is still to be sent is not sent."""
        if not stream.ended:
            self.forget(stream)
            self._finish(stream, refusal(error.status, error.message, error.trailers))

    def begin(self, stream: Stream, message: bytes) -> None:
        """Answer a unary call when that can be done."""
        if self._in_time(stream):
            stream.task = self._loop.create_task(self._unary(stream, message))

    def begin_streaming(self, stream: Stream) -> None:
        if self._in_time(stream):
            stream.task = self._loop.create_task(self._streaming(stream))

    def opened(self, stream: Stream | None, size: int) -> None:
        """The peer takes so much more, of a stream or of all together."""
        if stream is None:
            self._window += size
            if self._window > LARGEST_WINDOW:
                raise Broken(FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            self._serve()
        else:
            stream.window += size
            if stream.window > LARGEST_WINDOW:
                raise StreamBroken(stream.number, FLOW_CONTROL_ERROR)
            if stream.pending:
                self._push(stream)

    def resized(self, streams: dict[int, Stream], initial: int) -> None:
        """The peer takes so much of each stream, also of those that are there."""
        change, self.initial = initial - self.initial, initial
        for stream in list(streams.values()):
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise Broken(FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            if stream.pending:
                self._push(stream)

    def forget(self, stream: Stream) -> None:
        """What is still to be sent of a stream is not sent."""
        held = self._held
        held.size -= len(stream.pending)
        if held.reserved > FREE_BYTES:
            held.shrink()
        stream.pending = b""
        stream.sent = 0
        self._waiting.pop(stream.number, None)

    def resume(self) -> None:
        """The peer reads again: send what has waited for that."""
        self.paused = False
        self._serve()

    def credit(self, stream: Stream) -> None:
        """Let the caller send as much again as was used."""
        if stream.uncredited >= CREDIT_BYTES and not stream.complete and not stream.ended:
            self.out.append(window_update(stream.number, stream.uncredited))
            stream.receivable += stream.uncredited
            stream.uncredited = 0
            self._connection.flush_soon()

    def _head(self, stream: Stream) -> None:
        if not stream.answering:
            stream.answering = True
            self.out.append(frame(HEADERS, END_HEADERS, stream.number, ANSWER + block(stream.call.said)))

    def _send(self, stream: Stream, message: bytes) -> None:
        self._head(stream)
        rest = stream.pending[stream.sent :]
        held = self._held
        held.size += 5 + len(message) - stream.sent
        stream.pending, stream.sent = rest + len(message).to_bytes(5, "big") + message, 0
        self._push(stream)
        if stream.pending and held.size > held.reserved:
            try:
                held.reserve()
            except RpcError as error:
                self.refuse(stream, error)

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        if stream.ended:
            return
        stream.trailers = trailers
        if stream.pending:
            stream.since = self._loop.time()
        else:
            self._end(stream)

    def _serve(self) -> None:
        """Send of those that have waited, a frame of each in turn, as much as the peer takes."""
        self._unsent = 0
        while self._window > 0 and self._waiting and not self.paused:
            number = next(iter(self._waiting))
            stream = self._waiting.pop(number)
            if self._piece(stream):
                self._waiting[number] = stream
            if self._unsent > MAX_UNSENT_BYTES:
                self._unsent = 0
                self._connection.write_out()

    def _push(self, stream: Stream) -> None:
        """Send as much of a stream as the peer takes."""
        while self._piece(stream):
            pass

    def _piece(self, stream: Stream) -> bool:
        """Send one frame of what is pending, if the peer takes one; and say whether another is to be tried."""
        sent = stream.sent
        rest = len(stream.pending) - sent
        size = min(rest, self._window, stream.window, self.longest)
        if size <= 0 or self.paused:
            if stream.window > 0:
                self._waiting[stream.number] = stream
            return False
        self.out.append(frame(DATA, 0, stream.number, stream.pending[sent : sent + size]))
        stream.sent += size
        self._unsent += size
        self._window -= size
        stream.window -= size
        if size < rest:
            return True
        self.forget(stream)
        if stream.room is not None:
            stream.room.set()
        if stream.trailers is not None:
            self._end(stream)
        return False

    def _end(self, stream: Stream) -> None:
        assert stream.trailers is not None
        head = b"" if stream.answering else ANSWER + block(stream.call.said)
        self.out.append(frame(HEADERS, LAST, stream.number, head + stream.trailers))
        self._connection.ended(stream)

    def _in_time(self, stream: Stream) -> bool:
        """Whether there is time left to answer; from then on the deadline is watched."""
        deadline = stream.call.deadline
        if deadline is None:
            return True
        if deadline <= self._loop.time():
            self.late(stream)
            return False
        stream.timer = self._loop.call_at(deadline, self.late, stream)
        return True

    def late(self, stream: Stream) -> None:
        """The deadline of a call has passed."""
        self.refuse(stream, RpcError(Status.DEADLINE_EXCEEDED, "this was not done by the deadline of the call"))
        self._connection.flush()

    async def _unary(self, stream: Stream, message: bytes) -> None:
        assert stream.method.in_time is not None
        try:
            reply = await stream.method.in_time(stream.call, message)
        except RpcError as error:
            self._over(stream, error)
        except Exception:  # noqa: BLE001 - the caller gets an answer, and nothing of the inside
            _log.exception("a gRPC call failed unforeseen")
            self._over(stream, RpcError(Status.INTERNAL, WRONG_HERE))
        else:
            stream.task = None
            if not stream.ended:
                self.answer(stream, reply)
                self._connection.flush_soon()

    async def _streaming(self, stream: Stream) -> None:
        assert stream.method.streaming is not None
        stream.room = asyncio.Event()
        try:
            await stream.method.streaming(stream.call, _Messages(self, stream), _Sender(self, stream))
        except RpcError as error:
            self._over(stream, error)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("a gRPC call failed unforeseen")
            self._over(stream, RpcError(Status.INTERNAL, WRONG_HERE))
        else:
            stream.task = None
            if not stream.ended:
                self._head(stream)
                self._finish(stream, DONE)
                self._connection.flush_soon()

    def _over(self, stream: Stream, error: RpcError) -> None:
        """What answers a call has ended it so. What it has sent before goes first."""
        stream.task = None
        self._finish(stream, refusal(error.status, error.message, error.trailers))
        self._connection.flush_soon()

    async def send(self, stream: Stream, message: bytes) -> None:
        """One of many messages; waits while the peer does not take those before it."""
        assert stream.room is not None
        while self.paused or len(stream.pending) - stream.sent > MOST_PENDING_BYTES:
            stream.room.clear()
            await stream.room.wait()
        if not stream.ended:
            self._send(stream, message)
            self._connection.flush()  # at once: only so is it seen when the peer does not read


@final
class _Messages:
    """The messages of a streaming call as they come (mypyc compiles no generators that wait)."""

    def __init__(self, replies: Replies, stream: Stream) -> None:
        self._replies = replies
        self._stream = stream

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> bytes:
        message = await self._stream.next_message()
        if message is None:
            raise StopAsyncIteration
        self._replies.credit(self._stream)
        return message


@final
class _Sender:
    """Sends the messages of one call."""

    def __init__(self, replies: Replies, stream: Stream) -> None:
        self._replies = replies
        self._stream = stream

    async def __call__(self, message: bytes) -> None:
        await self._replies.send(self._stream, message)
