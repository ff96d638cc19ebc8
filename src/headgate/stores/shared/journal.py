"""What makes a chain all or nothing although its participant may be killed in the middle of it.

A chain changes several cells, each with a commit of its own. Before it commits one, it writes down in a journal which
cell that is and how it stood, and in the cell's stripe, where that journal is. When all are committed, the journal is
emptied: one word, and the chain counts. Whoever next locks a stripe that points to a journal finds a chain that was
broken off, or one that had just come to its end, and sets the stripe's cells back to what the journal says.

    journal     one for each stripe; a chain uses that of one of its stripes, which it has locked
      count     8 bytes: entries that hold; zero: none is under way, or it is done
      entries   16 bytes each: where the cell is, plus one if it was new; zero when it was set back. Its commit word

A killed chain's stripes are recovered one by one, whenever somebody locks them, so its journal may be needed for long.
A chain that finds such a journal in its way locks the stripes that are left, which recovers them.

The order of the writes is what holds it together. The entry, then the stripe's pointer, then the count, then the
cell's commit: so an entry that counts can always be found from its stripe. An entry is cleared before the pointer is:
so nobody sets a cell back that was changed since. A cell keeps two copies, hence one change can be undone, and a second
one in the same chain is undone to the first. That is what is wanted: the first one then is the clock's rebase, which
stays whatever is decided.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from headgate.core.words import i64
from headgate.errors import StoreError
from headgate.stores.shared.cell import chain_after
from headgate.stores.shared.layout import CELL_BYTES, JOURNAL_BYTES
from headgate.stores.shared.locks import FIRST_STRIPE

if TYPE_CHECKING:
    from headgate.stores.shared.cell import SlotCell
    from headgate.stores.shared.store import SharedStore

__all__ = ["MAX_JOURNALED", "ChainCommit", "Journals"]

MAX_JOURNALED = (JOURNAL_BYTES - 8) // 16
"""Counters of a chain that a journal has room for. What a longer chain changes beyond them is not undone."""
NAP = 0.000_1
NEW = 1


@final
class Journals:
    """The journals of one file."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.words = store.words
        self.first = store.geometry.journals_at >> 3
        self.chains = (store.geometry.chains_at >> 3) + FIRST_STRIPE

    def journal_of(self, stripe: int) -> int:
        """Where a stripe's journal is, in words."""
        return self.first + stripe * (JOURNAL_BYTES >> 3)

    def recover(self, number: int) -> None:
        """Undo what a chain changed in a stripe whose lock has this number, if it was broken off."""
        store, words = self.store, self.words
        stripe = number - FIRST_STRIPE
        if not 0 <= stripe < store.stripes:
            return
        lead: int = words[self.chains + stripe] - 1
        if 0 <= lead < store.stripes:
            journal = self.journal_of(lead)
            for i in range(min(max(words[journal], 0), MAX_JOURNALED)):
                entry = journal + 1 + 2 * i
                at: int = words[entry] & ~NEW
                if at and self.stripe_at(at) == stripe:
                    self.undo(stripe, at, words[entry] & NEW, words[entry + 1])
                    words[entry] = 0
        words[self.chains + stripe] = 0

    def undo(self, stripe: int, at: int, is_new: int, commits: int) -> None:
        if is_new:
            self.store.clear_slot(stripe, (at - self.store.cell_at(stripe, 0)) // CELL_BYTES)
        else:
            self.words[at >> 3] = commits

    def stripe_at(self, at: int) -> int:
        """The stripe that has a cell at this offset, or -1."""
        store = self.store
        stripe = (at - store.stripes_at) // store.stripe_bytes
        if not 0 <= stripe < store.stripes or at % 8:
            return -1
        offset = at - store.cell_at(stripe, 0)
        return stripe if 0 <= offset < store.slots * CELL_BYTES and offset % CELL_BYTES == 0 else -1

    def empty(self, lead: int) -> None:
        """Have all stripes recovered that still need this journal. Its own stripe is locked. Whoever has one of the
        others has recovered it as soon as it got it, and waits for nobody."""
        journal = self.journal_of(lead)
        locks = self.store.locks
        watch = locks.watch(locks.timeout)
        for i in range(min(max(self.words[journal], 0), MAX_JOURNALED)):
            while True:
                stripe = self.stripe_at(self.words[journal + 1 + 2 * i] & ~NEW)
                if stripe < 0 or not self.words[self.chains + stripe]:
                    break
                if locks.try_acquire(FIRST_STRIPE + stripe):
                    locks.release(FIRST_STRIPE + stripe)
                    break
                watch.waits_for(FIRST_STRIPE + stripe)
                if watch.expired():
                    # Not a LockBusy: earlier requests of the batch may have been decided by now.
                    raise StoreError(f"shared store {self.store.path}: the process that holds a lock may be stopped")
                time.sleep(NAP)
        self.words[journal] = 0


@final
class ChainCommit:
    """One chain that is being committed. All of its stripes are locked."""

    def __init__(self, journals: Journals, lead: int) -> None:
        self.journals = journals
        self.words = journals.words
        self.lead = lead
        self.journal: i64 = journals.journal_of(lead)
        self.count: i64 = 0
        self.stripes: list[int] = []
        self.unused: list[int] = []
        """Log blocks to be set free when the chain counts: until then it may be undone, and they are needed."""

    def before_commit(self, cell: SlotCell, is_new: bool) -> None:
        """Note how a cell stands that is about to be committed."""
        words = self.words
        if cell.entry:
            words[cell.entry + 1] = cell.commits
            return
        if self.count == MAX_JOURNALED:
            return
        if not self.count and words[self.journal]:
            self.journals.empty(self.lead)
        entry: i64 = self.journal + 1 + 2 * self.count
        words[entry + 1] = cell.commits
        words[entry] = cell.at + NEW if is_new else cell.at
        if cell.stripe not in self.stripes:
            self.stripes.append(cell.stripe)
            words[self.journals.chains + cell.stripe] = self.lead + 1
        self.count += 1
        words[self.journal] = self.count
        cell.entry = entry

    def may_need(self, at: int, number: int) -> bool:
        """Whether the cell at this offset would have log blocks of this number again if the chain were undone."""
        for i in range(self.count):
            entry = self.journal + 1 + 2 * i
            if self.words[entry] == at:
                return chain_after(self.words, at, self.words[entry + 1]) == number
        return False

    def done(self) -> None:
        """All of it counts."""
        if self.count:
            self.words[self.journal] = 0
            for stripe in self.stripes:
                self.words[self.journals.chains + stripe] = 0
        if self.unused:
            self.journals.store.arena.give(self.unused)
