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
from headgate.stores.shared.cell import committed_log
from headgate.stores.shared.locks import ARENA, LockBusy

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["Arena"]

_WORD = struct.Struct("@q")
_FREE = bytes(8)
LOOKED_AT_ONCE = 1024
ENOUGH = 16
"""Blocks after which a search for expired logs ends: others wait for the stripe meanwhile."""
PATIENCE = 0.02
"""Seconds to wait for the arena's lock, which nobody holds for longer than it takes to write a word."""


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
                store.locks.acquire(ARENA, PATIENCE)
            except LockBusy as error:
                # Not "busy, nothing done": earlier requests of the batch may have been decided by now.
                raise StoreError(str(error)) from error
            try:
                block = self.find(_FREE, self.next)
                if block < 0:
                    block = self.find(_FREE, 0)
                if block >= 0:
                    self.next = block + 1
                    store.words[(self.owners_at + block * 8) >> 3] = owner + 1
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
            self.store.words[(self.owners_at + block * 8) >> 3] = 0

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
        """Free the blocks of a few expired logs, or of the one used least recently; not of those in use here.

        Owners and their last use are read without their locks, so each is looked at again under its lock: one that
        was used meanwhile is left alone.
        """
        store = self.store
        slots = store.slots
        blocks: dict[int, list[int]] = {}
        for block, word in enumerate(struct.unpack_from(f"@{self.blocks}q", store.memory, self.owners_at)):
            if word and word - 1 not in pinned:
                blocks.setdefault(word - 1, []).append(block)
        seen = {owner: store.meta(owner // slots, owner % slots) for owner in blocks}
        freed = 0
        for owner in sorted(blocks, key=lambda o: (seen[o][0] > now, seen[o][1])):
            expired = seen[owner][0] <= now
            if freed and (not expired or freed >= ENOUGH):
                break
            theirs = owner // slots
            if theirs != stripe and not store.try_lock(theirs):
                continue
            try:
                if store.meta(theirs, owner % slots) == seen[owner]:
                    freed += self.free_owner(theirs, owner % slots, blocks[owner])
            finally:
                if theirs != stripe:
                    store.unlock(theirs)
        return freed > 0

    def free_owner(self, stripe: int, slot: int, blocks: list[int]) -> int:
        """Free a slot's blocks, under its lock; the slot too if its log is in them. Says how many blocks."""
        mine = stripe * self.store.slots + slot + 1
        still = [block for block in blocks if self.store.words[(self.owners_at + block * 8) >> 3] == mine]
        if committed_log(self.store.words, self.store.cell_at(stripe, slot)):
            self.store.free(stripe, slot, still)
        else:
            self.give(still)  # taken by somebody who did not live to use them
        return len(still)
