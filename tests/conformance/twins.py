"""Runs random operations on the Python algorithms and their Lua twins, and compares decisions and states.

Python has a MemoryStore per counter: with a single counter it never sweeps, so both sides store the same. All of them
read the clock for each batch, as the one Redis store does. Redis gets a batch in one call, with the same virtual time.
States are compared as objects in memory and, by the documented layout, as bytes in Redis.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from uuid import uuid4

import civil
import redis

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.limit import Limit
from crestgate.core.state import ListLog
from crestgate.errors import ConfigError
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Member, Op, Outcome, Request
from crestgate.stores.redis.codec import KINDS
from crestgate.stores.remote_store import RemoteStore

__all__ = ["LARGEST_COST", "Counter", "Twins", "magnitude", "random_limit"]

BUCKETS = ("token_bucket", "leaky_bucket", "gcra")
START = 1_700_000_000_000_000
LATEST = 2**53 - 1  # the year 2255
LONGEST_PERIOD = 280 * 365 * 86_400 * 1_000_000
LARGEST_COUNT = 2**40
LARGEST_COST = 2**31 - 1
OPS = (Op.TAKE, Op.PEEK, Op.CHARGE, Op.GIVE_BACK, Op.RENEW, Op.RESET)
WEIGHTS = (55, 12, 10, 20, 10, 3)
LOGS = (KINDS["sliding_window_log"], KINDS["concurrency"])

HEADER = struct.Struct(">BBI5q")  # version, algorithm, tick; count, period, time, a, b
LOG_HEADER = struct.Struct(">II")  # number of the oldest entry, entries stored
ENTRY = struct.Struct(">qq")  # tick, cost

StateNumbers = tuple[tuple[int, int, int, int], int, int, int, list[tuple[int, int]] | None]
"""The limit a state was written under; time, a, b; and the entries of a log that cost anything."""


def random_limit(random: random.Random, algorithm: str, scale: int) -> Limit:
    """A limit that can be counted exactly, with a period of about `scale` microseconds."""
    if algorithm == "calendar":
        unit, zone = random.choice(civil.CALENDAR_UNITS), random.choice(civil.CALENDAR_ZONES)
        return Limit.calendar(magnitude(random, LARGEST_COUNT), unit, zone)
    while True:
        period = min(max(round(scale * 10 ** random.uniform(-1, 1)), 1), LONGEST_PERIOD)
        period -= period % 10 ** random.choice((0, 0, 1, 3, 6)) if period > 10**7 else 0
        count = magnitude(random, LARGEST_COUNT)
        burst = magnitude(random, LARGEST_COUNT) if algorithm in BUCKETS and random.random() < 0.5 else None
        try:
            return Limit(count, Fraction(period, 1_000_000), burst, algorithm)
        except ConfigError:  # beyond what is exact
            continue


def magnitude(random: random.Random, most: int) -> int:
    """A whole number from 1 to `most`, small ones as likely as large ones."""
    return min(int(math.exp(random.uniform(0, math.log(most + 1)))), most)


class SetClock:
    """A clock that can be set to any microsecond."""

    def __init__(self) -> None:
        self.now = START
        self.stores: list[MemoryStore] = []

    def ticks(self) -> int:
        return self.now

    def wait(self, seconds: float) -> float:
        return seconds


class Counter:
    """One counter, its limits (one, unless limits change), and its recent takes."""

    def __init__(self, key: str, limits: Sequence[Limit], clock: SetClock) -> None:
        self.key = key
        self.algorithms = [build(limit, "twins") for limit in limits]
        self.memory = MemoryStore(1, clock)
        clock.stores.append(self.memory)
        self.taken: list[tuple[Algorithm, int, int]] = []

    def step(self, random: random.Random) -> Request:
        """A random operation on it."""
        (op,) = random.choices(OPS, WEIGHTS)
        algorithm = random.choice(self.algorithms)
        if op is Op.GIVE_BACK or op is Op.RENEW:
            if not self.taken:
                return Request(Op.TAKE, [Member(self.key, algorithm, 1)])
            index = random.randrange(len(self.taken))
            algorithm, tick, cost = self.taken[index] if random.random() < 0.2 else self.taken.pop(index)
            return Request(op, [Member(self.key, algorithm, cost, True, tick, random.randint(0, cost))])
        capacity = int(algorithm.capacity)
        share = random.choice((0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 1.1)) if random.random() < 0.5 else random.random()
        cost = random.choice((0, 1, 1, 1, 2, round(share * capacity), round(share * capacity), capacity + 1))
        if op is Op.CHARGE and random.random() < 0.1:
            cost = LARGEST_COST  # a deep debt
        debt = min(random.choice((0, 1, capacity // 2, 2 * capacity)), LARGEST_COST) if op is Op.CHARGE else 0
        return Request(op, [Member(self.key, algorithm, min(cost, LARGEST_COST), amount=debt)])

    def took(self, request: Request, outcome: Outcome) -> None:
        (member,) = request.members
        if request.op in (Op.TAKE, Op.RENEW) and outcome.decision.allowed and member.cost:
            self.taken.append((member.algorithm, outcome.tick, member.cost))
            del self.taken[:-20]

    def state(self) -> StateNumbers | None:
        """The state in memory."""
        entry = self.memory.table.find("twins", self.key)
        if entry is None:
            return None
        name, count, period_us, tick = entry.algorithm.shape
        entries = entry.log.entries() if isinstance(entry.log, ListLog) else None
        return (KINDS[name], tick, count, period_us), entry.time, entry.a, entry.b, entries


class Twins:
    """A MemoryStore for each of some counters, and a Redis, on one virtual clock."""

    def __init__(self, url: str, seed: str) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.clock = SetClock()
        self.prefix = f"{uuid4()}"
        store = open_store(f"{url}?prefix={self.prefix}&timeout_ms=60000", self.clock)
        assert isinstance(store, RemoteStore)
        self.store = store
        self.redis = redis.Redis.from_url(url)
        self.steps = 0

    def move(self, scale: int) -> None:
        """Advance the clock, or let it jump."""
        draw = self.random.random()
        if draw < 0.2:
            return
        if draw < 0.3:
            ticks = self.random.randint(1, 3)
        elif draw < 0.8:
            ticks = round(scale * 10 ** self.random.uniform(-5, 0.5))
        elif draw < 0.96:
            ticks = -round(scale * 10 ** self.random.uniform(-5, 1.5))
        else:
            ticks = self.random.randint(0, LATEST) - self.clock.now
        self.clock.now = min(max(self.clock.now + ticks, 0), LATEST)

    def batch(self, counters: Sequence[Counter]) -> None:
        """One random operation on each of the counters (which may occur several times), all in one call."""
        for memory in self.clock.stores:
            memory.apply([])
        before = {counter.key: counter.state() for counter in counters}
        steps = [counter.step(self.random) for counter in counters]
        expected = [c.memory.apply([s])[0][0] for c, s in zip(counters, steps, strict=True)]
        replies = self.store.apply(steps)
        self.steps += len(steps)
        for counter, step, outcome, (reply,) in zip(counters, steps, expected, replies, strict=True):
            counter.took(step, outcome)
            if numbers(step, outcome) != numbers(step, reply):
                self.differ(counter, before, steps, f"{numbers(step, outcome)}, Lua {numbers(step, reply)}")
        unique = {counter.key: counter for counter in counters}.values()
        stored = self.redis.mget([f"{self.prefix}:twins:{counter.key}" for counter in unique])
        for counter, value in zip(unique, stored, strict=True):
            if (wanted := counter.state()) != (found := parsed(value) if isinstance(value, bytes) else None):
                self.differ(counter, before, steps, f"leaves {wanted}, Lua {found}")

    def differ(
        self, counter: Counter, before: dict[str, StateNumbers | None], steps: Sequence[Request], what: str
    ) -> None:
        lines = [f"seed {self.seed}, step {self.steps}, now {self.clock.now}: Python {what}"]
        lines += [f"state before: {before[counter.key]}"]
        for step in steps:
            (m,) = step.members
            if m.key == counter.key:
                limit = m.algorithm.limit
                lines.append(f"{step.op} cost {m.cost} tick {m.tick} amount {m.amount} {limit!r} {m.algorithm.shape}")
        raise AssertionError("\n".join(lines))

    def close(self) -> None:
        self.store.close()
        self.redis.close()


def numbers(step: Request, outcome: Outcome) -> tuple[object, ...]:
    """All fields of a decision; the tick only if something was charged."""
    decision = outcome.decision
    tick = outcome.tick if step.members[0].cost else 0
    return decision.allowed, decision.remaining, decision.wait_us, decision.reset_us, decision.reason, tick


def parsed(value: bytes) -> StateNumbers:
    """The state of a counter in Redis: see lua/cells.lua."""
    version, kind, tick, count, period_us, time, a, b = HEADER.unpack_from(value)
    assert version == 1
    entries = None
    if kind in LOGS:
        head, stored = LOG_HEADER.unpack_from(value, HEADER.size)
        records = list(ENTRY.iter_unpack(value[HEADER.size + LOG_HEADER.size :]))
        assert len(records) == stored
        entries = [(at, cost) for at, cost in records[head:] if cost]
    else:
        assert len(value) == HEADER.size
    return (kind, tick, count, period_us), time, a, b, entries
