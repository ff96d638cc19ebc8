"""The port: what a place that keeps the usage does, and what it promises.

Whoever decides counts by itself, and adds now and then what it has counted. Any number of workers and machines add to
the same minute, in any order.

Atomicity   An `add` is all of its counts, in the minute and in its hour, or nothing.
Retention   Minutes and times of last use are kept for 30 days and hours for a year. `sweep` takes away what is older.
Bounds      Of each minute, and of each hour, the 100 subjects that were counted most are kept. A subject that comes
            into these later has lost what was counted of it before. Of the times of last use, the latest 10,000.
Errors      StoreError when the other side is away or fails; it says when it is not known whether it has added.
            ValueError when a question has too many answers.
Threads     All methods may be called from any thread, and after a fork. They wait, so an event loop calls them in a
            thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["MAX_USES", "MOST_POINTS", "MOST_SUBJECTS", "History", "Step", "SubjectUsage", "UsagePoint"]

Step = Literal["minute", "hour"]
MOST_SUBJECTS = 100
"""So many are kept of each minute and each hour."""
MOST_POINTS = 100_000
"""So many are answered at a time."""

MAX_USES = 10_000
"""So many counters' times of last use are kept, the latest."""


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """What came of the checks of one rule within the minute, or the hour, that begins at `at_us`."""

    at_us: int
    rule: str
    allowed: int
    denied: int
    shadowed: int
    """What a rule in shadow mode would have denied."""


@dataclass(frozen=True, slots=True)
class SubjectUsage:
    """What came of the checks of one subject."""

    subject: str
    allowed: int
    denied: int


class History(Protocol):
    """How much was let through and how much was not."""

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        """Add to the minute that this moment is in, and to its hour: for each rule how many were allowed, denied and
        shadowed; for each subject how many were allowed and denied. Of a name, the first 1,024 bytes count."""

    def usage(self, since_us: int, until_us: int, step: Step, rule: str | None = None) -> list[UsagePoint]:
        """The minutes or hours from the one that `since_us` is in to the last that begins before `until_us`, of this
        rule or of all: by their time, then by their rule. What nobody has counted has no point."""

    def top(self, since_us: int, until_us: int, limit: int = 10) -> list[SubjectUsage]:
        """The subjects that were counted most in that time, the first the most. Whole hours are taken as hours, so that
        long times are answered quickly; what is left at both ends, as minutes."""

    def add_uses(self, uses: Mapping[str, int]) -> None:
        """Keep when counters were last used, in microseconds since the epoch, by a name of at most 64 characters. Of
        two times of one counter the later is kept."""

    def last_uses(self, names: Sequence[str]) -> dict[str, int]:
        """When these counters were last used, as far as that is known."""

    def sweep(self, now_us: int) -> None:
        """Take away what is too old, a little at a time."""

    def close(self) -> None:
        """Let go of connections. Closing twice is fine."""
