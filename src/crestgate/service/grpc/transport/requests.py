# mypyc: compile
"""Turns HEADERS, CONTINUATION and DATA frames into calls, and starts their handlers.

A unary call whose handler returns bytes is answered while its frames are read; a response to be awaited becomes a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from crestgate.runtime.scheduler import TASK_WORK, WORK_PER_SECOND
from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import AwaitableResponse, Method, RpcCall, RpcError, RpcStatus, Unary
from crestgate.service.grpc.transport.frames import Http2ConnectionError, Http2StreamError, frame
from crestgate.service.grpc.transport.header_block import MAX_HEADER_BYTES
from crestgate.service.grpc.transport.headers import HeaderDecoder, RequestHeaders
from crestgate.service.grpc.transport.memory import HeldBytes
from crestgate.service.grpc.transport.sender import INTERNAL_ERROR, Sender
from crestgate.service.grpc.transport.stream import Stream

if TYPE_CHECKING:
    from crestgate.service.grpc.transport.connection import Http2Connection
    from crestgate.service.grpc.transport.receiver import Receiver

__all__ = ["CONNECTION_WINDOW", "MAX_STREAMS", "RequestReceiver"]

MAX_STREAMS: Final = 1000
MAX_CONTINUATIONS: Final = 64
"""CONTINUATION frames of one header block."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
CLOCKED_MESSAGE: Final = 128
"""Bytes of a message: the handler of a longer one is worth a look at the clock."""
MAX_PATH_IN_ERROR: Final = 100
"""Characters."""
STREAM_BYTES: Final = 1024
"""Memory of a stream, beside its headers and messages."""
RESIZE_WEIGHT: Final = 10
"""Useless frames that an HPACK table resize counts for: it empties the header cache."""
UNIMPLEMENTED: Final = Method()
TOO_MANY_STREAMING_CALLS: Final = (
    "too many streaming calls are open, on this connection or on all of this worker: end some, or retry later"
)
_log = logging.getLogger("crestgate.grpc")


@final
class RequestReceiver:
    """Receives the requests of one connection."""

    def __init__(
        self,
        connection: Http2Connection,
        receiver: Receiver,
        methods: Mapping[bytes, Method],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.open_headers = 0
        """The stream whose header block continues in the next frame; 0 if there is none."""
        self._connection = connection
        self._receiver = receiver
        self._sender: Sender = connection.sender
        self._streams: dict[int, Stream] = connection.streams
        self._held: HeldBytes = connection.held
        self._methods = methods
        self._loop = loop
        self._decoder = HeaderDecoder()
        self._block = b""
        """The start of an incomplete header block, with its flags and number of CONTINUATION frames."""
        self._block_flags = 0
        self._continuations = 0
        self._consumed = 0
        """Bytes received since the last WINDOW_UPDATE of the connection."""

    def receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "stream ids of clients must be odd")
        if flags & frames.PADDED:
            payload = _without_padding(payload)
        if flags & frames.PRIORITY_FLAG:
            if len(payload) < 5:
                raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "HEADERS too short")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._receive_block(flags, stream_id, payload)
        else:
            self._block, self.open_headers, self._block_flags, self._continuations = payload, stream_id, flags, 0

    def receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.open_headers:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._connection.count_useless_frame()
        self._block += payload
        self._continuations += 1
        if len(self._block) > MAX_HEADER_BYTES or self._continuations > MAX_CONTINUATIONS:
            raise Http2ConnectionError(frames.ENHANCE_YOUR_CALM, "header block too large")
        if flags & frames.END_HEADERS:
            self.open_headers = 0
            self._receive_block(self._block_flags, stream_id, self._block)

    def receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._consumed += size
        if self._consumed > CONNECTION_WINDOW // 4:
            self._sender.out.append(frames.window_update(0, self._consumed))
            self._consumed = 0
        if flags & frames.PADDED:
            payload = _without_padding(payload)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._data_without_stream(flags, stream_id)
            return
        if stream.complete:
            raise Http2StreamError(stream_id, frames.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2StreamError(stream_id, frames.FLOW_CONTROL_ERROR)
        if stream.content_left is not None:
            stream.content_left -= len(payload)
        if not payload and not flags & frames.END_STREAM:
            self._connection.count_useless_frame()
        try:
            stream.receive(payload)
        except RpcError as error:
            stream.complete = flags & frames.END_STREAM != 0
            self._sender.send_error(stream, error)
            return
        if flags & frames.END_STREAM:
            self._complete(stream)
        elif flags & frames.PADDED:
            stream.consumed += size - len(payload)
            self._sender.credit(stream)

    def _data_without_stream(self, flags: int, stream_id: int) -> None:
        if stream_id > self._connection.last_stream_id or not stream_id:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "DATA on an idle stream")
        if stream_id not in self._connection.reset_streams:
            raise Http2StreamError(stream_id, frames.STREAM_CLOSED)
        self._connection.count_useless_frame()
        if flags & frames.END_STREAM:
            del self._connection.reset_streams[stream_id]

    def _receive_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """A complete header block: the headers of a new call, or trailers."""
        connection, decoder = self._connection, self._decoder
        headers = decoder.decode(block)
        if decoder.decoded:
            self._receiver.work += decoder.decoded
            decoder.decoded = 0
            if decoder.resizes:
                decoder.resizes = 0
                connection.count_useless_frame(RESIZE_WEIGHT)
        if stream_id <= connection.last_stream_id:
            self._receive_trailers(flags, stream_id, headers)
            return
        connection.last_stream_id = stream_id
        if headers.malformed:
            raise Http2StreamError(stream_id, frames.PROTOCOL_ERROR)
        if connection.goaway_sent or len(self._streams) >= MAX_STREAMS:
            raise Http2StreamError(stream_id, frames.REFUSED_STREAM)
        if headers.http_status:
            self._refuse_http(flags, stream_id, headers)
            return
        self._start_call(flags, stream_id, headers)

    def _start_call(self, flags: int, stream_id: int, headers: RequestHeaders) -> None:
        connection = self._connection
        now = self._loop.time()
        connection.active_at = now
        connection.last_call_at = now
        deadline = None if headers.timeout is None else now + headers.timeout
        method = self._methods.get(headers.path)
        held = self._held
        stream = Stream(
            stream_id,
            RpcCall(headers.path, headers.metadata, connection.peer, deadline, headers.fields),
            UNIMPLEMENTED if method is None else method,
            self._sender.initial_window,
            held,
            STREAM_BYTES + headers.size,
            now,
        )
        stream.content_left = headers.content_length
        stream.complete = flags & frames.END_STREAM != 0
        self._streams[stream_id] = stream
        if held.size > held.reserved and not self._reserve(stream):
            return
        if method is None:
            path = repr(headers.path[:MAX_PATH_IN_ERROR].decode("latin-1"))
            self._sender.send_error(stream, RpcError(RpcStatus.UNIMPLEMENTED, f"unknown method {path}"))
            return
        if method.streaming is not None:
            if not connection.admit_streaming(stream):
                self._sender.send_error(stream, RpcError(RpcStatus.RESOURCE_EXHAUSTED, TOO_MANY_STREAMING_CALLS))
                return
            self._receiver.work += TASK_WORK
            self._sender.start_streaming(stream)
        if stream.complete and not stream.ended:
            self._complete(stream)

    def _reserve(self, stream: Stream) -> bool:
        """Reserve the memory of a new stream; if that fails, the call fails."""
        try:
            self._held.reserve()
        except RpcError as error:
            self._sender.send_error(stream, error)
            return False
        return True

    def _refuse_http(self, flags: int, stream_id: int, headers: RequestHeaders) -> None:
        """Respond with an HTTP status to a request that is not gRPC, such as that of a browser."""
        self._connection.count_useless_frame()
        block = b"\x08\x03" + headers.http_status  # `:status` by its index in the static table, and a literal value
        self._sender.out.append(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, block))
        if not flags & frames.END_STREAM:
            self._connection.reset_stream(stream_id, frames.NO_ERROR)

    def _receive_trailers(self, flags: int, stream_id: int, headers: RequestHeaders) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id not in self._connection.reset_streams:
                raise Http2ConnectionError(frames.STREAM_CLOSED, "HEADERS on a closed stream")
            self._connection.count_useless_frame()
            return
        if stream.complete:
            raise Http2StreamError(stream_id, frames.STREAM_CLOSED)
        if headers.has_pseudo_headers or not flags & frames.END_STREAM:
            raise Http2StreamError(stream_id, frames.PROTOCOL_ERROR)
        self._complete(stream)

    def _complete(self, stream: Stream) -> None:
        """The request is complete: call the handler of a unary method."""
        stream.end_input()
        if stream.content_left:
            raise Http2StreamError(stream.stream_id, frames.PROTOCOL_ERROR)  # wrong content-length
        method = stream.method
        if method.unary is None:
            return
        deadline = stream.call.deadline
        if deadline is not None and deadline <= self._loop.time():
            self._sender.deadline_exceeded(stream)
            return
        try:
            message = stream.only_message()
            response = self._call(method.unary, stream.call, message)
        except RpcError as error:
            self._sender.send_error(stream, error)
        except Exception:  # noqa: BLE001 - the client gets a status, and no internals
            _log.exception("unhandled error in gRPC call")
            self._sender.send_error(stream, RpcError(RpcStatus.INTERNAL, INTERNAL_ERROR))
        else:
            if isinstance(response, bytes):
                self._sender.send_response(stream, response)
            else:
                self._receiver.work += TASK_WORK
                self._sender.start_unary(stream, response)

    def _call(self, unary: Unary, call: RpcCall, message: bytes) -> bytes | AwaitableResponse:
        """Call a handler. One with a long message is counted by the clock: most of the message may have come in earlier
        reads, and the last frame may be a small one."""
        if len(message) <= CLOCKED_MESSAGE:
            return unary(call, message)
        started = perf_counter()
        try:
            return unary(call, message)
        finally:
            self._receiver.work += int((perf_counter() - started) * WORK_PER_SECOND)


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2ConnectionError(frames.PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - payload[0]]
