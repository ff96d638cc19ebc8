"""Child programs that send checks at half of what a store can do, and count the decisions that were not the store's.

To run it by hand for longer, with two busy processes beside, from the folder `tests`:

    python -m integration.busy_machine 60
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from crestgate import AsyncLimiter, Decision, Limiter
from integration.child_main import receive, send

__all__ = ["load_of_tasks", "load_of_threads"]

LIMIT = "1000000000/second"
KEYS = [f"key:{number}" for number in range(1000)]
TICK = 0.01
MAX_OPEN = 5000
"""Checks that may be open at a time: a machine that stood still must not cause an avalanche."""


class Tally:
    """The reasons of decisions, and the longest check."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.longest = 0.0

    def record(self, decision: Decision, seconds: float) -> None:
        self.reasons[decision.reason] += 1
        self.longest = max(self.longest, seconds)

    def report(self, rate: float) -> None:
        checks = sum(self.reasons.values())
        reasons = {reason: count for reason, count in self.reasons.items() if reason != "ok"}
        send({"rate": round(rate), "checks": checks, "not ok": reasons, "longest ms": round(self.longest * 1000)})


def load_of_tasks(url: str, seconds: float, measure: float, loop: str = "asyncio") -> None:
    """Of an event loop: for `measure` seconds as many as possible, then half of that."""

    async def main() -> None:
        async with AsyncLimiter(url) as limiter:
            bound = limiter.bind(LIMIT)
            tally = Tally()

            async def check(number: int) -> None:
                started = time.monotonic()
                tally.record(await bound.check(KEYS[number % len(KEYS)]), time.monotonic() - started)

            send("ready")
            receive()
            rate = await _capacity(check, measure) / 2
            tally = Tally()
            await _at_rate(check, rate, seconds)
            tally.report(rate)

    if loop == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


async def _capacity(check: Callable[[int], Awaitable[None]], seconds: float) -> float:
    """Checks per second with a hundred open at a time; each in a task of its own, as `_at_rate` sends them."""
    end = time.monotonic() + seconds
    done = 0
    finished = asyncio.get_running_loop().create_future()
    open_checks: set[asyncio.Task[None]] = set()

    def start() -> None:
        task = asyncio.ensure_future(check(done + len(open_checks)))
        open_checks.add(task)
        task.add_done_callback(end_check)

    def end_check(task: asyncio.Task[None]) -> None:
        nonlocal done
        open_checks.discard(task)
        done += 1
        if time.monotonic() < end:
            start()
        elif not open_checks:
            finished.set_result(None)

    for _ in range(100):
        start()
    await finished
    return done / seconds


async def _at_rate(check: Callable[[int], Awaitable[None]], rate: float, seconds: float) -> None:
    open_checks: set[asyncio.Task[None]] = set()
    started = time.monotonic()
    sent = 0
    while time.monotonic() < started + seconds:
        due = min(int((time.monotonic() - started) * rate) - sent, MAX_OPEN - len(open_checks), int(rate / 10))
        for number in range(due):
            task = asyncio.ensure_future(check(sent + number))
            open_checks.add(task)
            task.add_done_callback(open_checks.discard)
        sent += max(due, 0)
        await asyncio.sleep(TICK)
    await asyncio.gather(*open_checks)


def load_of_threads(url: str, seconds: float, measure: float, threads: int) -> None:
    """The same of threads."""
    with Limiter(url) as limiter:
        bound = limiter.bind(LIMIT)
        send("ready")
        receive()

        def run(rate: float | None, duration: float) -> Tally:
            tallies = [Tally() for _ in range(threads)]
            workers = [threading.Thread(target=work, args=(tally, rate, duration)) for tally in tallies]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            total = Tally()
            for tally in tallies:
                total.reasons += tally.reasons
                total.longest = max(total.longest, tally.longest)
            return total

        def work(tally: Tally, rate: float | None, duration: float) -> None:
            started = time.monotonic()
            sent = 0
            while (now := time.monotonic()) < started + duration:
                if rate is not None and sent >= (now - started) * rate:
                    time.sleep(TICK)
                    continue
                tally.record(bound.check(KEYS[sent % len(KEYS)]), time.monotonic() - now)
                sent += 1

        capacity = sum(run(None, measure).reasons.values()) / measure
        rate = capacity / 2
        run(rate / threads, seconds).report(rate)
