# mypyc: compile
"""Large batches in slices: the event loop serves others in between.

A batch may have a thousand checks and ten thousand counters. Each step (prepare, decide, encode) is done for a slice at
a time, and each iteration of the event loop runs one slice, however many large batches there are: nobody else waits for
more than one. Each check stays all or nothing, and the checks of a batch are decided in their order.
Small batches, which are nearly all, are one slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from crestgate.service.checks.forms import MAX_COUNTERS, MAX_PLANS
from crestgate.service.checks.schemas import CheckBody
from crestgate.stores.port import Request

__all__ = [
    "LOCAL_SLICE",
    "MAX_SYNC_BYTES",
    "MAX_SYNC_WORK",
    "MEMBER_SLICE",
    "PATH_CHARACTERS",
    "PREPARE_SLICE",
    "REMOTE_SLICE",
    "TurnQueue",
    "groups",
    "next_turn",
    "slice_end",
    "weigh",
    "work_of",
]

LOCAL_SLICE: Final = 128
"""Checks that are handled in one turn of the loop when the store is on this machine."""
MEMBER_SLICE: Final = 64
"""Counters that are decided, or answered, in one turn: they cost more than the checks themselves."""
PREPARE_SLICE: Final = 32
"""Inline counters that are prepared in one turn: a limit that is not cached has to be parsed."""
ENTRIES_PER_COUNTER: Final = 32
"""Entries of a sliding log that take about as long to look at as it takes to decide a counter."""
REMOTE_SLICE: Final = 500
"""The same for a remote store: the loop is free meanwhile, and each slice costs a round trip. The server may serve
nobody else during a call, so entries of logs count here, too."""
PATH_CHARACTERS: Final = 128
"""Characters of a path that cost about as much as the rest of a check; longer ones make a slice shorter."""
MAX_SYNC_BYTES: Final = 16 * 1024
"""Of the body of a batch that may be decided in one turn."""
MAX_SYNC_WORK: Final = 4 * LOCAL_SLICE
"""The same in counters: see `work_of`."""


@final
class TurnQueue:
    """Gives the large batches of one event loop their turns: one slice of one batch in each iteration, so that the
    others wait for one slice, however many batches there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.scheduled = False

    def join(self) -> asyncio.Future[None]:
        """A future that is done when it is this batch's turn."""
        turn = self.loop.create_future()
        self.waiting.append(turn)
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.give)
        return turn

    def give(self) -> None:
        """Give the next batch its turn."""
        waiting = self.waiting
        while waiting:
            turn = waiting.popleft()
            if not turn.done():  # else its call was cancelled
                turn.set_result(None)
                break
        self.scheduled = bool(waiting)
        if waiting:
            self.loop.call_soon(self.give)


_turns: TurnQueue | None = None
"""Of the event loop of this worker."""


def next_turn() -> asyncio.Future[None]:
    """Await it before each slice: the event loop does what else is due."""
    global _turns  # noqa: PLW0603 - one for each event loop, and a worker has one
    loop = asyncio.get_running_loop()
    if _turns is None or _turns.loop is not loop:
        _turns = TurnQueue(loop)
    return _turns.join()


def weigh(checks: Sequence[CheckBody]) -> int:
    """What checks count against the ceiling of the node: one for each counter or plan that they name themselves. One
    that names more than it may is refused, and counts as one."""
    weight = len(checks)
    if weight == 1 and checks[0].plans is None and checks[0].counters is None:
        return 1
    for check in checks:
        named: int = 0
        if check.counters is not None:
            named = len(check.counters)
            if named > MAX_COUNTERS:
                continue
        elif check.plans is not None:
            named = len(check.plans)
            if named > MAX_PLANS:
                continue
        if named > 1:
            weight += named - 1
    return weight


def slice_end(checks: Sequence[CheckBody], start: int, size: int) -> int:
    """Where the slice ends that begins here: after this many checks, fewer if their paths are long; at
    least one."""
    last = min(start + size, len(checks))
    characters = 0
    for index in range(start, last):
        check = checks[index]
        path = check.endpoint if check.context is None else check.context.path
        if path is not None:
            characters += len(path)
            if characters > PATH_CHARACTERS * size and index > start:
                return index
    return last


def work_of(request: Request | None) -> int:
    """What a request may cost the store, in counters: a denial by a sliding log may look at all of its entries."""
    if request is None:
        return 1
    work = max(len(request.members), 1)
    for member in request.members:
        if member.algorithm.keeps_log:
            work += member.algorithm.capacity // ENTRIES_PER_COUNTER
    return work


def groups(requests: Sequence[Request | None], size: int) -> list[tuple[int, int]]:
    """Where to cut requests so that each piece costs about as much as this many counters at most: starts and ends. A
    request is never cut."""
    spans: list[tuple[int, int]] = []
    start = members = 0
    for index, request in enumerate(requests):
        count = work_of(request)
        if members and members + count > size:
            spans.append((start, index))
            start, members = index, 0
        members += count
    if start < len(requests):
        spans.append((start, len(requests)))
    return spans
