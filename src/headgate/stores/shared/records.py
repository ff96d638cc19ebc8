"""What was decided once, in rings of a second mapped file (see record_file.py), for every process of this machine.

A ring is written round and round, and the oldest record is written over: all live equally long, so it is the right one
to go. A record:

    before      8 bytes: the position of the bucket's record before this one, plus one; zero: none
    digest      16 bytes: of the store's prefix and the record's name
    decided     8 bytes: when, in microseconds; long before any time: forgotten
    size        8 bytes: how many bytes are kept
    check       8 bytes: CRC-32 of the bytes
    bytes       what is kept (see keeping.py), up to the next multiple of 8

A position counts all bytes that were ever given out in the ring, so it says whether its record is still there: what is
further behind the head than the ring is long was written over. A record never wraps: one that does not fit before the
end of the ring begins at its start.

A ring has eight segments, and the header says when the ring was last written on to each. Records that were written over
began in the segment that is being written now, or before it, one round ago: so none of them is newer than the time at
which the segment after it was entered. That tells whether a record that is not there may have been dropped.

All of it is done under the lock of the record's stripe (a byte of the counter file's locks), together with those of
the counters, until what was decided is kept. A writer may be killed at any instruction. The head moves first, then the
bytes are written, and then one word, the bucket's, makes the record count. Killed before that, there is no record, and
its room comes back with the ring's next round. The counters were charged just before; so a request whose process is
killed in between was counted, and its repeat is counted again. No limit ever lets more through for it.

What is read is checked: a record that is not as it was written is forgotten, a bucket that leads to no record is
emptied, a ring whose head is impossible is emptied. Each is counted and logged (see damage.py), and the request that
found it fails with a StoreError.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from mmap import mmap
from typing import TYPE_CHECKING, final

from headgate.core.words import i64
from headgate.stores.port import Request
from headgate.stores.records import Records, is_fresh
from headgate.stores.shared.layout import HEADER_BYTES
from headgate.stores.shared.record_file import ENTERED_AT, RECORD_STRIPES, SEGMENTS, open_records

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["SharedRecords"]

_RECORD = struct.Struct("@q16sqqq")
_WORD = struct.Struct("@q")
DECIDED_AT = 24
"""Where in a record it says when it was decided."""
NEVER = -(1 << 62)
MAX_POSITION = 1 << 62
MAX_STEPS = 256
"""Records of one bucket that are looked at for one name. Usually there are two or three."""


@final
class SharedRecords(Records):
    """The records beside one counter file, as this process sees them. Each name under the lock of its stripe."""

    def __init__(self, store: SharedStore, prefix: str) -> None:
        self.path = f"{store.path}.once"
        like = os.fstat(store.locks.own.file)
        memory, rings = open_records(self.path, store.geometry.max_keys, store.geometry.salt, store.ours_alone, like)
        self.memory: mmap = memory
        self.words = memoryview(memory).cast("q")  # single words are written through it, in one store instruction each
        self.stripe_bytes = rings.stripe_bytes
        self.buckets = rings.buckets
        self.ring_at = rings.ring_at
        self.ring_bytes = rings.stripe_bytes - rings.ring_at
        self.segment_bytes = -(-self.ring_bytes // SEGMENTS)
        self.longest = self.ring_bytes // 2
        self.damage = store.damage
        self.hasher = blake2b(prefix.encode() + b"\0", digest_size=16, key=store.geometry.salt)

    def stripes_of(self, batch: Sequence[Request]) -> set[int]:
        """The stripes that the records of a batch live in."""
        return {self.stripe_of(self.digest(request.once.name)) for request in batch if request.once is not None}

    def find(self, name: str, now: i64) -> bytes | None:
        at = self.record_at(self.digest(name))
        if at < 0:
            return None
        _, _, decided, size, check = _RECORD.unpack_from(self.memory, at)
        if not is_fresh(decided, now):
            return None
        start = at + _RECORD.size
        room = self.ring_bytes - (start - HEADER_BYTES) % self.stripe_bytes + self.ring_at
        kept = self.memory[start : start + size] if 0 <= size <= min(self.longest, room) else b""
        if len(kept) != size or zlib.crc32(kept) != check:
            self.words[(at + DECIDED_AT) >> 3] = NEVER
            raise self.damage.note("a damaged idempotency record was forgotten")
        return kept

    def keep(self, name: str, kept: bytes, now: i64) -> None:
        if len(kept) > self.longest:
            raise ValueError(
                f"shared store {self.path}: what is to be kept has {len(kept):,} bytes, and there is room for "
                f"{self.longest:,}"
            )
        digest = self.digest(name)
        stripe_at = self.stripe_at(digest)
        bucket = (stripe_at >> 3) + self.bucket_of(digest)
        size = -(-(_RECORD.size + len(kept)) // 8) * 8
        position = self.written(stripe_at)
        before: int = self.words[bucket]
        if self.newest_is(stripe_at, before - 1, position, digest):
            # What is kept under the same name again takes its predecessor's place: a bucket does not grow by it.
            before = _WORD.unpack_from(self.memory, stripe_at + self.ring_at + (before - 1) % self.ring_bytes)[0]
        if position % self.ring_bytes + size > self.ring_bytes:
            position += self.ring_bytes - position % self.ring_bytes
        self.note_entered(stripe_at, position + size, now)
        # First the head: from now on, nobody takes what is about to be written over for a record.
        self.words[stripe_at >> 3] = position + size
        at = stripe_at + self.ring_at + position % self.ring_bytes
        _RECORD.pack_into(self.memory, at, before, digest, now, len(kept), zlib.crc32(kept))
        self.memory[at + _RECORD.size : at + _RECORD.size + len(kept)] = kept
        self.words[bucket] = position + 1

    def forget(self, name: str) -> None:
        at = self.record_at(self.digest(name))
        if at >= 0:
            self.words[(at + DECIDED_AT) >> 3] = NEVER

    def dropped_until(self, name: str, now: i64) -> int | None:
        stripe_at = self.stripe_at(self.digest(name))
        written = self.written(stripe_at)
        if written < self.ring_bytes:
            return None
        first = self.entered_at(stripe_at)
        entered: int = self.words[first + (self.segment_of(written) + 1) % SEGMENTS]
        if not entered:  # the ring was emptied: whatever it had may have been dropped
            for segment in range(SEGMENTS):
                self.words[first + segment] = now
            return now
        return entered

    def note_entered(self, stripe_at: int, head: int, now: i64) -> None:
        """Note the time for each segment that is entered when the head moves on to this position."""
        last = self.segment_of(head)
        first = self.entered_at(stripe_at)
        for segment in range(self.segment_of(self.words[stripe_at >> 3]) + 1, last + 1):
            self.words[first + segment % SEGMENTS] = now

    def segment_of(self, position: int) -> int:
        """The segment of a position, counted from the very beginning."""
        return position // self.ring_bytes * SEGMENTS + position % self.ring_bytes // self.segment_bytes

    def entered_at(self, stripe_at: int) -> int:
        """Where the times of a stripe's segments begin, in words."""
        return (ENTERED_AT >> 3) + (stripe_at - HEADER_BYTES) // self.stripe_bytes * SEGMENTS

    def record_at(self, digest: bytes) -> int:
        """Where the newest record of this digest is in the file, or -1."""
        stripe_at = self.stripe_at(digest)
        written = self.written(stripe_at)
        bucket = (stripe_at >> 3) + self.bucket_of(digest)
        position: int = self.words[bucket] - 1
        bound = written  # a record lies before those that lead to it
        for _ in range(MAX_STEPS):
            if position == -1 or 0 <= position < written - self.ring_bytes:
                return -1  # none, or written over
            if position < 0 or position % 8 or position > bound - _RECORD.size:
                self.words[bucket] = 0
                raise self.damage.note("a damaged list of idempotency records was emptied")
            offset = position % self.ring_bytes
            at = stripe_at + self.ring_at + offset
            if offset + _RECORD.size <= self.ring_bytes and self.memory[at + 8 : at + 24] == digest:
                return at
            bound = position
            before: int = _WORD.unpack_from(self.memory, at)[0]
            position = before - 1
        return -1

    def newest_is(self, stripe_at: int, position: int, written: int, digest: bytes) -> bool:
        """Whether there is a record at this position, of this digest."""
        offset = position % self.ring_bytes
        if position % 8 or not max(written - self.ring_bytes, 0) <= position < written:
            return False
        at = stripe_at + self.ring_at + offset
        return offset + _RECORD.size <= self.ring_bytes and self.memory[at + 8 : at + 24] == digest

    def written(self, stripe_at: int) -> int:
        """How far a ring has been written. One that cannot have been written so far is emptied."""
        written: int = self.words[stripe_at >> 3]
        if not 0 <= written < MAX_POSITION or written % 8:
            self.memory[stripe_at + 8 : stripe_at + self.ring_at] = bytes(self.ring_at - 8)
            for segment in range(SEGMENTS):
                self.words[self.entered_at(stripe_at) + segment] = 0
            self.words[stripe_at >> 3] = self.ring_bytes  # in the second round: what the first one had was dropped
            raise self.damage.note("a damaged ring of idempotency records was emptied")
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
        """The bucket's word, counted from the head's."""
        return 1 + int.from_bytes(digest[8:12], "little") % self.buckets

    def close(self) -> None:
        self.words.release()
        self.memory.close()
