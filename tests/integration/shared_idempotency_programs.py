"""Child programs that send the same idempotent requests at the same time."""

from __future__ import annotations

import mmap
import os
import signal
import time

from crestgate import Limiter
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request, Store
from integration.child_main import receive, send

__all__ = ["BODY", "PLENTY", "fork_and_race", "name_at", "race", "race_forever", "take_once"]

BODY = b"what was asked.."
PLENTY = build(Limit(1_000_000, 31_536_000, algorithm="fixed_window"), "plenty")


def take_once(store: Store, name: str, *keys: str) -> tuple[bool, list[int]]:
    """One idempotent request for each key: whether they were decided now, and the remaining counts."""
    record = IdempotencyRecord(name, BODY, name.encode())
    replies = store.apply([Request(Op.TAKE, [Member(key, PLENTY, 1)], record) for key in keys])
    assert not record.pending
    if record.replay is None:
        return True, [reply[0].decision.remaining for reply in replies]
    assert replies == [[] for _ in keys]
    assert (record.replay.fingerprint, record.replay.note) == (BODY, name.encode())
    return False, [remaining for _, remaining, _, _ in record.replay.numbers]


def race(url: str, names: int) -> None:
    """Send a request for each name; sends whether it was decided here, and the remaining counts."""
    with Limiter(url) as limiter:
        send("ready")
        receive()
        send([take_once(limiter.store, f"n{number}", "a", "b") for number in range(names)])


def fork_and_race(url: str, names: int, children: int) -> None:
    """The same in forked children of a process that has used the store; sends how many each decided."""
    with Limiter(url) as limiter:
        take_once(limiter.store, "before", "before")
        pipes = []
        for _ in range(children):
            read_end, write_end = os.pipe()
            if os.fork() == 0:
                try:
                    decided = [take_once(limiter.store, f"n{number}", "a", "b")[0] for number in range(names)]
                    assert not take_once(limiter.store, "before", "before")[0]
                    os.write(write_end, b"%d" % sum(decided))
                finally:
                    os._exit(0)
            os.close(write_end)
            pipes.append(read_end)
        own = sum(take_once(limiter.store, f"n{number}", "a", "b")[0] for number in range(names))
        by_children = [int(os.read(pipe, 100)) for pipe in pipes]
        for _ in pipes:
            os.wait()
        send([own, *by_children])


def name_at(seconds: float) -> str:
    """The name that all processes use at a monotonic time: a new one every half millisecond."""
    return f"n{int(seconds * 2000)}"


def race_forever(url: str, page: str) -> None:
    """Race on the current name until stopped or killed; any failure is flagged in the control page."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(page, "r+b") as file:
        control = mmap.mmap(file.fileno(), 2)
    try:
        with Limiter(url) as limiter:
            while not control[0]:
                name = name_at(time.monotonic())
                _, first = take_once(limiter.store, name, "key")
                decided, replayed = take_once(limiter.store, name, "key")
                assert (decided, replayed) == (False, first)
    except BaseException:
        control[1] = 1
        raise
