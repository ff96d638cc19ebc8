"""Shares the event loop of a worker between the connections of the gRPC listener.

A peer may send as fast as it likes, and one read returns up to 256 KiB: thousands of frames. Were all of them handled
at once, everybody else (HTTP is answered on the same loop) would wait. So work is counted, in units of about one byte,
and a connection handles one slice of what it has received and then waits in a queue for its next one. Meanwhile it is
not read from, so that TCP makes the peer wait. All connections together get so much per turn of the loop. What takes
longer than its bytes let expect is counted by the clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headgate.service.rpc.connection import Connection

__all__ = ["FRAME_WORK", "LOOK_WORK", "SLICE_WORK", "TASK_WORK", "TURN_WORK", "WORK_PER_SECOND", "Scheduler"]

FRAME_WORK: Final = 64
"""Units of a frame, beside one for each byte of its payload."""
TASK_WORK: Final = 2048
"""Units of a call that is answered by a task: what the task does comes later, and all of it in one turn."""
SLICE_WORK: Final = 65_536
"""What one connection may do before it is another one's turn. About 200 small calls, or a millisecond."""
WORK_PER_SECOND: Final = 1000.0 * SLICE_WORK
"""A slice takes no longer than a millisecond, and what was under way at its end."""
LOOK_WORK: Final = 2048
"""After so much the clock is looked at."""
TURN_WORK: Final = SLICE_WORK
"""What connections may do in one turn of the loop: so much of what was just received, and so much of what waits."""
LIGHT_WORK: Final = SLICE_WORK // 4
"""Less than that is not worth a turn of its own."""
CANCELLED_PER_TURN: Final = 64
"""Tasks of closed connections that are cancelled in one turn: each of them runs once more for that."""


@final
class Scheduler:
    """Says which connection of a listener may go on.

    What is received is handled at once while there is little to do. Else its connection waits: for its first slice
    before all that have had one, so that a caller with little to say does not wait for those with much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: deque[Connection] = deque()
        self._heavy: deque[Connection] = deque()
        """Those that have had a slice of what they received, and have more."""
        self._cancelled: deque[asyncio.Task[None]] = deque()
        """Tasks whose connection is closed, and which are still to be cancelled."""
        self._scheduled = False
        self._work = 0

    def may_run(self) -> bool:
        """Whether what has just been received may be handled in this turn."""
        return self._work < TURN_WORK

    def worked(self, work: int) -> None:
        """So much was done in this turn."""
        self._work += work
        if self._work >= LIGHT_WORK:
            self._schedule()

    def enqueue(self, connection: Connection, new: bool) -> None:
        """Let a connection go on when it is its turn."""
        if new:
            self._new.append(connection)
        else:
            self._heavy.append(connection)
        self._schedule()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel a task in one of the next turns."""
        self._cancelled.append(task)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Begin a turn: give those that wait a slice each, as far as one turn goes. One of the heavy ones is always
        among them, or they would wait for ever where there are many new ones."""
        self._scheduled = False
        self._work = 0
        for _ in range(len(self._new)):
            if self._work >= TURN_WORK:
                break
            self._new.popleft().run_slice()
        if self._heavy:
            self._heavy.popleft().run_slice()
        for _ in range(min(len(self._cancelled), CANCELLED_PER_TURN)):
            self._cancelled.popleft().cancel()
        self._work = 0
        if self._new or self._heavy or self._cancelled:
            self._schedule()
