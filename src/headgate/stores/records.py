"""How a store on this machine decides requests once, and where one process keeps what came of them.

Records have room of their own: however many names there are, no counter is forgotten for them. All live equally long,
so the oldest is always the first to expire; when there is no room left it goes early, and what it kept would be
decided anew. Where that would lift a limit (a give-back is settled once), `Once.since_us` has it refused instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from headgate.core.words import i64
from headgate.stores.keeping import CLAIM_BYTES, claim_bytes, kept_bytes, read_kept
from headgate.stores.port import MOST_KEPT_BYTES, ONCE_US, Once, Op, Request

__all__ = ["MemoryRecords", "Records", "answered_before", "check_kept", "grouped", "is_fresh"]

MOST_BYTES = 64 * 1024 * 1024
OVERHEAD = 250
"""Bytes that a record takes beside its name and its content, about."""


class Records:
    """What was decided once, by name. Not locked: the store sees to that."""

    def find(self, name: str, now: i64) -> bytes | None:
        """What is kept under this name, unless it has expired."""
        raise NotImplementedError

    def keep(self, name: str, kept: bytes, now: i64) -> None:
        """Keep this, in the place of whatever was kept before."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        raise NotImplementedError

    def dropped_until(self, name: str, now: i64) -> int | None:
        """A time after which no record that could have had this name was dropped early; None if none ever was."""
        raise NotImplementedError


def grouped(batch: Sequence[Request]) -> list[Sequence[Request]]:
    """A batch by what is decided together: requests side by side that carry the same record, or none."""
    groups: list[Sequence[Request]] = []
    first = 0
    for position in range(1, len(batch) + 1):
        if (
            position == len(batch)
            or batch[position].once is not batch[first].once
            or of_a_record(batch[first].op)
            or of_a_record(batch[position].op)
        ):
            groups.append(batch[first:position])
            first = position
    return groups


def check_kept(batch: Sequence[Request]) -> None:
    """ValueError if a record of this batch would be longer than every store takes. To be asked before anything is
    decided, and before requests of several callers become one batch."""
    for request in batch:
        if request.once is not None:
            break
    else:
        return
    for group in grouped(batch):
        once = group[0].once
        if once is None:
            continue
        if group[0].op is Op.KEEP:
            size = len(once.packed)
        else:
            size = kept_bytes(len(once.note), sum([len(request.members) for request in group]))
        if size > MOST_KEPT_BYTES:
            raise ValueError(
                f"what is to be kept of requests that are decided once has {size:,} bytes, and may have "
                f"{MOST_KEPT_BYTES:,}: ask for less at a time"
            )


def of_a_record(op: Op) -> bool:
    """Whether an operation is about a record alone, and has no members."""
    return op is Op.CLAIM or op is Op.KEEP or op is Op.RELEASE


def answered_before(records: Records, once: Once, op: Op, now: i64) -> bool:
    """Whether there is nothing to decide: because it is kept already, or because the operation is about the record."""
    if op is Op.KEEP:
        records.keep(once.name, once.packed, now)
        return True
    found = records.find(once.name, now)
    if op is Op.RELEASE:
        if found is not None and len(found) == CLAIM_BYTES:
            records.forget(once.name)
        return True
    once.kept, once.pending, once.dropped = None, False, False
    if found is None:
        if once.since_us is not None:
            dropped_us = records.dropped_until(once.name, now)
            if dropped_us is not None and dropped_us >= once.since_us:
                once.pending = once.dropped = True
                return True
        if op is not Op.CLAIM:
            return False
        records.keep(once.name, claim_bytes(once), now)
        return True
    once.kept = read_kept(found)
    once.pending = once.kept is None
    return True


def is_fresh(at: i64, now: i64) -> bool:
    """Whether what was decided then still counts. A clock that was set back a little makes no difference."""
    return -ONCE_US < now - at < ONCE_US


@final
class MemoryRecords(Records):
    """The records of one process: as many as fit into so many bytes."""

    def __init__(self, most_bytes: i64 = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes: i64 = 0
        self.kept: dict[str, tuple[int, bytes]] = {}  # oldest first
        self.dropped: int | None = None  # when the newest record was kept that had to go early

    def find(self, name: str, now: i64) -> bytes | None:
        found = self.kept.get(name)
        if found is None or not is_fresh(found[0], now):
            return None
        return found[1]

    def keep(self, name: str, kept: bytes, now: i64) -> None:
        self.forget(name)
        self.kept[name] = (now, kept)
        self.bytes += size_of(name, kept)
        while True:
            oldest = next(iter(self.kept))
            if oldest == name or (self.bytes <= self.most_bytes and is_fresh(self.kept[oldest][0], now)):
                break
            at = self.kept[oldest][0]
            if is_fresh(at, now) and (self.dropped is None or at > self.dropped):
                self.dropped = at
            self.forget(oldest)

    def forget(self, name: str) -> None:
        found = self.kept.pop(name, None)
        if found is not None:
            self.bytes -= size_of(name, found[1])

    def dropped_until(self, name: str, now: i64) -> int | None:
        return self.dropped

    def clear(self) -> None:
        self.kept.clear()
        self.bytes = 0


def size_of(name: str, kept: bytes) -> int:
    return len(name) + len(kept) + OVERHEAD
