"""What one worker counts: plain numbers in plain dicts, because this runs at every check.

All of it happens on the worker's event loop, so nothing is locked. Everything has a bound, whatever clients send:

Labels      Rule and dimension come from rules and plans, of which there may be many: after `MOST_LABELS` pairs the
            others are counted together, as rule "other". Rules that were made for one key each are counted together
            from the first, so that nobody's key is a label (see shown.py).
Subjects    Clients choose them. Those of the current minute are counted by name, up to `MOST_SUBJECTS`; when there are
            more, the half of them that asked least is forgotten. Who asks much is therefore never lost in a flood of
            fresh names, though somebody who was forgotten once is counted from there on.
Seen        Keys and clients with the time they were last seen: see recent.py.
Uses        Counters of clients' limits with the time they were last used: see last_uses.py.

The minute a decision belongs to is the one that was last told by `at`: to call it is one comparison, so a request tells
the time once, before its decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, final

from headgate.core.masking import without_secrets
from headgate.service.observe.recent import Recent, Remaining, is_text
from headgate.service.observe.shown import shown_rule
from headgate.service.observe.snapshot import Measured, Snapshot
from headgate.service.observe.usage import MINUTE_US, Usage, Waiting, short_subject, top_subjects
from headgate.service.observe.usage import MOST_SUBJECTS as MOST_TOLD

__all__ = [
    "BATCH_BUCKETS",
    "DURATION_BUCKETS",
    "MOST_LABELS",
    "MOST_SUBJECTS",
    "OTHER",
    "SKEW_BUCKETS",
    "Tally",
    "counter_of",
]

DURATION_BUCKETS: Final[list[float]] = [
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
]  # fmt: skip
"""Seconds that a check took: from the memory store to a deadline that somebody set very long."""
BATCH_BUCKETS: Final[list[float]] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
SKEW_BUCKETS: Final[list[float]] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0]
MOST_SKEW: Final = 86_400.0
"""Seconds. A caller may send any timestamp, and the sum of all must remain of use."""
MOST_LABELS: Final = 1_000
MOST_RULES: Final = 10_000
"""Rules whose counters are at hand. When there are more, all are looked up again."""
MOST_SUBJECTS: Final = 5_000
MOST_KINDS: Final = 500
"""Of requests, caches and states, which do not depend on what clients send; a bound all the same."""
OTHER: Final = "other"


@final
class Tally:
    """The counters of one worker. `before` is what a worker in the same place had counted when it went."""

    def __init__(self, before: Snapshot | None = None) -> None:
        before = Snapshot() if before is None else before
        self.keys = Recent()
        self.clients = Recent()
        self._uses = Recent()
        self.remaining = Remaining()
        self._sequence = before.sequence
        # allowed, denied, shadowed
        self._decisions: dict[tuple[str, str], list[int]] = {
            (rule, dimension): [allowed, denied, shadowed]
            for rule, dimension, allowed, denied, shadowed in before.decisions
        }
        self._rules: dict[tuple[str, str], list[int]] = {}
        """The same counters, by the rule's own id: several rules may share some."""
        self._requests: dict[tuple[str, int], int] = {(plane, status): n for plane, status, n in before.requests}
        self._caches: dict[str, list[int]] = {name: [hits, misses] for name, (hits, misses) in before.caches.items()}
        self._pressure: dict[str, int] = dict(before.pressure)
        self._events_before: dict[str, int] = dict(before.events)
        self._replayed = before.events.get("replayed", 0)
        self._failed_open = before.events.get("fail_open", 0)
        durations = _going_on(before.durations, DURATION_BUCKETS)
        self._durations, self._seconds = durations.counts, durations.total
        batches = _going_on(before.batches, BATCH_BUCKETS)
        self._batches, self._batched = batches.counts, batches.total
        skews = _going_on(before.skews, SKEW_BUCKETS)
        self._skews, self._skewed = skews.counts, skews.total
        self._minute_us = 0
        self._next_minute_us = 0
        self._taken: dict[tuple[str, str], tuple[int, int, int]] = self._numbers()
        self._subjects: dict[str, list[int]] = {}
        self._kept = Waiting()

    def at(self, now_us: int) -> None:
        """It is so late now: what is counted next belongs to this minute."""
        if now_us >= self._next_minute_us or now_us < self._minute_us:
            self._turn(now_us)

    def decided(self, rule: str, dimension: str, subject: str, allowed: bool) -> None:
        """A limit has admitted or denied a subject. Both are empty where no rule applied: nobody was limited then."""
        counts = self._rules.get((rule, dimension))
        if counts is None:
            counts = self._labelled(rule, dimension)
        place = 0 if allowed else 1
        counts[place] += 1
        if subject:
            asked = self._subjects.get(subject)
            if asked is None:
                asked = self._named(subject)
            asked[place] += 1

    def shadowed(self, rule: str, dimension: str) -> None:
        """A shadow rule would have denied."""
        counts = self._rules.get((rule, dimension))
        if counts is None:
            counts = self._labelled(rule, dimension)
        counts[2] += 1

    def timed(self, seconds: float) -> None:
        """A check, or a batch of them, took so long."""
        self._durations[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self._seconds += seconds

    def batch(self, size: int) -> None:
        """A batch of so many checks has come."""
        self._batches[bisect_left(BATCH_BUCKETS, size)] += 1
        self._batched += size

    def skewed(self, seconds: float) -> None:
        """A caller's timestamp was so far from the store's clock, in either direction."""
        distance = min(MOST_SKEW, abs(seconds))  # in this order a NaN is far, too
        self._skews[bisect_left(SKEW_BUCKETS, distance)] += 1
        self._skewed += distance

    def replayed(self) -> None:
        """An idempotent repeat got the first answer."""
        self._replayed += 1

    def failed_open(self) -> None:
        """A check was let pass because its store did not answer."""
        self._failed_open += 1

    def request(self, plane: str, status: int) -> None:
        """A request was answered: of plane "data" or "control", with this status."""
        count = self._requests.get((plane, status))
        if count is None:
            if len(self._requests) >= MOST_KINDS:
                return
            count = 0
        self._requests[plane, status] = count + 1

    def cached(self, cache: str, hit: bool) -> None:
        """Something was looked up in a cache, and was there or not."""
        counts = self._caches.get(cache)
        if counts is None:
            if len(self._caches) >= MOST_KINDS:
                return
            counts = self._caches[cache] = [0, 0]
        counts[0 if hit else 1] += 1

    def pressed(self, state: str) -> None:
        """A counter went into this state of pressure."""
        self._pressure[state] = self._pressure.get(state, 0) + 1

    def seen_key(self, key: str, now_us: int) -> None:
        self.keys.see(key, now_us)

    def seen_client(self, client: str, now_us: int) -> None:
        self.clients.see(client, now_us)

    def used(self, name: str, key: str, now_us: int) -> None:
        """A request was counted by the counter of this name and key, under a limit of a client."""
        self._uses.see(counter_of(name, key), now_us)

    def take_uses(self) -> dict[str, int]:
        """The counters that were used since the last time, and when last."""
        taken = self._uses.last_us
        if taken:
            self._uses = Recent()
        return taken

    def left(self, rule: str, subject: str, remaining: int, now_us: int) -> None:
        """What remains to a subject under a rule, for those who want that as a metric."""
        self.remaining.see(shown_rule(rule), subject, remaining, now_us)

    def snapshot(
        self, now_us: int, totals: Mapping[str, int], rules: int = 0, breakers: Mapping[str, int] | None = None
    ) -> Snapshot:
        """The numbers now. `totals` are what others in this process have counted since it began, by name."""
        self.at(now_us)
        self._sequence += 1
        events = dict(self._events_before)
        for name, total in totals.items():
            events[name] = events.get(name, 0) + total
        events["replayed"] = self._replayed
        events["fail_open"] = self._failed_open
        return Snapshot(
            at_us=now_us,
            sequence=self._sequence,
            decisions=[(*labels, n[0], n[1], n[2]) for labels, n in self._decisions.items()],
            requests=[(plane, status, count) for (plane, status), count in self._requests.items()],
            events=events,
            pressure=dict(self._pressure),
            caches={name: (counts[0], counts[1]) for name, counts in self._caches.items()},
            durations=Measured(list(self._durations), self._seconds),
            batches=Measured(list(self._batches), self._batched),
            skews=Measured(list(self._skews), self._skewed),
            rules=rules,
            breakers=dict(breakers or {}),
            remaining=self.remaining.rows(now_us),
        )

    def take_usage(self, now_us: int) -> list[Usage]:
        """What has happened since this was last asked, minute by minute, and what was kept; oldest first."""
        self._turn(now_us)
        return self._kept.take()

    def keep_usage(self, usage: Iterable[Usage]) -> None:
        """This could not be written: keep it, for the next time. The last hour of it, if there is more."""
        for one in usage:
            self._kept.add(one)

    def _turn(self, now_us: int) -> None:
        """Put down what was counted for the minute so far, and begin another one, or the same again."""
        numbers = self._numbers()
        rules: dict[str, tuple[int, int, int]] = {}
        for labels, (allowed, denied, shadowed) in numbers.items():
            before = self._taken.get(labels, (0, 0, 0))
            if before != (allowed, denied, shadowed):
                sums = rules.get(labels[0], (0, 0, 0))
                rules[labels[0]] = (
                    sums[0] + allowed - before[0],
                    sums[1] + denied - before[1],
                    sums[2] + shadowed - before[2],
                )
        if rules:
            top = top_subjects({name: (n[0], n[1]) for name, n in self._subjects.items()}, MOST_TOLD)
            named = {short_subject(without_secrets(name)): asked for name, asked in top.items() if is_text(name)}
            minute_us = self._minute_us if self._minute_us else now_us - now_us % MINUTE_US
            self._kept.add(Usage(minute_us, rules, named))
            self._taken = numbers
            self._subjects = {}
        self._minute_us = now_us - now_us % MINUTE_US
        self._next_minute_us = self._minute_us + MINUTE_US

    def _numbers(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        return {labels: (n[0], n[1], n[2]) for labels, n in self._decisions.items()}

    def _labelled(self, rule: str, dimension: str) -> list[int]:
        """The counters of a rule whose are not at hand."""
        name = shown_rule(rule)
        counts = self._decisions.get((name, dimension))
        if counts is None:
            if len(self._decisions) >= MOST_LABELS or not is_text(name):
                name = OTHER
            counts = self._decisions.setdefault((name, dimension), [0, 0, 0])
        if len(self._rules) >= MOST_RULES:
            self._rules.clear()
        self._rules[rule, dimension] = counts
        return counts

    def _named(self, subject: str) -> list[int]:
        """The counters of a subject that has none yet this minute."""
        if len(self._subjects) >= MOST_SUBJECTS:
            most = sorted(self._subjects.items(), key=_asked, reverse=True)[: MOST_SUBJECTS // 2]
            self._subjects = dict(most)
        counts = self._subjects[subject] = [0, 0]
        return counts


def counter_of(name: str, key: str) -> str:
    """A counter, as its last use is noted: no key has a NUL, which no URL or header carries, so none is another's."""
    return f"{name}\0{key}"


def _asked(item: tuple[str, list[int]]) -> int:
    return item[1][0] + item[1][1]


def _going_on(before: Measured | None, buckets: list[float]) -> Measured:
    """What to go on from: nothing where it was measured in other buckets."""
    if before is None or len(before.counts) != len(buckets) + 1:
        return Measured([0] * (len(buckets) + 1))
    return Measured(list(before.counts), before.total)
