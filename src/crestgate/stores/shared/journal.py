# mypyc: compile
"""Undo journal: makes a chain of limits all or nothing although its process may be killed in the middle.

A chain changes several slots, each with a commit of its own. Before it commits one, it writes to a journal which slot
that is and how it stood, and to the slot's stripe, where that journal is. When all are committed, the journal is
emptied: one word, and the chain counts. Whoever next locks a stripe that refers to a journal finds a chain that was
interrupted, or one that had just finished, and restores the stripe's slots from the journal.

    journal     one per stripe; a chain uses that of one of its stripes, which it has locked
      count     8 bytes: valid entries; zero: no chain is in progress, or it is finished
      entries   16 bytes each: offset of the slot's state, plus one if it was new; zero when it was restored. Its commit
                word

The stripes of a killed chain are recovered one by one, whenever somebody locks them, so its journal may be needed for
long. A chain that needs the same journal locks the stripes that are left, which recovers them.

The order of the writes is what makes it safe. The entry, then the stripe's reference, then the count, then the slot's
commit: so a valid entry can always be found from its stripe. An entry is cleared before the reference is: so nobody
restores a slot that was changed since. A slot has two copies of its state, hence one change can be undone, and a second
one in the same chain is undone to the first. That is intended: the first one then is a rebase of the clock, which is
written whatever is decided.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreError
from crestgate.stores.shared.layout import JOURNAL_BYTES, STATE_BYTES
from crestgate.stores.shared.locks import FIRST_STRIPE
from crestgate.stores.shared.slot import block_list_after

if TYPE_CHECKING:
    from crestgate.stores.shared.slot import SlotCounter
    from crestgate.stores.shared.store import SharedStore

__all__ = ["MAX_JOURNALED", "ChainCommit", "Journals"]

MAX_JOURNALED = (JOURNAL_BYTES - 8) // 16
"""Counters of a chain that fit a journal. Changes of a longer chain beyond them are not undone."""
NAP = 0.000_1
NEW = 1


@final
class Journals:
    """The journals of one file."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.table = store.table
        self.words = store.words
        self.first = store.geometry.journals_at >> 3
        self.first_ref = (store.geometry.refs_at >> 3) + FIRST_STRIPE

    def journal_of(self, stripe: int) -> int:
        """Where a stripe's journal is, in words."""
        return self.first + stripe * (JOURNAL_BYTES >> 3)

    def recover(self, number: int) -> None:
        """Undo what an interrupted chain changed in the stripe whose lock has this number."""
        words = self.words
        stripe = number - FIRST_STRIPE
        if not 0 <= stripe < self.table.stripes:
            return
        lead: int = words[self.first_ref + stripe] - 1
        if 0 <= lead < self.table.stripes:
            journal = self.journal_of(lead)
            for i in range(min(max(words[journal], 0), MAX_JOURNALED)):
                entry = journal + 1 + 2 * i
                at: int = words[entry] & ~NEW
                if at and self.stripe_at(at) == stripe:
                    self.undo(stripe, at, words[entry] & NEW, words[entry + 1])
                    words[entry] = 0
        words[self.first_ref + stripe] = 0

    def undo(self, stripe: int, at: int, is_new: int, commits: int) -> None:
        if is_new:
            self.table.clear(stripe, (at - self.table.state_at(stripe, 0)) // STATE_BYTES)
        else:
            self.words[at >> 3] = commits

    def stripe_at(self, at: int) -> int:
        """The stripe that has a slot's state at this offset, or -1."""
        table = self.table
        stripe = (at - table.stripes_at) // table.stripe_bytes
        if not 0 <= stripe < table.stripes or at % 8:
            return -1
        offset = at - table.state_at(stripe, 0)
        return stripe if 0 <= offset < table.slots * STATE_BYTES and offset % STATE_BYTES == 0 else -1

    def empty(self, lead: int) -> None:
        """Have all stripes recovered that still need this journal, whose own stripe is locked. A holder of one of the
        others has recovered it when it took the lock, and waits for nobody."""
        journal = self.journal_of(lead)
        locks = self.store.locks
        detector = locks.detector(locks.timeout)
        for i in range(min(max(self.words[journal], 0), MAX_JOURNALED)):
            while True:
                stripe = self.stripe_at(self.words[journal + 1 + 2 * i] & ~NEW)
                if stripe < 0 or not self.words[self.first_ref + stripe]:
                    break
                if locks.try_acquire(FIRST_STRIPE + stripe):
                    locks.release(FIRST_STRIPE + stripe)
                    break
                detector.wait_for(FIRST_STRIPE + stripe)
                if detector.expired():
                    # Not a LockBusyError: earlier requests of the batch may have been decided by now.
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
        """Log blocks to free when the chain counts: until then it may be undone, and they are needed."""

    def before_commit(self, counter: SlotCounter, is_new: bool) -> None:
        """Write down how a counter stands that is about to be committed."""
        words = self.words
        if counter.journal_entry:
            words[counter.journal_entry + 1] = counter.commits
            return
        if self.count == MAX_JOURNALED:
            return
        if not self.count and words[self.journal]:
            self.journals.empty(self.lead)
        entry: i64 = self.journal + 1 + 2 * self.count
        words[entry + 1] = counter.commits
        words[entry] = counter.at + NEW if is_new else counter.at
        if counter.stripe not in self.stripes:
            self.stripes.append(counter.stripe)
            words[self.journals.first_ref + counter.stripe] = self.lead + 1
        self.count += 1
        words[self.journal] = self.count
        counter.journal_entry = entry

    def may_need(self, at: int, number: int) -> bool:
        """Whether the slot with its state at this offset would have this block list again if the chain were undone."""
        for i in range(self.count):
            entry = self.journal + 1 + 2 * i
            if self.words[entry] == at:
                return block_list_after(self.words, at, self.words[entry + 1]) == number
        return False

    def finish(self) -> None:
        """All of it counts."""
        if self.count:
            self.words[self.journal] = 0
            for stripe in self.stripes:
                self.words[self.journals.first_ref + stripe] = 0
        if self.unused:
            self.journals.store.arena.free(self.unused)
