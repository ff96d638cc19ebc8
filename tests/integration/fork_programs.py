"""Child programs that fork during their work, and send the results to the test."""

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
from integration.child_main import receive, send

__all__ = [
    "fork_and_hammer",
    "fork_behind_a_stopped_process",
    "fork_between_locks",
    "fork_concurrently",
    "fork_inside_check",
    "fork_inside_pressure",
    "fork_while_others_wait",
    "lock_in_child",
    "parent_dies",
    "run_with_timeout",
]

STUCK_SECONDS = 10.0
"""Seconds after which a forked child counts as stuck."""
CHAIN = [
    "1000000/year",
    "1000000/year using gcra",
    "1000000/year using fixed_window",
    "1000000/year using leaky_bucket",
]


class Fork:
    """A forked child that runs a function, writes the result to a pipe, and exits."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.pipe, end = os.pipe()
        before = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.write(end, json.dumps(body()).encode())
            except BaseException as error:  # noqa: BLE001 - reported; this process exits in any case
                os.write(end, json.dumps(f"{type(error).__name__}: {error}").encode())
            finally:
                os._exit(0)
        self.fork_seconds = time.monotonic() - before
        os.close(end)

    def result(self) -> Any:
        """The result of the function; "stuck" if there is none in time."""
        data = b"" if select.select([self.pipe], [], [], STUCK_SECONDS)[0] else b'"stuck"'
        if data:
            os.kill(self.pid, signal.SIGKILL)
        else:
            data = os.read(self.pipe, 65536)
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        return json.loads(data)


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
    """A thread of the parent checks continuously while the parent forks; each child checks too."""
    limiter = Limiter(url, on_store_error="closed")
    admitted(limiter, limits, 10)
    counts = [10]
    stop_event = threading.Event()

    def work() -> None:
        while not stop_event.is_set():
            counts.append(admitted(limiter, limits, 10))

    worker = threading.Thread(target=work)
    worker.start()
    children = [Fork(lambda: admitted(limiter, limits, checks)) for _ in range(forks)]
    child_results = [child.result() for child in children]
    stop_event.set()
    worker.join()
    state = limiter.peek("key", limits[0])
    send(
        {
            "parent": sum(counts) if -1 not in counts else -1,
            "children": child_results,
            "fork": median(child.fork_seconds for child in children),
            "used": state.limit - state.remaining,
        }
    )


def lock_in_child(url: str) -> None:
    """A lock held by the child excludes the parent and vice versa: each has its own descriptor."""
    limiter = Limiter(url)
    admitted(limiter, CHAIN[:1], 1)
    store = shared(limiter)
    go, ack = os.pipe(), os.pipe()

    def hold() -> bool:
        store.locks.acquire(FIRST_STRIPE, 1.0)
        os.write(ack[1], b"held")
        os.read(go[0], 1)
        store.locks.release(FIRST_STRIPE)
        os.write(ack[1], b"free")
        os.read(go[0], 1)
        return store.locks.try_acquire(FIRST_STRIPE)

    child = Fork(hold)
    os.read(ack[0], 4)
    while_child_holds = store.locks.try_acquire(FIRST_STRIPE)
    os.write(go[1], b".")
    os.read(ack[0], 4)
    when_free = store.locks.try_acquire(FIRST_STRIPE)
    os.write(go[1], b".")
    send({"while child holds": while_child_holds, "when free": when_free, "while parent holds": child.result()})


def parent_dies(url: str) -> None:
    """The parent forks, takes every lock, and is killed; the child waits for a message and continues."""
    limiter = Limiter(url, on_store_error="closed")
    admitted(limiter, CHAIN, 5)
    store = shared(limiter)
    if os.fork() == 0:
        try:
            if receive() is not None:
                send(admitted(limiter, CHAIN, 5))
        finally:
            os._exit(0)
    for lock in range(FIRST_STRIPE + store.table.stripes):
        store.locks.acquire(lock, 1.0)
    send("held")
    time.sleep(STUCK_SECONDS)


class GatedClock:
    """Real time; a thread that reads it while the gate is armed blocks until the gate is opened."""

    def __init__(self) -> None:
        self.armed = False
        self.inside = threading.Event()
        self.opened = threading.Event()

    def ticks(self) -> int:
        if self.armed and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.opened.wait(STUCK_SECONDS)
        return time.time_ns() // 1000

    def wait(self, seconds: float) -> float:
        return seconds


def fork_inside_check(url: str, after: float) -> None:
    """Fork while another thread is inside a check, which continues so many seconds later."""
    clock = GatedClock()
    limiter = Limiter(url, clock=clock, on_store_error="closed")
    admitted(limiter, CHAIN, 3)
    clock.armed = True
    worker = threading.Thread(target=lambda: admitted(limiter, CHAIN, 1))
    worker.start()
    clock.inside.wait(STUCK_SECONDS)
    clock.armed = False
    threading.Timer(after, clock.opened.set).start()
    child = Fork(lambda: admitted(limiter, CHAIN, 3))
    child_result = child.result()
    worker.join(STUCK_SECONDS)
    send({"child": child_result, "parent": admitted(limiter, CHAIN, 3)})


class GatedKey(str):
    """A key whose lookup under the watched lock blocks until the gate is opened."""

    lock: Any
    inside: threading.Event
    opened: threading.Event

    def __hash__(self) -> int:
        if self.lock.locked() and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.opened.wait(STUCK_SECONDS)
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def fork_inside_pressure(url: str) -> None:
    """Fork while another thread records a counter under pressure."""
    limiter = Limiter(url)
    key = GatedKey("key")
    key.lock = limiter.backend.pressure.lock
    key.inside, key.opened = threading.Event(), threading.Event()
    worker = threading.Thread(target=lambda: limiter.check(key, "1/year"))
    worker.start()
    key.inside.wait(STUCK_SECONDS)
    threading.Timer(0.3, key.opened.set).start()
    child = Fork(lambda: [limiter.check("other", "1/year").state, limiter.check("other", "1/year").reason])
    child_result = child.result()
    worker.join(STUCK_SECONDS)
    send({"child": child_result, "parent": limiter.check("third", "1/year").state})


def fork_while_others_wait(url: str) -> None:
    """Fork while a thread of the parent waits in the queue of a key; the child waits only for itself."""
    limiter = Limiter(url)
    limit = "1/500ms"
    limiter.check("key", limit)
    worker = threading.Thread(target=lambda: limiter.acquire("key", limit))
    worker.start()
    deadline = time.monotonic() + STUCK_SECONDS
    while not limiter.wait_queue.waiting and time.monotonic() < deadline:
        time.sleep(0.001)

    def wait() -> str:
        return limiter.acquire("key", limit, timeout=5.0).reason

    child_result = Fork(wait).result()
    worker.join(STUCK_SECONDS)
    send({"child": child_result})


def fork_behind_a_stopped_process(url: str, key: str) -> None:
    """Fork while a thread waits for a lock of a stopped process, which the test then resumes."""
    limiter = Limiter(url, on_store_error="closed")
    worker = threading.Thread(target=lambda: limiter.check(key, CHAIN[0]))
    worker.start()
    store = shared(limiter)
    stripe = store.digests.locate(CHAIN[0], key).stripe
    deadline = time.monotonic() + STUCK_SECONDS
    while not store.locks.threads.locks[FIRST_STRIPE + stripe].locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    go_start, go_end = os.pipe()

    def check() -> str:
        os.read(go_start, 1)
        return limiter.check(key, CHAIN[0]).reason

    child = Fork(check)
    send(child.fork_seconds)
    receive()
    os.write(go_end, b".")
    result = child.result()
    worker.join(STUCK_SECONDS)
    send({"child": result, "parent": limiter.check(key, CHAIN[0]).reason})


def fork_between_locks(url: str, limits: list[str]) -> None:
    """Fork while a chain waits for the first of its many locks; the test meanwhile releases that lock."""
    limiter = Limiter(url, on_store_error="closed")
    bound = limiter.bind(limits)
    store = shared(limiter)
    first = FIRST_STRIPE + min(store.digests.locate(name, "key").stripe for name in bound.names)
    results: list[str] = []
    worker = threading.Thread(target=lambda: results.append(bound.check("key").reason))
    worker.start()
    deadline = time.monotonic() + STUCK_SECONDS
    while not store.locks.threads.locks[first].locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    send("waiting")
    child = Fork(lambda: bound.check("key").reason)
    child_result = child.result()
    worker.join(STUCK_SECONDS)
    send({"child": child_result, "thread": results, "slow": child.fork_seconds > 0.9})


def fork_concurrently(url: str, threads: int, forks: int) -> None:
    """Several threads fork concurrently and repeatedly while one checks, with a very short switch interval."""
    sys.setswitchinterval(1e-6)
    limiter = Limiter(url, on_store_error="closed")

    finished: list[int] = []

    def work() -> None:
        for _ in range(forks):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            finished.append(pid)

    stop_event = threading.Event()

    def check() -> None:
        while not stop_event.is_set():
            limiter.check("other", CHAIN[0])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    threading.Thread(target=check, daemon=True).start()
    stuck = not all(joined(worker, finished) for worker in workers)
    stop_event.set()
    child = Fork(lambda: admitted(limiter, CHAIN[:1], 2)).result()
    parent = run_with_timeout(lambda: admitted(limiter, CHAIN[:1], 2))
    send({"child": child, "stuck": stuck, "parent": parent})
    os._exit(0)


def joined(worker: threading.Thread, finished: list[int]) -> bool:
    """Whether a thread ends; not if no fork of any thread finishes for a while."""
    before = -1
    while worker.is_alive() and len(finished) > before:
        before = len(finished)
        worker.join(STUCK_SECONDS)
    return not worker.is_alive()


def run_with_timeout(body: Callable[[], object]) -> object:
    """What a function returns, or "stuck"."""
    results: list[object] = []
    worker = threading.Thread(target=lambda: results.append(body()), daemon=True)
    worker.start()
    worker.join(STUCK_SECONDS)
    return results[0] if results else "stuck"
