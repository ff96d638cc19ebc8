"""The loads: callers that check without a pause, on tasks or on threads, and arrivals at a rate.

Each uses the first part of a turn to warm up; the checks answered after that, until the end, are counted and timed.
Every check must be admitted: the speed of a limiter that denies or fails means nothing.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.network.entry import Contender

__all__ = ["Turn", "arrivals", "tasks", "threads"]

LEAD = 0.2
"""The part of a turn before the counting begins."""


class Turn(NamedTuple):
    """The result of a turn: checks per second, and the latencies in microseconds."""

    per_second: float
    p50: float
    p99: float


class DeniedError(Exception):
    """A check was denied, although the load is far below the limit."""

    def __init__(self, answer: object) -> None:
        super().__init__(f"denied a check far below its limit: {answer!r}")


class _Watch:
    """The times of all checks of a turn, of which those between `begin` and `end` count."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []
        self.over = False
        self.first = self.last = 0
        self.began = self.ended = 0

    def begin(self) -> None:
        self.first, self.began = len(self.nanoseconds), time.perf_counter_ns()

    def end(self) -> None:
        self.last, self.ended = len(self.nanoseconds), time.perf_counter_ns()
        self.over = True

    def turn(self) -> Turn:
        return _turn(self.nanoseconds[self.first : self.last], self.ended - self.began)


def _turn(nanoseconds: Sequence[int], elapsed: int) -> Turn:
    if not nanoseconds:
        raise RuntimeError("not one check was answered in a whole turn")
    ordered = sorted(nanoseconds)
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] / 1000 for part in (0.5, 0.99))
    return Turn(len(ordered) * 1e9 / elapsed, p50, p99)


async def tasks(contender: Contender, keys: Iterator[str], callers: int, seconds: float) -> Turn:
    watch = _Watch()
    check, admitted, clock = contender.check, contender.admitted, time.perf_counter_ns
    times = watch.nanoseconds

    async def caller() -> None:
        while not watch.over:
            sent_at = clock()
            answer = await check(next(keys))
            times.append(clock() - sent_at)
            if not admitted(answer):
                raise DeniedError(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
        await asyncio.sleep(seconds * LEAD)
        watch.begin()
        await asyncio.sleep(seconds * (1 - LEAD))
        watch.end()
    return watch.turn()


def threads(contender: Contender, keys: Iterator[str], callers: int, seconds: float) -> Turn:
    """With one caller there is no other thread: the time is checked after each call."""
    watch = _Watch()
    check, admitted, clock = contender.check, contender.admitted, time.perf_counter_ns
    times = watch.nanoseconds
    problems: list[Exception] = []

    def one() -> None:
        sent_at = clock()
        answer = check(next(keys))
        times.append(clock() - sent_at)
        if not admitted(answer):
            raise DeniedError(answer)

    def caller() -> None:
        try:
            while not watch.over:
                one()
        except Exception as error:  # noqa: BLE001 - told to whoever asked for the turn
            problems.append(error)

    if callers == 1:
        for part, mark in ((LEAD, watch.begin), (1 - LEAD, watch.end)):
            until = time.perf_counter() + seconds * part
            while time.perf_counter() < until:
                one()
            mark()
        return watch.turn()
    crowd = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in crowd:
        thread.start()
    time.sleep(seconds * LEAD)
    watch.begin()
    time.sleep(seconds * (1 - LEAD))
    watch.end()
    for thread in crowd:
        thread.join()
    if problems:
        raise problems[0]
    return watch.turn()


async def arrivals(contender: Contender, keys: Iterator[str], rate: int, seconds: float, seed: int) -> Turn:
    """Checks arrive at random at a given rate, whether or not the last one is answered."""
    check, admitted, clock = contender.check, contender.admitted, time.perf_counter_ns
    chance = random.Random(seed)
    times: list[int] = []

    async def one() -> None:
        sent_at = clock()
        answer = await check(next(keys))
        times.append(clock() - sent_at)
        if not admitted(answer):
            raise DeniedError(answer)

    await check(next(keys))  # the first after a pause
    began = time.perf_counter()
    comes = chance.expovariate(rate)
    async with asyncio.TaskGroup() as group:
        while comes < seconds:
            await asyncio.sleep(max(began + comes - time.perf_counter(), 0.0))
            group.create_task(one())
            comes += chance.expovariate(rate)
    return _turn(times, int((time.perf_counter() - began) * 1e9))
