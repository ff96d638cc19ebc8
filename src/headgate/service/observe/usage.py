"""What happened in one minute, on its way to the history.

A decision belongs to the minute in which it happened, however much later it is written. What cannot be written, because
the database is away, is kept and written later: the last hour of it, in as many numbers as one hour can have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.core.masking import digest
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.history.port import History
    from headgate.service.observe.tally import Tally

__all__ = [
    "MAX_SUBJECT_BYTES",
    "MINUTE_US",
    "MOST_MINUTES",
    "MOST_SUBJECTS",
    "Usage",
    "Waiting",
    "record_usage",
    "short_subject",
    "top_subjects",
]

MINUTE_US = 60_000_000
MOST_MINUTES = 60
"""How many minutes wait to be written before the oldest is lost."""
MOST_SUBJECTS = 100
"""How many subjects of a minute are written."""
MAX_SUBJECT_BYTES = 100
"""Of a subject as it is written. Callers choose their keys: 100 long ones a minute would fill a disk in a month."""
SUBJECT_HEAD_BYTES = 72
_log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class Usage:
    """The decisions of one minute, or of a part of it."""

    minute_us: int
    """Its beginning."""
    rules: Mapping[str, tuple[int, int, int]]
    """By rule: allowed, denied, and what a shadow rule would have denied."""
    subjects: Mapping[str, tuple[int, int]]
    """Of those who asked most: allowed, denied."""


class Waiting:
    """Usage that is still to be written, by the minute; the last hour of it."""

    def __init__(self) -> None:
        self.minutes: dict[int, Usage] = {}

    def add(self, usage: Usage) -> None:
        """Keep this too, together with what there is of the same minute."""
        known = self.minutes.get(usage.minute_us)
        self.minutes[usage.minute_us] = usage if known is None else _together(known, usage)
        if len(self.minutes) > MOST_MINUTES:
            del self.minutes[min(self.minutes)]

    def take(self) -> list[Usage]:
        """All of it, oldest first; nothing is left."""
        taken = [self.minutes[minute_us] for minute_us in sorted(self.minutes)]
        self.minutes = {}
        return taken


def _together(one: Usage, other: Usage) -> Usage:
    rules = dict(one.rules)
    for rule, (allowed, denied, shadowed) in other.rules.items():
        known = rules.get(rule, (0, 0, 0))
        rules[rule] = (known[0] + allowed, known[1] + denied, known[2] + shadowed)
    subjects = dict(one.subjects)
    for subject, (allowed, denied) in other.subjects.items():
        before = subjects.get(subject, (0, 0))
        subjects[subject] = (before[0] + allowed, before[1] + denied)
    return Usage(one.minute_us, rules, top_subjects(subjects, MOST_SUBJECTS))


def top_subjects(subjects: Mapping[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    """Those who asked most."""
    return dict(sorted(subjects.items(), key=_asked, reverse=True)[:most])


def short_subject(subject: str) -> str:
    """A subject as it is written: a long one is its beginning and a digest of all of it.

    >>> short_subject("user:42"), short_subject("key:" + "x" * 200)
    ('user:42', 'key:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…sha256:565061b21376')
    """
    if len(subject) <= MAX_SUBJECT_BYTES // 4:
        return subject
    data = subject.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_SUBJECT_BYTES:
        return subject
    return f"{data[:SUBJECT_HEAD_BYTES].decode('utf-8', 'ignore')}…{digest(subject)}"


def _asked(item: tuple[str, tuple[int, int]]) -> int:
    return item[1][0] + item[1][1]


async def record_usage(tally: Tally, history: History, now_us: int) -> bool:
    """Write what has happened since the last time, in a thread; what cannot be written is kept for the next time.

    Whether all of it was written. A minute that failed at the very end may have been added all the same, and is then
    in the history twice; counters are not affected.
    """
    left = await asyncio.to_thread(_write, history, tally.take_usage(now_us))
    tally.keep_usage(left)
    return not left


def _write(history: History, usage: list[Usage]) -> list[Usage]:
    """Write minute by minute; what is left when one fails."""
    for number, one in enumerate(usage):
        try:
            history.add(one.minute_us, one.rules, one.subjects)
        except HeadgateError as error:
            _log.warning("usage could not be added to the history, and is kept for later: %s", error)
            return usage[number:]
    return []
