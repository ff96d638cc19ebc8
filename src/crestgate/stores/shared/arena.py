# mypyc: compile
"""Allocator of the log blocks that all larger sliding logs of the file share.

A block's owner word has a slot and the number of the block list that the slot's log had then; 0 means free. A block
belongs to a log only while the slot's committed state has a block list of this number. So a log that is reset, replaced
or evicted frees all its blocks with the one word that commits it, however many they are.

Blocks are allocated under one lock of their own, after the stripe's. A search probes a bounded number of owner words: a
free block, one whose block list is gone, or one of a log that has expired will do. The stripes of those are only tried,
never waited for, because the caller holds a stripe already. Every other probe continues where the last search stopped,
so that all blocks have their turn; the others are random, so that a long run of live blocks does not hide the free
ones: while one block in 20 is free, 998 searches in 1,000 find one. A live log never loses a block to another: when
nothing is found, the request fails with a StoreError, and the failure policy answers it. Logs of inline limits may use
the first half of the blocks only: a caller cannot take the room of rules and plans.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, final

from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreError
from crestgate.stores.shared.locks import ARENA, FIRST_STRIPE, LockBusyError
from crestgate.stores.shared.log_blocks import SLOT_BITS, SLOT_MASK
from crestgate.stores.shared.slot import committed_block_list, next_block_list

if TYPE_CHECKING:
    from crestgate.stores.shared.journal import ChainCommit
    from crestgate.stores.shared.store import SharedStore

__all__ = ["MAX_LOCKS", "MAX_PROBES", "Arena"]

MAX_PROBES = 256
"""Owner words probed for one block, at most: others wait for the stripe meanwhile."""
MAX_LOCKS = 8
"""Stripes that are tried for one block, at most: each is a system call."""
LOCK_SECONDS = 0.05
"""How long to wait for the region's lock if its holder is stopped: nobody holds it for longer than a search."""
MAX_SEARCHES = 4
"""Failed searches at one instant, which is that of a whole batch: after them, allocation fails at once."""


@final
class Arena:
    """Who owns which block."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.table = store.table
        self.words = store.words
        self.blocks = store.geometry.blocks
        self.first_owner = store.geometry.owners_at >> 3
        self.next_block = 0  # where the next search starts
        self.seed = int.from_bytes(os.urandom(4), "little")
        self.failed_at = [0, 0]  # when a search failed, and how often at that instant; second: of inline limits
        self.failed_then = [0, 0]
        self.probes = 0  # owner words probed so far
        self.failures = 0  # blocks that could not be allocated

    def allocate(
        self,
        word: int,
        now: int,
        pinned: set[int],
        held: Container[int],
        commit: ChainCommit | None = None,
        inline: bool = False,
    ) -> int:
        """A block for the block list with this owner word. The caller has locked the stripes in `held`; slots in
        `pinned` are in use by its request. `commit` is that of a chain, which may be undone. `inline`: the request
        carried the limit itself."""
        store = self.store
        try:
            store.locks.acquire(ARENA, LOCK_SECONDS)
        except LockBusyError as error:
            # Not "busy, nothing done": earlier requests of the batch may have been decided by now.
            raise StoreError(str(error)) from error
        try:
            block = self.find(now, pinned, held, commit, inline)
            if block >= 0:
                self.words[self.first_owner + block] = word
                return block
            self.failures += 1
        finally:
            store.locks.release(ARENA)
        raise StoreError(
            f"shared store {store.path}: the region for sliding logs is full "
            f"({self.blocks} blocks); give the file a larger max_keys"
        )

    def find(self, now: int, pinned: set[int], held: Container[int], commit: ChainCommit | None, inline: bool) -> int:
        """A block that nobody uses, or -1."""
        kind = 1 if inline else 0
        if now == self.failed_at[kind] and self.failed_then[kind] >= MAX_SEARCHES:
            return -1
        blocks = max(self.blocks // 2, 1) if inline else self.blocks
        lock_tries = MAX_LOCKS
        self.seed ^= now % (1 << 31)  # forked processes had the same, and must not probe the same blocks
        for probe in range(MAX_PROBES):
            if probe % 2:
                self.seed = (self.seed * 1_103_515_245 + 12_345) % (1 << 31)
                block = (self.seed >> 8) % blocks
            else:
                block = self.next_block % blocks
                self.next_block = (block + 1) % self.blocks
            self.probes += 1
            word: int = self.words[self.first_owner + block]
            if word == 0:
                return block
            owner = (word & SLOT_MASK) - 1
            if owner in pinned:
                if self.is_outdated(word, commit):
                    return block
                continue
            if not self.is_unused(word, now):
                continue
            stripe = owner // self.table.slots
            if owner < 0 or stripe >= self.table.stripes or stripe in held:
                self.clear_owner(word)
                return block
            if lock_tries:
                lock_tries -= 1
                if self.try_clear_owner(stripe, word, now):
                    return block
        self.failed_then[kind] = self.failed_then[kind] + 1 if now == self.failed_at[kind] else 1
        self.failed_at[kind] = now
        return -1

    def is_unused(self, word: int, now: int) -> bool:
        """Whether the block list of an owner word is gone, or has expired. True for what is no owner word."""
        table = self.table
        owner = (word & SLOT_MASK) - 1
        stripe, slot = owner // table.slots, owner % table.slots
        if owner < 0 or stripe >= table.stripes or not table.is_assigned(stripe, slot):
            return True
        if committed_block_list(self.words, table.state_at(stripe, slot)) != word >> SLOT_BITS:
            return True
        expiry: int = self.words[table.meta_at(stripe, slot) >> 3]
        return expiry <= now

    def is_outdated(self, word: int, commit: ChainCommit | None) -> bool:
        """The same for a slot of the request itself, whose new block list may be uncommitted, or be undone."""
        table = self.table
        owner = (word & SLOT_MASK) - 1
        at = table.state_at(owner // table.slots, owner % table.slots)
        number = word >> SLOT_BITS
        if number == committed_block_list(self.words, at) or number == next_block_list(self.words[at >> 3]):
            return False
        return commit is None or not commit.may_need(at, number)

    def try_clear_owner(self, stripe: int, word: int, now: int) -> bool:
        """Clear an expired log under the lock of its stripe, if that is free and the log was not used meanwhile."""
        locks = self.store.locks
        if not locks.try_acquire(FIRST_STRIPE + stripe):
            return False
        try:
            if not self.is_unused(word, now):
                return False
            self.clear_owner(word)
            return True
        finally:
            locks.release(FIRST_STRIPE + stripe)

    def clear_owner(self, word: int) -> None:
        """Clear the slot of an expired log, if its block list is still that of the owner word."""
        table = self.table
        owner = (word & SLOT_MASK) - 1
        stripe, slot = owner // table.slots, owner % table.slots
        if owner < 0 or stripe >= table.stripes or not table.is_assigned(stripe, slot):
            return
        if committed_block_list(self.words, table.state_at(stripe, slot)) == word >> SLOT_BITS:
            table.clear(stripe, slot)

    def owns(self, block: i64, word: int) -> bool:
        """Whether there is such a block, with this owner word."""
        if block < 0 or block >= self.blocks:
            return False
        owner: int = self.words[self.first_owner + block]
        return owner == word

    def free(self, blocks: Sequence[int]) -> None:
        """Free blocks that the committed state no longer reaches. One word each, so no lock is needed."""
        for block in blocks:
            self.words[self.first_owner + block] = 0
