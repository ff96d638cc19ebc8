"""Programs that are killed at any moment, and write down beforehand what they are about to do.

A worker writes two bytes before each request, what and on which counter, and one byte after it. So of a worker that
was killed it is known what it had been told, and of at most one request it is not known whether it was counted.
The bytes go through a named pipe, from which nothing is lost when the writer dies.
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
from integration.child_main import hear, run, say

__all__ = [
    "BRIEF",
    "CHAIN",
    "KINDS",
    "RESERVED",
    "USED",
    "Kind",
    "chain_for_ever",
    "nursery",
    "settle_for_ever",
    "use_for_ever",
    "worker",
]


class Kind(NamedTuple):
    """A kind of counter the workers use."""

    name: str
    limit: str
    lasting: bool
    """Whether what is used stays used while the test runs."""


KINDS = [
    # A year gives nothing back within a test: 200,000 a year are one in more than two minutes.
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
"""Eight limits of which none gives anything back while a test runs: the fastest needs 26 minutes for one."""
RESERVED = 5
USED = 2
"""A reservation takes so much, and so much of it is used."""


def worker(url: str, pipe: str, page: str, seed: int) -> None:
    """Check, reserve and settle on the counters of the current epoch until told to stop."""
    chance = random.Random(seed)
    log = os.open(pipe, os.O_WRONLY)
    with open(page, "rb") as file:
        told = mmap.mmap(file.fileno(), 2, access=mmap.ACCESS_READ)
    with Limiter(url, on_store_error="closed") as limiter:
        bounds = [limiter.bind(kind.limit) for kind in KINDS]
        while not told[1]:
            number, epoch = chance.randrange(len(KINDS)), told[0]
            kind, key = KINDS[number], f"{KINDS[number].name}:{epoch}"
            if chance.random() < 0.7:
                os.write(log, bytes([ord("a") + number, epoch]))
                decision = bounds[number].check(key)
                os.write(log, b"+" if decision.allowed else b"-" if decision.reason == "limited" else b"!")
                continue
            os.write(log, bytes([ord("A") + number, epoch]))
            try:
                held = limiter.reserve(key, kind.limit, RESERVED)
            except RateLimitExceeded as error:
                os.write(log, b"-" if error.decision.reason == "limited" else b"!")
                continue
            os.write(log, b"+")
            os.write(log, bytes([ord("<"), epoch]))
            before = limiter.store_failures
            held.settle(USED)
            os.write(log, b">" if limiter.store_failures == before else b"!")


def use_for_ever(url: str, key: str, limit: str) -> None:
    """Check one counter until killed."""
    limiter = Limiter(url)
    limiter.check(key, limit)
    say("ready")
    bound = limiter.bind(limit)
    while True:
        bound.check(key)


def chain_for_ever(url: str, keys: int, seed: int) -> None:
    """Take the chain of one key after the other until killed."""
    chance = random.Random(seed)
    bound = Limiter(url).bind(CHAIN)
    while True:
        bound.check(f"key:{chance.randrange(keys)}")


def settle_for_ever(url: str, key: str) -> None:
    """Give back a little of one entry of one log again and again, until killed."""
    limiter = Limiter(url)
    algorithm = limiter.bind("1000000000/year using sliding_window_log").algorithms[0]
    cost = 500_000_000
    tick = limiter.store.apply([Request(Op.TAKE, [Member(key, algorithm, cost)])])[0][0].tick
    say("ready")
    while True:
        limiter.store.apply([Request(Op.GIVE_BACK, [Member(key, algorithm, cost, True, tick, 1)])])


def nursery() -> None:
    """Forks a program for each thing it is told, so that a replacement is there within milliseconds.

    It never opens a store: whoever comes from here is a participant that has just started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        order: dict[str, Any] | None = hear()
        if order is None:
            return
        pid = os.fork()
        if pid:
            say(pid)
            continue
        try:
            run(order["program"], order["arguments"])
        except BaseException:  # noqa: BLE001 - said, and then this process ends whatever it was
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
