"""What comes on one connection of HTTP/2, frame by frame, and what is done about it.

Calls that can be answered at once are answered while the bytes that they came in are read. What is not needed for gRPC
(priorities, push, trailers of requests) is read and put aside, as RFC 9113 wants it. Who breaks its rules is told so:
StreamBroken ends a stream, Broken the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from headgate.service.rpc import frames
from headgate.service.rpc.call import Method, RpcCall, RpcError, Status
from headgate.service.rpc.frames import Broken, StreamBroken, frame
from headgate.service.rpc.headers import MOST_HEADER_BYTES, Head, Heads
from headgate.service.rpc.memory import FREE_BYTES, Held
from headgate.service.rpc.replies import WRONG_HERE, Replies
from headgate.service.rpc.scheduler import FRAME_WORK, LOOK_WORK, SLICE_WORK, TASK_WORK, WORK_PER_SECOND
from headgate.service.rpc.stream import STREAM_WINDOW, Stream

if TYPE_CHECKING:
    from headgate.service.rpc.connection import Connection

__all__ = ["Incoming"]

LAST_CALL: Final = b"headgate"
"""What a ping carries whose answer says that the peer knows it is to go."""
MOST_STREAMS: Final = 1000
MOST_PIECES: Final = 64
"""Frames that headers may be spread over."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
LONGEST_TOLD: Final = 100
"""Characters."""
STREAM_BYTES: Final = 1024
"""What a stream holds in memory beside its headers and messages."""
STREAM_WORK: Final = 64
"""Units of work (see scheduler.py) of looking at a stream again."""
SMALL_READ: Final = 512
"""Bytes: a read of so few, and there are many of them, is not worth a look at the clock."""
RESIZE_WEIGHT: Final = 10
"""Frames without use that a change of HPACK's table counts for: it makes this side decode everything anew."""
GREETING: Final = frames.settings(
    {
        frames.MOST_STREAMS: MOST_STREAMS,
        frames.INITIAL_WINDOW: STREAM_WINDOW,
        frames.MOST_HEADERS: MOST_HEADER_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
NOWHERE: Final = Method()
TOO_MANY_STREAMING_CALLS: Final = (
    "too many streaming calls are open, on this connection or on all of this worker: end some, or retry later"
)
_log = logging.getLogger("headgate.grpc")


@final
class Incoming:
    """The receiving side of one connection."""

    def __init__(
        self, connection: Connection, methods: Mapping[bytes, Method], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.greeted = False
        """Whether the peer has said what HTTP/2 begins with."""
        self.last = 0
        """The number of the newest stream."""
        self._connection = connection
        self._replies: Replies = connection.replies
        self._streams: dict[int, Stream] = connection.streams
        self._methods = methods
        self._loop = loop
        self._heads = Heads()
        self._held: Held = connection.held
        self.work = 0
        """Units of work of the slice that is handled, see scheduler.py."""
        self._received = b""
        """What was received and not handled yet, from `_at` on."""
        self._at = 0
        self._buffered = 0
        """How many bytes of it are counted as held."""
        self._begun_at = 0
        """The stream whose headers go on in the next frame; with their beginning, flags and number of pieces."""
        self._begun = b""
        self._begun_flags = 0
        self._pieces = 0
        self._uncredited = 0
        """Bytes that have come since the peer was told last that it may send as many again."""

    def receive(self, data: bytes) -> None:
        """Put what has come behind what was not handled yet."""
        self._received = self._received[self._at :] + data if self._at < len(self._received) else data
        self._at = 0

    def clear(self) -> None:
        """Drop what was not handled."""
        self._received = b""
        self._at = 0
        self._count_buffered(0)

    def read(self) -> bool:
        """Handle a slice of what has come; and say whether there may be more whole frames."""
        data, at = self._received, self._at
        size = len(data)
        started = perf_counter() if size > SMALL_READ else 0.0
        self.work = 0
        look_at = LOOK_WORK if size > SMALL_READ else SLICE_WORK
        if not self.greeted:
            at = self._greet(data)
            if not at:
                return False
        while size - at >= frames.HEAD_BYTES:
            told, flags, number = frames.HEAD.unpack_from(data, at)
            length = told >> 8
            if length > frames.DEFAULT_FRAME:
                raise Broken(frames.FRAME_SIZE_ERROR, "a frame longer than 16,384 bytes")
            end = at + frames.HEAD_BYTES + length
            if end > size:
                break
            if self.work >= look_at:
                if started:
                    self.work = max(self.work, int((perf_counter() - started) * WORK_PER_SECOND))
                look_at = self.work + LOOK_WORK
                if self.work >= SLICE_WORK:
                    self._at = at
                    self._count_buffered(size)
                    return True
            self.work += FRAME_WORK + length
            try:
                self._frame(told & 255, flags, number & frames.LARGEST_WINDOW, data[at + frames.HEAD_BYTES : end])
            except StreamBroken as broken:
                self._connection.reset(broken.stream, broken.code)
                if broken.code != frames.REFUSED_STREAM:
                    self._connection.bothered()
                else:
                    self._connection.useless_frame()
            at = end
        self._received = data[at:]
        self._at = 0
        if at < size or self._buffered:
            self._count_buffered(size - at)
        return False

    def _greet(self, data: bytes) -> int:
        """Where the first frame begins; 0 while what comes before it is not complete, or when it is something else."""
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            self._connection.speak_plainly()
            return 0
        at = len(preface)
        if len(data) < at + frames.HEAD_BYTES:
            return 0
        self.greeted = True
        self._replies.out.append(GREETING)
        if data[at + 3] != frames.SETTINGS or data[at + 4] & frames.ACK:
            raise Broken(frames.PROTOCOL_ERROR, "SETTINGS come first")
        return at

    def _count_buffered(self, size: int) -> None:
        """Count as held what was received and not handled."""
        held = self._held
        held.size += size - self._buffered
        self._buffered = size
        if held.size > held.reserved:
            try:
                held.reserve()
            except RpcError as error:
                raise Broken(frames.ENHANCE_YOUR_CALM, error.message) from None
        elif held.reserved > FREE_BYTES:
            held.shrink()

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._begun_at and (kind != frames.CONTINUATION or number != self._begun_at):
            raise Broken(frames.PROTOCOL_ERROR, "a frame between the pieces of headers")
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.PING:
            self._ping(flags, number, payload)
        elif kind == frames.RST_STREAM:
            self._reset_by_peer(number, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == frames.PRIORITY:
            self._connection.useless_frame()
            _check_priority(number, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Broken(frames.PROTOCOL_ERROR, "callers push nothing")
        elif kind == frames.GOAWAY and number:
            raise Broken(frames.PROTOCOL_ERROR, "GOAWAY of a stream")
        else:
            self._connection.useless_frame()

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number % 2:
            raise Broken(frames.PROTOCOL_ERROR, "a caller's streams have odd numbers")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        if flags & frames.PRIORITISED:
            if len(payload) < 5:
                raise Broken(frames.FRAME_SIZE_ERROR, "headers that are too short")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._headed(flags, number, payload)
        else:
            self._begun, self._begun_at, self._begun_flags, self._pieces = payload, number, flags, 0

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if not self._begun_at:
            raise Broken(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._connection.useless_frame()
        self._begun += payload
        self._pieces += 1
        if len(self._begun) > MOST_HEADER_BYTES or self._pieces > MOST_PIECES:
            raise Broken(frames.ENHANCE_YOUR_CALM, "more headers than anybody needs")
        if flags & frames.END_HEADERS:
            self._begun_at = 0
            self._headed(self._begun_flags, number, self._begun)

    def _headed(self, flags: int, number: int, packed: bytes) -> None:
        """Headers are complete: those of a new call, or those behind its messages."""
        heads = self._heads
        head = heads.read(packed)
        if heads.decoded:
            self.work += heads.decoded
            heads.decoded = 0
            if heads.resizes:
                heads.resizes = 0
                self._connection.useless_frame(RESIZE_WEIGHT)
        if number <= self.last:
            self._trailed(flags, number, head)
            return
        self.last = number
        if head.malformed:
            raise StreamBroken(number, frames.PROTOCOL_ERROR)
        if self._connection.left or len(self._streams) >= MOST_STREAMS:
            raise StreamBroken(number, frames.REFUSED_STREAM)
        if head.wrong:
            self._refuse_http(flags, number, head)
            return
        now = self._loop.time()
        self._connection.active_at = now
        self._connection.last_call_at = now
        deadline = None if head.timeout is None else now + head.timeout
        method = self._methods.get(head.path)
        held = self._held
        stream = Stream(
            number,
            RpcCall(head.path, head.metadata, self._connection.peer, deadline, head.fields),
            NOWHERE if method is None else method,
            self._replies.initial,
            held,
            STREAM_BYTES + head.size,
            now,
        )
        stream.announced = head.length
        stream.complete = flags & frames.END_STREAM != 0
        self._streams[number] = stream
        if held.size > held.reserved and not self._reserved(stream):
            return
        if method is None:
            told = repr(head.path[:LONGEST_TOLD].decode("latin-1"))
            self._replies.refuse(stream, RpcError(Status.UNIMPLEMENTED, f"there is no method {told} here"))
            return
        if method.streaming is not None:
            if not self._connection.admit_streaming(stream):
                self._replies.refuse(stream, RpcError(Status.RESOURCE_EXHAUSTED, TOO_MANY_STREAMING_CALLS))
                return
            self.work += TASK_WORK
            self._replies.begin_streaming(stream)
        if stream.complete and not stream.ended:
            self._complete(stream)

    def _reserved(self, stream: Stream) -> bool:
        """Whether there is room in memory for a new stream; else it is refused."""
        try:
            self._held.reserve()
        except RpcError as error:
            self._replies.refuse(stream, error)
            return False
        return True

    def _refuse_http(self, flags: int, number: int, head: Head) -> None:
        """Tell a browser, or whoever else has come here, that this is not for it."""
        self._connection.useless_frame()
        status = b"\x08\x03" + head.wrong  # `:status`, by the number of its name, and its value written out
        self._replies.out.append(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, status))
        if not flags & frames.END_STREAM:
            self._connection.reset(number, frames.NO_ERROR)

    def _trailed(self, flags: int, number: int, head: Head) -> None:
        stream = self._streams.get(number)
        if stream is None:
            if number not in self._connection.dropped:
                raise Broken(frames.STREAM_CLOSED, "headers of a stream that has ended")
            self._connection.useless_frame()
            return
        if stream.complete:
            raise StreamBroken(number, frames.STREAM_CLOSED)
        if head.asking or not flags & frames.END_STREAM:
            raise StreamBroken(number, frames.PROTOCOL_ERROR)
        self._complete(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._uncredited += size
        if self._uncredited > CONNECTION_WINDOW // 4:
            self._replies.out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        stream = self._streams.get(number)
        if stream is None:
            self._data_of_nobody(flags, number)
            return
        if stream.complete:
            raise StreamBroken(number, frames.STREAM_CLOSED)
        stream.receivable -= size
        if stream.receivable < 0:
            raise StreamBroken(number, frames.FLOW_CONTROL_ERROR)
        if stream.announced is not None:
            stream.announced -= len(payload)
        if not payload and not flags & frames.END_STREAM:
            self._connection.useless_frame()
        try:
            stream.take(payload)
        except RpcError as error:
            stream.complete = flags & frames.END_STREAM != 0
            self._replies.refuse(stream, error)
            return
        if flags & frames.END_STREAM:
            self._complete(stream)
        elif flags & frames.PADDED:
            stream.uncredited += size - len(payload)
            self._replies.credit(stream)

    def _data_of_nobody(self, flags: int, number: int) -> None:
        if number > self.last or not number:
            raise Broken(frames.PROTOCOL_ERROR, "data of a stream that nobody has begun")
        if number not in self._connection.dropped:
            raise StreamBroken(number, frames.STREAM_CLOSED)
        self._connection.useless_frame()
        if flags & frames.END_STREAM:
            del self._connection.dropped[number]

    def _complete(self, stream: Stream) -> None:
        """The caller has sent everything."""
        stream.end()
        if stream.announced:
            raise StreamBroken(stream.number, frames.PROTOCOL_ERROR)  # another length than it had announced
        method = stream.method
        if method.streaming is not None:
            return
        deadline = stream.call.deadline
        if deadline is not None and deadline <= self._loop.time():
            self._replies.late(stream)
            return
        try:
            message = stream.only_message()
            reply = None if method.at_once is None else method.at_once(stream.call, message)
        except RpcError as error:
            self._replies.refuse(stream, error)
        except Exception:  # noqa: BLE001 - the caller gets an answer, and nothing of the inside
            _log.exception("a gRPC call failed unforeseen")
            self._replies.refuse(stream, RpcError(Status.INTERNAL, WRONG_HERE))
        else:
            if reply is None:
                self.work += TASK_WORK
                self._replies.begin(stream, message)
            else:
                self._replies.answer(stream, reply)

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of another length than 4")
        self._connection.useless_frame()
        size = frames.number(payload) & frames.LARGEST_WINDOW
        if number > self.last:
            raise Broken(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of a stream that nobody has begun")
        if not size:
            if number:
                raise StreamBroken(number, frames.PROTOCOL_ERROR)
            raise Broken(frames.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream = self._streams.get(number)
        if not number or stream is not None:
            self._replies.opened(stream, size)

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise Broken(frames.PROTOCOL_ERROR if number else frames.FRAME_SIZE_ERROR, "no PING")
        self._connection.useless_frame()
        if not flags & frames.ACK:
            self._replies.out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif payload == LAST_CALL and self._connection.leaving:
            self._connection.take_leave()

    def _reset_by_peer(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(frames.FRAME_SIZE_ERROR, "RST_STREAM of another length than 4")
        if not number or number > self.last:
            raise Broken(frames.PROTOCOL_ERROR, "RST_STREAM of a stream that nobody has begun")
        self._connection.taken_back(number)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Broken(frames.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise Broken(frames.FRAME_SIZE_ERROR, "an acknowledgement that says something")
            self._connection.useless_frame()
            return
        self._connection.bothered()
        initial = self._replies.initial
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW:
                initial = value
            elif name == frames.MOST_FRAME:
                self._replies.longest = value
        self._replies.out.append(frame(frames.SETTINGS, frames.ACK, 0, b""))  # before anything is sent because of them
        if initial != self._replies.initial:
            self.work += STREAM_WORK * len(self._streams)
            self._replies.resized(self._streams, initial)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Broken(frames.PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def _check_priority(number: int, payload: bytes) -> None:
    """Nobody has to follow priorities any more; that they are well formed has to be seen to."""
    if not number:
        raise Broken(frames.PROTOCOL_ERROR, "PRIORITY of no stream")
    if len(payload) != 5:
        raise StreamBroken(number, frames.FRAME_SIZE_ERROR)
