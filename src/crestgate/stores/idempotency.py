# mypyc: compile
"""Idempotency records: replay and claim logic for every store, and the records of the memory store.

Records have room of their own: no counter is evicted for them. All live equally long, so the oldest is always the first
to expire. When there is no room left it is dropped early, and a retry would be decided again. Where that would lift a
limit (a give-back must be settled only once), `IdempotencyRecord.since_us` has the retry rejected instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crestgate.core.mypyc_types import i64
from crestgate.stores.idempotency_codec import CLAIM_BYTES, decode_record, encode_claim, record_bytes
from crestgate.stores.port import IDEMPOTENCY_TTL_US, MAX_RECORD_BYTES, IdempotencyRecord, Op, Request

__all__ = ["IdempotencyRecords", "MemoryRecords", "check_record_size", "group_by_record", "is_fresh", "replay_or_claim"]

MAX_BYTES = 64 * 1024 * 1024
OVERHEAD = 250
"""Approximate bytes of a record besides its name and its content."""


class IdempotencyRecords:
    """Encoded decisions by name. Not locked: the store does that."""

    def find(self, name: str, now: i64) -> bytes | None:
        """The record of this name, unless it has expired."""
        raise NotImplementedError

    def put(self, name: str, content: bytes, now: i64) -> None:
        """Write a record, replacing that of the same name."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError

    def dropped_until(self, name: str, now: i64) -> int | None:
        """A time after which no record that could have had this name was dropped early; None if none ever was."""
        raise NotImplementedError


def group_by_record(batch: Sequence[Request]) -> list[Sequence[Request]]:
    """Split a batch into groups that are decided together: adjacent requests with the same record, or without one."""
    groups: list[Sequence[Request]] = []
    first = 0
    for position in range(1, len(batch) + 1):
        if (
            position == len(batch)
            or batch[position].record is not batch[first].record
            or is_record_op(batch[first].op)
            or is_record_op(batch[position].op)
        ):
            groups.append(batch[first:position])
            first = position
    return groups


def check_record_size(batch: Sequence[Request]) -> None:
    """ValueError if a record of this batch would be longer than every store accepts. Called before anything is
    decided, and before requests of several callers are coalesced into one batch."""
    for request in batch:
        if request.record is not None:
            break
    else:
        return
    for group in group_by_record(batch):
        record = group[0].record
        if record is None:
            continue
        if group[0].op is Op.SAVE:
            size = len(record.encoded)
        else:
            size = record_bytes(len(record.note), sum([len(request.members) for request in group]))
        if size > MAX_RECORD_BYTES:
            raise ValueError(
                f"the idempotency record of these requests would have {size:,} bytes, more than {MAX_RECORD_BYTES:,}: "
                "send fewer requests at a time"
            )


def is_record_op(op: Op) -> bool:
    """Whether an operation concerns a record only, and has no members."""
    return op is Op.CLAIM or op is Op.SAVE or op is Op.RELEASE


def replay_or_claim(records: IdempotencyRecords, record: IdempotencyRecord, op: Op, now: i64) -> bool:
    """Carry out an operation on a record, or replay it. False when the requests are still to be decided."""
    if op is Op.SAVE:
        records.put(record.name, record.encoded, now)
        return True
    content = records.find(record.name, now)
    if op is Op.RELEASE:
        if content is not None and len(content) == CLAIM_BYTES:
            records.delete(record.name)
        return True
    record.replay, record.pending, record.dropped = None, False, False
    if content is None:
        if record.since_us is not None:
            dropped_us = records.dropped_until(record.name, now)
            if dropped_us is not None and dropped_us >= record.since_us:
                record.pending = record.dropped = True
                return True
        if op is not Op.CLAIM:
            return False
        records.put(record.name, encode_claim(record), now)
        return True
    record.replay = decode_record(content)
    record.pending = record.replay is None
    return True


def is_fresh(at: i64, now: i64) -> bool:
    """Whether a record of this time is still valid. A clock that steps back a little makes no difference."""
    return -IDEMPOTENCY_TTL_US < now - at < IDEMPOTENCY_TTL_US


@final
class MemoryRecords(IdempotencyRecords):
    """The records of one process, bounded by their total size."""

    def __init__(self, max_bytes: i64 = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes: i64 = 0
        self.records: dict[str, tuple[int, bytes]] = {}  # oldest first
        self.dropped: int | None = None  # the newest time of a record that was dropped early

    def find(self, name: str, now: i64) -> bytes | None:
        record = self.records.get(name)
        if record is None or not is_fresh(record[0], now):
            return None
        return record[1]

    def put(self, name: str, content: bytes, now: i64) -> None:
        self.delete(name)
        self.records[name] = (now, content)
        self.bytes += size_of(name, content)
        while True:
            oldest = next(iter(self.records))
            if oldest == name or (self.bytes <= self.max_bytes and is_fresh(self.records[oldest][0], now)):
                break
            at = self.records[oldest][0]
            if is_fresh(at, now) and (self.dropped is None or at > self.dropped):
                self.dropped = at
            self.delete(oldest)

    def delete(self, name: str) -> None:
        record = self.records.pop(name, None)
        if record is not None:
            self.bytes -= size_of(name, record[1])

    def dropped_until(self, name: str, now: i64) -> int | None:
        return self.dropped

    def clear(self) -> None:
        self.records.clear()
        self.bytes = 0


def size_of(name: str, content: bytes) -> int:
    return len(name) + len(content) + OVERHEAD
