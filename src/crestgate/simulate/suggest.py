"""The smallest limit of a rule that would deny at most a given share of requests, or of subjects.

In the pass over the log, what the rule saw is written to a temporary file: time, subject and cost, 24 bytes a request.
Then the rule alone is replayed from that file with other limits, on the same algorithm, window and burst: doubled until
one is high enough, then by bisection. So the suggested limit stays within the share, and the next lower one does not.
A replay ends early when it has denied too many.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from tempfile import TemporaryFile
from typing import Any

from crestgate.core.algorithms import build
from crestgate.errors import ConfigError
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.replay import DEFAULT_MAX_KEYS, VirtualClock
from crestgate.stores.memory import MemoryStore

__all__ = ["BASES", "RuleTraffic", "Suggestion", "parse_share", "suggest_limit"]

BASES = ("requests", "subjects")
CHUNK = 3 * 8192
"""Numbers of the file that are in memory."""
MAX_SUBJECTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A limit, and what it would deny of what the rule saw."""

    rule_id: str
    limit: int
    window_seconds: float
    text: str
    """In notation."""
    of: str
    at_most: float
    requests: int
    subjects: int
    denied_requests: int
    denied_subjects: int

    def to_data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class RuleTraffic:
    """The requests that one rule matches, in a temporary file. Subjects are 64-bit hashes."""

    def __init__(self, rules: RuleSet, rule_id: str) -> None:
        rule = rules.rules.get(rule_id)
        if rule is None:
            known = ", ".join(sorted(rules.rules)[:10]) or "none"
            raise ConfigError(f"--suggest: there is no rule {rule_id!r} in the rules; there are: {known}")
        if rule.mode == "disabled":
            raise ConfigError(f"--suggest: the rule {rule_id!r} is disabled, and sees nothing: set mode: shadow first")
        self.rule: Rule = rule
        self.count = 0
        self.subjects: set[int] = set()
        self.total_cost = 0
        self._rules = rules
        self._file = TemporaryFile(prefix="crestgate-simulate-")  # noqa: SIM115 - see close
        self._last_us = 0
        self._buffer = array("q")

    def add(self, requests: Sequence[LoggedRequest]) -> None:
        """Keep those requests that the rule matches."""
        rule_id, buffer = self.rule.rule_id, self._buffer
        for request in requests:
            now_us = self._last_us = max(self._last_us, request.time_us)
            try:
                chosen = self._rules.resolve(request, now_us)
            except ValueError:
                continue  # a bad line, which the replay has counted
            for key, entry in chosen:
                if entry.rule.rule_id == rule_id:
                    subject = hash(key)
                    buffer.extend((now_us, subject, request.cost))
                    self.count += 1
                    self.total_cost += request.cost
                    if len(self.subjects) <= MAX_SUBJECTS:
                        self.subjects.add(subject)
        if len(buffer) >= CHUNK:
            buffer.tofile(self._file)
            del buffer[:]

    def events(self) -> Iterator[array[int]]:
        """Time, subject and cost of each request, in chunks."""
        if self._buffer:
            self._buffer.tofile(self._file)
            del self._buffer[:]
        self._file.seek(0)
        while True:
            chunk: array[int] = array("q")
            chunk.frombytes(self._file.read(CHUNK * chunk.itemsize))
            if not chunk:
                break
            yield chunk
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def parse_share(text: str) -> Fraction:
    """A share such as 1%, 0.5% or 0.01, from 0 to 1. ConfigError if it is none."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = Fraction(number.strip()) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if rest or "/" in number or not 0 <= share <= 1:
        raise ConfigError(f"--deny-at-most is a share such as 1% or 0.01, not {text!r}")
    return share


def suggest_limit(traffic: RuleTraffic, at_most: Fraction, of: str) -> Suggestion:
    """The smallest limit that denies at most this share. ConfigError if there is none, or nothing to learn from."""
    if of not in BASES:
        raise ConfigError(f"--of is one of {', '.join(BASES)}, not {of!r}")
    rule = traffic.rule
    if not traffic.count:
        raise ConfigError(f"--suggest: the rule {rule.rule_id!r} matches no request of this log")
    if of == "subjects" and len(traffic.subjects) > MAX_SUBJECTS:
        raise ConfigError(f"--suggest: the rule has more than {MAX_SUBJECTS:,} subjects: use --of requests")
    whole = traffic.count if of == "requests" else len(traffic.subjects)
    allowed = int(at_most * whole)
    denied = _denied(traffic, 0, of, allowed)
    low, high = 0, 0
    while denied is None:
        if high > traffic.total_cost:
            raise ConfigError(
                f"--suggest: no limit of {rule.rule_id!r} denies so few: its burst of {rule.burst} does; raise that"
            )
        low, high = high, max(2 * high, 1)
        denied = _denied(traffic, high, of, allowed)
    while high - low > 1:
        middle = (low + high) // 2
        found = _denied(traffic, middle, of, allowed)
        if found is None:
            low = middle
        else:
            high, denied = middle, found
    suggested = replace(rule, limit=high)
    return Suggestion(
        rule.rule_id,
        high,
        rule.window_seconds,
        str(suggested.compiled()),
        of,
        float(at_most),
        traffic.count,
        min(len(traffic.subjects), MAX_SUBJECTS),
        *denied,
    )


def _denied(traffic: RuleTraffic, limit: int, of: str, allowed: int) -> tuple[int, int] | None:
    """The requests and subjects that a limit denies; None as soon as these are too many."""
    rule = replace(traffic.rule, limit=limit, burst=traffic.rule.burst if limit else None)  # 0 takes no burst
    algorithm = build(rule.compiled(), rule.counter, rule.rule_id)
    clock = VirtualClock()
    store = MemoryStore(DEFAULT_MAX_KEYS, clock)
    ceiling, take = algorithm.ceiling, store.take
    requests = 0
    subjects: set[int] = set()
    of_requests = of == "requests"
    for chunk in traffic.events():
        for at in range(0, len(chunk), 3):
            clock.now_us = chunk[at]
            cost = chunk[at + 2]
            if cost <= ceiling and take(algorithm, str(chunk[at + 1]), cost).allowed:
                continue
            requests += 1
            if len(subjects) <= MAX_SUBJECTS:
                subjects.add(chunk[at + 1])
            if (requests if of_requests else len(subjects)) > allowed:
                return None
    return requests, len(subjects)
