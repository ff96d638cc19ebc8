"""The bounded region of log blocks, shared by all logs of the file.

Blocks are taken and given under one lock of their own, after the stripe's. When none is free, the logs that have
expired lose theirs, and failing that the one used least recently; their stripes are only tried, never waited for,
because the taker holds a stripe already.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from headgate.errors import StoreError
from headgate.stores.shared.locks import ARENA, LockBusy

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["Arena"]

_WORD = struct.Struct("@q")
_FREE = bytes(8)
LOOKED_AT_ONCE = 1024


@final
class Arena:
    """Who owns which block."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.blocks = store.geometry.blocks
        self.owners_at = store.geometry.owners_at
        self.next = 0  # where to look for a free block first

    def take(self, stripe: int, slot: int, now: int, pinned: set[int]) -> int:
        """A block for this slot, whose stripe the caller has locked."""
        store = self.store
        owner = stripe * store.geometry.slots + slot
        for attempt in range(2):
            try:
                store.locks.acquire(ARENA, store.timeout)
            except LockBusy as error:
                # Not "busy, nothing done": earlier requests of the batch may have been decided by now.
                raise StoreError(str(error)) from error
            try:
                block = self.find(_FREE, self.next)
                if block < 0:
                    block = self.find(_FREE, 0)
                if block >= 0:
                    self.next = block + 1
                    _WORD.pack_into(store.memory, self.owners_at + block * 8, owner + 1)
                    return block
            finally:
                store.locks.release(ARENA)
            if attempt or not self.reclaim(stripe, now, pinned):
                break
        raise StoreError(
            f"shared store {store.path}: the region for sliding logs is full "
            f"({store.geometry.blocks} blocks); give the file a larger max_keys"
        )

    def find(self, word: bytes, first: int) -> int:
        """The first block from `first` on whose owner's word is `word`, or -1."""
        memory = self.store.memory
        start = self.owners_at
        while first < self.blocks:
            last = min(first + LOOKED_AT_ONCE, self.blocks)
            owners = memory[start + first * 8 : start + last * 8]
            at = owners.find(word)
            while at >= 0 and at % 8:
                at = owners.find(word, at + 1)
            if at >= 0:
                return first + at // 8
            first = last
        return -1

    def give(self, blocks: Sequence[int]) -> None:
        """Set blocks free that the committed state no longer reaches. One word each, so no lock is needed."""
        for block in blocks:
            _WORD.pack_into(self.store.memory, self.owners_at + block * 8, 0)

    def give_all(self, stripe: int, slot: int) -> None:
        """Set all blocks of a slot free, those too that its last writer did not live to link in."""
        self.give(self.owned(stripe, slot))

    def owned(self, stripe: int, slot: int) -> list[int]:
        """The blocks that name this slot as their owner."""
        word = _WORD.pack(stripe * self.store.geometry.slots + slot + 1)
        blocks = []
        block = self.find(word, 0)
        while block >= 0:
            blocks.append(block)
            block = self.find(word, block + 1)
        return blocks

    def reclaim(self, stripe: int, now: int, pinned: set[int]) -> bool:
        """Free the blocks of expired logs, or of the one used least recently; not of those that are in use here."""
        store = self.store
        slots = store.geometry.slots
        count = store.geometry.blocks
        owners = set(struct.unpack_from(f"@{count}q", store.memory, store.geometry.owners_at))
        candidates = sorted(
            (store.meta(word // slots, word % slots)[::-1], word)
            for word in (owner - 1 for owner in owners if owner)
            if word not in pinned
        )
        expired = [o for (_, expiry), o in candidates if expiry <= now]
        reclaimed = False
        for other in expired or [o for _, o in candidates]:
            if other // slots == stripe or store.try_lock(other // slots):
                try:
                    store.clear_slot(other // slots, other % slots)
                    self.give_all(other // slots, other % slots)
                    reclaimed = True
                finally:
                    if other // slots != stripe:
                        store.unlock(other // slots)
            if reclaimed and not expired:
                break
        return reclaimed
