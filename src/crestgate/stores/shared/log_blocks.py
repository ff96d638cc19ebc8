# mypyc: compile
"""Entries of sliding logs in the shared file.

A small log, of up to 11 entries, is in its slot's own ring of 12 cells of 16 bytes, so that every counter can have one.
A larger log is a linked list of blocks from the region that all logs share (see arena.py). A block has 32 cells: the
first has the number of the next block, the others hold one entry each, tick and cost. `tail` is 0 while the log is in
its ring, and `head` is then a cell of the ring; else both are positions, block * 32 + cell.

A writer may be killed at any instruction, so nothing that the slot's committed state can reach is changed before the
next commit:

    append      writes beyond the last entry: into the one cell of the ring that is always free, or into a new block if
                needed; the next commit makes it visible. One entry per commit
    move        copies all entries from the ring to a block or back, which the committed state does not reach
    compact     the same without the entries that were given back, when they are the most
    drop        moves the head; blocks that are no longer in the list are freed after the commit
    take back   changes costs in place, between a commit that flags the slot as changing and one that clears the flag;
                a reader that finds the flag sums the entries again

A block that was allocated and never linked, because its writer was killed, still names its block list and is freed with
it.

What is read is checked: a list that leads to a block of another log, a cost that no log of this total can have, or
entries that do not add up are corruption, and the slot is reset (see `LogOwner.reset_corrupt`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.core.mypyc_types import i64
from crestgate.core.state import Log
from crestgate.errors import StoreError
from crestgate.stores.decide import StoredCounter
from crestgate.stores.shared.layout import BLOCK_BYTES, RING_CELLS

__all__ = ["BLOCK_CELLS", "MAX_RING_ENTRIES", "SLOT_BITS", "SLOT_MASK", "BlockLog", "LogOwner", "owner_word"]

BLOCK_CELLS = BLOCK_BYTES // 16
MAX_RING_ENTRIES = RING_CELLS - 1
"""One cell of a ring stays free for the next entry, while the committed state still reaches all others."""
SLOT_BITS = 32
SLOT_MASK = (1 << SLOT_BITS) - 1
_ENTRY = struct.Struct("@qq")
_WORD = struct.Struct("@q")


def owner_word(slot: int, number: i64) -> int:
    """The owner word of the blocks of one slot's block list. Slots are numbered through all stripes."""
    return int(number) << SLOT_BITS | slot + 1


class LogOwner(StoredCounter):
    """What a log needs of the slot it belongs to."""

    def new_block(self) -> int:
        """Allocate a block."""
        raise NotImplementedError

    def next_number(self) -> int:
        """A number for a new block list, which no earlier list of this slot had."""
        raise NotImplementedError

    def owns(self, block: i64) -> bool:
        """Whether there is such a block, and it belongs to this log."""
        raise NotImplementedError

    def reset_corrupt(self, reason: str) -> StoreError:
        """Reset the slot, whose log is corrupt. Returns the error to raise."""
        raise NotImplementedError

    def mark_changing(self) -> None:
        """Commit that entries are about to change in place."""
        raise NotImplementedError


@final
class BlockLog(Log):
    """One slot's log. `head`, `tail`, `entries`, `moved` and `number` are stored in the slot's state."""

    def __init__(self, memory: mmap, words: memoryview, blocks_at: i64, ring_at: i64, owner: LogOwner) -> None:
        self.oldest = -MAX_SAFE_INTEGER  # not known without reading the file
        self.memory = memory
        self.words = words
        self.blocks_at = blocks_at
        self.ring_at = ring_at
        self.owner = owner
        self.unpack: Callable[[mmap, int], tuple[int, int]] = _ENTRY.unpack_from
        self.head: i64 = 0
        self.tail: i64 = 0
        self.entries: i64 = 0
        self.moved: i64 = 0
        self.number: i64 = 0  # of the block list: part of the owner word of each block
        self.total_cost: i64 = 0  # of all entries, according to the slot's state
        self.last_tick: i64 = MAX_SAFE_INTEGER  # that of the slot's state: no entry is later
        self.newest: i64 = (
            MAX_SAFE_INTEGER  # the tick of the newest entry that costs anything, according to the slot's state
        )
        self.unused: list[int] = []  # blocks to free after the next commit

    def check(self, last_block: i64) -> str:
        """Why the numbers of the slot's state are impossible for a log; empty when they are valid."""
        if (
            self.entries < 0
            or not -MAX_SAFE_INTEGER <= self.moved <= MAX_SAFE_INTEGER
            or not 0 <= self.number < 1 << 31
        ):
            return "a log has impossible numbers"
        if self.tail == 0:
            return "" if 0 <= self.head < RING_CELLS and self.entries <= MAX_RING_ENTRIES else "a log exceeds its ring"
        first: i64 = self.head // BLOCK_CELLS
        last: i64 = self.tail // BLOCK_CELLS
        if not (0 <= first < last_block and 0 <= last < last_block) or self.head < 0 or self.tail < 0:
            return "a log is outside of the block region"
        max_entries: i64 = last_block * (BLOCK_CELLS - 1)
        if self.head % BLOCK_CELLS == 0 or self.tail % BLOCK_CELLS == 0 or self.entries > max_entries:
            return "a log has impossible numbers"
        if self.entries == 0:
            return "" if self.owner.owns(last) else "a log has lost a block"
        # Entries fill their blocks, so the ends give their number, except for whole blocks in between.
        between: i64 = self.entries - (self.tail % BLOCK_CELLS - self.head % BLOCK_CELLS + 1)
        if between % (BLOCK_CELLS - 1) or (between == 0) != (first == last) or between < 0:
            return "a log's ends do not fit its length"
        return "" if self.owner.owns(first) and self.owner.owns(last) else "a log has lost a block"

    def has_valid_end(self) -> bool:
        """Whether the tick of the newest entry that costs anything, as the slot's state has it, can be right."""
        if self.newest > self.last_tick or not self.entries or not self.total_cost:
            return self.newest <= self.last_tick  # nothing costs anything: all entries were given back
        if self.tail:
            at: i64 = self.blocks_at + self.tail * 16
        else:
            at = self.ring_at + (self.head + self.entries - 1) % RING_CELLS * 16
        tick: i64 = self.words[at >> 3]
        stored: i64 = self.newest - self.moved
        # Entries at the end that were given back have a cost of zero.
        return tick == stored or (tick > stored and self.words[(at >> 3) + 1] == 0)

    def entry(self, position: i64) -> tuple[i64, i64]:
        tick: i64
        cost: i64
        tick, cost = self.unpack(self.memory, (self.blocks_at if self.tail else self.ring_at) + position * 16)
        if cost < 0 or cost > self.total_cost:
            raise self.owner.reset_corrupt("an entry of a log has an impossible cost")
        if tick < -MAX_SAFE_INTEGER or tick > MAX_SAFE_INTEGER or tick + self.moved > self.last_tick:
            raise self.owner.reset_corrupt("an entry of a log has an impossible time")
        return tick, cost

    def after(self, position: i64) -> i64:
        """The position that follows in the log."""
        if self.tail == 0:
            return (position + 1) % RING_CELLS
        if position % BLOCK_CELLS < BLOCK_CELLS - 1:
            return position + 1
        block = position // BLOCK_CELLS
        following: i64 = _WORD.unpack_from(self.memory, self.blocks_at + block * BLOCK_BYTES)[0]
        if not self.owner.owns(following):
            raise self.owner.reset_corrupt("a log leads to a block of another log")
        return following * BLOCK_CELLS + 1

    def positions(self) -> list[int]:
        positions = []
        position = self.head
        for i in range(self.entries):
            positions.append(position)
            if i + 1 < self.entries:
                position = self.after(position)
        return positions

    def expired(self, cutoff: i64) -> i64:
        if self.newest <= cutoff:
            return self.total_cost  # all of them, however many
        cutoff -= self.moved
        total: i64 = 0
        before: i64 = -MAX_SAFE_INTEGER
        position = self.head
        for i in range(self.entries):
            tick, cost = self.entry(position)
            if tick > cutoff:
                return total
            if tick < before:
                raise self.owner.reset_corrupt("the entries of a log are out of order")
            before = tick
            total += cost
            if total > self.total_cost:
                break
            if i + 1 < self.entries:
                position = self.after(position)
        if total != self.total_cost:
            raise self.owner.reset_corrupt("the entries of a log do not add up")
        return total

    def tick_when_freed(self, amount: i64) -> i64:
        tick: i64 = 0
        before: i64 = -MAX_SAFE_INTEGER
        position = self.head
        for i in range(self.entries):
            tick, cost = self.entry(position)
            if tick < before:
                raise self.owner.reset_corrupt("the entries of a log are out of order")
            before = tick
            amount -= cost
            if amount <= 0:
                break
            if i + 1 < self.entries:
                position = self.after(position)
        if amount > 0:
            raise self.owner.reset_corrupt("the entries of a log do not add up")
        return tick + self.moved

    def cost_at(self, tick: i64) -> i64:
        stored = tick - self.moved
        total: i64 = 0
        for position in self.positions():
            at, cost = self.entry(position)
            if at == stored:
                total += cost
                if total > self.total_cost:
                    raise self.owner.reset_corrupt("the entries of a log do not add up")
        return total

    def total(self) -> i64:
        total: i64 = 0
        for position in self.positions():
            total += self.entry(position)[1]
            if total > MAX_SAFE_INTEGER:
                raise self.owner.reset_corrupt("the entries of a log do not add up")
        return total

    def append(self, tick: i64, cost: i64) -> None:
        stored = tick - self.moved
        is_full = self.tail % BLOCK_CELLS == BLOCK_CELLS - 1
        if self.tail and (self.entries == 0 or (is_full and self.entries < MAX_RING_ENTRIES)):
            self.move_to_ring()
        elif self.tail and is_full and self.entries > 2 * self.total_cost + BLOCK_CELLS:
            self.compact()  # at least half of them were given back
        if self.tail == 0:
            if self.entries < MAX_RING_ENTRIES:
                cell = (self.head + self.entries) % RING_CELLS
                _ENTRY.pack_into(self.memory, self.ring_at + cell * 16, stored, cost)
                self.entries += 1
                return
            self.move_to_block()
        elif self.tail % BLOCK_CELLS == BLOCK_CELLS - 1:
            block = self.owner.new_block()
            self.words[(self.blocks_at + self.tail // BLOCK_CELLS * BLOCK_BYTES) >> 3] = block
            self.tail = block * BLOCK_CELLS
        self.tail += 1
        _ENTRY.pack_into(self.memory, self.blocks_at + self.tail * 16, stored, cost)
        self.entries += 1

    def move_to_block(self) -> None:
        """The ring is full: copy it to a block, which has room for more."""
        self.number = self.owner.next_number()
        block = self.owner.new_block()
        to = self.blocks_at + block * BLOCK_BYTES + 16
        for position in self.positions():
            start = self.ring_at + position * 16
            self.memory[to : to + 16] = self.memory[start : start + 16]
            to += 16
        self.head = block * BLOCK_CELLS + 1
        self.tail = block * BLOCK_CELLS + self.entries

    def move_to_ring(self) -> None:
        """Copy the remaining entries to the ring, so that a log that has become small needs no block."""
        to = self.ring_at
        blocks: list[int] = [] if self.entries else [self.tail // BLOCK_CELLS]
        for position in self.positions():
            start = self.blocks_at + position * 16
            self.memory[to : to + 16] = self.memory[start : start + 16]
            to += 16
            if not blocks or blocks[-1] != position // BLOCK_CELLS:
                blocks.append(position // BLOCK_CELLS)
        self.unused += blocks
        self.head = 0
        self.tail = 0

    def compact(self) -> None:
        """Copy the entries that cost anything to the ring, or to a new block list. The others were given back, and
        would stay until the oldest entry is dropped."""
        blocks = [self.tail // BLOCK_CELLS]
        live: list[tuple[int, int]] = []
        for position in self.positions():
            if position // BLOCK_CELLS not in blocks[-2:]:
                blocks.append(position // BLOCK_CELLS)
            tick, cost = self.entry(position)
            if cost:
                live.append((tick, cost))
        if len(live) < MAX_RING_ENTRIES:
            for i in range(len(live)):
                _ENTRY.pack_into(self.memory, self.ring_at + i * 16, *live[i])
            self.head = 0
            self.tail = 0
        else:
            self.number = self.owner.next_number()
            for i in range(len(live)):
                if i % (BLOCK_CELLS - 1) == 0:
                    block = self.owner.new_block()
                    if i == 0:
                        self.head = block * BLOCK_CELLS + 1
                    else:
                        self.words[(self.blocks_at + self.tail // BLOCK_CELLS * BLOCK_BYTES) >> 3] = block
                    self.tail = block * BLOCK_CELLS
                self.tail += 1
                _ENTRY.pack_into(self.memory, self.blocks_at + self.tail * 16, *live[i])
        self.entries = len(live)
        self.unused += blocks

    def drop(self, amount: i64) -> None:
        if amount >= self.total_cost:  # all of them: the next commit frees the block list as a whole
            if self.tail == 0:
                self.head = (self.head + self.entries) % RING_CELLS
            self.entries = 0
            return
        while self.entries:
            head = self.head
            cost = self.entry(head)[1]
            if amount <= 0 and cost:
                break
            amount -= cost
            self.entries -= 1
            if self.entries or self.tail == 0:
                self.head = self.after(head)
                if self.tail and self.head // BLOCK_CELLS != head // BLOCK_CELLS:
                    self.unused.append(head // BLOCK_CELLS)
        if amount > 0:
            raise self.owner.reset_corrupt("the entries of a log do not add up")

    def shift(self, ticks: i64) -> None:
        self.moved += ticks

    def take_back(self, tick: i64, amount: i64) -> None:
        self.owner.mark_changing()
        stored = tick - self.moved
        base = self.blocks_at if self.tail else self.ring_at
        for position in self.positions():
            at, cost = self.entry(position)
            if at == stored and amount > 0:
                part = min(amount, cost)
                self.words[((base + position * 16) >> 3) + 1] = cost - part
                amount -= part
        # Entries of cost zero are removed: here at the end, and in `drop` at the beginning.
        if self.tail == 0:
            while self.entries > 1 and self.entry((self.head + self.entries - 1) % RING_CELLS)[1] == 0:
                self.entries -= 1
            return
        while self.entries > 1 and self.tail % BLOCK_CELLS > 1 and self.entry(self.tail)[1] == 0:
            self.tail -= 1
            self.entries -= 1
