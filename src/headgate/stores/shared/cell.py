"""A slot of the shared file: two copies of the state and one word that says which of them holds.

    word 0          commit count; even: the first copy holds, odd: the second
    words 1 - 12    first copy
    words 13 - 24   second copy

A copy: time, a, b, then the limit it was written under (count, capacity, period, algorithm), then the log's head,
tail, number of entries, ticks moved and number of its chain. A change writes the other copy and then, in one store
instruction, the commit word. A process killed anywhere in between has changed nothing; one killed after it has changed
everything.

Whatever is read here may have been damaged, on the disk or by another program. What no writer can have written is
refused, and the slot is reset: see damage.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from fractions import Fraction
from mmap import mmap
from typing import TYPE_CHECKING, final

from headgate.core.algorithms import ALGORITHMS, build
from headgate.core.algorithms.algorithm import LARGEST, Algorithm
from headgate.core.limit import Limit
from headgate.core.state import ListLog, State
from headgate.core.words import i64
from headgate.errors import ConfigError, StoreError
from headgate.stores.shared.blocks import BlockLog, LogOwner, owner_word
from headgate.stores.shared.damage import is_commit_count
from headgate.stores.shared.layout import COPY_WORDS, INLINE_USE, RING_CELLS

if TYPE_CHECKING:
    from headgate.stores.shared.journal import ChainCommit
    from headgate.stores.shared.store import SharedStore

__all__ = ["SlotCell", "Writers", "chain_after", "committed_chain", "next_chain"]

_COPY = struct.Struct(f"@{COPY_WORDS}q")
CHANGING = 1 << 40
"""Set in the algorithm's word while a log's entries are changed in place."""
CHAIN_NUMBERS = 1 << 31
_LOG_CODE = zlib.crc32(b"sliding_window_log")


def committed_chain(words: memoryview, at: int) -> int:
    """The number of the chain of blocks that the cell at this offset has; -1 when it has none."""
    return chain_after(words, at, words[at >> 3])


def chain_after(words: memoryview, at: int, commits: int) -> int:
    """The same as it was after so many commits: the last, or the one before."""
    copy = (at >> 3) + 1 + (commits & 1) * COPY_WORDS
    code: int = words[copy + 6]
    tail: int = words[copy + 8]
    if code & ~CHANGING != _LOG_CODE or tail == 0:
        return -1
    number: int = words[copy + 11]
    return number


def next_chain(commits: int) -> int:
    """The number of a chain that is made after so many commits, and not committed yet."""
    return (commits + 1) % CHAIN_NUMBERS


@final
class Writers:
    """The algorithms that wrote the slots of a file, rebuilt from the numbers kept in them."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int, int], Algorithm | None] = {}

    def signature(self, algorithm: Algorithm) -> tuple[int, int, int, int]:
        limit = algorithm.limit
        return limit.count, algorithm.capacity, limit.period_us, zlib.crc32(limit.algorithm.encode())

    def find(self, signature: tuple[int, int, int, int]) -> Algorithm | None:
        """None for an algorithm that this process has not registered: its counters start anew here. A ConfigError for
        what is no limit."""
        if signature not in self.known:
            if len(self.known) >= 10_000:
                self.known.clear()
            self.known[signature] = self.rebuild(signature)
        return self.known[signature]

    def rebuild(self, signature: tuple[int, int, int, int]) -> Algorithm | None:
        count, capacity, period_us, code = signature
        for name, kind in ALGORITHMS.items():
            if zlib.crc32(name.encode()) == code:
                burst = capacity if kind.takes_burst and capacity != count else None
                algorithm = build(Limit(count, Fraction(period_us, 1_000_000), burst, name), "")
                if algorithm.capacity != capacity or algorithm.limit.period_us != period_us:
                    raise ConfigError("not what a limit of this count and period has")
                return algorithm
        if not 0 <= code < 1 << 32 or not (0 <= count <= LARGEST and 0 <= capacity <= LARGEST and period_us > 0):
            raise ConfigError("not a limit")
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
        held: Container[int],
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
        self.used = now + INLINE_USE if algorithm.inline else now
        self.pinned = pinned  # slots in use by this request, which must not be evicted for its sake
        self.held = held  # stripes that are locked for it
        self.state = None
        self.writer = None
        self.words: tuple[int, ...] = ()
        self.at = 0
        self.commits = 0
        self.signature = (0, 0, 0, 0)
        if slot >= 0:
            self.read(algorithm)
        elif store.damage.recent:
            store.damage.check_recent(digest, now)

    def read(self, algorithm: Algorithm) -> None:
        store = self.store
        self.find_copies()
        if not is_commit_count(self.commits):
            raise self.damaged("its commit count is impossible")
        words = store.unpack_copy(self.memory, self.at + 8 + (self.commits & 1) * COPY_WORDS * 8)
        self.words = words
        time, a, b, count, capacity, period_us, code, head, tail, entries, moved, number = words
        signature = (count, capacity, period_us, code & ~CHANGING)
        self.signature = signature
        if signature == store.signature(algorithm):
            writer: Algorithm | None = algorithm
        else:
            try:
                writer = store.writers.find(signature)
            except ConfigError:
                raise self.damaged("it was written under an impossible limit") from None
        if writer is None:
            return
        if not writer.is_plausible(time, a, b):
            raise self.damaged("its numbers are impossible")
        self.writer = writer
        if not writer.keeps_log:
            self.state = State(time, a, b, None)
            return
        log = self.new_log()
        log.head, log.tail, log.entries, log.moved, log.number = head, tail, entries, moved, number
        log.last_tick = time
        log.newest = b
        log.total_cost = LARGEST if code & CHANGING else a
        self.state = State(time, a, b, log)
        problem = log.check(store.geometry.blocks)
        if problem:
            raise self.damaged(problem)
        if code & CHANGING:
            # Whoever changed the entries was killed in the middle: they are right, the sum may not be.
            total = log.total()
            self.state.a = total
            self.state.b = log.freed(total)
            self.changed()
        elif not log.ends_well():
            raise self.damaged("a log's newest entry is not what its state says")

    def find_copies(self) -> None:
        """Where the slot's cell is, and how often it was committed."""
        self.at = self.store.cell_at(self.stripe, self.slot)
        self.commits = self.store.words[self.at >> 3]

    def damaged(self, reason: str) -> StoreError:
        error = self.store.damage.reset_slot(self.stripe, self.slot, self.digest, self.now, reason)
        self.slot = -1
        return error

    def new_log(self) -> BlockLog:
        store = self.store
        return BlockLog(self.memory, store.words, store.blocks_at, store.ring_at(self.stripe, self.slot), self)

    def new_block(self) -> int:
        writer = self.writer
        inline = writer is not None and writer.inline
        return self.store.arena.take(self.owner_word(), self.now, self.pinned, self.held, self.chain, inline)

    def next_number(self) -> int:
        return next_chain(self.commits)

    def owns(self, block: i64) -> bool:
        return self.store.arena.owns(block, self.owner_word())

    def owner_word(self) -> int:
        """The owner's word of the blocks of this slot's log."""
        state = self.state
        log = None if state is None else state.log
        number = log.number if isinstance(log, BlockLog) else 0
        return owner_word(self.stripe * self.store.slots + self.slot, number)

    def replace(self, state: State, algorithm: Algorithm) -> None:
        store = self.store
        is_new = self.slot < 0
        before = None if is_new or self.state is None else self.state.log
        if is_new:
            self.slot = store.free_slot(self.stripe, self.digest, self.now, self.pinned, algorithm.inline)
            self.pinned.add(self.stripe * store.slots + self.slot)
        self.find_copies()
        given = state.log
        if algorithm.keeps_log:
            log = self.new_log()
            if isinstance(before, BlockLog) and before.tail == 0:
                # Until the commit, the entries of the log that is replaced stay where they are.
                log.head = (before.head + before.entries) % RING_CELLS
            state.log = log
        self.state = state
        self.writer = algorithm
        self.signature = store.signature(algorithm)
        if algorithm.keeps_log and isinstance(given, ListLog):
            for tick, cost in given.entries():  # one: all of it is charged now
                log.append(tick, cost)
        self.is_new = is_new
        self.changed()
        self.is_new = False
        if is_new:
            store.name_slot(self.stripe, self.slot, self.digest)

    def changed(self) -> None:
        """Commit the state, then let go of what it no longer needs."""
        state, writer = self.state, self.writer
        if state is None or writer is None:
            return
        store = self.store
        log = state.log
        if isinstance(log, BlockLog):
            log.total_cost = state.a
            log.last_tick = state.time
            log.newest = state.b
        # Expiry first: a late one only keeps a slot longer, an early one would lose a counter.
        meta = store.meta_at(self.stripe, self.slot) >> 3
        store.words[meta] = writer.frees(state, self.now, 0)
        store.words[meta + 1] = self.used
        if self.chain is not None:
            self.chain.before_commit(self, self.is_new)
        if not isinstance(log, BlockLog):
            count, capacity, period_us, code = self.signature
            other = self.at + 8 + (~self.commits & 1) * COPY_WORDS * 8
            store.pack_plain(self.memory, other, state.time, state.a, state.b, count, capacity, period_us, code)
            self.commits += 1
            store.words[self.at >> 3] = self.commits
            return
        where = (log.head, log.tail, log.entries, log.moved, log.number)
        self.commit((state.time, state.a, state.b, *self.signature, *where))
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
            self.store.words[(self.store.meta_at(self.stripe, self.slot) >> 3) + 1] = self.used

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
