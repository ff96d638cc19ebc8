# mypyc: compile
"""Recent checks of one worker, for "what if": a bounded list, sampled by subject.

Every check under rules is recorded while there is room. When the list is full before an hour is over, every second
subject is dropped, and so on: a subject is seen whole or not at all, whichever worker its requests reach. It is the
first that a request has of user, API key, client, key and address. When traffic falls, the sample grows again; who
reads the records uses the smallest sample of the time that is read.

Checks of descriptors (Envoy), of plans and of limits that are written out are not recorded: no rule is about them.
Nothing here is locked: it runs on the worker's event loop, and `records` copies in one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import sleep
from typing import Final, final
from zlib import crc32

from crestgate.core.context import ContextFields
from crestgate.core.redaction import client_id_from_api_key
from crestgate.service.checks.forms import context_of, cost_of
from crestgate.service.checks.schemas import CheckBody

__all__ = ["MAX_MINUTES", "RecordedTraffic", "TrafficRecorder"]

MAX_MINUTES: Final = 60
SPAN_US: Final = MAX_MINUTES * 60_000_000
REVIEW_US: Final = 60_000_000
MAX_PATH: Final = 512
MAX_VALUE: Final = 128
"""Characters. Longer ones are not recorded: the memory is bounded by what a record may have."""
MAX_BITS: Final = 24
SLICE: Final = 500

Text = str | None
RecordedRow = tuple[int, int, int, Text, Text, Text, Text, Text, Text, Text, Text, dict[str, str] | None]
"""Time, cost, the hash that it is sampled by, ip, user, api_key (a digest), client, path, method, tier, key, and the
attributes."""


@final
class RecordedTraffic:
    """What a worker has recorded, oldest first. One subject of 2^bits is in it."""

    def __init__(self, bits: int, since_us: int, skipped: int, rows: Sequence[RecordedRow]) -> None:
        self.bits = bits
        self.since_us = since_us
        """When recording began."""
        self.skipped = skipped
        """Requests that were too long to be recorded."""
        self.rows = rows


@final
class TrafficRecorder:
    """Records the checks of one worker."""

    def __init__(self, max_requests: int, now_us: int) -> None:
        self.max_requests = max_requests
        self.since_us = now_us
        self.skipped = 0
        self.bits = 0
        self.mask = 0
        self.changes: list[tuple[int, int]] = [(now_us, 0)]
        """When the sample changed, and to how many bits."""
        self.review_us = now_us + REVIEW_US
        self.entries: deque[tuple[int, int, ContextFields]] = deque()

    def record_check(self, check: CheckBody, now_us: int) -> None:
        """Record a check that was decided."""
        if check.plans is None:
            self.record(context_of(check), cost_of(check), now_us)

    def record(self, context: ContextFields, cost: int, now_us: int) -> None:
        if self.mask and not in_sample(subject_of(context), self.mask):
            return
        path = context.path
        if (path is not None and len(path) > MAX_PATH) or is_long(context):
            self.skipped += 1
            return
        self.entries.append((now_us, cost, context))
        if now_us >= self.review_us or len(self.entries) >= self.max_requests:
            self.review(now_us)

    def review(self, now_us: int) -> None:
        """Drop what is too old, and make the sample smaller when it is full, or larger when there is much room."""
        self.review_us = now_us + REVIEW_US
        entries = self.entries
        while entries and entries[0][0] < now_us - SPAN_US:
            entries.popleft()
        if len(entries) >= self.max_requests and self.bits < MAX_BITS:
            self.resample(self.bits + 1, now_us)
            mask = self.mask
            self.entries = deque([one for one in entries if in_sample(subject_of(one[2]), mask)])
        elif self.bits and len(entries) < self.max_requests // 8:
            self.resample(self.bits - 1, now_us)
        while len(self.entries) >= self.max_requests:  # one subject alone fills it
            self.entries.popleft()

    def resample(self, bits: int, now_us: int) -> None:
        self.bits = bits
        self.mask = (1 << bits) - 1
        while len(self.changes) > 1 and self.changes[1][0] <= now_us - SPAN_US:
            del self.changes[0]  # another one was in force when the last hour began
        self.changes.append((now_us, bits))

    def records(self, from_us: int) -> RecordedTraffic:
        """What was recorded from this time on, in the smallest sample of that time. Call it in a thread: it lets
        others run in between."""
        entries = self.entries.copy()
        bits = 0
        for index, (_, of_then) in enumerate(self.changes):
            ends_us = self.changes[index + 1][0] if index + 1 < len(self.changes) else None
            if ends_us is None or ends_us > from_us:
                bits = max(bits, of_then)
        mask = (1 << bits) - 1
        rows: list[RecordedRow] = []
        for time_us, cost, context in entries:
            if time_us >= from_us and (not mask or in_sample(subject_of(context), mask)):
                rows.append(row_of(time_us, cost, context))
                if len(rows) % SLICE == 0:
                    sleep(0)
        return RecordedTraffic(bits, self.since_us, self.skipped, rows)


def subject_of(context: ContextFields) -> str:
    """What a request is sampled by."""
    return context.user or context.api_key or context.client or context.key or context.ip or ""


def in_sample(subject: str, mask: int) -> bool:
    """Whether a subject is among those that are recorded: the same in every worker."""
    return not sample_hash(subject) & mask


def sample_hash(subject: str) -> int:
    return crc32(subject.encode("utf-8", "surrogatepass"))


def is_long(context: ContextFields) -> bool:
    for value in (context.user, context.api_key, context.client, context.key, context.ip, context.tier, context.method):
        if value is not None and len(value) > MAX_VALUE:
            return True
    attributes = context.attributes
    return attributes is not None and max(map(len, attributes.values()), default=0) > MAX_VALUE


def row_of(time_us: int, cost: int, context: ContextFields) -> RecordedRow:
    """A record without secrets: an API key is replaced by its digest, also where it names the client."""
    api_key, client = context.api_key, context.client
    if api_key is not None:
        digest = client_id_from_api_key(api_key)
        client = digest if client == api_key else client
        api_key = digest
    named = (context.ip, context.user, api_key, client, context.path, context.method, context.tier, context.key)
    attributes = context.attributes
    return (time_us, cost, sample_hash(subject_of(context)), *named, None if attributes is None else dict(attributes))
