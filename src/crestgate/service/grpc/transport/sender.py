# mypyc: compile
"""The sending half of one connection: responses, within the flow control windows of the peer.

A response that fits the windows is sent as one piece. Otherwise the rest waits with its stream.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, final

from crestgate.service.grpc.transport.call import AwaitableResponse, RpcError, RpcStatus
from crestgate.service.grpc.transport.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_HEADER,
    HEADERS,
    MAX_WINDOW,
    Http2ConnectionError,
    Http2StreamError,
    frame,
    window_update,
)
from crestgate.service.grpc.transport.headers import OK_TRAILERS, RESPONSE_HEADERS, encode_headers, error_trailers
from crestgate.service.grpc.transport.memory import FREE_BYTES
from crestgate.service.grpc.transport.stream import Stream

if TYPE_CHECKING:
    from crestgate.service.grpc.transport.connection import Http2Connection

__all__ = ["INTERNAL_ERROR", "Sender"]

MAX_PENDING_BYTES: Final = 65_536
"""Pending data of a streaming call, before its handler has to wait."""
MAX_UNSENT_BYTES: Final = 256 * 1024
"""Pending data that is framed before it is written: only a write shows whether the peer reads."""
CREDIT_BYTES: Final = 32_768
"""Consumed bytes of a stream before a WINDOW_UPDATE: less than its window has beside one message, so that no client
waits in the middle of a message."""
TRAILERS_FLAGS: Final = END_HEADERS | END_STREAM
INTERNAL_ERROR: Final = "internal error: see the log of the service"
_log = logging.getLogger("crestgate.grpc")


@final
class Sender:
    """The sending half of one connection."""

    def __init__(self, connection: Http2Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.out: list[bytes] = []
        """Frames that are ready to be written."""
        self.initial_window = DEFAULT_WINDOW
        """Send window of a new stream."""
        self.max_frame_size = DEFAULT_FRAME_SIZE
        self.paused = False
        """Whether the peer does not read."""
        self._window = DEFAULT_WINDOW
        self._waiting: dict[int, Stream] = {}
        """Streams that wait for the connection window, longest wait first."""
        self._held = connection.held
        """Includes pending data of streams."""
        self._unsent = 0
        self._connection = connection
        self._loop = loop

    def send_response(self, stream: Stream, message: bytes) -> None:
        """Send the message of a unary call, and end it."""
        size = 5 + len(message)
        if size > self._window or size > stream.window or size > self.max_frame_size or self.paused:
            self._send_message(stream, message)
            self._finish(stream, OK_TRAILERS)
            return
        stream_id = stream.stream_id
        more = stream.call.response_headers
        headers = RESPONSE_HEADERS + encode_headers(more) if more else RESPONSE_HEADERS
        self._window -= size
        self.out.append(
            FRAME_HEADER.pack(len(headers) << 8 | HEADERS, END_HEADERS, stream_id)
            + headers
            + FRAME_HEADER.pack(size << 8 | DATA, 0, stream_id)
            + (size - 5).to_bytes(5, "big")  # the first byte says that it is not compressed
            + message
            + FRAME_HEADER.pack(len(OK_TRAILERS) << 8 | HEADERS, TRAILERS_FLAGS, stream_id)
            + OK_TRAILERS
        )
        self._connection.finish_stream(stream)

    def send_error(self, stream: Stream, error: RpcError) -> None:
        """End a call with an error. Pending response data is discarded."""
        if not stream.ended:
            self.discard(stream)
            self._finish(stream, error_trailers(error.status, error.message, error.trailers))

    def start_unary(self, stream: Stream, response: AwaitableResponse) -> None:
        """Send the response of a unary call when it is there."""
        if self._start_deadline(stream):
            stream.task = self._loop.create_task(self._run_unary(stream, response))
            stream.task.add_done_callback(partial(_close, response))
        else:
            response.close()

    def start_streaming(self, stream: Stream) -> None:
        if self._start_deadline(stream):
            stream.task = self._loop.create_task(self._run_streaming(stream))

    def update_window(self, stream: Stream | None, size: int) -> None:
        """WINDOW_UPDATE of a stream, or of the connection."""
        if stream is None:
            self._window += size
            if self._window > MAX_WINDOW:
                raise Http2ConnectionError(FLOW_CONTROL_ERROR, "flow control window above 2^31-1")
            self._send_waiting()
        else:
            stream.window += size
            if stream.window > MAX_WINDOW:
                raise Http2StreamError(stream.stream_id, FLOW_CONTROL_ERROR)
            if stream.pending:
                self._send_pending(stream)

    def resize_windows(self, streams: dict[int, Stream], initial: int) -> None:
        """INITIAL_WINDOW_SIZE has changed, which applies to open streams, too."""
        change, self.initial_window = initial - self.initial_window, initial
        for stream in list(streams.values()):
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise Http2ConnectionError(FLOW_CONTROL_ERROR, "flow control window above 2^31-1")
            if stream.pending:
                self._send_pending(stream)

    def discard(self, stream: Stream) -> None:
        """Discard pending data of a stream."""
        held = self._held
        held.size -= len(stream.pending)
        if held.reserved > FREE_BYTES:
            held.shrink()
        stream.pending = b""
        stream.sent = 0
        self._waiting.pop(stream.stream_id, None)

    def resume(self) -> None:
        """The peer reads again."""
        self.paused = False
        self._send_waiting()

    def credit(self, stream: Stream) -> None:
        """Let the client send as many bytes as were consumed."""
        if stream.consumed >= CREDIT_BYTES and not stream.complete and not stream.ended:
            self.out.append(window_update(stream.stream_id, stream.consumed))
            stream.receive_window += stream.consumed
            stream.consumed = 0
            self._connection.flush_soon()

    def deadline_exceeded(self, stream: Stream) -> None:
        """End a call whose deadline has passed."""
        self.send_error(stream, RpcError(RpcStatus.DEADLINE_EXCEEDED, "deadline exceeded"))
        self._connection.flush()

    async def send(self, stream: Stream, message: bytes) -> None:
        """Send a message of a streaming call; waits while the peer does not read."""
        assert stream.writable is not None
        while self.paused or len(stream.pending) - stream.sent > MAX_PENDING_BYTES:
            stream.writable.clear()
            await stream.writable.wait()
        if not stream.ended:
            self._send_message(stream, message)
            self._connection.flush()  # now: only a write shows whether the peer reads

    def _send_headers(self, stream: Stream) -> None:
        if not stream.headers_sent:
            stream.headers_sent = True
            headers = RESPONSE_HEADERS + encode_headers(stream.call.response_headers)
            self.out.append(frame(HEADERS, END_HEADERS, stream.stream_id, headers))

    def _send_message(self, stream: Stream, message: bytes) -> None:
        self._send_headers(stream)
        rest = stream.pending[stream.sent :]
        held = self._held
        held.size += 5 + len(message) - stream.sent
        stream.pending, stream.sent = rest + len(message).to_bytes(5, "big") + message, 0
        self._send_pending(stream)
        if stream.pending and held.size > held.reserved:
            try:
                held.reserve()
            except RpcError as error:
                self.send_error(stream, error)

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        if stream.ended:
            return
        stream.trailers = trailers
        if stream.pending:
            stream.started_at = self._loop.time()
        else:
            self._send_trailers(stream)

    def _send_waiting(self) -> None:
        """Send waiting data within the connection window, one frame of each stream in turn."""
        self._unsent = 0
        while self._window > 0 and self._waiting and not self.paused:
            stream_id = next(iter(self._waiting))
            stream = self._waiting.pop(stream_id)
            if self._send_frame(stream):
                self._waiting[stream_id] = stream
            if self._unsent > MAX_UNSENT_BYTES:
                self._unsent = 0
                self._connection.write()

    def _send_pending(self, stream: Stream) -> None:
        """Send pending data of a stream within its windows."""
        while self._send_frame(stream):
            pass

    def _send_frame(self, stream: Stream) -> bool:
        """Send one frame of pending data if the windows allow it; True if there is more to try."""
        sent = stream.sent
        rest = len(stream.pending) - sent
        size = min(rest, self._window, stream.window, self.max_frame_size)
        if size <= 0 or self.paused:
            if stream.window > 0:
                self._waiting[stream.stream_id] = stream
            return False
        self.out.append(frame(DATA, 0, stream.stream_id, stream.pending[sent : sent + size]))
        stream.sent += size
        self._unsent += size
        self._window -= size
        stream.window -= size
        if size < rest:
            return True
        self.discard(stream)
        if stream.writable is not None:
            stream.writable.set()
        if stream.trailers is not None:
            self._send_trailers(stream)
        return False

    def _send_trailers(self, stream: Stream) -> None:
        assert stream.trailers is not None
        headers = b"" if stream.headers_sent else RESPONSE_HEADERS + encode_headers(stream.call.response_headers)
        self.out.append(frame(HEADERS, TRAILERS_FLAGS, stream.stream_id, headers + stream.trailers))
        self._connection.finish_stream(stream)

    def _start_deadline(self, stream: Stream) -> bool:
        """Start the deadline timer of a call; False if the deadline has passed already."""
        deadline = stream.call.deadline
        if deadline is None:
            return True
        if deadline <= self._loop.time():
            self.deadline_exceeded(stream)
            return False
        stream.timer = self._loop.call_at(deadline, self.deadline_exceeded, stream)
        return True

    async def _run_unary(self, stream: Stream, response: AwaitableResponse) -> None:
        try:
            message = await response
        except RpcError as error:
            self._fail(stream, error)
        except Exception:  # noqa: BLE001 - the client gets a status, and no internals
            _log.exception("unhandled error in gRPC call")
            self._fail(stream, RpcError(RpcStatus.INTERNAL, INTERNAL_ERROR))
        else:
            stream.task = None
            if not stream.ended:
                self.send_response(stream, message)
                self._connection.flush_soon()

    async def _run_streaming(self, stream: Stream) -> None:
        assert stream.method.streaming is not None
        stream.writable = asyncio.Event()
        try:
            await stream.method.streaming(stream.call, _Messages(self, stream), _Send(self, stream))
        except RpcError as error:
            self._fail(stream, error)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("unhandled error in gRPC call")
            self._fail(stream, RpcError(RpcStatus.INTERNAL, INTERNAL_ERROR))
        else:
            stream.task = None
            if not stream.ended:
                self._send_headers(stream)
                self._finish(stream, OK_TRAILERS)
                self._connection.flush_soon()

    def _fail(self, stream: Stream, error: RpcError) -> None:
        """End a call with the error of its handler, after the messages that it has sent."""
        stream.task = None
        self._finish(stream, error_trailers(error.status, error.message, error.trailers))
        self._connection.flush_soon()


def _close(response: AwaitableResponse, _: asyncio.Task[None]) -> None:
    """Close a response whose task was cancelled before it started. One that has ended is closed already."""
    response.close()


@final
class _Messages:
    """Iterates over the messages of a streaming call (mypyc does not compile async generators)."""

    def __init__(self, sender: Sender, stream: Stream) -> None:
        self._sender = sender
        self._stream = stream

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> bytes:
        message = await self._stream.next_message()
        if message is None:
            raise StopAsyncIteration
        self._sender.credit(self._stream)
        return message


@final
class _Send:
    """Sends messages of one streaming call."""

    def __init__(self, sender: Sender, stream: Stream) -> None:
        self._sender = sender
        self._stream = stream

    async def __call__(self, message: bytes) -> None:
        await self._sender.send(self._stream, message)
