"""Usage history as the pages show it: per minute of the last hour, in total, by rule and by subject."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from crestgate.history.port import History, SubjectUsage, UsagePoint

__all__ = ["HourOfUsage", "RuleUsage", "Series", "read_hour", "rule_usage", "subject_series"]

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
MINUTES = 60
MAX_RULES = 20
MAX_SUBJECTS = 10


@dataclass(slots=True)
class Series:
    """Counts of each minute, oldest first."""

    allowed: list[int] = field(default_factory=lambda: [0] * MINUTES)
    denied: list[int] = field(default_factory=lambda: [0] * MINUTES)
    shadowed: list[int] = field(default_factory=lambda: [0] * MINUTES)

    @property
    def complete(self) -> Series:
        """Without the current minute, which would look like a fall."""
        return Series(self.allowed[:-1], self.denied[:-1], self.shadowed[:-1])

    def add(self, index: int, point: UsagePoint) -> None:
        self.allowed[index] += point.allowed
        self.denied[index] += point.denied
        self.shadowed[index] += point.shadowed


@dataclass(frozen=True, slots=True)
class RuleUsage:
    """One rule."""

    rule: str
    series: Series

    @property
    def allowed(self) -> int:
        return sum(self.series.allowed)

    @property
    def denied(self) -> int:
        return sum(self.series.denied)

    @property
    def shadowed(self) -> int:
        return sum(self.series.shadowed)


@dataclass(frozen=True, slots=True)
class HourOfUsage:
    """The last hour."""

    total: RuleUsage
    rules: Sequence[RuleUsage]
    more_rules: int
    top: Sequence[SubjectUsage]
    top_denied: Sequence[SubjectUsage]


def read_hour(history: History, now_us: int) -> HourOfUsage:
    """The last hour of all rules. It waits for the database."""
    since_us = _first_minute(now_us)
    found = history.top_rules(since_us, now_us, "minute", MAX_RULES)
    (total,) = _by_rule(found.totals, since_us) or [RuleUsage("", Series())]
    return HourOfUsage(
        total,
        sorted(_by_rule(found.points, since_us), key=lambda one: (-one.denied, -one.allowed, one.rule)),
        max(found.rules - MAX_RULES, 0),
        history.top(since_us, now_us, MAX_SUBJECTS),
        history.top(since_us, now_us, MAX_SUBJECTS, "denied"),
    )


def rule_usage(history: History, label: str, now_us: int) -> tuple[RuleUsage, RuleUsage]:
    """A rule's last hour by minutes, and last day as a sum. It waits for the database."""
    since_us = _first_minute(now_us)
    hour = _by_rule(history.usage(since_us, now_us, "minute", label), since_us)
    day = Series()
    for point in history.usage(now_us - 24 * HOUR_US, now_us, "hour", label):
        day.add(0, point)
    return hour[0] if hour else RuleUsage(label, Series()), RuleUsage(label, day)


def subject_series(history: History, subject: str, now_us: int) -> Series:
    """A subject's last 60 minutes. It waits for the database."""
    since_us = _first_minute(now_us)
    series = Series()
    for point in history.subject(since_us, now_us, "minute", subject):
        index = (point.at_us - since_us) // MINUTE_US
        if 0 <= index < MINUTES:
            series.allowed[index] += point.allowed
            series.denied[index] += point.denied
    return series


def _by_rule(points: Iterable[UsagePoint], since_us: int) -> list[RuleUsage]:
    rules: dict[str, Series] = {}
    for point in points:
        index = (point.at_us - since_us) // MINUTE_US
        if 0 <= index < MINUTES:
            rules.setdefault(point.rule, Series()).add(index, point)
    return [RuleUsage(rule, series) for rule, series in rules.items()]


def _first_minute(now_us: int) -> int:
    return now_us - now_us % MINUTE_US - (MINUTES - 1) * MINUTE_US
