# mypyc: compile
"""A slot of the shared file: two copies of the state, and one word that selects the valid one.

    word 0          commit count; even: the first copy is valid, odd: the second
    words 1 - 12    first copy
    words 13 - 24   second copy

A copy: time, a, b, then the limit it was written under (count, capacity, period, algorithm), then the log's head,
tail, number of entries, ticks moved and number of its block list. A change writes the other copy and then, in one store
instruction, the commit word. A process killed anywhere in between has changed nothing; one killed after it has changed
everything.

Whatever is read here may be corrupt. A state that no writer can have written is rejected, and the slot is reset: see
corruption.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from mmap import mmap
from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.mypyc_types import i64
from crestgate.core.state import ListLog, State
from crestgate.errors import ConfigError, StoreError
from crestgate.stores.shared.corruption import is_commit_count
from crestgate.stores.shared.layout import COPY_WORDS, INLINE_USE, RING_CELLS
from crestgate.stores.shared.log_blocks import BlockLog, LogOwner, owner_word

if TYPE_CHECKING:
    from crestgate.stores.shared.journal import ChainCommit
    from crestgate.stores.shared.store import SharedStore

__all__ = ["SlotCounter", "block_list_after", "committed_block_list", "next_block_list"]

_COPY = struct.Struct(f"@{COPY_WORDS}q")
CHANGING = 1 << 40
"""Set in the algorithm's word while a log's entries are changed in place."""
BLOCK_LIST_NUMBERS = 1 << 31
_LOG_CODES = (zlib.crc32(b"sliding_window_log"), zlib.crc32(b"concurrency"))


def committed_block_list(words: memoryview, at: int) -> int:
    """The number of the block list in the committed state at this offset; -1 when it has none."""
    return block_list_after(words, at, words[at >> 3])


def block_list_after(words: memoryview, at: int, commits: int) -> int:
    """The same as it was after so many commits: the last, or the one before."""
    copy = (at >> 3) + 1 + (commits & 1) * COPY_WORDS
    code: int = words[copy + 6]
    tail: int = words[copy + 8]
    if code & ~CHANGING not in _LOG_CODES or tail == 0:
        return -1
    number: int = words[copy + 11]
    return number


def next_block_list(commits: int) -> int:
    """The number of a block list that is created after so many commits, and not committed yet."""
    return (commits + 1) % BLOCK_LIST_NUMBERS


@final
class SlotCounter(LogOwner):
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
        self.table = store.table
        self.chain = chain
        self.journal_entry: i64 = 0
        """Where the chain's journal has this slot, in words; zero if it has not."""
        self.is_new = False
        self.memory: mmap = store.memory
        self.digest = digest
        self.stripe = stripe
        self.slot = slot
        self.now = now
        self.used = now + INLINE_USE if algorithm.inline else now
        self.pinned = pinned  # slots in use by this request, which must not be evicted for it
        self.held = held  # stripes that are locked for it
        self.state = None
        self.writer = None
        self.words: tuple[int, ...] = ()
        self.at = 0
        self.commits = 0
        self.signature = (0, 0, 0, 0)
        if slot >= 0:
            self.read(algorithm)
        elif store.corruption.recent:
            store.corruption.check_recent(digest, now)

    def read(self, algorithm: Algorithm) -> None:
        table = self.table
        self.find_state()
        if not is_commit_count(self.commits):
            raise self.reset_corrupt("its commit count is impossible")
        words = table.unpack_copy(self.memory, self.at + 8 + (self.commits & 1) * COPY_WORDS * 8)
        self.words = words
        time, a, b, count, capacity, period_us, code, head, tail, entries, moved, number = words
        signature = (count, capacity, period_us, code & ~CHANGING)
        self.signature = signature
        if signature == table.writers.signature(algorithm):
            writer: Algorithm | None = algorithm
        else:
            try:
                writer = table.writers.find(signature)
            except ConfigError:
                raise self.reset_corrupt("it was written under an impossible limit") from None
        if writer is None:
            return
        if not writer.is_plausible(time, a, b):
            raise self.reset_corrupt("its numbers are impossible")
        self.writer = writer
        if not writer.keeps_log:
            self.state = State(time, a, b, None)
            return
        log = self.new_log()
        log.head, log.tail, log.entries, log.moved, log.number = head, tail, entries, moved, number
        log.last_tick = time
        log.newest = b
        log.total_cost = MAX_SAFE_INTEGER if code & CHANGING else a
        self.state = State(time, a, b, log)
        problem = log.check(self.store.geometry.blocks)
        if problem:
            raise self.reset_corrupt(problem)
        if code & CHANGING:
            # The process that changed the entries was killed: they are right, their sum may not be.
            total = log.total()
            self.state.a = total
            self.state.b = log.tick_when_freed(total)
            self.changed()
        elif not log.has_valid_end():
            raise self.reset_corrupt("a log's newest entry does not match its state")

    def find_state(self) -> None:
        self.at = self.table.state_at(self.stripe, self.slot)
        self.commits = self.table.words[self.at >> 3]

    def reset_corrupt(self, reason: str) -> StoreError:
        error = self.store.corruption.reset_slot(self.stripe, self.slot, self.digest, self.now, reason)
        self.slot = -1
        return error

    def new_log(self) -> BlockLog:
        table = self.table
        ring_at = table.ring_at(self.stripe, self.slot)
        return BlockLog(self.memory, table.words, self.store.blocks_at, ring_at, self)

    def new_block(self) -> int:
        writer = self.writer
        inline = writer is not None and writer.inline
        return self.store.arena.allocate(self.owner_word(), self.now, self.pinned, self.held, self.chain, inline)

    def next_number(self) -> int:
        return next_block_list(self.commits)

    def owns(self, block: i64) -> bool:
        return self.store.arena.owns(block, self.owner_word())

    def owner_word(self) -> int:
        """The owner word of the blocks of this slot's log."""
        state = self.state
        log = None if state is None else state.log
        number = log.number if isinstance(log, BlockLog) else 0
        return owner_word(self.stripe * self.table.slots + self.slot, number)

    def replace(self, state: State, algorithm: Algorithm) -> None:
        table = self.table
        is_new = self.slot < 0
        before = None if is_new or self.state is None else self.state.log
        if is_new:
            self.slot = table.allocate(self.stripe, self.digest, self.now, self.pinned, algorithm.inline)
            self.pinned.add(self.stripe * table.slots + self.slot)
        self.find_state()
        given = state.log
        if algorithm.keeps_log:
            log = self.new_log()
            if isinstance(before, BlockLog) and before.tail == 0:
                # Until the commit, the entries of the replaced log stay where they are.
                log.head = (before.head + before.entries) % RING_CELLS
            state.log = log
        self.state = state
        self.writer = algorithm
        self.signature = table.writers.signature(algorithm)
        if algorithm.keeps_log and isinstance(given, ListLog):
            for tick, cost in given.entries():  # one: all of it is charged now
                log.append(tick, cost)
        self.is_new = is_new
        self.changed()
        self.is_new = False
        if is_new:
            table.assign(self.stripe, self.slot, self.digest)

    def changed(self) -> None:
        """Commit the state, then free the log blocks that it no longer needs."""
        state, writer = self.state, self.writer
        if state is None or writer is None:
            return
        table = self.table
        log = state.log
        if isinstance(log, BlockLog):
            log.total_cost = state.a
            log.last_tick = state.time
            log.newest = state.b
        # Expiry first: one that is too late only keeps a slot longer, one that is too early would lose a counter.
        meta = table.meta_at(self.stripe, self.slot) >> 3
        table.words[meta] = writer.available_at(state, self.now, 0)
        table.words[meta + 1] = self.used
        if self.chain is not None:
            self.chain.before_commit(self, self.is_new)
        if not isinstance(log, BlockLog):
            count, capacity, period_us, code = self.signature
            other = self.at + 8 + (~self.commits & 1) * COPY_WORDS * 8
            table.pack_numbers(self.memory, other, state.time, state.a, state.b, count, capacity, period_us, code)
            self.commits += 1
            table.words[self.at >> 3] = self.commits
            return
        position = (log.head, log.tail, log.entries, log.moved, log.number)
        self.commit((state.time, state.a, state.b, *self.signature, *position))
        if log.unused:
            if self.chain is None:
                self.store.arena.free(log.unused)
            else:  # not before the chain counts: it may be undone
                self.chain.unused += log.unused
            log.unused = []

    def touch(self) -> None:
        """Record the use of a counter that is not changed: one that denies must not be evicted as idle."""
        if self.slot >= 0:
            self.table.words[(self.table.meta_at(self.stripe, self.slot) >> 3) + 1] = self.used

    def mark_changing(self) -> None:
        words = self.words
        self.commit((*words[:6], words[6] | CHANGING, *words[7:]))

    def commit(self, words: tuple[int, ...]) -> None:
        _COPY.pack_into(self.memory, self.at + 8 + (~self.commits & 1) * COPY_WORDS * 8, *words)
        self.commits += 1
        self.table.words[self.at >> 3] = self.commits
        self.words = words

    def forget(self) -> None:
        if self.slot >= 0:
            self.table.clear(self.stripe, self.slot)
            self.slot = -1
        self.state = None
        self.writer = None
