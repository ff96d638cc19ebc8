# mypyc: compile
"""One HTTP/2 connection as an asyncio protocol: lifecycle, writes, and the limits of what a peer can cause.

Everything that one read causes is sent in one write. A peer cannot exhaust this side: messages are bounded (stream.py),
and so are headers, streams, their memory (memory.py) and the work at a time (runtime/scheduler.py). Who does not read
is not read from. One that resets most of its calls, or sends frames without calls, gets ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, final

from crestgate.runtime.scheduler import TASK_WORK
from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import RpcError
from crestgate.service.grpc.transport.frames import Http2ConnectionError, frame
from crestgate.service.grpc.transport.memory import HeldBytes
from crestgate.service.grpc.transport.receiver import DRAIN_PING, Receiver
from crestgate.service.grpc.transport.requests import MAX_STREAMS
from crestgate.service.grpc.transport.sender import Sender

if TYPE_CHECKING:
    from crestgate.service.grpc.transport.listener import GrpcListener
    from crestgate.service.grpc.transport.stream import Stream

__all__ = ["Http2Connection"]

MAX_GLITCHES: Final = 1000
"""Streams that a peer may reset, or have reset for its errors, and SETTINGS that it may send, beyond the calls that it
lets complete (CVE-2023-44487, rapid reset)."""
RAPID_RESET_SECONDS: Final = 0.01
"""A call that is reset later than that was not made only to be reset."""
MAX_USELESS_FRAMES: Final = 10_000
"""Frames without a call (PING, SETTINGS acknowledgements, PRIORITY, WINDOW_UPDATE, empty DATA, unknown ones) that a
peer may send between two checks of the listener, beyond those that go with its calls."""
FRAMES_PER_CALL: Final = 4
"""Such frames that go with a call: both windows, and a ping."""
MAX_STREAMING_CALLS: Final = 100
"""Open streaming calls (health's Watch, reflection) per connection: each has a task. Proxies multiplex those of many
clients on one connection."""
MAX_WORKER_STREAMING_CALLS: Final = 1000
"""Of all connections of a worker. The first of each connection is admitted beyond that: clients that watch the health
of a service have one, and others must not shut them out."""
NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port serves gRPC over HTTP/2; the HTTP API of Crestgate is on another port.\n"
)
SHUTTING_DOWN: Final = "the service is shutting down"
IDLE: Final = "idle connection"
TOO_MANY_CONNECTIONS: Final = "too many connections: idle ones are closed first"
TOO_MUCH_MEMORY: Final = "all connections together hold too many bytes, and this one holds the most"
_log = logging.getLogger("crestgate.grpc")


@final
class Http2Connection:
    """The asyncio protocol of one connection (not a subclass of asyncio.Protocol, which could not be compiled)."""

    def __init__(self, listener: GrpcListener) -> None:
        self.opened_at = listener.loop.time()
        self.active_at = self.opened_at
        """When the last call was active, for the idle timeout."""
        self.last_call_at = self.opened_at
        """When the last call started. A connection whose open calls are old may be evicted."""
        self.last_stream_id = 0
        self.peer: str | None = None
        self.streams: dict[int, Stream] = {}
        self.reset_streams: dict[int, None] = {}
        """Streams that were ended here before the peer has ended them: their frames are ignored."""
        self.draining = False
        """Whether a graceful shutdown was announced to the peer."""
        self.goaway_sent = False
        """Whether the final GOAWAY was sent: no new calls."""
        self.blocked_since: float | None = None
        """Since when the peer does not read, or does not complete the close."""
        self.useless_frames = 0
        """Frames without a call since the last check of the listener."""
        self.streaming_calls = 0
        self._listener = listener
        self._loop = listener.loop
        self._scheduler = listener.scheduler
        self._transport: Any = None
        self._glitches = 0
        self._handling = False
        self._has_input = False
        """Whether there may be unhandled frames."""
        self._queued = False
        """Whether the scheduler has this connection in a queue."""
        self._reading_paused = False
        self._flush_scheduled = False
        self._goaway_reason = SHUTTING_DOWN
        self._unread = 0
        """Bytes in the transport's write buffer, as counted in `held`."""
        self._counted = True
        """Whether the listener counts this connection."""
        self.held = HeldBytes(self, listener.memory)
        self.sender = Sender(self, listener.loop)
        self.receiver = Receiver(self, listener.methods, listener.loop)

    # asyncio's protocol.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._listener.closed:
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) and peer else None
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.goaway_sent and not self.streams:
            return
        self.receiver.feed(data)
        if self._has_input:
            return  # TLS may deliver data from before reading was paused
        if self._scheduler.may_run():
            self._handle_input()
        else:
            self._enqueue(new=True)

    def run_slice(self) -> None:
        """It is this connection's turn."""
        self._queued = False
        self._has_input = False
        if self._transport is None or self._transport.is_closing():
            self.receiver.clear()
        else:
            self._handle_input()

    def _handle_input(self) -> None:
        """Handle a slice of the input; the rest waits for the next turn."""
        self._handling = True
        more = False
        try:
            more = self.receiver.run_slice()
        except Http2ConnectionError as error:
            self._fail(error.code, error.message)
        except Exception:  # noqa: BLE001 - a bug must not leave a connection half open
            _log.exception("unhandled error in gRPC connection")
            self._fail(frames.INTERNAL_ERROR, "")
        self._handling = False
        self._has_input = more
        self._scheduler.add_work(self.receiver.work)
        self.flush()
        if self.sender.paused:
            self._pause_reading()
        elif more:
            self._enqueue()
        elif self._reading_paused:
            self._resume_reading()

    def _enqueue(self, new: bool = False) -> None:
        self._has_input = True
        self._pause_reading()
        if not self._queued:
            self._queued = True
            self._scheduler.enqueue(self, new)

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def eof_received(self) -> None:
        return None  # closes the connection: a peer that sends nothing more cannot open its windows either

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        self.release()
        self._transport = None
        self._cancel_streams()
        self.sender.out.clear()
        self._count_unread(0)
        self.receiver.clear()

    def pause_writing(self) -> None:
        """The peer does not read. Responses wait with their streams, and after the next slice it is not read from. Not
        before: a client that sends a long stream is slow at times, and must be able to reset it."""
        self.sender.paused = True
        self.blocked_since = self._loop.time()
        if self._transport is not None:
            self._count_unread(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._count_unread(0)
        if self._transport is None or self._transport.is_closing():
            self.sender.paused = False
            return
        self.blocked_since = None
        self.sender.resume()
        self.flush()
        if self.sender.paused:
            return
        for stream in self.streams.values():
            if stream.writable is not None:
                stream.writable.set()
        if self._has_input:
            self._enqueue()
        elif self._reading_paused:
            self._resume_reading()

    def _count_unread(self, size: int) -> None:
        """Count the transport's write buffer as held; the connection is aborted if that is too much."""
        held = self.held
        held.size += size - self._unread
        self._unread = size
        if held.size > held.reserved:
            try:
                held.reserve()
            except RpcError:
                self.abort()
        else:
            held.shrink()

    def release(self) -> None:
        """Stop counting this connection. Idempotent."""
        if self._counted:
            self._counted = False
            self._listener.release()

    def charge(self, work: int) -> None:
        """Add work to the current slice."""
        self.receiver.work += work

    # Writing.

    def flush(self) -> None:
        """Write all frames that are ready; while a slice is handled, its end does that."""
        self._flush_scheduled = False
        if self._handling:
            return
        if self.sender.out:
            self.write()
        if self.goaway_sent and not self.streams:
            self._close()

    def write(self) -> None:
        """Write all frames that are ready, also while a slice is handled."""
        out = self.sender.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def flush_soon(self) -> None:
        """Flush at the end of this iteration of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def reject_http1(self) -> None:
        """Respond to a peer that does not use HTTP/2."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(NOT_HTTP2)
            self._close()

    # Ends of streams.

    def finish_stream(self, stream: Stream) -> None:
        """The last frame of a response is ready."""
        stream.stop()
        if self.streams.pop(stream.stream_id, None) is None:
            return
        if stream.is_counted:
            self._release_streaming(stream)
        if self._glitches:
            self._glitches -= 1
        if self.useless_frames > 0:
            self.useless_frames -= FRAMES_PER_CALL
        if not stream.complete:
            self._remember_reset(stream.stream_id)
            self.sender.out.append(frames.rst_stream(stream.stream_id, frames.NO_ERROR))

    def reset_stream(self, stream_id: int, code: int) -> None:
        """End a stream without a response."""
        self._remove_stream(stream_id)
        self._remember_reset(stream_id)
        self.sender.out.append(frames.rst_stream(stream_id, code))

    def stream_reset_by_peer(self, stream_id: int) -> None:
        self.reset_streams.pop(stream_id, None)
        stream = self.streams.get(stream_id)
        rapid = stream is None or self._loop.time() - stream.started_at <= RAPID_RESET_SECONDS
        if stream is not None and stream.task is not None:
            self.charge(TASK_WORK)  # the task runs once more to be cancelled
        self._remove_stream(stream_id)
        if rapid:
            self.count_glitch()

    def count_glitch(self) -> None:
        """The peer has caused work without a call."""
        self._glitches += 1
        if self._glitches > MAX_GLITCHES:
            raise Http2ConnectionError(frames.ENHANCE_YOUR_CALM, "too many RST_STREAM frames, or other glitches")

    def count_useless_frame(self, weight: int = 1) -> None:
        """The peer has sent a frame without a call."""
        self.useless_frames += weight
        if self.useless_frames > MAX_USELESS_FRAMES:
            raise Http2ConnectionError(
                frames.ENHANCE_YOUR_CALM,
                "too many frames without a call: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, empty DATA, "
                "HPACK table updates or unknown ones",
            )

    def _remember_reset(self, stream_id: int) -> None:
        self.reset_streams[stream_id] = None
        if len(self.reset_streams) > MAX_STREAMS:
            del self.reset_streams[next(iter(self.reset_streams))]

    def admit_streaming(self, stream: Stream) -> bool:
        """Count a streaming call; False if this connection, or the worker, has too many."""
        listener = self._listener
        calls = self.streaming_calls
        if calls >= MAX_STREAMING_CALLS or (calls and listener.streaming_calls >= MAX_WORKER_STREAMING_CALLS):
            return False
        stream.is_counted = True
        self.streaming_calls += 1
        listener.streaming_calls += 1
        return True

    def _release_streaming(self, stream: Stream) -> None:
        stream.is_counted = False
        self.streaming_calls -= 1
        self._listener.streaming_calls -= 1

    def _cancel_streams(self) -> None:
        """End all streams. Their memory is released now; tasks are cancelled in the next iterations, a few in each."""
        for stream_id in list(self.streams):
            task = self.streams[stream_id].task
            if task is not None:
                self.streams[stream_id].task = None
                self._scheduler.cancel(task)
            self._remove_stream(stream_id)

    def _remove_stream(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            if stream.is_counted:
                self._release_streaming(stream)
            self.sender.discard(stream)
            stream.stop()

    # End of the connection.

    def drain(self, reason: str = SHUTTING_DOWN) -> None:
        """Announce a graceful shutdown; calls that the peer starts before it has seen that are still served."""
        if not self.draining and self.receiver.preface_received:
            self.draining = True
            self._goaway_reason = reason
            self.sender.out.append(frames.goaway(frames.MAX_STREAM_ID, frames.NO_ERROR, reason))
            self.sender.out.append(frame(frames.PING, 0, 0, DRAIN_PING))
            self.flush()

    def finish_drain(self) -> None:
        """Accept no new calls, and close the connection when the last one is done."""
        if not self.goaway_sent:
            self.goaway_sent = True
            self.sender.out.append(frames.goaway(self.last_stream_id, frames.NO_ERROR, self._goaway_reason))
            self.flush()

    def evict(self) -> None:
        """Close the connection now, to make room for another."""
        self.release()
        self._close_now(frames.NO_ERROR, TOO_MANY_CONNECTIONS)

    def close_for_memory(self) -> None:
        """Close the connection now, for the bytes that it holds."""
        self._close_now(frames.ENHANCE_YOUR_CALM, TOO_MUCH_MEMORY)

    def abort(self) -> None:
        """Close the socket, whatever is in progress."""
        if self._transport is not None:
            self._transport.abort()

    def _close_now(self, code: int, reason: str) -> None:
        if self.sender.paused or not self.receiver.preface_received:
            self.abort()  # the peer would not read the reason
            self._count_unread(0)
        self._fail(code, reason)
        self.flush()

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.blocked_since = self._loop.time()
            self._transport.close()

    def _fail(self, code: int, message: str) -> None:
        self.goaway_sent = True
        self._cancel_streams()
        self.receiver.clear()
        self.sender.out.append(frames.goaway(self.last_stream_id, code, message))
