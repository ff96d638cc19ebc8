"""A slot of the shared file: two copies of the state and one word that says which of them holds.

    word 0          commit count; even: the first copy holds, odd: the second
    words 1 - 11    first copy
    words 12 - 22   second copy

A copy: time, a, b, then the limit it was written under (count, capacity, period, algorithm), then the log's head,
tail, number of entries and ticks moved. A change writes the other copy and then, in one store instruction, the
commit word. A process killed anywhere in between has changed nothing; one killed after it has changed everything.
"""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction
from mmap import mmap
from typing import TYPE_CHECKING, final

from headgate.core.algorithms import ALGORITHMS, build
from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.limit import Limit
from headgate.core.state import ListLog, State
from headgate.core.words import i64
from headgate.errors import ConfigError
from headgate.stores.shared.blocks import BlockLog, LogOwner
from headgate.stores.shared.layout import CELL_BYTES

if TYPE_CHECKING:
    from headgate.stores.shared.journal import ChainCommit
    from headgate.stores.shared.store import SharedStore

__all__ = ["SlotCell", "Writers", "committed_log", "holds_log"]

COPY_WORDS = 11
_COPY = struct.Struct("@11q")
_WORD = struct.Struct("@q")
CHANGING = 1 << 40
"""Set in the algorithm's word while a log's entries are changed in place."""


_LOG_CODE = zlib.crc32(b"sliding_window_log")


def holds_log(memory: mmap, at: int) -> bool:
    """Whether either copy of the cell at this offset was written by a sliding log."""
    code = at + 8 + 6 * 8
    first: int = _WORD.unpack_from(memory, code)[0]
    second: int = _WORD.unpack_from(memory, code + COPY_WORDS * 8)[0]
    return first & ~CHANGING == _LOG_CODE or second & ~CHANGING == _LOG_CODE


def committed_log(words: memoryview, at: int) -> bool:
    """Whether the copy that holds was written by a sliding log."""
    commits: int = words[at >> 3]
    code: int = words[(at >> 3) + 1 + (commits & 1) * COPY_WORDS + 6]
    return code & ~CHANGING == _LOG_CODE


@final
class Writers:
    """The algorithms that wrote the slots of a file, rebuilt from the numbers kept in them."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int, int], Algorithm | None] = {}

    def signature(self, algorithm: Algorithm) -> tuple[int, int, int, int]:
        limit = algorithm.limit
        return limit.count, algorithm.capacity, limit.period_us, zlib.crc32(limit.algorithm.encode())

    def find(self, signature: tuple[int, int, int, int]) -> Algorithm | None:
        """None for an algorithm that this process has not registered: its counters start anew here."""
        if signature not in self.known:
            if len(self.known) >= 10_000:
                self.known.clear()
            self.known[signature] = self.rebuild(signature)
        return self.known[signature]

    def rebuild(self, signature: tuple[int, int, int, int]) -> Algorithm | None:
        count, capacity, period_us, code = signature
        for name, kind in ALGORITHMS.items():
            if zlib.crc32(name.encode()) == code:
                try:
                    limit = Limit(count, Fraction(period_us, 1_000_000), capacity if kind.takes_burst else None, name)
                except ConfigError:
                    return None
                return build(limit, "")
        return None


@final
class SlotCell(LogOwner):
    """One counter within one request, under its stripe's lock. `slot` is -1 while it has none."""

    def __init__(
        self,
        store: SharedStore,
        algorithm: Algorithm,
        digest: bytes,
        stripe: int,
        slot: int,
        now: int,
        pinned: set[int],
        chain: ChainCommit | None = None,
    ) -> None:
        self.store = store
        self.chain = chain
        self.entry: i64 = 0
        """Where the chain's journal has this cell, in words; zero if it has not."""
        self.is_new = False
        self.memory: mmap = store.memory
        self.digest = digest
        self.stripe = stripe
        self.slot = slot
        self.now = now
        self.pinned = pinned  # slots in use by this request, which must not be evicted for its sake
        self.state = None
        self.writer = None
        self.words: tuple[int, ...] = ()
        self.at = 0
        self.commits = 0
        self.signature = (0, 0, 0, 0)
        if slot >= 0:
            self.read(algorithm)

    def read(self, algorithm: Algorithm) -> None:
        store = self.store
        self.find_copies()
        words = store.unpack_copy(self.memory, self.at + 8 + (self.commits & 1) * COPY_WORDS * 8)
        self.words = words
        time, a, b, count, capacity, period_us, code, head, tail, entries, moved = words
        signature = (count, capacity, period_us, code & ~CHANGING)
        self.signature = signature
        writer = algorithm if signature == store.signature(algorithm) else store.writers.find(signature)
        if writer is None:
            return
        self.writer = writer
        if not writer.keeps_log:
            self.state = State(time, a, b, None)
            return
        log = self.new_log()
        log.head, log.tail, log.entries, log.moved = head, tail, entries, moved
        self.state = State(time, a, b, log)
        if code & CHANGING:
            # Whoever changed the entries was killed in the middle: they are right, the sum may not be.
            total = log.total()
            self.state.a = total
            self.state.b = log.freed(total)
            self.changed()

    def find_copies(self) -> None:
        """Where the slot's cell is, and how often it was committed."""
        self.at = self.store.cell_at(self.stripe, self.slot)
        self.commits = self.store.words[self.at >> 3]

    def new_log(self) -> BlockLog:
        return BlockLog(self.memory, self.store.words, self.store.blocks_at, self)

    def new_block(self) -> int:
        return self.store.arena.take(self.stripe, self.slot, self.now, self.pinned)

    def replace(self, state: State, algorithm: Algorithm) -> None:
        store = self.store
        is_new = self.slot < 0
        stale: list[int] = []
        if is_new:
            self.slot = store.free_slot(self.stripe, self.digest, self.now, self.pinned)
            self.pinned.add(self.stripe * store.slots + self.slot)
        elif holds_log(self.memory, self.at):
            stale = store.arena.owned(self.stripe, self.slot)
        if algorithm.keeps_log:
            log = self.new_log()
            given = state.log
            if isinstance(given, ListLog):
                for tick, cost in given.entries():
                    log.append(tick, cost)
            state.log = log
        self.state = state
        self.writer = algorithm
        self.signature = store.signature(algorithm)
        self.find_copies()
        self.is_new = is_new
        self.changed()
        self.is_new = False
        if is_new:
            store.name_slot(self.stripe, self.slot, self.digest)
        self.give(stale)

    def changed(self) -> None:
        """Commit the state, then let go of what it no longer needs."""
        state, writer = self.state, self.writer
        if state is None or writer is None:
            return
        store = self.store
        # Expiry first: a late one only keeps a slot longer, an early one would lose a counter.
        meta = store.meta_at(self.stripe, self.slot) >> 3
        store.words[meta] = writer.frees(state, self.now, 0)
        store.words[meta + 1] = self.now
        if self.chain is not None:
            self.chain.before_commit(self, self.is_new)
        log = state.log
        if not isinstance(log, BlockLog):
            count, capacity, period_us, code = self.signature
            other = self.at + 8 + (~self.commits & 1) * COPY_WORDS * 8
            store.pack_plain(self.memory, other, state.time, state.a, state.b, count, capacity, period_us, code)
            self.commits += 1
            store.words[self.at >> 3] = self.commits
            return
        self.commit((state.time, state.a, state.b, *self.signature, log.head, log.tail, log.entries, log.moved))
        if log.unused:
            self.give(log.unused)
            log.unused = []

    def give(self, blocks: list[int]) -> None:
        """Set blocks free that this cell no longer needs, once that is certain."""
        if self.chain is None:
            self.store.arena.give(blocks)
        else:
            self.chain.unused += blocks

    def touch(self) -> None:
        """Note the use of a counter that is not changed: one that denies must not be evicted as idle."""
        if self.slot >= 0:
            self.store.words[(self.store.meta_at(self.stripe, self.slot) >> 3) + 1] = self.now

    def mark_changing(self) -> None:
        words = self.words
        self.commit((*words[:6], words[6] | CHANGING, *words[7:]))

    def commit(self, words: tuple[int, ...]) -> None:
        _COPY.pack_into(self.memory, self.at + 8 + (~self.commits & 1) * COPY_WORDS * 8, *words)
        self.commits += 1
        self.store.words[self.at >> 3] = self.commits
        self.words = words

    def forget(self) -> None:
        if self.slot >= 0:
            self.store.clear_slot(self.stripe, self.slot)
            self.slot = -1
        self.state = None
        self.writer = None


assert CELL_BYTES == 8 + 2 * COPY_WORDS * 8
