"""Entries of sliding logs in blocks of the shared file.

A log is a chain of blocks. A block holds 64 cells of 16 bytes: the first says which block is next, the others hold
an entry each, tick and cost. A position is block * 64 + cell. The owners' words say which slot a block belongs to.

Whoever writes may be killed at any instruction, so nothing the slot's committed state can reach is changed before
that state says so:

    append      writes beyond the last entry, into a new block if need be; the next commit makes it visible
    drop        moves the head; blocks that fall out of the chain are set free after the commit
    take back   changes costs in place, between a commit that marks the slot as changing and one that unmarks it;
                who finds the mark sums the entries up anew

A block that was taken and never linked in, because its taker died, still names its owner and is set free with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import final

from headgate.core.algorithms.algorithm import LARGEST
from headgate.core.state import Log
from headgate.core.words import i64
from headgate.stores.deciding import Cell
from headgate.stores.shared.layout import BLOCK_BYTES

__all__ = ["BlockLog", "LogOwner"]

CELLS = 64
_ENTRY = struct.Struct("@qq")
_WORD = struct.Struct("@q")


class LogOwner(Cell):
    """What a log asks of the slot it belongs to."""

    def new_block(self) -> int:
        """Take a free block."""
        raise NotImplementedError

    def mark_changing(self) -> None:
        """Commit that entries are about to change in place."""
        raise NotImplementedError


@final
class BlockLog(Log):
    """One slot's log. `head`, `tail`, `entries` and `moved` are kept in the slot's state."""

    def __init__(self, memory: mmap, words: memoryview, blocks_at: i64, owner: LogOwner) -> None:
        self.oldest = -LARGEST  # not known without a look at the file
        self.memory = memory
        self.words = words
        self.blocks_at = blocks_at
        self.owner = owner
        self.unpack: Callable[[mmap, int], tuple[int, int]] = _ENTRY.unpack_from
        self.head: i64 = 0
        self.tail: i64 = 0
        self.entries: i64 = 0
        self.moved: i64 = 0
        self.unused: list[int] = []  # blocks to set free after the next commit

    def entry(self, position: i64) -> tuple[i64, i64]:
        tick: i64
        cost: i64
        tick, cost = self.unpack(self.memory, self.blocks_at + position * 16)
        return tick, cost

    def after(self, position: i64) -> i64:
        """The position that follows in the chain."""
        if position % CELLS < CELLS - 1:
            return position + 1
        block = position // CELLS
        following: i64 = _WORD.unpack_from(self.memory, self.blocks_at + block * BLOCK_BYTES)[0]
        return following * CELLS + 1

    def positions(self) -> list[int]:
        found = []
        position = self.head
        for _ in range(self.entries):
            found.append(position)
            position = self.after(position)
        return found

    def expired(self, cutoff: i64) -> i64:
        cutoff -= self.moved
        total = 0
        position = self.head
        for i in range(self.entries):
            tick, cost = self.entry(position)
            if tick > cutoff:
                break
            total += cost
            if i + 1 < self.entries:
                position = self.after(position)
        return total

    def freed(self, amount: i64) -> i64:
        tick = 0
        position = self.head
        for i in range(self.entries):
            tick, cost = self.entry(position)
            amount -= cost
            if amount <= 0:
                break
            if i + 1 < self.entries:
                position = self.after(position)
        return tick + self.moved

    def charged(self, tick: i64) -> i64:
        stored = tick - self.moved
        total = 0
        for position in self.positions():
            at, cost = self.entry(position)
            if at == stored:
                total += cost
        return total

    def total(self) -> i64:
        total = 0
        for position in self.positions():
            total += self.entry(position)[1]
        return total

    def append(self, tick: i64, cost: i64) -> None:
        tail = self.tail
        if tail == 0 or tail % CELLS == CELLS - 1:
            block = self.owner.new_block()
            if tail:
                self.words[(self.blocks_at + tail // CELLS * BLOCK_BYTES) >> 3] = block
            position = block * CELLS + 1
        else:
            position = tail + 1
        if not self.entries:
            if tail and tail // CELLS != position // CELLS:
                self.unused.append(tail // CELLS)
            self.head = position
        _ENTRY.pack_into(self.memory, self.blocks_at + position * 16, tick - self.moved, cost)
        self.tail = position
        self.entries += 1

    def drop(self, amount: i64) -> None:
        while self.entries:
            head = self.head
            cost = self.entry(head)[1]
            if amount <= 0 and cost:
                break
            amount -= cost
            self.entries -= 1
            if self.entries:
                self.head = self.after(head)
                if self.head // CELLS != head // CELLS:
                    self.unused.append(head // CELLS)

    def shift(self, ticks: i64) -> None:
        self.moved += ticks

    def take_back(self, tick: i64, amount: i64) -> None:
        self.owner.mark_changing()
        stored = tick - self.moved
        for position in self.positions():
            at, cost = self.entry(position)
            if at == stored and amount > 0:
                part = min(amount, cost)
                self.words[((self.blocks_at + position * 16) >> 3) + 1] = cost - part
                amount -= part
        # What costs nothing any more need not be kept: here at the end, and in `drop` at the beginning.
        while self.entries > 1 and self.tail % CELLS > 1 and self.entry(self.tail)[1] == 0:
            self.tail -= 1
            self.entries -= 1
