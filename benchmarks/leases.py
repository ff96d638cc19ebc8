"""The leases part of the page: how much of a limit a fleet of instances uses, and what it asks its store.

A simulation on virtual time, without sockets: the store's counter, and the local decisions of each instance, are the
real ones. A call takes as long as the simulated network, and is made for each request that an instance cannot decide;
real instances send the requests of one moment in one call. Clocks of the instances differ from the store's by seconds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import machine
from benchmarks.page import table
from crestgate import Limit, Limiter
from crestgate.core.algorithms import Algorithm, build
from crestgate.limiter.local_decisions import LocalDecisions, StoreCall
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, Member, Op, Request
from crestgate.testing import FakeClock

__all__ = ["Cell", "LeaseResults", "measure", "simulate", "targets", "write"]

TITLE = "# Benchmarks of leases"
INSTANCES = (1, 10, 100, 1_000)
LOADS = ("even", "skewed", "bursty")
RATE, WINDOW = 1_000, 10
"""The limit, in requests per second, and the length of a window or of a full refill."""
WINDOWS = 2
DEMANDS = (2.0, 0.8)
"""Times the limit."""
DELAYS = (0.001, 0.1)
"""Seconds of a round trip."""
START = 1_700_000_000
SWEEP_US = 250_000
GOAL = 0.95
KEY = "key"


@dataclass(frozen=True)
class Cell:
    """One run: what was asked and admitted, what the store alone would have admitted, and the calls that it took."""

    algorithm: str
    instances: int
    load: str
    demand: float
    delay: float
    asked: int
    admitted: int
    allowed: int
    exceeded: bool
    calls: int

    @property
    def used(self) -> float:
        return self.admitted / self.allowed

    @property
    def saved(self) -> float:
        return 1 - self.calls / self.asked


@dataclass(frozen=True)
class LeaseResults:
    """All runs."""

    date: str
    machine: dict[str, str]
    cells: list[Cell]


class Instance:
    """One process, whose clock differs from the store's."""

    def __init__(self, clock: FakeClock, offset_us: int) -> None:
        self.decisions = LocalDecisions(lambda: clock.ticks() + offset_us, False)
        self.decisions.leases = True
        self.decisions.caches_denials = True


class Simulation:
    """Instances and a store, which exchange messages on virtual time."""

    def __init__(self, limit: Limit, instances: int, delay: float, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock(START)
        self.store = MemoryStore(clock=self.clock)
        self.algorithm: Algorithm = build(limit, "simulated")
        self.delay_us = round(delay * 1_000_000)
        self.instances = [Instance(self.clock, self.random.randrange(-5_000_000, 5_000_000)) for _ in range(instances)]
        self.events: list[tuple[int, int, Instance, StoreCall | None, list[Request] | BatchOutcomes]] = []
        self.number = 0
        self.calls = 0
        self.admitted: list[int] = []
        """When, in microseconds."""

    def run(self, arrivals: Iterator[tuple[int, int]]) -> int:
        """Let all requests come, each at a time and at an instance; returns how many there were."""
        asked = 0
        next_sweep = SWEEP_US
        for at, number in arrivals:
            while next_sweep <= at:
                self.advance(next_sweep)
                for instance in self.instances:
                    returns = instance.decisions.sweep(100)
                    if returns:
                        self.send(instance, None, returns)
                next_sweep += SWEEP_US
            self.advance(at)
            asked += 1
            instance = self.instances[number]
            call = instance.decisions.prepare([Request(Op.TAKE, [Member(KEY, self.algorithm, 1)])])
            if call.replies is not None:
                self.count(call.replies, at)
            else:
                self.send(instance, call, list(call.requests))
        return asked

    def send(self, instance: Instance, call: StoreCall | None, requests: list[Request]) -> None:
        self.calls += 1
        self.later(instance, call, requests)

    def later(self, instance: Instance, call: StoreCall | None, message: list[Request] | BatchOutcomes) -> None:
        self.number += 1
        at = self.now() + self.delay_us // 2
        heapq.heappush(self.events, (at * 2**32 + self.number, self.number, instance, call, message))

    def now(self) -> int:
        return self.clock.ticks() - START * 1_000_000

    def advance(self, until: int) -> None:
        """Let time pass, and messages arrive."""
        while self.events and self.events[0][0] >> 32 <= until:
            key, _, instance, call, message = heapq.heappop(self.events)
            self.clock.advance(((key >> 32) - self.now()) / 1_000_000)
            if isinstance(message[0], Request):
                replies = self.store.apply([as_shared(request) for request in message if isinstance(request, Request)])
                if call is not None:
                    self.later(instance, call, replies)
            elif call is not None:
                replies = instance.decisions.finish(call, [reply for reply in message if isinstance(reply, list)])
                self.count(replies, self.now() - self.delay_us // 2)
        self.clock.advance((until - self.now()) / 1_000_000)

    def count(self, replies: BatchOutcomes, decided_at: int) -> None:
        if replies[0][0].decision.allowed:
            self.admitted.append(decided_at)


def as_shared(request: Request) -> Request:
    """Memory gives back to leased buckets, as nobody else has slices of its counters; shared stores do not."""
    if request.op is not Op.GIVE_BACK or not request.members[0].algorithm.keeps_charges:
        return request
    return Request(Op.PEEK, request.members)


def arrivals_of(load: str, instances: int, per_second: float, seconds: float, seed: int) -> Iterator[tuple[int, int]]:
    """When requests come, in microseconds, and at which instance."""
    source = random.Random(seed)
    weights = [1 / (rank + 1) if load == "skewed" else 1.0 for rank in range(instances)]
    numbers = list(range(instances))
    at = 0.0
    active = numbers
    second = -1
    while True:
        if load == "bursty":  # all of a second's requests come in its first fifth, at a fifth of the instances
            at += source.expovariate(5 * per_second)
            if at % 1 > 0.2:
                at = int(at) + 1.0
            if int(at) != second:
                second = int(at)
                active = source.sample(numbers, max(instances // 5, 1))
            number = source.choice(active)
        else:
            at += source.expovariate(per_second)
            number = source.choices(numbers, weights)[0] if load == "skewed" else source.randrange(instances)
        if at >= seconds:
            return
        yield round(at * 1_000_000), number


def simulate(
    algorithm: str, instances: int, load: str, demand: float, delay: float, windows: int = WINDOWS, rate: int = RATE
) -> Cell:
    """One run. A token bucket is full at its start, and as large as a window."""
    count, seconds = rate * WINDOW, WINDOW * windows
    limit = Limit(count, WINDOW, algorithm=algorithm, lease=True)
    simulation = Simulation(limit, instances, delay, seed=instances)
    asked = simulation.run(arrivals_of(load, instances, demand * rate, seconds, seed=7))
    simulation.advance(round((seconds + delay) * 1_000_000))
    admitted = sorted(simulation.admitted)
    if algorithm == "fixed_window":
        by_window = [0] * (windows + 1)
        for at in admitted:  # the last requests reach the store in the window after
            by_window[at // (WINDOW * 1_000_000)] += 1
        exceeded = max(by_window) > count
    else:
        exceeded = any(number + 1 > count + rate * at / 1_000_000 for number, at in enumerate(admitted))
    clock = FakeClock(START)
    alone, allowed = Limiter("memory://", clock=clock).bind(replace(limit, lease=False)), 0
    for at, _ in arrivals_of(load, instances, demand * rate, seconds, seed=7):
        clock.advance(START + at / 1_000_000 + delay / 2 - clock.now())
        allowed += alone.check(KEY).allowed
    return Cell(*(algorithm, instances, load, demand, delay, asked, len(admitted), allowed, exceeded, simulation.calls))


def measure(root: Path, quick: bool) -> LeaseResults:
    cells = []
    for delay in DELAYS:
        for algorithm in ("fixed_window", "token_bucket"):
            for demand in DEMANDS:
                for load in LOADS:
                    for instances in INSTANCES[:3] if quick else INSTANCES:
                        cells.append(simulate(algorithm, instances, load, demand, delay, 1 if quick else WINDOWS))
                        last = cells[-1]
                        print(
                            f"  {algorithm}, {instances} instances, {load}, {demand:g}x, {delay * 1000:g} ms: "
                            f"{last.used:.1%} used, {last.saved:.1%} saved",
                            flush=True,
                        )
    return LeaseResults(machine.today(), machine.described(), cells)


def write(results: LeaseResults) -> str:
    """The page."""
    parts = [TITLE, OPENING]
    for delay in DELAYS:
        parts.append(f"## {delay * 1000:g} ms to the store and back")
        for demand in DEMANDS:
            of = "the limit" if demand > 1 else "what was asked"
            parts.append(f"Demand: {demand:g} times the limit. Used: admitted, of {of}.")
            parts.append(table(*_table(results, delay, demand)))
    parts.append(f"## Targets\n\n{targets(results)}")
    parts.append(f"Simulated on {results.date}, with 2 windows of 10 seconds each and 1,000 requests per second.")
    return "\n\n".join(parts)


def _table(results: LeaseResults, delay: float, demand: float) -> tuple[list[str], list[list[str]]]:
    header = ["limit", "load"]
    cells = [cell for cell in results.cells if cell.delay == delay and cell.demand == demand]
    counts = sorted({cell.instances for cell in cells})
    header += [f"{count:,} instance{'s' if count > 1 else ''}" for count in counts]
    rows = []
    for algorithm in ("fixed_window", "token_bucket"):
        for load in LOADS:
            row = [algorithm.replace("_", " "), load]
            for count in counts:
                cell = next(c for c in cells if (c.algorithm, c.load, c.instances) == (algorithm, load, count))
                row.append(f"{cell.used:.1%} used, {cell.saved:.0%} saved")
            rows.append(row)
    return header, rows


def targets(results: LeaseResults) -> str:
    """Which targets were met."""
    exceeded = sum(cell.exceeded for cell in results.cells)
    lines = [f"- Never above the limit: {'met' if not exceeded else f'**missed** in {exceeded} runs'}."]
    full = [cell for cell in results.cells if cell.demand > 1]
    skewed = [cell for cell in full if cell.instances == 100 and cell.load == "skewed"]
    least = min(cell.used for cell in skewed)
    lines.append(f"- 100 instances, skewed: at least 95 % used: {_met(least)} ({least:.1%} at least).")
    missed = [cell for cell in full if cell.used < GOAL]
    lines.append(
        f"- All runs above the limit: at least 95 % used: "
        f"{'met' if not missed else f'**missed** in {len(missed)} of {len(full)}'} "
        f"({min(cell.used for cell in full):.1%} at least)."
    )
    return "\n".join(lines)


def _met(used: float) -> str:
    return "met" if used >= GOAL else "**missed**"


OPENING = """\
How much of a limit a fleet of instances uses when it decides from leases, and how many calls to the store that
saves. A simulation on virtual time (`make bench BENCH="--only leases"`): counters and local decisions are the real
ones, the network is a delay, and the clock of each instance is up to five seconds off.

The limit is 10,000 requests per 10 seconds for all instances together. *Even*: all instances get as much. *Skewed*: the
second gets half as much as the first, the third a third, and so on (Zipf). *Bursty*: all requests of a second come
in its first fifth, at a fifth of the instances, each second at others.

*Saved* is the share of the requests for which the store was not called, admitted or denied (the denial cache is on). A
call is counted for each request that an instance cannot decide; real instances send those of one moment in one call."""
