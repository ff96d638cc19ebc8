# mypyc: compile
"""Leases: slices of a quota that this process has charged to its store in advance, and decides from by itself.

A slice is an ordinary charge of the store's counter. So whatever becomes of this process, the store never admits more
than the limit. What a slice may still admit here is bounded so that the algorithm's own bound holds as well:

    windows             a slice ends with the window in which the store has charged it. What is unused of it when it
                        ends is given back.
    token bucket, gcra  what was charged drains from the counter at the limit's rate, used or not, and what lay below it
                        drains first. So at a time t a slice is worth at most rate * (T - t), where T is when the level
                        that the store reported after the charge has drained. The slices of all processes are disjoint
                        parts of the level, so together they are never worth more than the level: at most
                        burst + rate * t pass in any span. That holds as long as nothing lowers the level, so stores
                        ignore a GIVE_BACK to such a counter (`Algorithm.keeps_charges`). What a request gives back
                        becomes a slice here, worth what the store itself would have given back.

All times are the machine's. A slice ends as many microseconds after its request was sent as the store's counter has
left, less a thousandth for clocks that differ in speed: so it ends here before it ends in the store. And no slice is
used for longer than MAX_SLICE_US: that is how long slices outlive a reset, or a change of the limit, by others. The
clock has to run on: a machine that is suspended as a whole may use slices for so long when it wakes.

The size follows the demand of this process. A slice should last for TARGET_US (DRAINING_TARGET_US where its rest would
be lost) and for the time of a call or two. It is at most half of this process's share of what is left. The share is
what this process has charged of all that was charged between two answers of the store, which is all that processes know
of each other. Near the limit nothing is taken in advance.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import MAX_COST
from crestgate.core.decision import Decision
from crestgate.stores.port import Member, Op, Outcome, Request

__all__ = ["MAX_LEASES", "MAX_SLICE_US", "Lease", "LeaseTable"]

MAX_LEASES: Final = 10_000
"""Counters that one process leases at a time; those beyond are decided by the store."""
MAX_SLICE_US: Final = 1_000_000
"""How long a slice is used at most."""
TARGET_US: Final = 500_000
"""How long a slice should last."""
DRAINING_TARGET_US: Final = 40_000
"""The same, for what is lost if it is not used."""
MIN_MEASURED_US: Final = 50_000
"""The demand is measured over at least so long."""
MAX_SLICES: Final = 16
"""Slices of one counter at a time; the oldest are dropped."""
GROWTH: Final = 4
"""A slice is at most so many times as large as the one before."""
SHARE_STEPS: Final = 1024
"""The share of a process is a whole number of these steps."""


@final
class Slice:
    """Units that a request has charged at the store's `tick`, and that may be used until `ends_at`."""

    __slots__ = ("drained_at", "ends_at", "left", "tick")

    def __init__(self, left: int, tick: int, drained_at: int, now: int) -> None:
        self.left = left
        self.tick = tick
        self.drained_at = drained_at
        self.ends_at = min(drained_at, now + MAX_SLICE_US)


@final
class Lease:
    """The slices of one counter, and what is known of its use."""

    __slots__ = (
        "algorithm",
        "drains",
        "key",
        "lag",
        "refilling",
        "remaining",
        "reset_at",
        "share",
        "since",
        "size",
        "slices",
        "touched_at",
        "trip",
        "used",
    )

    def __init__(self, key: str, algorithm: Algorithm, now: int) -> None:
        self.key = key
        self.algorithm = algorithm
        self.drains: bool = algorithm.keeps_charges
        """Whether charges drain by themselves, and are not given back."""
        self.slices: list[Slice] = []
        """The oldest first."""
        self.refilling = False
        """Whether a slice is on its way: there is one request for it at a time."""
        self.remaining = 0
        """What the store had left at its last answer."""
        self.reset_at = now
        """When the counter will be as good as new, by that answer."""
        self.lag: int | None = None
        """Microseconds to add to the store's time of a charge, for a time here that is not after it."""
        self.size = 1
        """Of the last slice."""
        self.used = 0
        """Units admitted by this process since `since`."""
        self.since = now
        self.touched_at = now
        self.trip = 0
        """Microseconds that the last call took."""
        self.share = SHARE_STEPS

    def usable(self, now: int) -> int:
        """Units that may be admitted now."""
        total = 0
        for part in self.slices:
            total += self.worth(part, now)
        return total

    def worth(self, part: Slice, now: int) -> int:
        """What a slice may still admit."""
        if part.ends_at <= now:
            return 0
        if not self.drains:
            return part.left
        limit = self.algorithm.limit
        return min(part.left, (part.drained_at - now) * limit.count // limit.period_us)

    def take(self, cost: int, now: int) -> Outcome:
        """Admit a request of this cost, for which the slices suffice."""
        tick = 0
        missing = cost
        for part in self.slices:
            worth = self.worth(part, now)
            if worth and missing:
                taken = min(worth, missing)
                part.left = worth - taken  # what has drained is gone for good
                missing -= taken
                tick = tick or part.tick
        self.used += cost
        self.touched_at = now
        left = self.remaining + self.usable(now)
        reset = max(self.reset_at - now, 0)
        return Outcome(Decision(self.algorithm, True, min(left, self.algorithm.capacity), 0, reset, None), tick)

    def next_size(self, now: int) -> int:
        """How much to charge in advance."""
        if self.drains:  # what is charged now, on top of the level, must be used before it has drained
            lasts = max(self.reset_at - now, self.algorithm.recovery_us // 4)
            horizon = min(DRAINING_TARGET_US + self.trip, lasts // 2)
        else:
            horizon = TARGET_US + 2 * self.trip
        demand = self.used * horizon // max(now - self.since, MIN_MEASURED_US)
        return min(demand, GROWTH * self.size, self.remaining * self.share // (2 * SHARE_STEPS), MAX_COST)

    def learn(self, decision: Decision, charged: int, sent_at: int, now: int) -> None:
        """Note the store's answer to charges of so much in all, that were sent at this time."""
        self.trip = min(now - sent_at, MAX_SLICE_US // 4)
        left = decision.remaining
        expected = self.remaining - charged
        if self.drains:
            limit = self.algorithm.limit
            refilled = (sent_at - self.since) * limit.count // limit.period_us
            expected = min(self.remaining + refilled, self.algorithm.capacity) - charged
        if charged and left <= expected and sent_at < self.reset_at:
            share = SHARE_STEPS * charged // (charged + expected - left)
            self.share = max((self.share + share) // 2, 1)
        self.remaining = left
        self.reset_at = sent_at + decision.reset_us
        if sent_at - self.since >= MIN_MEASURED_US:
            self.used = 0
            self.since = sent_at

    def add(self, amount: int, outcome: Outcome, sent_at: int) -> None:
        """Keep a slice that the store has charged."""
        algorithm = self.algorithm
        # The end is a whole tick of the store, rounded up.
        reset = outcome.decision.reset_us - algorithm.tick
        self._append(Slice(amount, outcome.tick, sent_at + reset - reset // 1000, sent_at))
        self.note_time(outcome.tick, sent_at)

    def note_time(self, tick: int, sent_at: int) -> None:
        """The store's tick at which it has charged what was sent at this time."""
        self.lag = sent_at - (tick + 1) * self.algorithm.tick

    def give_back(self, member: Member, now: int) -> None:
        """Keep what a request gives back of a charge that drains: so much of it as cannot have drained yet, if it was
        at the bottom of the level."""
        lag = self.lag
        if lag is not None and self.drains and member.tick and member.amount:
            limit = self.algorithm.limit
            lasts = member.cost * limit.period_us // limit.count
            drained_at = member.tick * self.algorithm.tick + lag + lasts - lasts // 1000
            self._append(Slice(member.amount, member.tick, drained_at, now))

    def _append(self, part: Slice) -> None:
        slices = [other for other in self.slices if other.left]
        slices.append(part)
        self.slices = slices[-MAX_SLICES:]

    def end_slices(self, now: int) -> Request | None:
        """End those slices that may not be used any more at this time; the request that gives back their rest."""
        ended = [part for part in self.slices if part.ends_at <= now]
        if not ended:
            return None
        self.slices = [part for part in self.slices if part.ends_at > now]
        members = [
            Member(self.key, self.algorithm, part.left, True, part.tick, part.left) for part in ended if part.left
        ]
        return Request(Op.GIVE_BACK, members) if members and not self.drains else None


@final
class LeaseTable:
    """The leases of one process, by counter. Not thread-safe."""

    def __init__(self) -> None:
        self.leases: OrderedDict[tuple[str, str], Lease] = OrderedDict()
        """Those first that were not swept for longest."""
        self.returns: list[Request] = []
        """What is to be given back."""

    def find(self, member: Member) -> Lease | None:
        """The lease of a counter under the same limit, if there is one."""
        lease = self.leases.get((member.key, member.algorithm.name))
        if lease is None or lease.algorithm is member.algorithm or lease.algorithm.limit == member.algorithm.limit:
            return lease
        return None

    def open(self, member: Member, now: int) -> Lease | None:
        """The lease of a counter; None when there are too many. One of another limit, which has changed, ends."""
        lease = self.find(member)
        if lease is not None:
            return lease
        self.end(member.key, member.algorithm.name)
        self.sweep(now, 2)
        if len(self.leases) >= MAX_LEASES:
            return None
        lease = Lease(member.key, member.algorithm, now)
        self.leases[member.key, member.algorithm.name] = lease
        return lease

    def knows(self, lease: Lease) -> bool:
        """Whether a lease has not ended meanwhile."""
        return self.leases.get((lease.key, lease.algorithm.name)) is lease

    def end(self, key: str, name: str, was_reset: bool = False) -> None:
        """End the lease of a counter; a counter that was reset gets nothing back."""
        lease = self.leases.pop((key, name), None)
        if lease is not None and not was_reset:
            self._end_slices(lease, _FOREVER)

    def sweep(self, now: int, count: int) -> None:
        """Look at so many leases: end slices that were not used in time, and forget leases that are idle."""
        for _ in range(min(count, len(self.leases))):
            counter, lease = self.leases.popitem(last=False)
            self._end_slices(lease, now)
            if lease.slices or lease.refilling or now - lease.touched_at <= MAX_SLICE_US:
                self.leases[counter] = lease

    def end_all(self) -> None:
        """End all leases."""
        for lease in self.leases.values():
            self._end_slices(lease, _FOREVER)
        self.leases.clear()

    def take_returns(self) -> list[Request]:
        """The requests that give back what was not used; once."""
        returns = self.returns
        self.returns = []
        return returns

    def _end_slices(self, lease: Lease, now: int) -> None:
        request = lease.end_slices(now)
        if request is not None:
            self.returns.append(request)


_FOREVER: Final = 2**62
