"""Shares the event loop of a worker between the connections of the gRPC listener.

A peer may send as fast as it likes, and one read returns up to 256 KiB: thousands of frames. Were all of them handled
at once, everybody else (HTTP is answered on the same loop) would wait. So work is counted, in units of about one byte,
and a connection handles one slice of what it has received and then waits in a queue for its next one. Meanwhile it is
not read from, so that TCP makes the peer wait. All connections together get so much per turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headgate.service.rpc.connection import Connection

__all__ = ["FRAME_WORK", "SLICE_WORK", "TASK_WORK", "TURN_WORK", "Scheduler"]

FRAME_WORK: Final = 64
"""Units of a frame, beside one for each byte of its payload."""
TASK_WORK: Final = 1024
"""Units of a call that is answered by a task: what the task does comes later, and all of it in one turn."""
SLICE_WORK: Final = 65_536
"""What one connection may do before it is another one's turn. About 200 small calls, or a millisecond."""
TURN_WORK: Final = 4 * SLICE_WORK
"""What all connections may do in one turn of the loop."""


@final
class Scheduler:
    """Says which connection of a listener may go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Connection] = deque()
        self._scheduled = False
        self._turn = -1.0
        """uvloop's time stands still during one turn of the loop: it tells turns apart."""
        self._work = 0

    def may_run(self) -> bool:
        """Whether what has just been received may be handled in this turn."""
        now = self._loop.time()
        if now != self._turn:
            self._turn = now
            self._work = 0
        return self._work < TURN_WORK

    def worked(self, work: int) -> None:
        """So much was done in this turn."""
        self._work += work

    def enqueue(self, connection: Connection) -> None:
        """Let a connection go on when it is its turn."""
        self._queue.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Give those that wait one slice each, as far as one turn goes; the others go first in the next."""
        self._scheduled = False
        self._turn = self._loop.time()
        self._work = 0
        for _ in range(len(self._queue)):
            if self._work >= TURN_WORK:
                break
            self._queue.popleft().run_slice()
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)
