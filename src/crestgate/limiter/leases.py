# mypyc: compile
"""Leases: slices of a quota that this process has charged to its store in advance, and decides from by itself.

A slice is an ordinary charge of the store's counter. So whatever becomes of this process, the store never admits more
than the limit; what a slice may still admit here is bounded so that the algorithm's own bound holds as well:

    windows             a slice ends with the window in which it was charged, and after MAX_SLICE_US. What is unused then
                        is given back.
    token bucket, gcra  what was charged drains from the counter at the limit's rate, used or not. The level that the
                        store reported after the charge says when all of the slice has drained: what lies below it
                        drains first. So at a time t a slice is worth at most rate * (that end - t). Unused units are
                        not given back: they refill by themselves, and to lower the level would let the slices of
                        others, which lie above, last longer than they may.

All times are the machine's, counted from before the request was sent, so a slice ends here before it ends in the store.

The size follows the demand: a slice should last TARGET_US, and no slice takes more than half of this process's share of
what is left. The share is what this process took of all that was taken between two answers of the store, which is all
that processes know of each other. Near the limit slices shrink to single requests, so little is left unused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.algorithms.level import Level
from crestgate.core.bounds import MAX_COST
from crestgate.core.decision import Decision
from crestgate.stores.port import Member, Op, Outcome, Request

__all__ = ["MAX_LEASES", "MAX_SLICE_US", "Lease", "LeaseTable", "gives_back"]

MAX_LEASES: Final = 10_000
"""Counters that one process leases at a time; those beyond are decided by the store."""
MAX_SLICE_US: Final = 1_000_000
"""How long a slice is used at most. A crash costs what is unused of a slice until its window ends, or it refills."""
TARGET_US: Final = 250_000
"""How long a slice should last."""
GROWTH: Final = 4
"""A slice is at most so many times as large as the one before."""
SHARE_STEPS: Final = 1024
"""The share of a process is a whole number of these steps."""


@final
class Slice:
    """Units that one request has charged. `ends_at` is when they may no longer be used, `tick` that of the charge."""

    __slots__ = ("charged", "ends_at", "left", "tick")

    def __init__(self, charged: int, left: int, tick: int, ends_at: int) -> None:
        self.charged = charged
        self.left = left
        self.tick = tick
        self.ends_at = ends_at


@final
class Lease:
    """The slices of one counter, and what is known of its use."""

    __slots__ = (
        "algorithm",
        "gives_back",
        "key",
        "refilling",
        "remaining",
        "reset_at",
        "share",
        "since",
        "size",
        "slices",
        "used",
    )

    def __init__(self, key: str, algorithm: Algorithm, now: int) -> None:
        self.key = key
        self.algorithm = algorithm
        self.gives_back = gives_back(algorithm)
        self.slices: list[Slice] = []
        """The oldest first: it ends first."""
        self.refilling = False
        """Whether a slice is on its way: others then take what they need themselves."""
        self.remaining = 0
        """What the store had left at its last answer."""
        self.reset_at = now
        """When the counter will be as good as new, by that answer."""
        self.size = 0
        self.used = 0
        """Units admitted by this process since `since`."""
        self.since = now
        self.share = SHARE_STEPS

    def usable(self, now: int) -> int:
        """Units that may be admitted now."""
        total = 0
        for part in self.slices:
            total += self._worth(part, now)
        return total

    def _worth(self, part: Slice, now: int) -> int:
        if now >= part.ends_at:
            return 0
        if self.gives_back:
            return part.left
        limit = self.algorithm.limit
        return min(part.left, (part.ends_at - now) * limit.count // limit.period_us)

    def take(self, cost: int, now: int) -> Outcome | None:
        """Admit a request of this cost; None, and nothing changes, if the slices do not suffice."""
        usable = self.usable(now)
        if usable < cost or not self.slices:
            return None
        tick = 0
        missing = cost
        for part in self.slices:
            worth = self._worth(part, now)
            if worth and missing:
                taken = min(worth, missing)
                part.left = worth - taken  # what has drained is gone for good
                missing -= taken
                tick = part.tick
        self.used += cost
        return self.outcome(usable - cost, True, tick, now)

    def outcome(self, usable: int, allowed: bool, tick: int, now: int) -> Outcome:
        """The outcome of a request that was admitted here, or of a look."""
        reset = max(self.reset_at - now, 0)
        return Outcome(Decision(self.algorithm, allowed, usable + self.remaining, 0, reset, None), tick)

    def put_back(self, amount: int, now: int) -> bool:
        """Return units that a request took from a slice; whether there is still a slice for them."""
        self.used = max(self.used - amount, 0)
        for part in reversed(self.slices):
            if now < part.ends_at:
                part.left = min(self._worth(part, now) + amount, part.charged)
                return True
        return False

    def next_size(self, cost: int, now: int) -> int:
        """How much to charge for a request of this cost that the slices do not cover."""
        demand = self.used * TARGET_US // max(now - self.since, 1)
        size = min(demand, GROWTH * max(self.size, cost), self.remaining * self.share // (2 * SHARE_STEPS), MAX_COST)
        if not self.gives_back:  # what is not used is lost until it has refilled
            limit = self.algorithm.limit
            size = min(size, MAX_SLICE_US * limit.count // limit.period_us)
        return max(size, cost)

    def learn(self, decision: Decision, amount: int, sent_at: int) -> None:
        """Note the store's answer to a charge of this amount that was sent at this time."""
        expected = self.remaining
        if not self.gives_back:
            limit = self.algorithm.limit
            refilled = (sent_at - self.since) * limit.count // limit.period_us
            expected = min(expected + refilled, self.algorithm.capacity)
        if decision.allowed:
            expected -= amount
        else:
            amount = 0
        left = decision.remaining
        if 0 <= left <= expected:
            others = expected - left
            share = SHARE_STEPS * (amount + 1) // (amount + others + 1)
            self.share = max((self.share + share) // 2, 1)
        self.remaining = left
        self.reset_at = sent_at + decision.reset_us
        self.used = 0
        self.since = sent_at

    def add(self, amount: int, used: int, outcome: Outcome, sent_at: int) -> None:
        """Keep what is left of a slice that the store has charged: so much was used in that instant."""
        self.size = amount
        self.used += used
        # Clocks of two machines differ a little in speed.
        lasts = outcome.decision.reset_us - outcome.decision.reset_us // 1000 - 1
        if self.gives_back:
            lasts = min(lasts, MAX_SLICE_US)
        self.slices = [part for part in self.slices if part.left]
        self.slices.append(Slice(amount, amount - used, outcome.tick, sent_at + lasts))

    def expired(self, now: int) -> list[Member]:
        """Remove the slices that have ended; the counters of what goes back of them."""
        ended = [part for part in self.slices if now >= part.ends_at]
        if not ended:
            return []
        self.slices = [part for part in self.slices if now < part.ends_at]
        return self._unused(ended)

    def all_unused(self) -> list[Member]:
        """Remove all slices; the counters of what goes back of them."""
        parts = self.slices
        self.slices = []
        return self._unused(parts)

    def _unused(self, parts: list[Slice]) -> list[Member]:
        if not self.gives_back:
            return []
        return [
            Member(self.key, self.algorithm, part.charged, True, part.tick, part.left) for part in parts if part.left
        ]


def gives_back(algorithm: Algorithm) -> bool:
    """Whether unused units of a leased limit go back to the store: see the module's docstring."""
    return not isinstance(algorithm, Level)


@final
class LeaseTable:
    """The leases of one process, by counter. Not thread-safe."""

    def __init__(self) -> None:
        self.leases: OrderedDict[tuple[str, str], Lease] = OrderedDict()
        """Those first that were not looked at for longest."""
        self.returns: list[Request] = []
        """What goes back with the next call."""

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

    def end(self, key: str, name: str, was_reset: bool = False) -> None:
        """End the lease of a counter; a counter that was reset gets nothing back."""
        lease = self.leases.pop((key, name), None)
        if lease is not None and not was_reset:
            self._return(lease.all_unused())

    def sweep(self, now: int, count: int) -> None:
        """Look at so many leases: end slices that were not used in time, and forget leases that are idle."""
        for _ in range(min(count, len(self.leases))):
            counter, lease = self.leases.popitem(last=False)
            self._return(lease.expired(now))
            if lease.slices or lease.refilling or now - lease.since <= MAX_SLICE_US:
                self.leases[counter] = lease

    def end_all(self) -> None:
        """End all leases."""
        for lease in self.leases.values():
            self._return(lease.all_unused())
        self.leases.clear()

    def take_returns(self) -> list[Request]:
        """The requests that give back what was not used; once."""
        returns = self.returns
        self.returns = []
        return returns

    def _return(self, members: list[Member]) -> None:
        self.returns += [Request(Op.GIVE_BACK, [member]) for member in members]
