"""What puts the same random steps to the Python algorithms and to their Lua twins, and compares all that comes of it.

Python's side is a MemoryStore for each counter: one that holds a single counter never sweeps, so both sides remember
the same. Redis gets the steps of a batch in one call, with the same virtual time. The states are compared as they lie
in memory and, byte for byte as documented, in Redis. What stores forget when a clock steps back is left out here, since
it is not the twins' business: test_clock_steps.py holds the stores to each other in that.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from uuid import uuid4

import redis

from headgate.core.algorithms import Algorithm, build
from headgate.core.limit import Limit
from headgate.core.state import ListLog
from headgate.errors import ConfigError
from headgate.stores.clock import nanoseconds_of
from headgate.stores.memory import MemoryStore
from headgate.stores.port import Member, Op, Outcome, Request
from headgate.stores.redis.store import RedisStore
from headgate.stores.redis.wire import KINDS
from headgate.stores.url import open_store

__all__ = ["LARGEST_COST", "Counter", "Twins", "magnitude", "random_limit"]

BUCKETS = ("token_bucket", "leaky_bucket", "gcra")
START = 1_700_000_000_000_000
LATEST = 2**53 - 1  # the year 2255
LONGEST_PERIOD = 280 * 365 * 86_400 * 1_000_000
LARGEST_COUNT = 2**40
LARGEST_COST = 2**31 - 1
OPS = (Op.TAKE, Op.PEEK, Op.CHARGE, Op.GIVE_BACK, Op.RESET)
WEIGHTS = (55, 12, 10, 20, 3)

HEADER = struct.Struct(">BBI5q")  # version, algorithm, tick; count, period, time, a, b
LOG_HEADER = struct.Struct(">II")  # number of the oldest entry, entries stored
ENTRY = struct.Struct(">qq")  # tick, cost

StateNumbers = tuple[tuple[int, int, int, int], int, int, int, list[tuple[int, int]] | None]
"""The limit a state was written under; time, a, b; and the entries of a log that cost anything."""


def random_limit(random: random.Random, algorithm: str, scale: int) -> Limit:
    """A limit that can be counted exactly, with a period of about `scale` microseconds."""
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
    """A clock that is set to any microsecond, exactly."""

    def __init__(self) -> None:
        self.now = START

    def ticks(self) -> int:
        return self.now

    def wait(self, seconds: float) -> float:
        return seconds


class Counter:
    """One counter, the limits it is used under (one, unless limits change), and what was taken from it."""

    def __init__(self, key: str, limits: Sequence[Limit], clock: SetClock) -> None:
        self.key = key
        self.algorithms = [build(limit, "twins") for limit in limits]
        self.memory = MemoryStore(1, clock)
        self.memory.nanoseconds = partial(nanoseconds_of, clock)
        self.taken: list[tuple[Algorithm, int, int]] = []

    def step(self, random: random.Random) -> Request:
        """A random operation on it."""
        (op,) = random.choices(OPS, WEIGHTS)
        algorithm = random.choice(self.algorithms)
        if op is Op.GIVE_BACK:
            if not self.taken:
                return Request(Op.TAKE, [Member(self.key, algorithm, 1)])
            place = random.randrange(len(self.taken))
            algorithm, tick, cost = self.taken[place] if random.random() < 0.2 else self.taken.pop(place)
            return Request(op, [Member(self.key, algorithm, cost, True, tick, random.randint(0, cost))])
        capacity = int(algorithm.capacity)
        share = random.choice((0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 1.1)) if random.random() < 0.5 else random.random()
        cost = random.choice((0, 1, 1, 1, 2, round(share * capacity), round(share * capacity), capacity + 1))
        if op is Op.CHARGE and random.random() < 0.1:
            cost = LARGEST_COST  # a deep debt
        return Request(op, [Member(self.key, algorithm, min(cost, LARGEST_COST))])

    def took(self, request: Request, outcome: Outcome) -> None:
        (member,) = request.members
        if request.op is Op.TAKE and outcome.decision.allowed and member.cost:
            self.taken.append((member.algorithm, outcome.tick, member.cost))
            del self.taken[:-20]

    def state(self) -> StateNumbers | None:
        """As it lies in memory."""
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
        assert isinstance(store, RedisStore)
        store._driven = None
        self.store = store
        self.redis = redis.Redis.from_url(url)
        self.steps = 0

    def move(self, scale: int) -> None:
        """Let time pass, a little or a lot; or let the clock jump."""
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
        """One random step on each of the counters (which may be named several times), all in one call."""
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
    """All that a decision says. (Where nothing was charged, there is nothing to give back at its tick.)"""
    decision = outcome.decision
    tick = outcome.tick if step.members[0].cost else 0
    return decision.allowed, decision.remaining, decision._wait, decision._reset, decision.reason, tick


def parsed(value: bytes) -> StateNumbers:
    """A counter as it lies in Redis: see the top of lua/cells.lua."""
    version, kind, tick, count, period_us, time, a, b = HEADER.unpack_from(value)
    assert version == 1
    entries = None
    if kind == KINDS["sliding_window_log"]:
        head, stored = LOG_HEADER.unpack_from(value, HEADER.size)
        records = list(ENTRY.iter_unpack(value[HEADER.size + LOG_HEADER.size :]))
        assert len(records) == stored
        entries = [(at, cost) for at, cost in records[head:] if cost]
    else:
        assert len(value) == HEADER.size
    return (kind, tick, count, period_us), time, a, b, entries
