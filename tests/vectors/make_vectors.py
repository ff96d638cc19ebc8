"""Writes vectors.jsonl: calls with the answers the naive model gives.

Every store has to give the same decisions for the same calls at the same times,
and the model is far too slow to run beside each of them. So its answers are
written down once and committed. Running this file again writes the same bytes;
``--check`` only compares and exits 1 when the committed file differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "model"))

from civil import calendar, is_calendar, nominal_us  # noqa: E402 - its folder is on the path now
from naive import ALGORITHMS, BUCKETS, CONCURRENCY, Answer, Limit, Naive, Receipt  # noqa: E402 - the same

FILE = HERE / "vectors.jsonl"
MS = 1_000
S = 1_000_000
MINUTE = 60 * S
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY
START = 1_700_000_000 * S
LARGEST_COST = 2**31 - 1


class Script:
    """Records calls with the model's answers, on a manual clock."""

    def __init__(self, name: str, limit: Limit, start: int = START) -> None:
        self.name = name
        self.first = limit
        self.now = limit
        self.at = start
        self.model = Naive(limit.algorithm, limit.count, limit.period_us, limit.burst)
        self.calls: list[dict[str, Any]] = []
        self.receipts: dict[int, Receipt] = {}

    def take(self, cost: int = 1) -> Answer:
        answer = self.model.take(self.at, cost)
        if answer.receipt is not None:
            self.receipts[len(self.calls)] = answer.receipt
        self._record("take", cost, answer)
        return answer

    def peek(self, cost: int = 1) -> Answer:
        answer = self.model.peek(self.at, cost)
        self._record("peek", cost, answer)
        return answer

    def reset(self) -> None:
        self.model.reset()
        self.calls.append({"op": "reset", "at": self.at})

    def limit(self, limit: Limit) -> None:
        self.now = limit
        self.model.limit(limit.algorithm, limit.count, limit.period_us, limit.burst)
        self.calls.append({"op": "limit", "limit": as_json(limit)})

    def charge(self, cost: int) -> None:
        """Skipped when the debt would reach twice the capacity."""
        if self.model.units(self.at) + cost < max(1, 2 * self.now.capacity):
            self.model.charge(self.at, cost)
            self.calls.append({"op": "charge", "at": self.at, "cost": cost})

    def give_back(self, take: int, amount: int) -> None:
        """Skipped when a counter ahead of the clock would be left empty."""
        if self.model.lag_us(self.at) and self.model.units(self.at) <= amount:
            return
        self.model.give_back(self.receipts.pop(take), self.at, amount)
        call = {"op": "give_back", "at": self.at, "take": take, "amount": amount}
        self.calls.append(call)

    def renew(self, take: int) -> None:
        """Skipped when the take was denied. Afterwards the receipt is that of the renewal, if the slot was there."""
        if take not in self.receipts:
            return
        answer = self.model.renew(self.receipts[take], self.at)
        if answer.receipt is not None:
            self.receipts[take] = answer.receipt
        expect = {"allowed": answer.allowed, "remaining": answer.remaining, "reset_us": answer.reset_us}
        self.calls.append({"op": "renew", "at": self.at, "take": take, "expect": expect})

    def last_take(self) -> int:
        return len(self.calls) - 1

    def drain(self) -> None:
        """Uses up what is left, in one take."""
        left = self.peek(0).remaining
        if 0 < left <= LARGEST_COST:
            self.take(left)

    def around_retry(self, cost: int = 1) -> None:
        """One microsecond before the promised time denies, the time itself admits."""
        answer = self.take(cost)
        if answer.allowed or not answer.retry_us:
            return
        self.at += answer.retry_us - 1
        assert not self.take(cost).allowed, self.name
        self.at += 1
        assert self.take(cost).allowed, self.name

    def around_reset(self) -> None:
        """The whole capacity is there at the reset moment and not before."""
        answer = self.peek(0)
        if answer.reset_us:
            whole = self.now.capacity
            self.at += answer.reset_us - 1
            assert self.peek(0).remaining < whole, self.name
            self.at += 1
            assert self.peek(0).remaining == whole, self.name

    def to_edge(self, offset: int = 0) -> None:
        """To the next start of a window, or a little off it."""
        period = self.now.period_us
        self.at = (self.at // period + 1) * period + offset

    def _record(self, op: str, cost: int, answer: Answer) -> None:
        delay = answer.delay * S
        expect = {
            "allowed": answer.allowed,
            "limit": answer.limit,
            "remaining": answer.remaining,
            "retry_us": answer.retry_us,
            "reset_us": answer.reset_us,
            "delay_us": f"{delay.numerator}/{delay.denominator}",
            "reason": answer.reason,
        }
        self.calls.append({"op": op, "at": self.at, "cost": cost, "expect": expect})

    def line(self) -> str:
        assert 20 <= len(self.calls) <= 60, (self.name, len(self.calls))
        whole = {"name": self.name, "limit": as_json(self.first), "calls": self.calls}
        return json.dumps(whole, separators=(",", ":"))


def as_json(limit: Limit) -> dict[str, Any]:
    return {
        "algorithm": limit.algorithm,
        "count": limit.count,
        "period_us": limit.period_us,
        "burst": limit.burst,
    }


def make(algorithm: str, count: int, period_us: int, burst: int | None = None) -> Limit:
    """A burst is for the buckets only, so the others leave it out. A calendar's period is its own."""
    if is_calendar(algorithm):
        return Limit(algorithm, count, nominal_us(algorithm))
    return Limit(algorithm, count, period_us, burst if algorithm in BUCKETS else None)


# Hand-written sequences. Each gets an empty script and fills it.


def edges(script: Script) -> None:
    script.to_edge(-3)
    for _ in range(6):
        script.take()
        script.at += 1
    script.drain()
    script.around_retry()
    script.around_reset()
    script.drain()
    script.to_edge(-1)
    script.peek()
    script.at += 1
    script.take()
    script.to_edge(script.now.period_us // 2)
    script.take()
    script.drain()
    script.around_retry()
    script.around_retry(script.now.capacity)


def costs(script: Script) -> None:
    top = script.now.capacity
    costs_tried = (0, 1, top // 3, top - 1, top, top + 1)
    for cost in costs_tried:
        script.peek(cost)
    script.take(0)
    script.take(top + 1)
    script.take(max(1, top // 3))
    for cost in costs_tried:
        script.peek(cost)
    script.drain()
    script.at += script.now.period_us // 7 + 1
    for cost in costs_tried:
        script.take(cost)
    script.around_retry(max(1, top // 2))
    script.around_reset()


def coarse(script: Script) -> None:
    """Small steps in a huge period: within a tick no time passes."""
    tick = script.now.resolution
    script.at += tick - 1
    for wait in (0, 1, tick - 1, tick, -1, 1 - tick):
        script.at += wait
        script.take(2)
        script.peek(0)
    script.take(1)
    script.take(script.now.capacity)
    script.give_back(0, 1)
    script.peek()
    script.charge(3)
    script.peek()
    script.at += DAY
    script.take()
    script.take(0)


def debts(script: Script) -> None:
    top = script.now.capacity
    script.charge(0)
    script.peek()
    script.charge(top // 2 + 1)
    script.peek()
    script.charge(top // 2 + 1)
    script.peek()
    script.take(0)
    script.take()
    script.around_retry()
    script.around_retry(top)
    script.charge(1)
    script.charge(top // 3 + 1)
    script.peek(top + 1)
    script.at += script.now.period_us // 3
    script.peek()
    script.take()
    script.charge(1)
    script.around_reset()
    script.charge(top)
    script.take()
    script.at += 2 * script.now.period_us
    script.peek()
    script.drain()
    script.peek()


def gives(script: Script) -> None:
    """Immediately, a little later, after most of it came back, and far too late."""
    top, period = script.now.capacity, script.now.period_us
    script.to_edge()
    waits = (0, 1, period // 10, period // 2, period - 1, period, 2 * period)
    for wait in waits:
        script.take(max(1, top * 2 // 3))
        index = script.last_take()
        script.take(max(1, top // 5))
        script.at += wait
        if index in script.receipts:
            script.give_back(index, max(1, top // 2))
        script.peek()
        script.drain()
        script.take()
        script.at += 2 * period
    script.take(0)


def gives_shared(script: Script) -> None:
    """Two takes of one moment, given back in turn, and once after a reset."""
    top = script.now.capacity
    for wait in (0, 3, script.now.period_us // 4):
        script.take(max(1, top // 3))
        first = script.last_take()
        script.take(max(1, top // 3))
        second = script.last_take()
        script.at += wait
        for index in (second, first):
            if index in script.receipts:
                script.give_back(index, max(1, top // 3))
            script.peek(top)
        script.take()
    script.take()
    old = script.last_take()
    script.reset()
    if old in script.receipts:
        script.give_back(old, 1)
    script.peek(top)


def behind(script: Script) -> None:
    """A clock that goes back by less than a period, and catches up."""
    period = script.now.period_us
    script.to_edge(period // 3)
    script.take()
    script.drain()
    for back in (1, period // 5, period // 2):
        script.at -= back
        script.peek()
        script.take()
        script.at += back
    script.at += period // 2
    script.take()
    top = script.at
    script.at -= period // 4
    script.take()
    script.peek(script.now.capacity)
    script.charge(1)
    script.peek()
    script.at = top
    script.take()
    script.around_retry()
    script.at += period * 3
    script.take()
    script.at -= period
    script.peek()
    script.take()
    script.at += 1
    script.take()
    script.peek(0)


def rebased(script: Script) -> None:
    """A clock that had been more than a period ahead; the counter has room."""
    top, period = script.now.capacity, script.now.period_us
    some = max(1, top // 4)
    script.to_edge(period // 3)
    script.take(some)
    script.at += period
    script.take(some)
    ahead = script.at
    script.at = ahead - period
    script.peek()
    script.at -= 1
    script.peek()
    script.at -= 5 * period
    script.peek(top)
    script.at += period // 2
    script.peek(top)
    script.take()
    script.peek(top)
    script.at += period // 4
    script.take()
    script.drain()
    script.around_retry()
    script.around_reset()
    script.take(some)
    index = script.last_take()
    script.at -= 3 * period
    script.peek(top)
    if index in script.receipts:
        script.give_back(index, 1)
    script.peek(top)
    script.charge(1)
    script.peek(top)
    script.at = ahead
    script.take()


def rebased_full(script: Script) -> None:
    """A full counter, far ahead: a denial keeps nothing, a charge does."""
    period = script.now.period_us
    script.drain()
    script.peek()
    script.at -= 4 * period + 1
    for _ in range(4):
        script.take()
        script.at += period // 3
    script.take(0)
    script.peek(0)
    script.charge(1)
    for _ in range(6):
        script.take()
        script.at += period // 3
    script.take()
    script.around_reset()
    script.drain()
    script.take()


def blocked(script: Script) -> None:
    open_limit = script.now
    shut = make(open_limit.algorithm, 0, open_limit.period_us)
    script.take()
    script.limit(shut)
    for cost in (0, 1, 5):
        script.take(cost)
        script.peek(cost)
    script.charge(0)
    script.limit(open_limit)
    script.peek()
    script.drain()
    script.limit(shut)
    script.at += open_limit.period_us // 3
    script.peek()
    script.take(0)
    script.limit(open_limit)
    script.peek()
    script.around_retry()
    script.limit(shut)
    script.reset()
    script.peek()
    script.limit(open_limit)
    script.peek(open_limit.capacity)


def counts(script: Script) -> None:
    """Raised, lowered below what is used, and back again."""
    first = script.now
    several = (first.count * 10, max(1, first.count // 3), first.count + 1)
    for wait in (0, first.period_us // 9):
        script.take(max(1, first.capacity * 3 // 5))
        for count in several:
            other = make(first.algorithm, count, first.period_us, first.burst)
            script.limit(other)
            script.peek()
            script.at += wait
            script.take()
        script.limit(first)
        script.peek(first.capacity)
    script.drain()
    script.limit(make(first.algorithm, several[1], first.period_us))
    script.around_retry()
    script.around_reset()


def periods(script: Script) -> None:
    first = script.now
    several = (first.period_us * 7, max(1, first.period_us // 2), first.period_us)
    for wait in (0, first.period_us // 9):
        script.take(max(1, first.capacity * 3 // 5))
        for period in several:
            script.limit(make(first.algorithm, first.count, period, first.burst))
            script.peek()
            script.at += wait
            script.take()
    script.drain()
    script.limit(make(first.algorithm, first.count, first.period_us * 3))
    script.around_retry()
    script.around_reset()


def bursts(script: Script) -> None:
    first = script.now
    several = (first.count * 3, max(1, first.count // 4), None, first.count + 1)
    for wait in (0, first.period_us // 5):
        script.drain()
        for burst in several:
            script.limit(make(first.algorithm, first.count, first.period_us, burst))
            script.peek()
            script.at += wait
            script.take()
    script.around_retry()
    script.around_reset()


def charged_over(script: Script) -> None:
    """Charges and give-backs across a change of the limit."""
    first = script.now
    other = make(first.algorithm, first.count * 2, first.period_us * 3)
    script.take(max(1, first.capacity // 2))
    index = script.last_take()
    script.at += first.period_us // 10
    script.limit(other)
    script.give_back(index, 1)
    script.peek()
    script.charge(max(1, first.capacity // 2))
    script.peek()
    script.take(max(1, first.capacity // 3))
    index = script.last_take()
    script.peek(other.capacity)
    if index in script.receipts:
        script.give_back(index, 1)
    script.peek(other.capacity)
    script.limit(first)
    script.charge(1)
    script.peek()
    script.take()
    script.around_retry()
    script.around_reset()
    script.drain()
    script.limit(other)
    script.peek(other.capacity)
    script.take()
    script.take()


def becoming(target: str) -> Callable[[Script], None]:
    """From one algorithm to another and back, with room and without."""

    def fill(script: Script) -> None:
        first = script.now
        other = make(target, first.count, first.period_us * 2, first.count + 2)
        small = make(target, max(1, first.count // 2), first.period_us)
        script.take(max(1, first.capacity * 2 // 3))
        script.at += first.period_us // 11
        script.limit(other)
        script.peek()
        script.take(0)
        script.peek(other.capacity)
        script.take()
        script.peek(other.capacity)
        script.limit(first)
        script.at += first.period_us // 13
        script.peek(first.capacity)
        script.drain()
        script.limit(small)
        script.take()
        script.peek(small.capacity)
        script.at += first.period_us // 3
        script.around_retry()
        script.take(0)
        script.limit(first)
        script.take()
        script.charge(2)
        script.peek()
        script.limit(other)
        script.charge(1)
        script.peek()
        script.around_reset()
        script.take()

    return fill


def behind_changed(script: Script) -> None:
    """The limit changes while the counter is ahead of the clock."""
    first = script.now
    top, period = first.capacity, first.period_us
    other = make(first.algorithm, first.count + 3, period * 2)
    script.to_edge(period // 3)
    script.take(max(1, top // 2))
    for back in (period // 4, 3 * period):
        script.at -= back
        script.limit(other)
        script.peek()
        script.peek(other.capacity)
        script.take()
        script.at += back
        script.peek(other.capacity)
        script.at += 1
        script.limit(first)
        script.peek(top)
        script.take()
        script.at += period // 5
        script.take()
        script.peek(top)
    script.at -= period // 3
    script.limit(other)
    script.charge(1)
    script.peek(other.capacity)


def civil(script: Script) -> None:
    """Window after window: one microsecond before its end denies, the end itself admits; give-backs stay inside."""
    script.take(2)
    for _ in range(4):
        index = script.last_take()
        script.give_back(index, 1)
        script.drain()
        script.around_retry()
    index = script.last_take()
    script.around_reset()
    script.give_back(index, 1)
    script.peek(script.now.capacity)
    script.take(2)
    index = script.last_take()
    script.charge(script.now.capacity)
    script.peek()
    script.around_retry()
    script.give_back(index, 2)
    script.peek(script.now.capacity)


def wander(rng: random.Random, script: Script, length: int, wild: str) -> None:
    """Random calls; ``wild`` names what may happen besides takes and peeks."""
    first = script.now
    retry = 0
    while len(script.calls) < length:
        limit = script.now
        step(rng, script, retry, "clock" in wild)
        roll = rng.random()
        if "limits" in wild and roll < 0.12:
            script.limit(mutated(rng, first))
        elif "debts" in wild and roll < 0.12:
            charged = rng.randint(0, max(1, limit.capacity // 2))
            script.charge(min(charged, LARGEST_COST))
        elif "debts" in wild and roll < 0.3 and script.receipts:
            index = rng.choice(list(script.receipts)[-4:])
            script.give_back(index, rng.randint(0, script.receipts[index].cost))
        elif roll > 0.99:
            script.reset()
        else:
            cost = some_cost(rng, limit.capacity)
            answer = script.peek(cost) if rng.random() < 0.2 else script.take(cost)
            retry = answer.retry_us or 0


def step(rng: random.Random, script: Script, retry: int, clock: bool) -> None:
    limit = script.now
    period = limit.period_us
    kind = rng.randrange(11 if clock else 9)
    if kind == 0:
        script.at += rng.choice((1, limit.resolution))
    elif kind == 1:
        script.at += period // max(1, limit.count)
    elif kind == 2:
        script.at += rng.randint(0, 2 * period // max(1, limit.count) + 1)
    elif kind == 3:
        script.at += rng.randint(0, period // 4)
    elif kind == 4 and retry:
        script.at += retry - rng.randint(0, 1)
    elif kind == 5 and rng.random() < 0.4:
        script.to_edge(rng.choice((-1, 0, 0, 1)))
    elif kind == 6 and rng.random() < 0.3:
        script.at += rng.choice((period - 1, period, 2 * period, 5 * period))
    elif kind == 9:
        script.at -= rng.randint(1, period)
    elif kind == 10:
        script.at += rng.choice((-1, 1, 1)) * rng.randint(period, 4 * period)


def some_cost(rng: random.Random, capacity: int) -> int:
    kind = rng.randrange(20)
    if kind < 8:
        cost = 1
    elif kind < 9:
        cost = 0
    elif kind < 10:
        cost = capacity + 1
    elif kind < 11:
        cost = capacity
    elif kind < 14:
        cost = rng.randint(1, max(1, capacity))
    else:
        cost = rng.randint(1, max(1, capacity // 4))
    return min(cost, LARGEST_COST)


def mutated(rng: random.Random, limit: Limit) -> Limit:
    kind = rng.randrange(6)
    if kind == 0:
        return limit
    if kind == 1:
        count = max(1, limit.count * rng.choice((1, 2, 5, 9)) // rng.choice((2, 3, 4)))
        return make(limit.algorithm, count, limit.period_us, limit.burst)
    if kind == 2:
        period = max(1, limit.period_us * rng.choice((2, 3)) // rng.choice((1, 4)))
        return make(limit.algorithm, limit.count, period, limit.burst)
    if kind == 3:
        burst = rng.randint(1, 2 * limit.count)
        return make(limit.algorithm, limit.count, limit.period_us, burst)
    if kind == 4 and rng.random() < 0.3:
        return make(limit.algorithm, 0, limit.period_us)
    return make(rng.choice(ALGORITHMS), limit.count, limit.period_us)


def scripts(algorithm: str) -> Iterator[Script]:
    ten = make(algorithm, 10, S)
    minute = make(algorithm, 97, MINUTE)
    short = make(algorithm, 30, S, 12)
    long = make(algorithm, 7, S, 20)
    large = make(algorithm, 1_000_003, DAY)
    ancient = make(algorithm, 11, YEAR if algorithm in BUCKETS else 200 * YEAR)

    def filled(name: str, limit: Limit, fill: Callable[[Script], None]) -> Script:
        script = Script(f"{algorithm}/{name}", limit)
        fill(script)
        while len(script.calls) < 20:
            script.at += script.now.period_us // 6 + 1
            script.take()
        return script

    for name, limit in (
        ("ten", ten),
        ("minute", minute),
        ("1us", make(algorithm, 1, 1)),
        ("7us", make(algorithm, 3, 7, 5)),
        ("year", make(algorithm, 365, YEAR)),
        ("large", large),
    ):
        yield filled(f"edges-{name}", limit, edges)
    yield filled("coarse-ticks", ancient, coarse)
    yield filled("costs", minute, costs)
    yield filled("costs-small-burst", short, costs)
    yield filled("costs-large", large, costs)
    yield filled("debts", ten, debts)
    yield filled("debts-burst", long, debts)
    yield filled("give-back", short, gives)
    yield filled("give-back-burst", long, gives)
    yield filled("give-back-shared", ten, gives_shared)
    yield filled("clock-behind", long, behind)
    yield filled("clock-behind-large", large, behind)
    yield filled("clock-rebase", minute, rebased)
    yield filled("clock-rebase-burst", long, rebased)
    yield filled("clock-rebase-full", ten, rebased_full)
    yield filled("blocked", ten, blocked)
    yield filled("limit-count", minute, counts)
    yield filled("limit-count-large", large, counts)
    yield filled("limit-period", ten, periods)
    if algorithm in BUCKETS:
        yield filled("limit-burst", long, bursts)
    yield filled("limit-charged", ten, charged_over)
    yield filled("limit-clock-behind", ten, behind_changed)
    for target in ALGORITHMS:
        if target != algorithm:
            yield filled(f"becomes-{target}", minute, becoming(target))

    rng = random.Random(f"crestgate vectors {algorithm}")
    year = make(algorithm, 365, YEAR, 31)
    pool = {
        "ten": ten,
        "short": short,
        "long": long,
        "7us": make(algorithm, 5, 7, 3),
        "1ms": make(algorithm, 13, MS, 40),
        "minute": minute,
        "year": year,
        "large": large,
        "huge": make(algorithm, 2_000_000_011, HOUR),
    }
    for name, limit in pool.items():
        for wild in ("plain", "clock", "limits", "clock-debts", "debts-limits"):
            if wild == "limits" and name == "huge":
                continue
            if rng.random() < 0.4 or wild == "plain":
                start = START + rng.randrange(10**7)
                script = Script(f"{algorithm}/random-{wild}-{name}", limit, start)
                longest = 56 if rng.random() < 0.1 else 28
                wander(rng, script, rng.randint(20, longest), wild)
                yield script


def calendar_scripts() -> Iterator[Script]:
    """Windows of civil time, at moments of the past: no later change of a zone's rules can move them."""
    for unit, zone, moment in (
        ("day", "UTC", "2024-02-28T23:59:59"),
        ("day", "Europe/Berlin", "2024-03-30T12:00:00"),  # 23 hours
        ("day", "Europe/Berlin", "2024-10-26T12:00:00"),  # 25 hours
        ("day", "America/New_York", "2024-11-02T23:59:59"),
        ("day", "America/Nuuk", "2024-10-26T12:00:00"),  # back over midnight
        ("day", "Asia/Beirut", "2024-03-30T12:00:00"),  # there is no midnight
        ("day", "Australia/Lord_Howe", "2024-04-06T01:00:00"),  # half an hour
        ("day", "America/Sao_Paulo", "2018-11-03T12:00:00"),  # there is no midnight
        ("day", "America/St_Johns", "2006-10-28T12:00:00"),  # back over midnight, a minute after it
        ("day", "Pacific/Apia", "2011-12-29T12:00:00"),  # a day that is left out
        ("hour", "Australia/Lord_Howe", "2024-04-07T00:30:00"),
        ("hour", "Asia/Kathmandu", "2024-05-01T00:00:00"),
        ("hour", "Europe/Berlin", "2024-10-27T01:30:00"),
        ("minute", "Europe/Berlin", "2024-10-27T01:58:30"),
        ("week", "Europe/Berlin", "2024-03-20T00:00:00"),
        ("week", "Africa/Casablanca", "2024-03-05T00:00:00"),
        ("month", "UTC", "2024-01-31T23:59:59"),
        ("month", "America/New_York", "2023-12-31T23:59:59"),
        ("quarter", "Europe/Berlin", "2023-12-31T23:00:00"),
        ("year", "Asia/Tokyo", "2023-12-31T23:59:59"),
        ("year", "UTC", "1999-12-31T23:59:59"),
    ):
        name = f"calendar-{unit}/{zone}-{moment[:10]}"
        start = int(datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()) * S
        script = Script(name, make(calendar(unit, zone), 10, 0), start)
        civil(script)
        yield script

    berlin = calendar("day", "Europe/Berlin")
    sequences: dict[str, Callable[[Script], None]] = {
        "costs": costs,
        "debts": debts,
        "give-back": gives,
        "give-back-shared": gives_shared,
        "clock-behind": behind,
        "clock-rebase": rebased,
        "clock-rebase-full": rebased_full,
        "blocked": blocked,
        "limit-count": counts,
        "limit-clock-behind": behind_changed,
        "limit-charged": charged_over,
        "becomes-another-zone": becoming(calendar("day", "Asia/Tokyo")),
        "becomes-another-unit": becoming(calendar("month", "Europe/Berlin")),
        **{f"becomes-{target}": becoming(target) for target in ALGORITHMS},
    }
    for name, fill in sequences.items():
        script = Script(f"calendar/{name}", make(berlin, 97, 0))
        fill(script)
        while len(script.calls) < 20:
            script.at += script.now.period_us // 6 + 1
            script.take()
        yield script
    script = Script("fixed_window/becomes-calendar", make("fixed_window", 97, MINUTE))
    becoming(berlin)(script)
    yield script

    rng = random.Random("crestgate vectors calendar")
    for unit, zone in (("day", "Europe/Berlin"), ("month", "America/New_York"), ("hour", "Asia/Kathmandu")):
        for wild in ("plain", "clock", "limits", "clock-debts", "debts-limits"):
            limit = make(calendar(unit, zone), 13, 0)
            script = Script(f"calendar-{unit}/random-{wild}", limit, START + rng.randrange(10**7))
            wander(rng, script, rng.randint(20, 40), wild)
            yield script


def holders(script: Script) -> None:
    """Slots that are renewed in time, at the last moment, too late, and released."""
    top, ttl = script.now.capacity, script.now.period_us
    script.take(max(1, top // 2))
    first = script.last_take()
    script.drain()
    script.take()
    for wait in (1, ttl // 3, ttl - ttl // 3 - 2):
        script.at += wait
        script.renew(first)
        script.peek()
        script.take()
    script.drain()
    script.around_retry()
    second = script.last_take()
    script.at += ttl - 1
    script.renew(second)
    script.at += 1
    script.renew(first)
    script.peek(top)
    script.at += ttl - 1
    script.renew(second)
    script.renew(first)
    script.peek(top)
    script.take(1)
    third = script.last_take()
    if third in script.receipts:
        script.give_back(third, 1)
    script.peek(top)
    script.take(1)


def shared_ticks(script: Script) -> None:
    """Several holders of one moment, of which each moves and releases its own part."""
    top = script.now.capacity
    part = max(1, top // 4)
    taken = []
    for _ in range(3):
        script.take(part)
        taken.append(script.last_take())
    for index in taken:
        script.at += script.now.period_us // 5
        script.renew(index)
        script.peek(0)
    script.give_back(taken[0], part)
    script.peek(top)
    script.take(top)
    script.at += script.now.period_us // 2
    for index in taken[1:]:
        script.renew(index)
        script.peek(0)
    script.drain()
    script.around_reset()


def holders_and_clocks(script: Script) -> None:
    """Renewals while the clock is behind, and after it was far ahead."""
    top, ttl = script.now.capacity, script.now.period_us
    script.take(max(1, top // 3))
    first = script.last_take()
    script.at += ttl // 2
    script.take(max(1, top // 3))
    second = script.last_take()
    script.at -= ttl // 4
    script.renew(first)
    script.peek()
    script.renew(second)
    script.peek()
    script.at += ttl // 2
    script.renew(second)
    script.peek(top)
    script.at -= 3 * ttl
    script.renew(second)
    script.renew(first)
    script.peek(top)
    script.take()
    third = script.last_take()
    script.at += ttl - 1
    script.renew(third)
    script.peek(top)
    script.reset()
    script.renew(third)
    script.peek(top)


def changed_under_holders(script: Script) -> None:
    """A changed count keeps the slots; a changed time to live counts them anew, and their holders have lost them."""
    top, ttl = script.now.capacity, script.now.period_us
    script.take(max(1, top // 2))
    first = script.last_take()
    script.limit(make(CONCURRENCY, max(1, top // 4), ttl))
    script.at += ttl // 2
    script.renew(first)
    script.take()
    script.peek(0)
    script.limit(make(CONCURRENCY, 2 * top, ttl))
    script.at += ttl // 2
    script.renew(first)
    script.take()
    script.peek(0)
    script.limit(make("sliding_window_log", top, ttl))
    script.peek(0)
    script.limit(make(CONCURRENCY, 2 * top, ttl))
    script.renew(first)
    script.peek(0)
    script.around_reset()


def concurrency_scripts() -> Iterator[Script]:
    yield from scripts(CONCURRENCY)
    sequences = {
        "holders": holders,
        "shared-ticks": shared_ticks,
        "holders-clocks": holders_and_clocks,
        "holders-changed": changed_under_holders,
    }
    for limit_name, limit in {
        "ten": make(CONCURRENCY, 10, S),
        "one": make(CONCURRENCY, 1, MINUTE),
        "many": make(CONCURRENCY, 5_000, 90 * S),
    }.items():
        for name, fill in sequences.items():
            script = Script(f"concurrency/{name}-{limit_name}", limit)
            fill(script)
            while len(script.calls) < 20:
                script.at += script.now.period_us // 6 + 1
                script.take()
            yield script
    for name in ("token_bucket", "sliding_window_log"):
        script = Script(f"{name}/becomes-concurrency", make(name, 97, MINUTE))
        becoming(CONCURRENCY)(script)
        yield script


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes or checks vectors.jsonl.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check: bool = parser.parse_args().check
    made = [script.line() for name in ALGORITHMS for script in scripts(name)]
    made += [script.line() for script in calendar_scripts()]
    made += [script.line() for script in concurrency_scripts()]
    text = "\n".join(made) + "\n"
    if check:
        same = FILE.exists() and FILE.read_bytes() == text.encode()
        print("vectors.jsonl is up to date" if same else "vectors.jsonl differs")
        return 0 if same else 1
    FILE.write_bytes(text.encode())
    print(f"{len(made)} sequences, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
