"""One connection of HTTP/2 as asyncio sees it: bytes come in, calls are answered, bytes go out.

This is in the hot path, and so it is ours: everything that is to be sent because of one read is sent in one write.

A peer can make this side hold only so much: messages are bounded (stream.py), and so are headers, streams, and what a
connection holds of all that (memory.py). It can make it do only so much at a time (scheduler.py). A peer that does not
read is not read from. One that takes back most of what it asks for, or sends frames that carry no call, is told to calm
down.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, final

from headgate.service.rpc import frames
from headgate.service.rpc.call import RpcError
from headgate.service.rpc.frames import Broken, frame
from headgate.service.rpc.incoming import LAST_CALL, MOST_STREAMS, Incoming
from headgate.service.rpc.memory import Held
from headgate.service.rpc.replies import Replies
from headgate.service.rpc.scheduler import TASK_WORK

if TYPE_CHECKING:
    from headgate.service.rpc.listener import Listener
    from headgate.service.rpc.stream import Stream

__all__ = ["Connection"]

MOST_BOTHER: Final = 1000
"""Calls that a peer may take back, streams that it may have reset for its mistakes, and settings that it may change,
beyond the calls that it lets end."""
MOMENT: Final = 0.01
"""Seconds. Who waits longer for an answer before it gives up does not call only to take it back."""
MAX_USELESS_FRAMES: Final = 10_000
"""Frames that carry no call (PING, SETTINGS acknowledgements, PRIORITY, WINDOW_UPDATE, empty DATA, unknown ones) which
a peer may send between two looks of the listener, beyond those that go with its calls."""
FRAMES_PER_CALL: Final = 4
"""So many of them go with a call: both windows, and a ping to measure the way."""
MAX_STREAMING_CALLS: Final = 100
"""Streaming calls (health's Watch, reflection) of one connection at a time: each has a task for as long as it is open.
Proxies send those of many clients through one connection."""
MAX_WORKER_STREAMING_CALLS: Final = 1000
"""Of all connections of a worker. The first one of a connection is let in beyond that: clients that watch the health of
a service have one, and would else be shut out by others."""
NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"gRPC is spoken here, over HTTP/2; the HTTP API of Headgate is at another port.\n"
)
ENDING: Final = "the service ends"
IDLE: Final = "the connection was idle"
CROWDED: Final = "too many connections: idle ones are closed first"
GREEDY: Final = "all connections together hold too many bytes, and this one holds most of them"
_log = logging.getLogger("headgate.grpc")


@final
class Connection:
    """asyncio's protocol of one connection (and no subclass of it, which could not be compiled)."""

    def __init__(self, listener: Listener) -> None:
        self.since = listener.loop.time()
        self.active_at = self.since
        """When the last call began; the listener moves it on while one is under way. For the idle time-out."""
        self.last_call_at = self.since
        """When the last call began. An open call does not move it on: such a connection may have to make room."""
        self.peer: str | None = None
        self.streams: dict[int, Stream] = {}
        self.dropped: dict[int, None] = {}
        """Streams that were ended here before the peer had: what still comes of them is put aside."""
        self.left = False
        """Whether nothing new is taken any more."""
        self.leaving = False
        """Whether the peer was told to go."""
        self.stuck_since: float | None = None
        """Since when the peer has not read what is sent, or not let go of a connection that ends."""
        self.useless_frames = 0
        """Frames that carried no call; the listener sets it back every few seconds."""
        self.streaming_calls = 0
        self._listener = listener
        self._loop = listener.loop
        self._scheduler = listener.scheduler
        self._transport: Any = None
        self._bother = 0
        self._reading = False
        self._more = False
        """Whether there may be frames that were received and not handled yet."""
        self._queued = False
        """Whether the scheduler knows of that."""
        self._read_paused = False
        self._flushing = False
        self._leave_reason = ENDING
        self._unread = 0
        """Bytes in the transport that the peer does not read, as they are counted in `held`."""
        self._counted = True
        """Whether the listener counts this connection."""
        self.held = Held(self, listener.memory)
        self.replies = Replies(self, listener.loop)
        self.incoming = Incoming(self, listener.methods, listener.loop)

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._listener.closed:
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) and peer else None
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.left and not self.streams:
            return
        self.incoming.receive(data)
        if self._more:
            return  # TLS may deliver what it had before reading was paused
        if self._scheduler.may_run():
            self._handle()
        else:
            self._wait_for_turn(new=True)

    def run_slice(self) -> None:
        """It is this connection's turn."""
        self._queued = False
        self._more = False
        if self._transport is None or self._transport.is_closing():
            self.incoming.clear()
        else:
            self._handle()

    def _handle(self) -> None:
        """Handle a part of what was received; the rest waits for the next turn."""
        self._reading = True
        more = False
        try:
            more = self.incoming.read()
        except Broken as broken:
            self._break(broken.code, broken.words)
        except Exception:  # noqa: BLE001 - a mistake of ours must not leave a connection half alive
            _log.exception("a gRPC connection is cut off because of a mistake in Headgate")
            self._break(frames.INTERNAL_ERROR, "")
        self._reading = False
        self._more = more
        self._scheduler.worked(self.incoming.work)
        self.flush()
        if self.replies.paused:
            self._pause_reading()
        elif more:
            self._wait_for_turn()
        elif self._read_paused:
            self._resume_reading()

    def _wait_for_turn(self, new: bool = False) -> None:
        self._more = True
        self._pause_reading()
        if not self._queued:
            self._queued = True
            self._scheduler.enqueue(self, new)

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._read_paused = False
            self._transport.resume_reading()

    def eof_received(self) -> None:
        return None  # which closes it: who sends nothing more cannot say what it takes either

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        self.release()
        self._transport = None
        self._stop_all()
        self.replies.out.clear()
        self._count_unread(0)
        self.incoming.clear()

    def pause_writing(self) -> None:
        """The peer does not read. Responses wait with their streams, and after the next slice nothing more is read from
        it. Not before: who sends a long stream is slow at times, and must be able to take it back."""
        self.replies.paused = True
        self.stuck_since = self._loop.time()
        if self._transport is not None:
            self._count_unread(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._count_unread(0)
        if self._transport is None or self._transport.is_closing():
            self.replies.paused = False
            return
        self.stuck_since = None
        self.replies.resume()
        self.flush()
        if self.replies.paused:
            return
        for stream in self.streams.values():
            if stream.room is not None:
                stream.room.set()
        if self._more:
            self._wait_for_turn()
        elif self._read_paused:
            self._resume_reading()

    def _count_unread(self, size: int) -> None:
        """Count as held what the transport could not send. Whoever has no room for it is cut off."""
        held = self.held
        held.size += size - self._unread
        self._unread = size
        if held.size > held.reserved:
            try:
                held.reserve()
            except RpcError:
                self.cut()
        else:
            held.shrink()

    def release(self) -> None:
        """Do not count this connection any longer, once."""
        if self._counted:
            self._counted = False
            self._listener.released()

    def charge(self, work: int) -> None:
        """Count work that a frame of this connection has caused."""
        self.incoming.work += work

    # What is sent.

    def flush(self) -> None:
        """Send all that is to be sent; while bytes are read, that is done once at their end."""
        self._flushing = False
        if self._reading:
            return
        if self.replies.out:
            self.write_out()
        if self.left and not self.streams:
            self._close()

    def write_out(self) -> None:
        """Send what is ready, also while bytes are read."""
        out = self.replies.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def flush_soon(self) -> None:
        """The same, together with what else is answered in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def speak_plainly(self) -> None:
        """Somebody takes this for HTTP/1, or for something else."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(NOT_HTTP2)
            self._close()

    # How streams end, and how all of it does.

    def ended(self, stream: Stream) -> None:
        """A stream's last frame is ready to go."""
        stream.stop()
        if self.streams.pop(stream.number, None) is None:
            return
        if stream.counted:
            self._release_streaming(stream)
        if self._bother:
            self._bother -= 1
        if self.useless_frames > 0:
            self.useless_frames -= FRAMES_PER_CALL
        if not stream.complete:
            self.drop(stream.number)
            self.replies.out.append(frames.reset(stream.number, frames.NO_ERROR))

    def reset(self, number: int, code: int) -> None:
        """End a stream without an answer."""
        self._forget(number)
        self.drop(number)
        self.replies.out.append(frames.reset(number, code))

    def taken_back(self, number: int) -> None:
        """The peer has reset a stream."""
        self.dropped.pop(number, None)
        stream = self.streams.get(number)
        patient = stream is not None and self._loop.time() - stream.since > MOMENT
        if stream is not None and stream.task is not None:
            self.charge(TASK_WORK)  # which runs once more to be cancelled
        self._forget(number)
        if not patient:
            self.bothered()

    def bothered(self) -> None:
        """The peer has made this side do something that is no call."""
        self._bother += 1
        if self._bother > MOST_BOTHER:
            raise Broken(frames.ENHANCE_YOUR_CALM, "too many RST_STREAM frames, or other frames without calls")

    def useless_frame(self, weight: int = 1) -> None:
        """The peer has sent a frame that carries no call."""
        self.useless_frames += weight
        if self.useless_frames > MAX_USELESS_FRAMES:
            raise Broken(
                frames.ENHANCE_YOUR_CALM,
                "too many frames that carry no call: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, empty "
                "DATA, HPACK table updates or unknown ones",
            )

    def drop(self, number: int) -> None:
        self.dropped[number] = None
        if len(self.dropped) > MOST_STREAMS:
            del self.dropped[next(iter(self.dropped))]

    def leave(self, reason: str = ENDING) -> None:
        """Tell the peer to go elsewhere; what it asks for before it has heard is answered still."""
        if not self.leaving and self.incoming.greeted:
            self.leaving = True
            self._leave_reason = reason
            self.replies.out.append(frames.goaway(frames.LARGEST_WINDOW, frames.NO_ERROR, reason))
            self.replies.out.append(frame(frames.PING, 0, 0, LAST_CALL))
            self.flush()

    def take_leave(self) -> None:
        """The peer has heard, or had time enough: nothing new is taken, and without calls the connection ends."""
        if not self.left:
            self.left = True
            self.replies.out.append(frames.goaway(self.incoming.last, frames.NO_ERROR, self._leave_reason))
            self.flush()

    def evict(self) -> None:
        """Close it at once to make room for another one."""
        self.release()
        self._close_now(frames.NO_ERROR, CROWDED)

    def close_greedy(self) -> None:
        """Close it at once because of what it holds."""
        self._close_now(frames.ENHANCE_YOUR_CALM, GREEDY)

    def _close_now(self, code: int, reason: str) -> None:
        if self.replies.paused or not self.incoming.greeted:
            self.cut()  # nobody would read why
            self._count_unread(0)
        self._break(code, reason)
        self.flush()

    def cut(self) -> None:
        """End it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.stuck_since = self._loop.time()
            self._transport.close()

    def _break(self, code: int, words: str) -> None:
        self.left = True
        self._stop_all()
        self.incoming.clear()
        self.replies.out.append(frames.goaway(self.incoming.last, code, words))

    def admit_streaming(self, stream: Stream) -> bool:
        """Count a streaming call; False where this connection, or the worker, has too many of them."""
        listener = self._listener
        calls = self.streaming_calls
        if calls >= MAX_STREAMING_CALLS or (calls and listener.streaming_calls >= MAX_WORKER_STREAMING_CALLS):
            return False
        stream.counted = True
        self.streaming_calls += 1
        listener.streaming_calls += 1
        return True

    def _release_streaming(self, stream: Stream) -> None:
        stream.counted = False
        self.streaming_calls -= 1
        self._listener.streaming_calls -= 1

    def _stop_all(self) -> None:
        """End all streams. Their memory is released now; tasks are cancelled in the next turns, a few in each."""
        for number in list(self.streams):
            task = self.streams[number].task
            if task is not None:
                self.streams[number].task = None
                self._scheduler.cancel(task)
            self._forget(number)

    def _forget(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream is not None:
            if stream.counted:
                self._release_streaming(stream)
            self.replies.forget(stream)
            stream.stop()
