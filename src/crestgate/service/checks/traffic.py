# mypyc: compile
"""Recent checks of one worker, for "what if": a bounded list, sampled by subject.

Every check under rules is recorded while there is room. When the list is full before an hour is over, every second
subject is dropped, and so on: a subject is seen whole or not at all, whichever worker its requests reach. It is the
first that a request has of user, API key, client, key and address; a request without any is sampled by itself. When
traffic falls, the sample grows again; who reads the records uses the smallest sample of the time that is read.

The hash of a subject is keyed, so nobody can choose a name that is in every sample. Records are kept by the number of
zeros that their hash ends with: dropping every second subject is dropping one of these lists. Where that would make
little room, because few subjects send most requests, the oldest records are dropped instead. So a check does a bounded
amount of work.

Checks of descriptors (Envoy), of plans and of limits that are written out are not recorded: no rule is about them.
Nothing here is locked: it runs on the worker's event loop, and `records` copies each list in one step.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from heapq import merge
from random import getrandbits
from time import sleep
from typing import Final, final

from crestgate.core.context import ContextFields
from crestgate.core.redaction import client_id_from_api_key
from crestgate.service.checks.forms import context_of, cost_of
from crestgate.service.checks.schemas import CheckBody

__all__ = ["MAX_DROPPED", "MAX_MINUTES", "RecordedTraffic", "TrafficRecorder", "level_of"]

MAX_MINUTES: Final = 60
SPAN_US: Final = MAX_MINUTES * 60_000_000
REVIEW_US: Final = 60_000_000
PURPOSE: Final = b"crestgate-sample"
MAX_PATH: Final = 512
MAX_VALUE: Final = 128
"""Characters. Longer ones are not recorded: the memory is bounded by what a record may have."""
MAX_BITS: Final = 24
HASH_BITS: Final = 32
MIN_SHARE: Final = 8
"""Every second subject is dropped if that removes at least one record of so many."""
MAX_DROPPED: Final = 200
"""Records that one check deletes at most."""
SLICE: Final = 500

Text = str | None
RecordedRow = tuple[int, int, int, Text, Text, Text, Text, Text, Text, Text, Text, dict[str, str] | None]
"""Time, cost, the hash that it is sampled by, ip, user, api_key (a digest), client, path, method, tier, key, and the
attributes."""


Entry = tuple[int, int, int, ContextFields]
"""Time, cost, hash, and what was checked."""


@final
class RecordedTraffic:
    """What a worker has recorded, oldest first. One subject of 2^bits is in it."""

    def __init__(self, bits: int, since_us: int, skipped: int, rows: Sequence[RecordedRow]) -> None:
        self.bits = bits
        self.since_us = since_us
        """From when on the records are complete."""
        self.skipped = skipped
        """Requests that were too long to be recorded."""
        self.rows = rows


@final
class TrafficRecorder:
    """Records the checks of one worker. Workers with the same `key` sample the same subjects; it is random by
    default."""

    def __init__(self, max_requests: int, now_us: int, key: bytes | None = None) -> None:
        self.max_requests = max_requests
        self.since_us = now_us
        self.skipped = 0
        self.bits = 0
        self.changes: list[tuple[int, int]] = [(now_us, 0)]
        """When the sample changed, and to how many bits."""
        self.review_us = now_us + REVIEW_US
        secret = secrets.token_bytes(32) if key is None else blake2b(key, digest_size=32, person=PURPOSE).digest()
        self.hasher = blake2b(digest_size=HASH_BITS // 8, key=secret)
        """Copied for each subject: that takes two thirds of the time of a new one."""
        self.size = 0
        self.levels: list[deque[Entry]] = [deque() for _ in range(MAX_BITS + 1)]
        """Records by the zeros that their hash ends with, oldest first. Those below `bits` are empty."""
        self.dropped: deque[Entry] = deque()
        """Records of subjects that are no longer in the sample; deleted a few at a time."""

    def record_check(self, check: CheckBody, now_us: int) -> None:
        """Record a check that was decided."""
        if check.plans is None:
            self.record(context_of(check), cost_of(check), now_us)

    def record(self, context: ContextFields, cost: int, now_us: int) -> None:
        hashed = self.sample_hash(subject_of(context))
        level = level_of(hashed)
        if level >= self.bits:
            path = context.path
            if (path is not None and len(path) > MAX_PATH) or is_long(context):
                self.skipped += 1
                return
            self.levels[level].append((now_us, cost, hashed, context))
            self.size += 1
            if self.size >= self.max_requests:
                self.make_room(now_us)
        if self.dropped:
            delete_oldest(self.dropped, MAX_DROPPED)
        if now_us >= self.review_us:
            self.review(now_us)

    def sample_hash(self, subject: str) -> int:
        """What a request is sampled by: the same in every worker, and unknown to callers."""
        if not subject:
            return getrandbits(HASH_BITS)
        hasher = self.hasher.copy()
        hasher.update(subject.encode("utf-8", "surrogatepass"))
        return int.from_bytes(hasher.digest(), "big")

    def review(self, now_us: int) -> None:
        """Drop what is too old, some now and the rest at the next checks; then make the sample larger if there is much
        room."""
        left = MAX_DROPPED
        for entries in self.levels:
            while entries and entries[0][0] < now_us - SPAN_US:
                if not left:
                    return
                entries.popleft()
                self.size -= 1
                left -= 1
        self.review_us = now_us + REVIEW_US
        if self.bits and self.size < self.max_requests // 8:
            self.resample(self.bits - 1, now_us)

    def make_room(self, now_us: int) -> None:
        """Drop every second subject, or the oldest record."""
        fullest = self.levels[self.bits]
        oldest = self.levels[MAX_BITS]
        for entries in self.levels:
            if entries and (not oldest or entries[0][0] < oldest[0][0]):
                oldest = entries
        is_old = oldest[0][0] < now_us - SPAN_US
        if not is_old and self.bits < MAX_BITS and len(fullest) * MIN_SHARE >= self.max_requests:
            self.levels[self.bits] = deque()
            self.dropped = fullest
            self.size -= len(fullest)
            self.resample(self.bits + 1, now_us)
            return
        time_us = oldest.popleft()[0]
        self.size -= 1
        if not is_old:
            self.since_us = max(self.since_us, time_us + 1)

    def resample(self, bits: int, now_us: int) -> None:
        self.bits = bits
        while len(self.changes) > 1 and self.changes[1][0] <= now_us - SPAN_US:
            del self.changes[0]  # another one was in force when the last hour began
        self.changes.append((now_us, bits))

    def records(self, from_us: int) -> RecordedTraffic:
        """What was recorded from this time on, in the smallest sample of that time. Call it in a thread: it lets
        others run in between."""
        levels = [entries.copy() for entries in self.levels]
        changes = self.changes.copy()
        bits = 0
        for index, (_, of_then) in enumerate(changes):
            ends_us = changes[index + 1][0] if index + 1 < len(changes) else None
            if ends_us is None or ends_us > from_us:
                bits = max(bits, of_then)
        rows: list[RecordedRow] = []
        for time_us, cost, hashed, context in merge(*levels[bits:], key=time_of):
            if time_us >= from_us:
                rows.append(row_of(time_us, cost, hashed, context))
                if len(rows) % SLICE == 0:
                    sleep(0)
        return RecordedTraffic(bits, self.since_us, self.skipped, rows)


def time_of(entry: Entry) -> int:
    return entry[0]


def delete_oldest(entries: deque[Entry], number: int) -> None:
    for _ in range(min(number, len(entries))):
        entries.popleft()


def subject_of(context: ContextFields) -> str:
    """What a request is sampled by, if anything."""
    return context.user or context.api_key or context.client or context.key or context.ip or ""


def level_of(hashed: int) -> int:
    """The smallest sample that a hash is in: the number of zeros that it ends with."""
    return min((hashed & -hashed).bit_length() - 1, MAX_BITS) if hashed else MAX_BITS


def is_long(context: ContextFields) -> bool:
    for value in (context.user, context.api_key, context.client, context.key, context.ip, context.tier, context.method):
        if value is not None and len(value) > MAX_VALUE:
            return True
    attributes = context.attributes
    return attributes is not None and max(map(len, attributes.values()), default=0) > MAX_VALUE


def row_of(time_us: int, cost: int, hashed: int, context: ContextFields) -> RecordedRow:
    """A record without secrets: an API key is replaced by its digest, also where it names the client."""
    api_key, client = context.api_key, context.client
    if api_key is not None:
        digest = client_id_from_api_key(api_key)
        client = digest if client == api_key else client
        api_key = digest
    named = (context.ip, context.user, api_key, client, context.path, context.method, context.tier, context.key)
    attributes = context.attributes
    return (time_us, cost, hashed, *named, None if attributes is None else dict(attributes))
