"""Port of the usage history, and its guarantees.

Every worker counts on its own and adds its counts periodically. Any number of workers and machines add to the same
minute, in any order.

Atomicity   An `add` is all of its counts, in the minute and in its hour, or nothing.
Retention   Minutes and times of last use are kept for 30 days and hours for a year. `sweep` deletes what is older.
Bounds      Of each minute, and of each hour, the 100 subjects with the most requests are kept, and besides the 50 with
            the most denials. A subject that enters them later has lost its earlier counts. Of the times of last use,
            the latest 10,000.
Errors      StoreError when the database is unavailable or fails; it says when the outcome is unknown. ValueError when
            a query has too many results.
Threads     All methods may be called from any thread, and after a fork. They block, so an event loop calls them in a
            thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = [
    "MAX_DENIED",
    "MAX_POINTS",
    "MAX_SUBJECTS",
    "MAX_USES",
    "History",
    "Order",
    "Step",
    "SubjectPoint",
    "SubjectUsage",
    "TopRules",
    "UsagePoint",
]

Step = Literal["minute", "hour"]
Order = Literal["requests", "denied"]
MAX_SUBJECTS = 100
"""Kept of each minute and each hour, those with the most requests."""
MAX_DENIED = 50
"""The same, those with the most denials. They may be among the others."""
MAX_POINTS = 100_000
"""Results of one query."""

MAX_USES = 10_000
"""Counters whose time of last use is kept: the latest ones."""


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Decisions under one rule within the minute, or the hour, that begins at `at_us`."""

    at_us: int
    rule: str
    allowed: int
    denied: int
    shadowed: int
    """Would have been denied by a rule in shadow mode."""


@dataclass(frozen=True, slots=True)
class TopRules:
    """The rules with the most denials, and the sums over all rules."""

    totals: Sequence[UsagePoint]
    """By time; `rule` is empty."""
    points: Sequence[UsagePoint]
    """Of the top rules, by time and rule."""
    rules: int
    """How many rules have counts."""


@dataclass(frozen=True, slots=True)
class SubjectPoint:
    """Decisions on one subject within the minute, or the hour, that begins at `at_us`."""

    at_us: int
    allowed: int
    denied: int


@dataclass(frozen=True, slots=True)
class SubjectUsage:
    """Decisions on one subject."""

    subject: str
    allowed: int
    denied: int


class History(Protocol):
    """Counts of decisions by time."""

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        """Add to the minute that this moment is in, and to its hour: for each rule how many were allowed, denied and
        shadowed; for each subject how many were allowed and denied. Names are cut to 1,024 bytes."""

    def usage(self, since_us: int, until_us: int, step: Step, rule: str | None = None) -> list[UsagePoint]:
        """The minutes or hours from the one that `since_us` is in to the last that begins before `until_us`, of this
        rule or of all, by time and rule. A minute without counts has no point."""

    def top_rules(self, since_us: int, until_us: int, step: Step, limit: int) -> TopRules:
        """The minutes or hours, as `usage` has them, of the rules with the most denials, and of these with the most
        requests. It reads any number of rules."""

    def top(self, since_us: int, until_us: int, limit: int = 10, by: Order = "requests") -> list[SubjectUsage]:
        """The subjects with the most requests in that time, or with the most denials, in descending order. Whole hours
        are read as hours, which is fast; the rest at both ends, as minutes."""

    def subject(self, since_us: int, until_us: int, step: Step, subject: str) -> list[SubjectPoint]:
        """The minutes or hours, as `usage` has them, in which this subject was among those that are kept, by time."""

    def add_uses(self, uses: Mapping[str, int]) -> None:
        """Store when counters were last used, in microseconds since the epoch, by a name of at most 64 characters. Of
        two times of one counter the later is kept."""

    def last_uses(self, names: Sequence[str]) -> dict[str, int]:
        """When these counters were last used; unknown ones are left out."""

    def sweep(self, now_us: int) -> None:
        """Delete what is too old, in small batches."""

    def close(self) -> None:
        """Close connections. Closing twice is fine."""
