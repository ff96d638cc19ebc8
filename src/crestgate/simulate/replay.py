# mypyc: compile
"""Replays requests against rules on virtual time, through the resolver, the store and the algorithms of the service.

The clock stands at the time of the request that is decided, and never goes back. Counters start empty. There is one
memory store for each set of rules, with at most `max_keys` counters; those that have recovered make room by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from crestgate.rules.ruleset import RuleSet
from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.tallies import RuleTally, SubjectTally, Tallies, TimeSeries
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Member, Op, Request

__all__ = ["DEFAULT_MAX_KEYS", "Replay", "RuleReplay", "VirtualClock"]

DEFAULT_MAX_KEYS: Final = 500_000


@final
class VirtualClock:
    """The clock of the stores of a replay."""

    def __init__(self) -> None:
        self.now_us = 0

    def ticks(self) -> int:
        return self.now_us

    def wait(self, seconds: float) -> float:
        return 0.0


@final
class RuleReplay:
    """One set of rules, with its counters and what is counted of it."""

    def __init__(self, rules: RuleSet, clock: VirtualClock, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self.rules = rules
        self.clock = clock
        self.store = MemoryStore(max_keys, clock)
        self.max_keys = max_keys
        self.tallies = Tallies()
        self.denied = 0
        self.unmatched = 0
        """Requests without any rule that binds."""
        self.full = False
        """Whether the table of counters was full, and may have dropped one that was still in use."""
        self.denials: list[tuple[RuleTally, SubjectTally]] = []
        """What denied the last request."""

    def decide(self, request: LoggedRequest) -> bool:
        """Whether a request is allowed, as CheckService decides it. ValueError for one that rules cannot match."""
        chosen = self.rules.resolve(request, self.clock.now_us)
        if self.denials:
            self.denials = []
        cost = request.cost
        if len(chosen) == 1:
            key, entry = chosen[0]
            algorithm = entry.algorithm
            if not entry.shadow and cost <= algorithm.ceiling and not algorithm.holds:
                allowed = self.store.take(algorithm, key, cost).allowed
                counted = self.tallies.count(entry, key, allowed)
                if not allowed:
                    self.denied += 1
                    self.denials.append(counted)
                return allowed
        if not chosen:
            self.unmatched += 1
            return True
        members = [
            Member(key, entry.algorithm, cost, not entry.shadow, peeks=entry.algorithm.holds) for key, entry in chosen
        ]
        outcomes = self.store.apply([Request(Op.TAKE, members)])[0]
        binds = False
        for i in range(len(chosen)):
            key, entry = chosen[i]
            allowed = outcomes[i].decision.allowed
            counted = self.tallies.count(entry, key, allowed)
            if not entry.shadow:
                binds = True
                if not allowed:
                    self.denials.append(counted)
        if not binds:
            self.unmatched += 1
        if self.denials:
            self.denied += 1
            return False
        return True


@final
class Replay:
    """Requests against proposed rules, and against the rules that these are compared with, if any."""

    def __init__(
        self, rules: RuleSet, against: RuleSet | None, bad: BadLines, max_keys: int = DEFAULT_MAX_KEYS
    ) -> None:
        self.clock = VirtualClock()
        self.proposed = RuleReplay(rules, self.clock, max_keys)
        self.current = None if against is None else RuleReplay(against, self.clock, max_keys)
        self.bad = bad
        self.series = TimeSeries()
        self.requests = 0
        self.late = 0
        """Lines that were older than what was replayed before them, more than reordering covers."""
        self.newly_denied = 0
        self.newly_allowed = 0
        self.first_us = 0

    def run(self, requests: Sequence[LoggedRequest]) -> None:
        """Replay the next requests, in the order of their times."""
        clock = self.clock
        proposed, current = self.proposed, self.current
        for request in requests:
            time_us = request.time_us
            if time_us < clock.now_us:
                self.late += 1
                time_us = clock.now_us
            elif not self.requests:
                self.first_us = time_us
            clock.now_us = time_us
            try:
                allowed = proposed.decide(request)
            except ValueError as error:
                self.bad.add(request.line, str(error))
                continue
            self.requests += 1
            denied_before = False
            if current is not None:
                denied_before = not current.decide(request)
                if not allowed and not denied_before:
                    self.newly_denied += 1
                    add_changed(proposed.denials)
                elif allowed and denied_before:
                    self.newly_allowed += 1
                    add_changed(current.denials)
            self.series.count(time_us, not allowed, denied_before)
        for side in (proposed, current):
            if side is not None and side.store.table.size >= side.max_keys:
                side.full = True


def add_changed(denials: list[tuple[RuleTally, SubjectTally]]) -> None:
    """Count a request that the other rules decide otherwise."""
    for tally, subject in denials:
        tally.changed += 1
        subject.changed += 1
