"""Programs that ask for the same thing at the same time, under a name by which it is decided once."""

from __future__ import annotations

import mmap
import os
import signal
import time

from crestgate import Limiter
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request, Store
from integration.child_main import hear, say

__all__ = ["BODY", "PLENTY", "ask", "fork_and_race", "name_at", "race", "race_for_ever"]

BODY = b"what was asked.."
PLENTY = build(Limit(1_000_000, 31_536_000, algorithm="fixed_window"), "plenty")


def ask(store: Store, name: str, *keys: str) -> tuple[bool, list[int]]:
    """One request for each key, all decided once: whether they were now, and what remained."""
    record = IdempotencyRecord(name, BODY, name.encode())
    replies = store.apply([Request(Op.TAKE, [Member(key, PLENTY, 1)], record) for key in keys])
    assert not record.pending
    if record.replay is None:
        return True, [reply[0].decision.remaining for reply in replies]
    assert replies == [[] for _ in keys]
    assert (record.replay.fingerprint, record.replay.note) == (BODY, name.encode())
    return False, [remaining for _, remaining, _, _ in record.replay.numbers]


def race(url: str, names: int) -> None:
    """Ask under each name; says for each whether it was decided here, and what remained."""
    with Limiter(url) as limiter:
        say("ready")
        hear()
        say([ask(limiter.store, f"n{number}", "a", "b") for number in range(names)])


def fork_and_race(url: str, names: int, children: int) -> None:
    """The same in forked children of one process, which has used the store before; says how often it was decided."""
    with Limiter(url) as limiter:
        ask(limiter.store, "before", "before")
        pipes = []
        for _ in range(children):
            reading, writing = os.pipe()
            if os.fork() == 0:
                try:
                    decided = [ask(limiter.store, f"n{number}", "a", "b")[0] for number in range(names)]
                    assert not ask(limiter.store, "before", "before")[0]
                    os.write(writing, b"%d" % sum(decided))
                finally:
                    os._exit(0)
            os.close(writing)
            pipes.append(reading)
        own = sum(ask(limiter.store, f"n{number}", "a", "b")[0] for number in range(names))
        theirs = [int(os.read(pipe, 100)) for pipe in pipes]
        for _ in pipes:
            os.wait()
        say([own, *theirs])


def name_at(seconds: float) -> str:
    """What everybody asks for at an instant of the monotonic clock: something else every half of a millisecond."""
    return f"n{int(seconds * 2000)}"


def race_for_ever(url: str, page: str) -> None:
    """Ask for what everybody asks for, until told to stop or killed; whatever is not as it must be ends the page."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(page, "r+b") as file:
        told = mmap.mmap(file.fileno(), 2)
    try:
        with Limiter(url) as limiter:
            while not told[0]:
                name = name_at(time.monotonic())
                _, first = ask(limiter.store, name, "key")
                decided, again = ask(limiter.store, name, "key")
                assert (decided, again) == (False, first)
    except BaseException:
        told[1] = 1
        raise
