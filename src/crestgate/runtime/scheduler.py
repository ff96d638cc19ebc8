# mypyc: compile
"""Fair scheduling of the connections of a listener on a worker's event loop.

A peer may send as fast as it likes, and one read returns up to 256 KiB: thousands of frames or commands. If all of them
were handled at once, everybody else would wait, including HTTP on the same loop. So work is counted, in units of about
one byte: a connection handles one slice of its input and then waits in a queue for the next. Meanwhile it is not read
from, so TCP makes the peer wait. All connections together have a budget per iteration of the loop. What takes longer
than its size suggests is counted by the clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, final

__all__ = [
    "CLOCK_CHECK_WORK",
    "FRAME_WORK",
    "SLICE_WORK",
    "TASK_WORK",
    "TURN_WORK",
    "WORK_PER_SECOND",
    "ScheduledConnection",
    "Scheduler",
]

FRAME_WORK: Final = 64
"""Units of a frame, beside one for each byte of its payload."""
TASK_WORK: Final = 2048
"""Units of a call that is handled by a task, which runs later, in one iteration."""
SLICE_WORK: Final = 65_536
"""Units of one slice: about 200 small calls, or a millisecond."""
WORK_PER_SECOND: Final = 1000.0 * SLICE_WORK
"""A slice ends after a millisecond, when the current frame is done."""
CLOCK_CHECK_WORK: Final = 2048
"""Units between two looks at the clock."""
TURN_WORK: Final = SLICE_WORK
"""Units per iteration of the loop, of new input and of queued input each."""
LIGHT_WORK: Final = SLICE_WORK // 4
"""Less is not worth an iteration of its own."""
CANCELLED_PER_TURN: Final = 64
"""Tasks of closed connections that are cancelled per iteration: each runs once more for that."""


class ScheduledConnection(Protocol):
    """A connection with input that is handled in slices."""

    def run_slice(self) -> None:
        """Handle a slice of the input, and enqueue the connection again if there is more."""


@final
class Scheduler:
    """Decides which connection of a listener handles its input next.

    Input is handled at once while there is little to do. Otherwise its connection is queued: new input before
    connections that have had a slice, so that a small request does not wait for large ones.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: deque[ScheduledConnection] = deque()
        self._heavy: deque[ScheduledConnection] = deque()
        """Connections that have had a slice of their input, and have more."""
        self._cancelled: deque[asyncio.Task[None]] = deque()
        """Tasks of closed connections that are not cancelled yet."""
        self._scheduled = False
        self._work = 0

    def may_run(self) -> bool:
        """Whether new input may be handled in this iteration."""
        return self._work < TURN_WORK

    def add_work(self, work: int) -> None:
        """Count work that was done in this iteration."""
        self._work += work
        if self._work >= LIGHT_WORK:
            self._schedule()

    def enqueue(self, connection: ScheduledConnection, new: bool) -> None:
        """Give a connection a slice when it is its turn."""
        if new:
            self._new.append(connection)
        else:
            self._heavy.append(connection)
        self._schedule()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel a task in one of the next iterations."""
        self._cancelled.append(task)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Give queued connections a slice each, within the budget of an iteration. One heavy connection always gets
        one, or many new ones would starve them."""
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
