"""The bounded region of log blocks, shared by all larger logs of the file.

A block's owner word names a slot and the number of the chain that the slot's log had then; 0 means free. A block
belongs to a log only while the slot's committed state has a chain of this number. So a log that is reset, replaced or
evicted lets all its blocks go with the one word that commits it, however many they are.

Blocks are taken under one lock of their own, after the stripe's. A taker looks at a bounded number of owner words: a
free block, one whose chain is gone, or one of a log that has expired will do. The stripes of those are only tried,
never waited for, because the taker holds a stripe already. Every other look goes on from where the last taker stopped,
so that all blocks have their turn; the others are at random, so that a long run of live blocks does not hide the free
ones: while one block in 20 is free, 998 searches in 1,000 find one. A log that is live never loses a block to another:
when nothing is found, the request fails with a StoreError, and the failure policy answers it. Logs that callers of a
service write out may have the first half of the blocks: whoever may check cannot take the room of rules and plans.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, final

from headgate.core.words import i64
from headgate.errors import StoreError
from headgate.stores.shared.blocks import SLOT_BITS, SLOT_MASK
from headgate.stores.shared.cell import committed_chain, next_chain
from headgate.stores.shared.locks import ARENA, LockBusy

if TYPE_CHECKING:
    from headgate.stores.shared.journal import ChainCommit
    from headgate.stores.shared.store import SharedStore

__all__ = ["MAX_LOCKS", "MAX_LOOKS", "Arena"]

MAX_LOOKS = 256
"""Owner words that are looked at for one block, at most: others wait for the stripe meanwhile."""
MAX_LOCKS = 8
"""Stripes that are tried for one block, at most: each is a call of the kernel."""
LOCK_SECONDS = 0.05
"""How long to wait for the region's lock if its holder is stopped: nobody holds it for more than a search."""
MAX_SEARCHES = 4
"""Searches in vain at one instant, which is that of a whole batch: whoever comes after them is refused at once."""


@final
class Arena:
    """Who owns which block."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.blocks = store.geometry.blocks
        self.first_owner = store.geometry.owners_at >> 3
        self.hand = 0  # where to look for a block first
        self.seed = int.from_bytes(os.urandom(4), "little")
        self.refused_at = [0, 0]  # when a search was in vain, and how often at that instant; second: of inline limits
        self.refused_then = [0, 0]
        self.looks = 0  # owner words looked at so far
        self.refused = 0  # blocks that were wanted, and not found

    def take(
        self,
        word: int,
        now: int,
        pinned: set[int],
        held: Container[int],
        commit: ChainCommit | None = None,
        inline: bool = False,
    ) -> int:
        """A block for the chain that this owner's word stands for. The caller has locked the stripes in `held`; slots
        in `pinned` are in use by its request. `commit` is that of a request of several limits, which may be undone.
        `inline`: the limit was written out by a caller."""
        store = self.store
        try:
            store.locks.acquire(ARENA, LOCK_SECONDS)
        except LockBusy as error:
            # Not "busy, nothing done": earlier requests of the batch may have been decided by now.
            raise StoreError(str(error)) from error
        try:
            block = self.find(now, pinned, held, commit, inline)
            if block >= 0:
                store.words[self.first_owner + block] = word
                return block
            self.refused += 1
        finally:
            store.locks.release(ARENA)
        raise StoreError(
            f"shared store {store.path}: the region for sliding logs is full "
            f"({self.blocks} blocks); give the file a larger max_keys"
        )

    def find(self, now: int, pinned: set[int], held: Container[int], commit: ChainCommit | None, inline: bool) -> int:
        """A block that nobody uses, or -1."""
        kind = 1 if inline else 0
        if now == self.refused_at[kind] and self.refused_then[kind] >= MAX_SEARCHES:
            return -1
        blocks = max(self.blocks // 2, 1) if inline else self.blocks
        words = self.store.words
        tries = MAX_LOCKS
        self.seed ^= now % (1 << 31)  # forked processes had the same, and must not look at the same blocks
        for look in range(MAX_LOOKS):
            if look % 2:
                self.seed = (self.seed * 1_103_515_245 + 12_345) % (1 << 31)
                block = (self.seed >> 8) % blocks
            else:
                block = self.hand % blocks
                self.hand = (block + 1) % self.blocks
            self.looks += 1
            word: int = words[self.first_owner + block]
            if word == 0:
                return block
            owner = (word & SLOT_MASK) - 1
            if owner in pinned:
                if self.is_outdated(word, commit):
                    return block
                continue
            if not self.is_unused(word, now):
                continue
            stripe = owner // self.store.slots
            if owner < 0 or stripe >= self.store.stripes or stripe in held:
                self.forget(word)
                return block
            if tries:
                tries -= 1
                if self.try_forget(stripe, word, now):
                    return block
        self.refused_then[kind] = self.refused_then[kind] + 1 if now == self.refused_at[kind] else 1
        self.refused_at[kind] = now
        return -1

    def is_unused(self, word: int, now: int) -> bool:
        """Whether the chain that a block belongs to is gone, or has expired. True for what is no owner's word."""
        store = self.store
        owner = (word & SLOT_MASK) - 1
        stripe, slot = owner // store.slots, owner % store.slots
        if owner < 0 or stripe >= store.stripes or not store.is_named(stripe, slot):
            return True
        if committed_chain(store.words, store.cell_at(stripe, slot)) != word >> SLOT_BITS:
            return True
        expiry: int = store.words[store.meta_at(stripe, slot) >> 3]
        return expiry <= now

    def is_outdated(self, word: int, commit: ChainCommit | None) -> bool:
        """The same for a slot of the request itself, whose new chain may not be committed yet, or be undone."""
        store = self.store
        owner = (word & SLOT_MASK) - 1
        at = store.cell_at(owner // store.slots, owner % store.slots)
        number = word >> SLOT_BITS
        if number == committed_chain(store.words, at) or number == next_chain(store.words[at >> 3]):
            return False
        return commit is None or not commit.may_need(at, number)

    def try_forget(self, stripe: int, word: int, now: int) -> bool:
        """The same once more under the lock of its stripe, if that is free: it may have been used meanwhile."""
        store = self.store
        if not store.try_lock(stripe):
            return False
        try:
            if not self.is_unused(word, now):
                return False
            self.forget(word)
            return True
        finally:
            store.unlock(stripe)

    def forget(self, word: int) -> None:
        """Let a log go that has expired, if this block is its own."""
        store = self.store
        owner = (word & SLOT_MASK) - 1
        stripe, slot = owner // store.slots, owner % store.slots
        if owner < 0 or stripe >= store.stripes or not store.is_named(stripe, slot):
            return
        if committed_chain(store.words, store.cell_at(stripe, slot)) == word >> SLOT_BITS:
            store.clear_slot(stripe, slot)

    def owns(self, block: i64, word: int) -> bool:
        """Whether there is such a block, and this is its owner's word."""
        if block < 0 or block >= self.blocks:
            return False
        found: int = self.store.words[self.first_owner + block]
        return found == word

    def give(self, blocks: Sequence[int]) -> None:
        """Set blocks free that the committed state no longer reaches. One word each, so no lock is needed."""
        for block in blocks:
            self.store.words[self.first_owner + block] = 0
