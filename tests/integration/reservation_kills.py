"""Processes that reserve and settle and are killed at random: all that ended is given back, and counted once.

They are killed from outside at any moment, and by themselves between the steps: after the charge and before the
reservation is recorded, before and after a settlement is recorded, before it is closed. Then a survivor sweeps, and the
counters must be what the journals say. A short run is part of `make test`; a longer one by hand, in tests/:

    PYTHONPATH=../src:. python -m integration.reservation_kills 30
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crestgate import Limiter
from crestgate.errors import ReservationClosedError
from integration.kill_runs import PROCESSES, STORES, Victims, opened_store, read_records
from integration.reservation_programs import (
    CHARGED,
    DENIED,
    PLANS,
    RECORD,
    RECORDED,
    RESERVED,
    RESERVING,
    SETTLED,
    SETTLING,
    TIGHT_LIMIT,
    TTL,
    key_name,
)

__all__ = ["Amounts", "Known", "most_charged", "possible_totals", "read_reservations", "run"]

PROOF = int(TTL * 0.99 * 1e9)
UNFINISHED_SECONDS = 2.5
"""After so long a sweep takes over what another process has begun: two seconds, and a margin."""
MAX_TOTALS = 200_000
MAX_ROWS = 10_000
UNCHANGED_SWEEPS = 5
PATIENCE = 60.0
MULTI_NODE = ("redis_cluster",)
"""Stores that have an idempotency record and the counters on different nodes. A process that is killed after it has
claimed the record, and before it has saved the result, leaves a settlement of which nobody knows whether it was done:
it is not done again, because that could count it twice. docs/reservations.md says so."""

Amounts = tuple[int, int]
"""Of the tight limit, and of the wide one."""


@dataclass
class Known:
    """What a journal says about one reservation."""

    key: int
    release: bool
    cost: Amounts
    begun: int
    step: int = RESERVING
    id: str = ""
    reserved: int = 0
    settling: int = 0
    actual: Amounts = (0, 0)
    late: bool = False
    stuck: bool = False
    """Nobody can finish it: see `MULTI_NODE`."""

    @property
    def unsettled(self) -> Amounts:
        """What stays charged if nobody has settled it, after its end."""
        return (0, 0) if self.release else self.cost

    @property
    def possible(self) -> set[Amounts]:
        """What it may have left on its counters, after its end and a sweep. One value if it is known."""
        if self.stuck:
            return {(0, 0), self.cost, self.actual}
        if self.step == DENIED:
            return {(0, 0)}
        if self.step == RESERVING:
            return {(0, 0), self.cost}
        if self.step == CHARGED:  # nobody knows of it, so it is not given back
            return {self.cost}
        if self.step in (RESERVED, RECORDED):
            return {self.unsettled}
        return {self.actual} if self.step == SETTLED else {self.actual, self.unsettled}


def read_reservations(records: Iterable[tuple[Any, ...]]) -> list[Known]:
    """The reservations of one process."""
    found: dict[int, Known] = {}
    for step, flag, key, tight, wide, number, at, identifier in records:
        if step == RESERVING:
            found[number] = Known(key, bool(flag), (tight, wide), at)
            continue
        known = found[number]
        known.step = step
        if step == RESERVED:
            known.id, known.reserved = identifier.decode(), at
        elif step == SETTLING:
            known.actual, known.settling = (tight, wide), at
        elif step == SETTLED:
            known.late = bool(flag)
    return list(found.values())


def possible_totals(reservations: Iterable[Known]) -> set[Amounts]:
    """What the counters of one key may show: each reservation is counted once, and as a whole, in both limits."""
    totals = {(0, 0)}
    for known in reservations:
        totals = {(tight + t, wide + w) for tight, wide in totals for t, w in known.possible}
        assert len(totals) <= MAX_TOTALS, "too many unknown results to say anything: fewer threads, or more keys"
    return {(min(tight, TIGHT_LIMIT), wide) for tight, wide in totals}  # a debt shows as a full limit


def most_charged(reservations: Iterable[Known]) -> int:
    """How much of one key's tight limit was surely charged at a time, at most. `settle` never charges more of it."""
    edges: list[tuple[int, int]] = []
    for known in reservations:
        if not known.reserved:
            continue
        ends = [known.begun + PROOF] if known.release else []
        ends += [known.settling] if known.settling else []
        kept = known.actual[0] if known.step == SETTLED and not (known.late and known.release) else 0
        end = min(ends, default=0)
        if end and end <= known.reserved:
            edges.append((known.reserved, kept))
            continue
        edges.append((known.reserved, known.cost[0]))
        if end:
            edges.append((end, kept - known.cost[0]))
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def resolve(limiter: Limiter, known: Known, actual: Amounts) -> bool:
    """Settle what a killed process has left, in its place; False if that was settled before, which is known then."""
    try:
        settlement = limiter.reservation(known.id).settle({"tight": actual[0], "wide": actual[1]})
    except ReservationClosedError:
        assert known.step == SETTLING, "only what the process has begun to settle can be settled"
        known.step = SETTLED
        return False
    assert settlement == (True, True)
    known.step, known.actual, known.late = SETTLED, actual, True
    return True


def sweep_all(limiter: Limiter) -> set[str]:
    """Sweep until nothing is due, or nothing more can be finished; the ids of those that are left."""
    stored, deadline = limiter.reservations.open(), time.monotonic() + PATIENCE
    left: set[str] | None = None
    unchanged = 0
    while unchanged < UNCHANGED_SWEEPS:
        assert time.monotonic() < deadline, f"sweeping does not end: {left}"
        limiter.sweep_reservations(MAX_ROWS)
        due = {row.id for row in stored.book.due(time.time_ns() // 1000, MAX_ROWS)}
        if not due:
            return due
        unchanged = unchanged + 1 if due == left else 0
        left = due
        time.sleep(0.2)
    return left or set()


def run(kind: str, url: str, folder: Path, seconds: float, pause: float = 0.5, seed: int = 23) -> dict[str, Any]:
    """One run, checked; its figures."""
    rolls = random.Random(seed)
    with Limiter(url, plans=PLANS) as limiter:
        limiter.peek("key", "tight")  # creates the file or the tables
        victims = Victims("reservation_programs.reserve_and_settle", folder, {"url": url}, rolls)
        victims.run(seconds, pause)
        ended = time.monotonic()
        reservations = [known for path in victims.ends for known in read_reservations(read_records(path, RECORD))]
        steps = {step: sum(known.step == step for known in reservations) for step in range(7)}
        limiter.reservations.open()  # the survivor, which sweeps from now on
        time.sleep(max(0.0, ended + TTL + UNFINISHED_SECONDS - time.monotonic()))
        stuck = sweep_all(limiter)
        assert not stuck or kind in MULTI_NODE, f"not given back after the end, or not finished: {stuck}"
        for known in reservations:
            known.stuck = known.id in stuck or (bool(stuck) and known.step == RECORDED)  # its id is unknown
        resolved = late = 0
        for known in reservations:
            if known.stuck:
                continue
            if known.step == SETTLING:
                resolved += 1
                late += resolve(limiter, known, (0, rolls.randint(0, 1000)))
            elif known.step == RESERVED and rolls.random() < 0.2:
                late += resolve(limiter, known, (0, rolls.randint(0, 1000)))
        assert sweep_all(limiter) == stuck
        by_key: dict[int, list[Known]] = defaultdict(list)
        for known in reservations:
            by_key[known.key].append(known)
        most = 0
        for key, of_key in by_key.items():
            tight, wide = (limiter.peek(key_name(key), plan) for plan in PLANS)
            used = tight.limit - tight.remaining, wide.limit - wide.remaining
            possible = possible_totals(of_key)
            assert used in possible, (key, used, sorted(possible)[:10], [vars(known) for known in of_key])
            most = max(most, most_charged(of_key))
        assert most <= TIGHT_LIMIT, f"{most} of {TIGHT_LIMIT} were charged at a time"
    return {
        "seconds": seconds,
        "processes": PROCESSES,
        "kills": victims.kills,
        "kills between steps": victims.deaths,
        "reserved": sum(bool(known.reserved) for known in reservations),
        "settled": steps[SETTLED],
        "denied": steps[DENIED],
        "left to end": steps[RESERVED] + steps[RECORDED],
        "killed while settling": resolved,
        "killed after the charge": steps[CHARGED],
        "unknown": steps[RESERVING],
        "stuck": len(stuck),
        "settled late": late,
        "keys": len(by_key),
        "most charged": most,
        "limit": TIGHT_LIMIT,
    }


def main(seconds: float, kinds: Iterable[str]) -> None:
    """The long run."""
    for kind in kinds:
        with opened_store(kind) as (url, folder):
            sys.stdout.write(f"{kind}: {run(kind, url, folder, seconds)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:] or STORES)
