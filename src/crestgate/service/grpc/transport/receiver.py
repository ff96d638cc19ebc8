# mypyc: compile
"""The receiving half of one connection: splits input into frames, and handles those that belong to no call.

HEADERS, CONTINUATION and DATA go to requests.py. What gRPC does not need (priorities, push) is read and ignored, as RFC
9113 requires. Protocol violations are errors: Http2StreamError resets a stream, Http2ConnectionError closes the
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from crestgate.runtime.scheduler import CLOCK_CHECK_WORK, FRAME_WORK, SLICE_WORK, WORK_PER_SECOND
from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import Method, RpcError
from crestgate.service.grpc.transport.frames import Http2ConnectionError, Http2StreamError, frame
from crestgate.service.grpc.transport.header_block import MAX_HEADER_BYTES
from crestgate.service.grpc.transport.memory import FREE_BYTES, HeldBytes
from crestgate.service.grpc.transport.requests import CONNECTION_WINDOW, MAX_STREAMS, RequestReceiver
from crestgate.service.grpc.transport.sender import Sender
from crestgate.service.grpc.transport.stream import STREAM_WINDOW, Stream

if TYPE_CHECKING:
    from crestgate.service.grpc.transport.connection import Http2Connection

__all__ = ["DRAIN_PING", "Receiver"]

DRAIN_PING: Final = b"last-ids"
"""Payload of the PING behind the first GOAWAY: its acknowledgement shows that the peer has seen that."""
STREAM_WORK: Final = 64
"""Work units (see runtime/scheduler.py) of visiting a stream."""
SMALL_READ: Final = 512
"""Bytes: so small a read, and there are many, is not worth a look at the clock."""
SERVER_PREFACE: Final = frames.settings(
    {
        frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)


@final
class Receiver:
    """The receiving half of one connection."""

    def __init__(
        self, connection: Http2Connection, methods: Mapping[bytes, Method], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.preface_received = False
        self.work = 0
        """Work units of the current slice, see runtime/scheduler.py."""
        self._connection = connection
        self._sender: Sender = connection.sender
        self._streams: dict[int, Stream] = connection.streams
        self._held: HeldBytes = connection.held
        self._requests = RequestReceiver(connection, self, methods, loop)
        self._buffer = b""
        """Input that is not handled yet, from `_offset` on."""
        self._offset = 0
        self._buffered = 0
        """Bytes of it that are counted as held."""

    def feed(self, data: bytes) -> None:
        """Append to the input."""
        self._buffer = self._buffer[self._offset :] + data if self._offset < len(self._buffer) else data
        self._offset = 0

    def clear(self) -> None:
        """Drop the input."""
        self._buffer = b""
        self._offset = 0
        self._count_buffered(0)

    def run_slice(self) -> bool:
        """Handle a slice of the input; True if there may be more complete frames."""
        data, offset = self._buffer, self._offset
        size = len(data)
        started = perf_counter() if size > SMALL_READ else 0.0
        self.work = 0
        check_at = CLOCK_CHECK_WORK if size > SMALL_READ else SLICE_WORK
        if not self.preface_received:
            offset = self._receive_preface(data)
            if not offset:
                return False
        while size - offset >= frames.FRAME_HEADER_BYTES:
            length_and_kind, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, offset)
            length = length_and_kind >> 8
            if length > frames.DEFAULT_FRAME_SIZE:
                raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "frame larger than 16,384 bytes")
            end = offset + frames.FRAME_HEADER_BYTES + length
            if end > size:
                break
            if self.work >= check_at:
                if started:
                    self.work = max(self.work, int((perf_counter() - started) * WORK_PER_SECOND))
                check_at = self.work + CLOCK_CHECK_WORK
                if self.work >= SLICE_WORK:
                    self._offset = offset
                    self._count_buffered(size)
                    return True
            self.work += FRAME_WORK + length
            payload = data[offset + frames.FRAME_HEADER_BYTES : end]
            try:
                self._handle(length_and_kind & 255, flags, stream_id & frames.MAX_STREAM_ID, payload)
            except Http2StreamError as error:
                self._connection.reset_stream(error.stream_id, error.code)
                if error.code != frames.REFUSED_STREAM:
                    self._connection.count_glitch()
                else:
                    self._connection.count_useless_frame()
            offset = end
        self._buffer = data[offset:]
        self._offset = 0
        if offset < size or self._buffered:
            self._count_buffered(size - offset)
        return False

    def _receive_preface(self, data: bytes) -> int:
        """The offset of the first frame; 0 while the preface is incomplete, or if it is not HTTP/2."""
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            self._connection.reject_http1()
            return 0
        offset = len(preface)
        if len(data) < offset + frames.FRAME_HEADER_BYTES:
            return 0
        self.preface_received = True
        self._sender.out.append(SERVER_PREFACE)
        if data[offset + 3] != frames.SETTINGS or data[offset + 4] & frames.ACK:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        return offset

    def _count_buffered(self, size: int) -> None:
        """Count unhandled input as held."""
        held = self._held
        held.size += size - self._buffered
        self._buffered = size
        if held.size > held.reserved:
            try:
                held.reserve()
            except RpcError as error:
                raise Http2ConnectionError(frames.ENHANCE_YOUR_CALM, error.message) from None
        elif held.reserved > FREE_BYTES:
            held.shrink()

    def _handle(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        open_headers = self._requests.open_headers
        if open_headers and (kind != frames.CONTINUATION or stream_id != open_headers):
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "a header block must not be interrupted")
        if kind == frames.DATA:
            self._requests.receive_data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            self._requests.receive_headers(flags, stream_id, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.PING:
            self._ping(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._rst_stream(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._requests.receive_continuation(flags, stream_id, payload)
        elif kind == frames.PRIORITY:
            self._connection.count_useless_frame()
            _check_priority(stream_id, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "a client must not send PUSH_PROMISE")
        elif kind == frames.GOAWAY and stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        else:
            self._connection.count_useless_frame()

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE length is not 4")
        self._connection.count_useless_frame()
        size = frames.read_uint32(payload) & frames.MAX_WINDOW
        if stream_id > self._connection.last_stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        if not size:
            if stream_id:
                raise Http2StreamError(stream_id, frames.PROTOCOL_ERROR)
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        stream = self._streams.get(stream_id)
        if not stream_id or stream is not None:
            self._sender.update_window(stream, size)

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "PING length is not 8")
        self._connection.count_useless_frame()
        if not flags & frames.ACK:
            self._sender.out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif payload == DRAIN_PING and self._connection.draining:
            self._connection.finish_drain()

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "RST_STREAM length is not 4")
        if not stream_id or stream_id > self._connection.last_stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._connection.stream_reset_by_peer(stream_id)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            self._connection.count_useless_frame()
            return
        self._connection.count_glitch()
        initial = self._sender.initial_window
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                initial = value
            elif name == frames.MAX_FRAME_SIZE:
                self._sender.max_frame_size = value
        self._sender.out.append(frame(frames.SETTINGS, frames.ACK, 0, b""))  # before frames that depend on them
        if initial != self._sender.initial_window:
            self.work += STREAM_WORK * len(self._streams)
            self._sender.resize_windows(self._streams, initial)


def _check_priority(stream_id: int, payload: bytes) -> None:
    """Priorities are deprecated, but must be well formed."""
    if not stream_id:
        raise Http2ConnectionError(frames.PROTOCOL_ERROR, "PRIORITY without a stream")
    if len(payload) != 5:
        raise Http2StreamError(stream_id, frames.FRAME_SIZE_ERROR)
