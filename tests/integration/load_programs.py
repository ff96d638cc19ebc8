"""Child programs that send many requests to a store as fast as they can, and count the admitted ones."""

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
from integration.child_main import receive, send

__all__ = ["hammer", "hammer_async", "hammer_until_message", "hold", "hold_for", "keep_busy"]


class Tally:
    """Results by key: how often it was admitted, and the reasons other than ok and limited."""

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def record(self, key: str, decision: Decision) -> None:
        if decision.reason not in ("ok", "limited"):
            self.others[decision.reason] += 1
        elif decision.allowed:
            self.admitted[key] += 1

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {"admitted": dict(self.admitted), "others": dict(self.others)}


def hammer(url: str, limits: list[str], keys: int, rounds: int, threads: int, seed: int) -> None:
    """Every thread checks every key so many times, each round in its own random order."""
    with Limiter(url, on_store_error="closed") as limiter:
        bound = limiter.bind(limits)
        tallies = [Tally() for _ in range(threads)]

        def work(number: int) -> None:
            order = random.Random(f"{seed} {number}")
            names = [f"key:{i}" for i in range(keys)]
            for _ in range(rounds):
                order.shuffle(names)
                for name in names:
                    tallies[number].record(name, bound.check(name))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        send("ready")
        receive()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        total = Tally()
        for tally in tallies:
            total.admitted += tally.admitted
            total.others += tally.others
        send(total.as_dict())


def hammer_async(url: str, limits: list[str], tasks: int, rounds: int) -> None:
    """So many tasks of one loop check one key so many times each."""

    async def work(limiter: AsyncLimiter, tally: Tally) -> None:
        bound = limiter.bind(limits)
        for _ in range(rounds):
            tally.record("key:0", await bound.check("key:0"))
            await asyncio.sleep(0)

    async def run_all() -> Tally:
        tally = Tally()
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            send("ready")
            receive()
            await asyncio.gather(*(work(limiter, tally) for _ in range(tasks)))
        return tally

    send(asyncio.run(run_all()).as_dict())


def hammer_until_message(url: str, limits: list[str], key: str) -> None:
    """Check one key until a message arrives; also sends the duration of the slowest check."""
    with Limiter(url, on_store_error="closed") as limiter:
        bound = limiter.bind(limits)
        tally = Tally()
        slowest = 0.0
        send("ready")
        receive()
        send("off")
        while not select.select([0], [], [], 0)[0]:
            for _ in range(20):
                before = time.monotonic()
                tally.record(key, bound.check(key))
                slowest = max(slowest, time.monotonic() - before)
        send({**tally.as_dict(), "slowest": slowest})


def hold(url: str, locks: list[int]) -> None:
    """Take locks of the file and stop while holding them; release them when resumed."""
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        for lock in locks:
            store.locks.acquire(lock, 10.0)
        send("held")
        os.kill(os.getpid(), signal.SIGSTOP)
        for lock in locks:
            store.locks.release(lock)
        send("released")
        receive()


def hold_for(url: str, lock: int, seconds: float) -> None:
    """Hold a lock of the file for so many seconds, without being stopped."""
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        store.locks.acquire(lock, 10.0)
        send("held")
        time.sleep(seconds)
        store.locks.release(lock)
        send("released")
        receive()


def keep_busy(seconds: float) -> None:
    """Keep a core busy until a message arrives, or for so many seconds."""
    send("ready")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not select.select([0], [], [], 0)[0]:
        for _ in range(100_000):
            pass
