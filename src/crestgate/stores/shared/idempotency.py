# mypyc: compile
"""Idempotency records in ring buffers of a second mapped file (see idempotency_file.py), for every process of this
machine.

A full ring overwrites its oldest record. All records live equally long, so the oldest is the first to expire. A record:

    before      8 bytes: the position of the bucket's previous record, plus one; zero: none
    digest      16 bytes: of the store's prefix and the record's name
    decided     8 bytes: when, in microseconds; long before any time: deleted
    size        8 bytes: of the content
    check       8 bytes: CRC-32 of the content
    content     see idempotency_codec.py; padded to a multiple of 8

A position counts all bytes that were ever allocated in the ring, so it tells whether its record still exists: one that
is further behind the head than the ring is long was overwritten. A record never wraps: one that does not fit before
the end of the ring begins at its start.

A ring has eight segments, and the header has the time at which the ring last entered each. Overwritten records began in
the segment that is being written now, or before it, one round ago: so none of them is newer than the time at which the
segment after it was entered. That tells whether a missing record may have been dropped.

All of it is done under the lock of the record's stripe (one of the counter file's locks), together with those of the
counters, until the decision is recorded. A writer may be killed at any instruction. The head moves first, then the
record is written, and then one word, the bucket's, makes it valid. If the writer is killed before that, there is no
record, and its room is reused in the ring's next round. The counters were charged just before; so a request whose
process is killed in between was counted, and its retry is counted again. No limit admits more because of it.

What is read is checked: a corrupt record is deleted, a bucket that leads to no record is emptied, a ring with an
impossible head is emptied. Each is counted and logged (see corruption.py), and the request that found it fails with a
StoreError.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from mmap import mmap
from typing import TYPE_CHECKING, final

from crestgate.core.mypyc_types import i64
from crestgate.stores.idempotency import IdempotencyRecords, is_fresh
from crestgate.stores.port import Request
from crestgate.stores.shared.idempotency_file import ENTERED_AT, RECORD_STRIPES, SEGMENTS, open_records
from crestgate.stores.shared.layout import HEADER_BYTES

if TYPE_CHECKING:
    from crestgate.stores.shared.store import SharedStore

__all__ = ["SharedRecords"]

_RECORD = struct.Struct("@q16sqqq")
_WORD = struct.Struct("@q")
DECIDED_AT = 24
"""Offset of `decided` in a record."""
NEVER = -(1 << 62)
MAX_POSITION = 1 << 62
MAX_BUCKET_RECORDS = 256
"""Records of one bucket that are searched for one name. Usually there are two or three."""


@final
class SharedRecords(IdempotencyRecords):
    """The records of one counter file. Each name is read and written under the lock of its stripe."""

    def __init__(self, store: SharedStore, prefix: str) -> None:
        self.path = f"{store.path}.once"
        like = os.fstat(store.locks.own.file)
        memory, rings = open_records(self.path, store.geometry.max_keys, store.geometry.salt, store.require_owner, like)
        self.memory: mmap = memory
        self.words = memoryview(memory).cast("q")  # to write single words in one store instruction each
        self.stripe_bytes = rings.stripe_bytes
        self.buckets = rings.buckets
        self.ring_at = rings.ring_at
        self.ring_bytes = rings.stripe_bytes - rings.ring_at
        self.segment_bytes = -(-self.ring_bytes // SEGMENTS)
        self.max_bytes = self.ring_bytes // 2
        self.corruption = store.corruption
        self.hasher = blake2b(prefix.encode() + b"\0", digest_size=16, key=store.geometry.salt)

    def stripes_of(self, batch: Sequence[Request]) -> set[int]:
        """The stripes of the records of a batch."""
        return {self.stripe_of(self.digest(request.record.name)) for request in batch if request.record is not None}

    def find(self, name: str, now: i64) -> bytes | None:
        at = self.record_at(self.digest(name))
        if at < 0:
            return None
        _, _, decided, size, check = _RECORD.unpack_from(self.memory, at)
        if not is_fresh(decided, now):
            return None
        start = at + _RECORD.size
        room = self.ring_bytes - (start - HEADER_BYTES) % self.stripe_bytes + self.ring_at
        content = self.memory[start : start + size] if 0 <= size <= min(self.max_bytes, room) else b""
        if len(content) != size or zlib.crc32(content) != check:
            self.words[(at + DECIDED_AT) >> 3] = NEVER
            raise self.corruption.report("a corrupt idempotency record was deleted")
        return content

    def put(self, name: str, content: bytes, now: i64) -> None:
        if len(content) > self.max_bytes:
            raise ValueError(
                f"shared store {self.path}: an idempotency record has {len(content):,} bytes, and there is room for "
                f"{self.max_bytes:,}"
            )
        digest = self.digest(name)
        stripe_at = self.stripe_at(digest)
        bucket = (stripe_at >> 3) + self.bucket_of(digest)
        size = -(-(_RECORD.size + len(content)) // 8) * 8
        position = self.head_of(stripe_at)
        before: int = self.words[bucket]
        if self.is_record(stripe_at, before - 1, position, digest):
            # A new record of the same name replaces the old one: the list of a bucket does not grow.
            before = _WORD.unpack_from(self.memory, stripe_at + self.ring_at + (before - 1) % self.ring_bytes)[0]
        if position % self.ring_bytes + size > self.ring_bytes:
            position += self.ring_bytes - position % self.ring_bytes
        self.enter_segments(stripe_at, position + size, now)
        # The head first: from now on, what is about to be overwritten is no longer a record.
        self.words[stripe_at >> 3] = position + size
        at = stripe_at + self.ring_at + position % self.ring_bytes
        _RECORD.pack_into(self.memory, at, before, digest, now, len(content), zlib.crc32(content))
        self.memory[at + _RECORD.size : at + _RECORD.size + len(content)] = content
        self.words[bucket] = position + 1

    def delete(self, name: str) -> None:
        at = self.record_at(self.digest(name))
        if at >= 0:
            self.words[(at + DECIDED_AT) >> 3] = NEVER

    def dropped_until(self, name: str, now: i64) -> int | None:
        stripe_at = self.stripe_at(self.digest(name))
        written = self.head_of(stripe_at)
        if written < self.ring_bytes:
            return None
        first = self.entered_at(stripe_at)
        entered: int = self.words[first + (self.segment_of(written) + 1) % SEGMENTS]
        if not entered:  # the ring was emptied: any of its records may have been dropped
            for segment in range(SEGMENTS):
                self.words[first + segment] = now
            return now
        return entered

    def enter_segments(self, stripe_at: int, head: int, now: i64) -> None:
        """Record the time for each segment that the head enters when it moves to this position."""
        last = self.segment_of(head)
        first = self.entered_at(stripe_at)
        for segment in range(self.segment_of(self.words[stripe_at >> 3]) + 1, last + 1):
            self.words[first + segment % SEGMENTS] = now

    def segment_of(self, position: int) -> int:
        """The segment of a position, counted from the first byte ever written."""
        return position // self.ring_bytes * SEGMENTS + position % self.ring_bytes // self.segment_bytes

    def entered_at(self, stripe_at: int) -> int:
        """Where the times of a stripe's segments are, in words."""
        return (ENTERED_AT >> 3) + (stripe_at - HEADER_BYTES) // self.stripe_bytes * SEGMENTS

    def record_at(self, digest: bytes) -> int:
        """Offset of the newest record of this digest in the file, or -1."""
        stripe_at = self.stripe_at(digest)
        written = self.head_of(stripe_at)
        bucket = (stripe_at >> 3) + self.bucket_of(digest)
        position: int = self.words[bucket] - 1
        bound = written  # a record comes before those that link to it
        for _ in range(MAX_BUCKET_RECORDS):
            if position == -1 or 0 <= position < written - self.ring_bytes:
                return -1  # none, or overwritten
            if position < 0 or position % 8 or position > bound - _RECORD.size:
                self.words[bucket] = 0
                raise self.corruption.report("a corrupt list of idempotency records was emptied")
            offset = position % self.ring_bytes
            at = stripe_at + self.ring_at + offset
            if offset + _RECORD.size <= self.ring_bytes and self.memory[at + 8 : at + 24] == digest:
                return at
            bound = position
            before: int = _WORD.unpack_from(self.memory, at)[0]
            position = before - 1
        return -1

    def is_record(self, stripe_at: int, position: int, written: int, digest: bytes) -> bool:
        """Whether there is a record of this digest at this position."""
        offset = position % self.ring_bytes
        if position % 8 or not max(written - self.ring_bytes, 0) <= position < written:
            return False
        at = stripe_at + self.ring_at + offset
        return offset + _RECORD.size <= self.ring_bytes and self.memory[at + 8 : at + 24] == digest

    def head_of(self, stripe_at: int) -> int:
        """Bytes ever written to a ring. A ring with an impossible number is emptied."""
        written: int = self.words[stripe_at >> 3]
        if not 0 <= written < MAX_POSITION or written % 8:
            self.memory[stripe_at + 8 : stripe_at + self.ring_at] = bytes(self.ring_at - 8)
            for segment in range(SEGMENTS):
                self.words[self.entered_at(stripe_at) + segment] = 0
            self.words[stripe_at >> 3] = self.ring_bytes  # in the second round: the records of the first were dropped
            raise self.corruption.report("a corrupt ring of idempotency records was emptied")
        return written

    def digest(self, name: str) -> bytes:
        hasher = self.hasher.copy()
        hasher.update(name.encode("utf-8", "surrogatepass"))
        return hasher.digest()

    def stripe_of(self, digest: bytes) -> int:
        return digest[0] % RECORD_STRIPES

    def stripe_at(self, digest: bytes) -> int:
        return HEADER_BYTES + self.stripe_of(digest) * self.stripe_bytes

    def bucket_of(self, digest: bytes) -> int:
        """The bucket's word, counted from the head."""
        return 1 + int.from_bytes(digest[8:12], "little") % self.buckets

    def close(self) -> None:
        self.words.release()
        self.memory.close()
