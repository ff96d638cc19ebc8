# mypyc: compile
"""What a replay counts: by rule, by subject, over time. All of it is bounded, whatever the log has.

Subjects    Exact up to `MAX_SUBJECTS` counters of all rules together. Past that the half with the fewest denials, and
            then requests, is dropped, so those who are hit most stay; numbers are lower bounds from then on.
Time        At most `MAX_POINTS` points: when there are more, neighbours are merged into longer steps.
"""

from __future__ import annotations

from typing import Final, final

from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.rule import Rule

__all__ = ["MAX_POINTS", "MAX_SUBJECTS", "Point", "RuleTally", "SubjectTally", "Tallies", "TimeSeries"]

MAX_SUBJECTS: Final = 100_000
MAX_POINTS: Final = 300
STEPS: Final = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800]
"""Seconds; each divides the next."""


@final
class SubjectTally:
    """The requests that one counter of one rule saw."""

    __slots__ = ("changed", "denied", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.denied = 0
        self.changed = 0
        """Denied by this rule, and not denied under the other rules that are compared."""


@final
class RuleTally:
    """The requests that one rule saw."""

    __slots__ = ("changed", "denied", "requests", "rule", "shadow", "subjects")

    def __init__(self, rule: Rule, shadow: bool) -> None:
        self.rule = rule
        self.shadow = shadow
        self.requests = 0
        self.denied = 0
        self.changed = 0
        self.subjects: dict[str, SubjectTally] = {}
        """By the key of the counter."""


@final
class Tallies:
    """The counts of one set of rules."""

    def __init__(self, max_subjects: int = MAX_SUBJECTS) -> None:
        self.rules: dict[CompiledRule, RuleTally] = {}
        self.max_subjects = max_subjects
        self.size = 0
        """Subjects of all rules."""
        self.exact = True
        """Whether no subject was dropped."""

    def count(self, entry: CompiledRule, key: str, allowed: bool) -> tuple[RuleTally, SubjectTally]:
        """Count a request under a rule."""
        tally = self.rules.get(entry)
        if tally is None:
            tally = self.rules[entry] = RuleTally(entry.rule, entry.shadow)
        subject = tally.subjects.get(key)
        if subject is None:
            if self.size >= self.max_subjects:
                self.drop_least()
            subject = tally.subjects[key] = SubjectTally()
            self.size += 1
        tally.requests += 1
        subject.requests += 1
        if not allowed:
            tally.denied += 1
            subject.denied += 1
        return tally, subject

    def drop_least(self) -> None:
        """Drop half of the subjects: those with the fewest denials, and then requests."""
        self.exact = False
        ranks: list[tuple[int, int]] = []
        for tally in self.rules.values():
            ranks += [(one.denied, one.requests) for one in tally.subjects.values()]
        ranks.sort()
        least = ranks[len(ranks) // 2]
        self.size = 0
        for tally in self.rules.values():
            tally.subjects = {key: one for key, one in tally.subjects.items() if (one.denied, one.requests) > least}
            self.size += len(tally.subjects)


@final
class Point:
    """The requests of one step of time."""

    __slots__ = ("denied", "denied_before", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.denied = 0
        self.denied_before = 0
        """By the rules that are compared with."""

    def add(self, other: Point) -> None:
        self.requests += other.requests
        self.denied += other.denied
        self.denied_before += other.denied_before


@final
class TimeSeries:
    """Requests over time, in steps that grow with the log."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.max_points = max_points
        self.seconds = STEPS[0]
        self.points: dict[int, Point] = {}
        """By the number of the step since the epoch."""
        self.last = Point()
        self.last_from = 0
        self.last_until = 0

    def count(self, time_us: int, denied: bool, denied_before: bool) -> None:
        if not self.last_from <= time_us < self.last_until:
            self.move(time_us)
        point = self.last
        point.requests += 1
        if denied:
            point.denied += 1
        if denied_before:
            point.denied_before += 1

    def move(self, time_us: int) -> None:
        """Continue in the step of this time."""
        width = self.seconds * 1_000_000
        step = time_us // width
        point = self.points.get(step)
        if point is None:
            while len(self.points) >= self.max_points and step not in self.points:
                self.merge()
                width = self.seconds * 1_000_000
                step = time_us // width
            point = self.points.get(step)
            if point is None:
                point = self.points[step] = Point()
        self.last = point
        self.last_from = step * width
        self.last_until = self.last_from + width

    def merge(self) -> None:
        """Make the steps longer."""
        seconds = self.seconds * 2
        for one in STEPS:
            if one > self.seconds:
                seconds = one
                break
        factor = seconds // self.seconds
        merged: dict[int, Point] = {}
        for step, point in self.points.items():
            whole = merged.get(step // factor)
            if whole is None:
                merged[step // factor] = point
            else:
                whole.add(point)
        self.seconds = seconds
        self.points = merged
