"""Programs that put many requests to a store as fast as they can, and count what was admitted."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import threading
import time
from collections import Counter

from crestgate import AsyncLimiter, Decision, Limiter
from crestgate.stores.shared import SharedStore
from integration.child_main import hear, say

__all__ = ["hammer", "hammer_async", "hammer_until_told", "hold", "hold_for", "keep_busy"]


class Tally:
    """What a participant was told, by key: how often it was admitted, and what else than a plain answer it got."""

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def note(self, key: str, decision: Decision) -> None:
        if decision.reason not in ("ok", "limited"):
            self.others[decision.reason] += 1
        elif decision.allowed:
            self.admitted[key] += 1

    def said(self) -> dict[str, dict[str, int]]:
        return {"admitted": dict(self.admitted), "others": dict(self.others)}


def hammer(url: str, limits: list[str], keys: int, rounds: int, threads: int, seed: int) -> None:
    """Every thread checks every key so many times, each round in an order of its own."""
    with Limiter(url, on_store_error="closed") as limiter:
        bound = limiter.bind(limits)
        tallies = [Tally() for _ in range(threads)]

        def work(number: int) -> None:
            order = random.Random(f"{seed} {number}")
            names = [f"key:{i}" for i in range(keys)]
            for _ in range(rounds):
                order.shuffle(names)
                for name in names:
                    tallies[number].note(name, bound.check(name))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        say("ready")
        hear()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        total = Tally()
        for tally in tallies:
            total.admitted += tally.admitted
            total.others += tally.others
        say(total.said())


def hammer_async(url: str, limits: list[str], tasks: int, rounds: int) -> None:
    """So many tasks of one loop check one key so many times each."""

    async def work(limiter: AsyncLimiter, tally: Tally) -> None:
        bound = limiter.bind(limits)
        for _ in range(rounds):
            tally.note("key:0", await bound.check("key:0"))
            await asyncio.sleep(0)

    async def all_of_them() -> Tally:
        tally = Tally()
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            say("ready")
            hear()
            await asyncio.gather(*(work(limiter, tally) for _ in range(tasks)))
        return tally

    say(asyncio.run(all_of_them()).said())


def hammer_until_told(url: str, limits: list[str], key: str) -> None:
    """Check one key until the test says something; tells also how long the slowest check took."""
    with Limiter(url, on_store_error="closed") as limiter:
        bound = limiter.bind(limits)
        tally = Tally()
        slowest = 0.0
        say("ready")
        hear()
        say("off")
        while not select.select([0], [], [], 0)[0]:
            for _ in range(20):
                before = time.monotonic()
                tally.note(key, bound.check(key))
                slowest = max(slowest, time.monotonic() - before)
        say({**tally.said(), "slowest": slowest})


def hold(url: str, locks: list[int]) -> None:
    """Take locks of the file and stop while holding them; let go of them when continued."""
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        for lock in locks:
            store.locks.acquire(lock, 10.0)
        say("held")
        os.kill(os.getpid(), signal.SIGSTOP)
        for lock in locks:
            store.locks.release(lock)
        say("released")
        hear()


def hold_for(url: str, lock: int, seconds: float) -> None:
    """Take a lock of the file and keep it for so long, without being stopped."""
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        store.locks.acquire(lock, 10.0)
        say("held")
        time.sleep(seconds)
        store.locks.release(lock)
        say("released")
        hear()


def keep_busy(seconds: float) -> None:
    """Use a core until the test says something, or for so long."""
    say("ready")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not select.select([0], [], [], 0)[0]:
        for _ in range(100_000):
            pass
