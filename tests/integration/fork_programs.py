"""Programs that fork in the middle of their work. What they find out they tell the test."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from crestgate import Limiter
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.locks import FIRST_STRIPE
from integration.child_main import hear, say

__all__ = [
    "crowd",
    "fork_and_hammer",
    "fork_at_once",
    "fork_behind_a_stopped_one",
    "fork_between_locks",
    "fork_inside_check",
    "fork_inside_pressure",
    "fork_while_others_wait",
    "lock_in_child",
    "parent_dies",
]

LONG = 10.0
"""Seconds after which a forked child is taken to be stuck."""
CHAIN = [
    "1000000/year",
    "1000000/year using gcra",
    "1000000/year using fixed_window",
    "1000000/year using leaky_bucket",
]


class Fork:
    """A forked child that does one thing, says what came of it, and is gone."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.pipe, end = os.pipe()
        before = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.write(end, json.dumps(body()).encode())
            except BaseException as error:  # noqa: BLE001 - said, and then this process ends whatever it was
                os.write(end, json.dumps(f"{type(error).__name__}: {error}").encode())
            finally:
                os._exit(0)
        self.took = time.monotonic() - before
        os.close(end)

    def answer(self) -> Any:
        """What it says; "stuck" when it says nothing."""
        heard = b"" if select.select([self.pipe], [], [], LONG)[0] else b'"stuck"'
        if heard:
            os.kill(self.pid, signal.SIGKILL)
        else:
            heard = os.read(self.pipe, 65536)
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        return json.loads(heard)


def shared(limiter: Limiter) -> SharedStore:
    store = limiter.store
    assert isinstance(store, SharedStore)
    return store


def admitted(limiter: Limiter, limits: list[str], checks: int) -> int:
    """How many of so many checks are admitted; -1 when the store failed at one of them."""
    bound = limiter.bind(limits)
    reasons = [bound.check("key").reason for _ in range(checks)]
    return reasons.count("ok") if set(reasons) <= {"ok", "limited"} else -1


def fork_and_hammer(url: str, limits: list[str], forks: int, checks: int) -> None:
    """A thread of the parent checks all the time while the parent forks, and each child checks too."""
    limiter = Limiter(url, on_store_error="closed")
    admitted(limiter, limits, 10)
    counts = [10]
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            counts.append(admitted(limiter, limits, 10))

    worker = threading.Thread(target=work)
    worker.start()
    children = [Fork(lambda: admitted(limiter, limits, checks)) for _ in range(forks)]
    answers = [child.answer() for child in children]
    over.set()
    worker.join()
    standing = limiter.peek("key", limits[0])
    say(
        {
            "parent": sum(counts) if -1 not in counts else -1,
            "children": answers,
            "fork": median(child.took for child in children),
            "used": standing.limit - standing.remaining,
        }
    )


def lock_in_child(url: str) -> None:
    """A child that holds a lock keeps its parent out, and its parent it: their descriptors are two."""
    limiter = Limiter(url)
    admitted(limiter, CHAIN[:1], 1)
    store = shared(limiter)
    asked, answer = os.pipe(), os.pipe()

    def hold() -> bool:
        store.locks.acquire(FIRST_STRIPE, 1.0)
        os.write(answer[1], b"held")
        os.read(asked[0], 1)
        store.locks.release(FIRST_STRIPE)
        os.write(answer[1], b"free")
        os.read(asked[0], 1)
        return store.locks.try_acquire(FIRST_STRIPE)

    child = Fork(hold)
    os.read(answer[0], 4)
    while_child_holds = store.locks.try_acquire(FIRST_STRIPE)
    os.write(asked[1], b".")
    os.read(answer[0], 4)
    when_free = store.locks.try_acquire(FIRST_STRIPE)
    os.write(asked[1], b".")
    say({"while child holds": while_child_holds, "when free": when_free, "while parent holds": child.answer()})


def parent_dies(url: str) -> None:
    """The parent forks, takes every lock, and is killed; the child waits for a word of the test and goes on."""
    limiter = Limiter(url, on_store_error="closed")
    admitted(limiter, CHAIN, 5)
    store = shared(limiter)
    if os.fork() == 0:
        try:
            if hear() is not None:
                say(admitted(limiter, CHAIN, 5))
        finally:
            os._exit(0)
    for lock in range(FIRST_STRIPE + store.table.stripes):
        store.locks.acquire(lock, 1.0)
    say("held")
    time.sleep(LONG)


class GatedClock:
    """Real time; but a thread that reads it while the gate is armed stays inside until the gate is opened."""

    def __init__(self) -> None:
        self.armed = False
        self.inside = threading.Event()
        self.opened = threading.Event()

    def ticks(self) -> int:
        if self.armed and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.opened.wait(LONG)
        return time.time_ns() // 1000

    def wait(self, seconds: float) -> float:
        return seconds


def fork_inside_check(url: str, after: float) -> None:
    """Fork while another thread is inside a check, which goes on so many seconds later."""
    clock = GatedClock()
    limiter = Limiter(url, clock=clock, on_store_error="closed")
    admitted(limiter, CHAIN, 3)
    clock.armed = True
    worker = threading.Thread(target=lambda: admitted(limiter, CHAIN, 1))
    worker.start()
    clock.inside.wait(LONG)
    clock.armed = False
    threading.Timer(after, clock.opened.set).start()
    child = Fork(lambda: admitted(limiter, CHAIN, 3))
    answer = child.answer()
    worker.join(LONG)
    say({"child": answer, "parent": admitted(limiter, CHAIN, 3)})


class GatedKey(str):
    """A key that, when it is looked up under the lock it watches, stays there until the gate is opened."""

    lock: Any
    inside: threading.Event
    opened: threading.Event

    def __hash__(self) -> int:
        if self.lock.locked() and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.opened.wait(LONG)
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def fork_inside_pressure(url: str) -> None:
    """Fork while another thread takes note of a counter that has come under pressure."""
    limiter = Limiter(url)
    key = GatedKey("key")
    key.lock = limiter.backend.pressure.lock
    key.inside, key.opened = threading.Event(), threading.Event()
    worker = threading.Thread(target=lambda: limiter.check(key, "1/year"))
    worker.start()
    key.inside.wait(LONG)
    threading.Timer(0.3, key.opened.set).start()
    child = Fork(lambda: [limiter.check("other", "1/year").state, limiter.check("other", "1/year").reason])
    answer = child.answer()
    worker.join(LONG)
    say({"child": answer, "parent": limiter.check("third", "1/year").state})


def fork_while_others_wait(url: str) -> None:
    """Fork while a thread of the parent waits in line for a key; the child waits for its own turn only."""
    limiter = Limiter(url)
    limit = "1/500ms"
    limiter.check("key", limit)
    worker = threading.Thread(target=lambda: limiter.acquire("key", limit))
    worker.start()
    deadline = time.monotonic() + LONG
    while not limiter.wait_queue.waiting and time.monotonic() < deadline:
        time.sleep(0.001)

    def wait() -> str:
        return limiter.acquire("key", limit, timeout=5.0).reason

    answer = Fork(wait).answer()
    worker.join(LONG)
    say({"child": answer})


def fork_behind_a_stopped_one(url: str, key: str) -> None:
    """Fork while a thread waits long for a lock that a stopped process holds; the test then lets that go on."""
    limiter = Limiter(url, on_store_error="closed")
    worker = threading.Thread(target=lambda: limiter.check(key, CHAIN[0]))
    worker.start()
    store = shared(limiter)
    stripe = store.digests.locate(CHAIN[0], key)[1]
    deadline = time.monotonic() + LONG
    while not store.locks.threads.locks[FIRST_STRIPE + stripe].locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    asked, answer = os.pipe()

    def check() -> str:
        os.read(asked, 1)
        return limiter.check(key, CHAIN[0]).reason

    child = Fork(check)
    say(child.took)
    hear()
    os.write(answer, b".")
    said = child.answer()
    worker.join(LONG)
    say({"child": said, "parent": limiter.check(key, CHAIN[0]).reason})


def fork_between_locks(url: str, limits: list[str]) -> None:
    """Fork while a chain waits for the first of its many locks; the test lets that lock go meanwhile."""
    limiter = Limiter(url, on_store_error="closed")
    bound = limiter.bind(limits)
    store = shared(limiter)
    first = FIRST_STRIPE + min(store.digests.locate(name, "key")[1] for name in bound.names)
    said: list[str] = []
    worker = threading.Thread(target=lambda: said.append(bound.check("key").reason))
    worker.start()
    deadline = time.monotonic() + LONG
    while not store.locks.threads.locks[first].locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    say("waiting")
    child = Fork(lambda: bound.check("key").reason)
    answer = child.answer()
    worker.join(LONG)
    say({"child": answer, "thread": said, "slow": child.took > 0.9})


def fork_at_once(url: str, threads: int, forks: int) -> None:
    """Several threads fork at the same time, again and again, while one checks; they take turns very often."""
    sys.setswitchinterval(1e-6)
    limiter = Limiter(url, on_store_error="closed")

    def work() -> None:
        for _ in range(forks):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

    over = threading.Event()

    def check() -> None:
        while not over.is_set():
            limiter.check("other", CHAIN[0])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    threading.Thread(target=check, daemon=True).start()
    deadline = time.monotonic() + 2 * LONG
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
    over.set()
    stuck = any(worker.is_alive() for worker in workers)
    child = Fork(lambda: admitted(limiter, CHAIN[:1], 2)).answer()
    parent = crowd(lambda: admitted(limiter, CHAIN[:1], 2))
    say({"child": child, "stuck": stuck, "parent": parent})
    os._exit(0)


def crowd(body: Callable[[], object]) -> object:
    """What a function returns, or "stuck"."""
    said: list[object] = []
    worker = threading.Thread(target=lambda: said.append(body()), daemon=True)
    worker.start()
    worker.join(LONG)
    return said[0] if said else "stuck"
