"""Usage per minute, on its way to the history.

A decision belongs to the minute in which it happened, however late it is recorded. What cannot be recorded, because the
database is down, is kept and recorded later: the last hour, bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crestgate.core.redaction import digest
from crestgate.errors import CrestgateError
from crestgate.history.names import top_names

if TYPE_CHECKING:
    from crestgate.history.port import History
    from crestgate.service.observability.worker_metrics import WorkerMetrics

__all__ = [
    "MAX_MINUTES",
    "MAX_SUBJECT_BYTES",
    "MINUTE_US",
    "PendingUsage",
    "Usage",
    "record_usage",
    "short_subject",
]

MINUTE_US = 60_000_000
MAX_MINUTES = 60
"""Minutes that wait to be recorded before the oldest is dropped."""
MAX_SUBJECT_BYTES = 100
"""Clients choose their keys: 100 long ones a minute would fill a disk in a month."""
SUBJECT_HEAD_BYTES = 72
_log = logging.getLogger("crestgate")


@dataclass(frozen=True, slots=True)
class Usage:
    """The decisions of one minute, or of a part of it."""

    minute_us: int
    """Its start."""
    rules: Mapping[str, tuple[int, int, int]]
    """By rule: allowed, denied, and denied by a shadow rule."""
    subjects: Mapping[str, tuple[int, int]]
    """Of the subjects with the most requests, and of those with the most denials: allowed, denied."""


class PendingUsage:
    """Usage that is not recorded yet, by minute; the last hour of it."""

    def __init__(self) -> None:
        self.minutes: dict[int, Usage] = {}

    def add(self, usage: Usage) -> None:
        """Add usage to its minute."""
        known = self.minutes.get(usage.minute_us)
        self.minutes[usage.minute_us] = usage if known is None else _sum(known, usage)
        if len(self.minutes) > MAX_MINUTES:
            del self.minutes[min(self.minutes)]

    def take(self) -> list[Usage]:
        """Remove and return all of it, oldest first."""
        taken = [self.minutes[minute_us] for minute_us in sorted(self.minutes)]
        self.minutes = {}
        return taken


def _sum(one: Usage, other: Usage) -> Usage:
    rules = dict(one.rules)
    for rule, (allowed, denied, shadowed) in other.rules.items():
        known = rules.get(rule, (0, 0, 0))
        rules[rule] = (known[0] + allowed, known[1] + denied, known[2] + shadowed)
    subjects = dict(one.subjects)
    for subject, (allowed, denied) in other.subjects.items():
        before = subjects.get(subject, (0, 0))
        subjects[subject] = (before[0] + allowed, before[1] + denied)
    top = top_names(subjects)
    return Usage(one.minute_us, rules, {subject: n for subject, n in subjects.items() if subject in top})


def short_subject(subject: str) -> str:
    """A subject as it is recorded. A long one is truncated, with a digest of the whole.

    >>> short_subject("user:42"), short_subject("key:" + "x" * 200)
    ('user:42', 'key:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…sha256:565061b21376')
    """
    if len(subject) <= MAX_SUBJECT_BYTES // 4:
        return subject
    data = subject.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_SUBJECT_BYTES:
        return subject
    return f"{data[:SUBJECT_HEAD_BYTES].decode('utf-8', 'ignore')}…{digest(subject)}"


async def record_usage(metrics: WorkerMetrics, history: History, now_us: int) -> bool:
    """Record the usage since the last call, in a thread. What fails is kept for the next call; False then.

    A minute whose write failed at the very end may have been added all the same, and is then counted twice in the
    history. Rate limit counters are not affected.
    """
    unrecorded = await asyncio.to_thread(_record, history, metrics.take_usage(now_us))
    metrics.put_back_usage(unrecorded)
    return not unrecorded


def _record(history: History, usage: list[Usage]) -> list[Usage]:
    """Record minute by minute; returns what is left after a failure."""
    for index, one in enumerate(usage):
        try:
            history.add(one.minute_us, one.rules, one.subjects)
        except CrestgateError as error:
            _log.warning("cannot record usage in the history, will retry: %s", error)
            return usage[index:]
    return []
