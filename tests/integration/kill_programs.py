"""Child programs that are killed at random times, and log each request before they send it.

A worker writes two bytes before each request, its kind and its counter, and one byte after it. So the results of a
killed worker are known, except whether its last request was counted. The bytes go through a named pipe, which loses
nothing when the writer dies.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import traceback
from typing import Any, NamedTuple

from crestgate import Limiter, RateLimitExceeded
from crestgate.stores.port import Member, Op, Request
from integration.child_main import receive, run, send

__all__ = [
    "BRIEF",
    "CHAIN",
    "KINDS",
    "RESERVED",
    "USED",
    "Kind",
    "chain_forever",
    "fork_server",
    "settle_forever",
    "use_forever",
    "worker",
]


class Kind(NamedTuple):
    """A kind of counter the workers use."""

    name: str
    limit: str
    lasting: bool
    """Whether usage does not refill while the test runs."""


KINDS = [
    # A year refills nothing within a test: 200,000 a year are one in more than two minutes.
    Kind("bucket", "200000/year", True),
    Kind("window", "1000000/year using fixed_window", True),
    Kind("log", "1500/year using sliding_window_log", True),
    # Entries come and go all the time, and their blocks with them.
    Kind("brief", "300/200ms using sliding_window_log", False),
]
BRIEF = KINDS[3]
CHAIN = [
    f"1000000/{period} using {algorithm}"
    for period in ("50 years", "60 years")
    for algorithm in ("token_bucket", "gcra", "fixed_window", "sliding_window_counter")
]
"""Eight limits that do not refill while a test runs: the fastest needs 26 minutes for one."""
RESERVED = 5
USED = 2
"""A reservation takes RESERVED and uses USED of it."""


def worker(url: str, pipe: str, page: str, seed: int) -> None:
    """Check, reserve and settle on the counters of the current epoch until the control page says stop."""
    chance = random.Random(seed)
    log = os.open(pipe, os.O_WRONLY)
    with open(page, "rb") as file:
        control = mmap.mmap(file.fileno(), 2, access=mmap.ACCESS_READ)
    with Limiter(url, on_store_error="closed") as limiter:
        bounds = [limiter.bind(kind.limit) for kind in KINDS]
        while not control[1]:
            number, epoch = chance.randrange(len(KINDS)), control[0]
            kind, key = KINDS[number], f"{KINDS[number].name}:{epoch}"
            if chance.random() < 0.7:
                os.write(log, bytes([ord("a") + number, epoch]))
                decision = bounds[number].check(key)
                os.write(log, b"+" if decision.allowed else b"-" if decision.reason == "limited" else b"!")
                continue
            os.write(log, bytes([ord("A") + number, epoch]))
            try:
                reservation = limiter.reserve(key, kind.limit, RESERVED)
            except RateLimitExceeded as error:
                os.write(log, b"-" if error.decision.reason == "limited" else b"!")
                continue
            os.write(log, b"+")
            os.write(log, bytes([ord("<"), epoch]))
            before = limiter.store_failures
            reservation.settle(USED)
            os.write(log, b">" if limiter.store_failures == before else b"!")


def use_forever(url: str, key: str, limit: str) -> None:
    """Check one counter until killed."""
    limiter = Limiter(url)
    limiter.check(key, limit)
    send("ready")
    bound = limiter.bind(limit)
    while True:
        bound.check(key)


def chain_forever(url: str, keys: int, seed: int) -> None:
    """Check the chain of random keys until killed."""
    chance = random.Random(seed)
    bound = Limiter(url).bind(CHAIN)
    while True:
        bound.check(f"key:{chance.randrange(keys)}")


def settle_forever(url: str, key: str) -> None:
    """Give back a little of one log entry repeatedly until killed."""
    limiter = Limiter(url)
    algorithm = limiter.bind("1000000000/year using sliding_window_log").algorithms[0]
    cost = 500_000_000
    tick = limiter.store.apply([Request(Op.TAKE, [Member(key, algorithm, cost)])])[0][0].tick
    send("ready")
    while True:
        limiter.store.apply([Request(Op.GIVE_BACK, [Member(key, algorithm, cost, True, tick, 1)])])


def fork_server() -> None:
    """Fork a program for each task it receives, so that a replacement starts within milliseconds.

    It never opens a store, so each child is a fresh process to the store.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit statuses are not needed
    while True:
        task: dict[str, Any] | None = receive()
        if task is None:
            return
        pid = os.fork()
        if pid:
            send(pid)
            continue
        try:
            run(task["program"], task["arguments"])
        except BaseException:  # noqa: BLE001 - printed; this process exits in any case
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
