"""Counters in one memory-mapped file, shared by every process of this machine. No server.

Theory of operation. A counter's digest picks its stripe; all that concerns the counter lies in that stripe and is
read and written only under the stripe's lock, which the kernel takes back from whoever is killed. A request locks
the stripes of its counters in order, a batch each stripe once; then it reads the clock, decides with the same steps
as every other store, and commits each changed counter with a single word (cell.py). So a participant that is killed
at any instruction has either counted its request or not, and one that is stopped costs the others their deadline at
most, and only in the stripes it holds. A chain commits several cells, and is all or nothing by a journal (journal.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from mmap import mmap
from typing import final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.decision import Decision
from headgate.core.state import State
from headgate.core.words import i64
from headgate.errors import StoreClosed, StoreError
from headgate.stores.clock import Clock, MachineClock, nanoseconds_of
from headgate.stores.deciding import decide, decision_of, undoing
from headgate.stores.port import DEFAULT_PREFIX, LocalStore, Member, Op, Outcome, PartlyAnswered, Request, Take
from headgate.stores.shared.arena import Arena
from headgate.stores.shared.cell import SlotCell, Writers
from headgate.stores.shared.clock_steps import follow_restart, forget_drained
from headgate.stores.shared.damage import MAX_COMMITS, Damage, is_commit_count
from headgate.stores.shared.digests import Digests
from headgate.stores.shared.journal import ChainCommit, Journals
from headgate.stores.shared.layout import (
    CELL_BYTES,
    COPY_WORDS,
    INLINE_USE,
    OTHER_LOCKS,
    RING_CELLS,
    open_file,
    same_boot,
    set_anchor,
)
from headgate.stores.shared.locks import FIRST_STRIPE, HEADER, WIDE, FileLocks, LockBusy
from headgate.stores.shared.once import apply_once
from headgate.stores.shared.record_file import RECORD_STRIPES
from headgate.stores.shared.records import SharedRecords
from headgate.stores.shared.take_many import take_many

__all__ = ["DEFAULT_TIMEOUT_MS", "SharedStore"]

DEFAULT_TIMEOUT_MS = 100
_WORD = struct.Struct("@q")
_META = struct.Struct("@2q")
_PLAIN = struct.Struct("@7q")
_COPY = struct.Struct(f"@{COPY_WORDS}q")
COPY_BYTES = _COPY.size


@final
class SharedStore(LocalStore):
    """At least `max_keys` counters in the file at `path`, which is made if it is not there."""

    def __init__(
        self,
        path: str,
        max_keys: int | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
        ours_alone: bool = False,
    ) -> None:
        self.path = path
        self.timeout = timeout_ms / 1000
        file, memory, geometry = open_file(path, max_keys, ours_alone)
        self.memory: mmap = memory
        # Single words are written through this view, in one store instruction each. (struct zeroes its target first.)
        self.words = memoryview(memory).cast("q")
        self.geometry = geometry
        # Kept at hand, because looking them up costs as much as using them.
        self.unpack_plain: Callable[[mmap, int], tuple[int, int, int, int, int, int, int]] = _PLAIN.unpack_from
        self.unpack_copy: Callable[[mmap, int], tuple[int, ...]] = _COPY.unpack_from
        self.pack_plain: Callable[[mmap, int, int, int, int, int, int, int, int], None] = _PLAIN.pack_into
        self.stripes = geometry.stripes
        self.slots = geometry.slots
        self.stripes_at = geometry.stripes_at
        self.stripe_bytes = geometry.stripe_bytes
        self.blocks_at = geometry.blocks_at
        # The locks of records come after those of the stripes. Their file is opened when it is first needed.
        self.first_record = FIRST_STRIPE + geometry.stripes
        count = self.first_record + RECORD_STRIPES
        assert count <= geometry.stripes + OTHER_LOCKS
        self.locks = FileLocks(
            path, file, count, self.timeout, self.words, geometry.marks_at >> 3, geometry.chains_at >> 3
        )
        self.journals = Journals(self)
        self.locks.recovery = self.journals
        self.prefix = prefix
        self.ours_alone = ours_alone
        self.records: SharedRecords | None = None
        self.arena = Arena(self)
        self.damage = Damage(self)
        self.next_size_check: i64 = 0
        self.writers = Writers()
        self.signatures: dict[Algorithm, tuple[int, int, int, int]] = {}
        self.last_signed: tuple[Algorithm | None, tuple[int, int, int, int]] = (None, (0, 0, 0, 0))
        self.digests = Digests(prefix, geometry.salt, geometry.stripes)
        self.locks.acquire(HEADER, self.timeout)
        try:
            if not same_boot(memory):
                follow_restart(self, time.time_ns() // 1000)
            anchor = set_anchor(memory)
        finally:
            self.locks.release(HEADER)
        # As in the memory store: the time is anchor + nanoseconds() // 1000, without the detour through an object.
        self.anchor: i64 = 0
        if clock is None:
            self.anchor = anchor
            self.clock = MachineClock(anchor)
            self.nanoseconds: Callable[[], int] = time.monotonic_ns
        else:
            self.clock = clock
            self.nanoseconds = partial(nanoseconds_of, clock)
        self.driven = clock is not None
        self.latest = 0
        self.closed = False
        self.waits = True

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:
        if self.closed:
            raise StoreClosed(f"shared store {self.path} is closed")
        if self.driven:
            self.follow_clock()
        digest, stripe = self.digests.locate(algorithm.name, key)
        if self.anchor + self.nanoseconds() // 1000 >= self.next_size_check:
            self.damage.check_size()  # before anything in the file is touched, its locks' marks too
        self.locks.acquire(FIRST_STRIPE + stripe, self.timeout)
        try:
            now: int = self.anchor + self.nanoseconds() // 1000
            slot = self.find_slot(stripe, digest)
            if slot >= 0 and not algorithm.keeps_log:
                outcome = self.take_plain(algorithm, cost, stripe, slot, now)
                if outcome is not None:
                    return outcome.decision
            pinned = {stripe * self.slots + slot} if slot >= 0 else set()
            cell = SlotCell(self, algorithm, digest, stripe, slot, now, pinned, (stripe,))
            cell.touch()
            state = cell.state
            if state is not None and cell.writer is algorithm:
                step = algorithm.step(state, now, cost)
                allowed, at, a, b, _, _, _ = step
                if at >= state.time:
                    if allowed and cost:
                        state.put(at, a, b, cost)
                        cell.changed()
                    return decision_of(algorithm, step)
            return decide(Op.TAKE, [Member(key, algorithm, cost)], [cell], now)[0].decision
        finally:
            self.unlock(stripe)

    def take_many(self, takes: Sequence[Take]) -> list[Decision] | None:
        if self.closed:
            raise StoreClosed(f"shared store {self.path} is closed")
        if self.driven:
            self.follow_clock()
        return take_many(self, takes)

    def take_plain(self, algorithm: Algorithm, cost: i64, stripe: int, slot: int, now: int) -> Outcome | None:
        """The usual case without the ceremony: three numbers, written under this very limit. None if it is another, and
        for what looks damaged: the longer way says so."""
        memory = self.memory
        at = self.cell_at(stripe, slot)
        commits: int = self.words[at >> 3]
        first = at + 8
        second = first + COPY_BYTES
        then, a, b, count, capacity, period_us, code = self.unpack_plain(memory, second if commits & 1 else first)
        if (count, capacity, period_us, code) != self.signature(algorithm):
            return None
        # As `is_plausible` says, and written out because it is asked every time.
        last = algorithm.last_tick
        if not (
            0 <= commits < MAX_COMMITS
            and -last <= then <= last
            and algorithm.min_a <= a <= algorithm.max_a
            and algorithm.min_b <= b <= algorithm.max_b
        ):
            return None
        step = algorithm.step(State(then, a, b, None), now, cost)
        allowed, when, a, b, _, _, reset = step
        if when < then:
            return None  # a rebase, which is to be kept whatever the decision
        # As in SlotCell: the expiry first, then the other copy, then the word that commits it.
        meta_at = self.meta_at(stripe, slot)
        used = now + INLINE_USE if algorithm.inline else now
        if allowed and cost:
            self.words[meta_at >> 3] = now + reset
            self.words[(meta_at >> 3) + 1] = used
            other = first if commits & 1 else second
            self.pack_plain(memory, other, when, a, b, count, capacity, period_us, code)
            self.words[at >> 3] = commits + 1
        else:
            self.words[(meta_at >> 3) + 1] = used
        return Outcome(decision_of(algorithm, step), when if allowed else 0)

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.driven:
            self.follow_clock()
        return self.apply_by(batch, self.timeout)

    def apply_within(self, batch: Sequence[Request], patience: float) -> list[list[Outcome]] | None:
        if self.driven:
            self.follow_clock()
        try:
            return self.apply_by(batch, patience)
        except LockBusy:
            return None

    def watch(self, batch: Sequence[Request]) -> Callable[[], bool]:
        watch = self.locks.watch(self.timeout)
        places = [self.digests.locate(m.algorithm.name, m.key) for request in batch for m in request.members]
        return partial(self.locks.is_stalled, sorted({FIRST_STRIPE + stripe for _, stripe in places}), watch)

    def apply_by(self, batch: Sequence[Request], patience: float) -> list[list[Outcome]]:
        """Lock, decide, unlock; a LockBusy when a stripe is not free within so many seconds, and nothing is done. A
        request that cannot be decided (no room, a damaged counter) does not fail the others of its batch."""
        if self.closed:
            raise StoreClosed(f"shared store {self.path} is closed")
        if self.anchor + self.nanoseconds() // 1000 >= self.next_size_check:
            self.damage.check_size()
        for request in batch:
            if request.once is not None:
                return apply_once(self, batch, patience)
        places = [[self.digests.locate(m.algorithm.name, m.key) for m in request.members] for request in batch]
        stripes = sorted({stripe for request in places for _, stripe in request})
        wide = len(stripes) >= WIDE and self.locks.try_range(FIRST_STRIPE + stripes[0], FIRST_STRIPE + stripes[-1])
        if len(stripes) == 1:
            self.locks.acquire(FIRST_STRIPE + stripes[0], patience)
        elif stripes and not wide:
            self.locks.acquire_all([FIRST_STRIPE + stripe for stripe in stripes], patience)
        decided: list[tuple[Request, list[tuple[bytes, int]], list[Outcome]]] = []
        held: Container[int] = range(stripes[0], stripes[-1] + 1) if wide else stripes
        now = 0
        try:
            now = self.anchor + self.nanoseconds() // 1000
            failed = self.decide_each(batch, places, now, held, decided)
            if not failed:
                return [outcomes for _, _, outcomes in decided]
        except BaseException:
            self.undo(decided, now)
            raise
        finally:
            if wide:
                self.locks.release_range(FIRST_STRIPE + stripes[0], FIRST_STRIPE + stripes[-1])
            else:
                for stripe in stripes:
                    self.unlock(stripe)
        raise PartlyAnswered(
            [[failed[i]] * len(batch[i].members) if i in failed else decided[i][2] for i in range(len(batch))]
        )

    def decide_each(
        self,
        batch: Sequence[Request],
        places: list[list[tuple[bytes, int]]],
        now: int,
        held: Container[int],
        decided: list[tuple[Request, list[tuple[bytes, int]], list[Outcome]]],
    ) -> dict[int, StoreError]:
        """Decide the requests of a batch, whose stripes are locked. Says which of several could not be decided."""
        failed: dict[int, StoreError] = {}
        for i in range(len(batch)):
            request, where = batch[i], places[i]
            try:
                outcomes = self.decide_plain(request, where, now)
                if outcomes is None:
                    outcomes = self.decide(request.op, request.members, where, now, held)
            except StoreError as error:
                if len(batch) == 1:
                    raise
                failed[i] = error
                outcomes = []
            decided.append((request, where, outcomes))
        return failed

    def follow_clock(self) -> None:
        """Note the time of a given clock. Unlike the machine's it may step back: what was as good as new before that is
        forgotten, whether or not its slot was given to another counter."""
        now = self.clock.ticks()
        if now < self.latest and not self.closed:
            for stripe in range(self.stripes):
                self.locks.acquire(FIRST_STRIPE + stripe, self.timeout)
                try:
                    forget_drained(self, stripe, self.latest)
                finally:
                    self.unlock(stripe)
        self.latest = now

    def decide_plain(self, request: Request, where: list[tuple[bytes, int]], now: int) -> list[Outcome] | None:
        """The usual request, one TAKE of a counter that is there, without the ceremony; None if it is another."""
        if request.op is not Op.TAKE or len(where) != 1:
            return None
        member = request.members[0]
        algorithm = member.algorithm
        if algorithm.keeps_log or member.cost > algorithm.ceiling:
            return None
        digest, stripe = where[0]
        slot = self.find_slot(stripe, digest)
        outcome = self.take_plain(algorithm, member.cost, stripe, slot, now) if slot >= 0 else None
        return None if outcome is None else [outcome]

    def open_records(self, patience: float) -> SharedRecords:
        """The records of what was decided once, when they are first needed."""
        self.locks.acquire(HEADER, patience)
        try:
            if self.records is None:
                self.records = SharedRecords(self, self.prefix)
            return self.records
        finally:
            self.locks.release(HEADER)

    def undo(self, decided: Sequence[tuple[Request, list[tuple[bytes, int]], list[Outcome]]], now: int) -> None:
        """All or nothing, for a batch too: who is told of an error must not have been charged."""
        for request, where, outcomes in reversed(decided):
            if outcomes and request.op is Op.TAKE and all(o.decision.allowed for o in outcomes):
                with suppress(StoreError):  # damaged since, and reset: there is nothing left to give back
                    self.decide(Op.GIVE_BACK, undoing(request.members, outcomes), where, now, ())

    def decide(
        self, op: Op, members: Sequence[Member], places: list[tuple[bytes, int]], now: int, held: Container[int]
    ) -> list[Outcome]:
        """One request, all or nothing. All stripes in `held` are locked, its own among them."""
        if len(members) < 2 or op is Op.PEEK:
            return decide(op, members, self.cells(op, members, places, now, held, None), now)
        chain = ChainCommit(self.journals, places[0][1])
        try:
            return decide(op, members, self.cells(op, members, places, now, held, chain), now)
        finally:  # what could not be decided has been given back
            chain.done()

    def cells(
        self,
        op: Op,
        members: Sequence[Member],
        places: list[tuple[bytes, int]],
        now: int,
        held: Container[int],
        chain: ChainCommit | None,
    ) -> list[SlotCell]:
        """The counters of one request, which hold their slots until it is decided. All stripes in `held` are locked."""
        pinned: set[int] = set()
        cells = []
        for member, (digest, stripe) in zip(members, places, strict=True):
            slot = self.find_slot(stripe, digest)
            if slot >= 0:
                pinned.add(stripe * self.slots + slot)
            cell = SlotCell(self, member.algorithm, digest, stripe, slot, now, pinned, held, chain)
            if op is Op.TAKE:
                cell.touch()
            cells.append(cell)
        return cells

    def find_slot(self, stripe: int, digest: bytes) -> int:
        """The slot that holds this counter, or -1. Most sit in the slot their digest points at."""
        start = self.stripes_at + stripe * self.stripe_bytes
        home = digest[12] % self.slots
        if self.memory[start + home * 16 : start + home * 16 + 16] == digest:
            return home
        digests = self.memory[start : start + self.slots * 16]
        at = digests.find(digest)
        while at >= 0 and at % 16:
            at = digests.find(digest, at + 1)
        return at // 16

    def free_slot(self, stripe: int, digest: bytes, now: int, pinned: set[int], inline: bool) -> int:
        """A slot for a new counter: free, else expired, else the one used least recently. Those of limits that callers
        wrote out go first, and never have another evicted for them: whoever may check could lift all limits."""
        first = stripe * self.slots
        chosen = digest[12] % self.slots
        if self.meta(stripe, chosen)[0] > now or first + chosen in pinned:
            chosen = -1
            oldest = 0
            meta = struct.unpack_from(f"@{2 * self.slots}q", self.memory, self.meta_at(stripe, 0))
            for slot in range(self.slots):
                if first + slot in pinned:
                    continue
                if meta[2 * slot] <= now:
                    chosen = slot
                    break
                if chosen < 0 or meta[2 * slot + 1] < oldest:
                    chosen = slot
                    oldest = meta[2 * slot + 1]
            if chosen < 0:
                raise StoreError(f"shared store {self.path}: one request has more counters than max_keys")
            if inline and oldest >= 0 and meta[2 * chosen] > now:
                raise StoreError(
                    f"shared store {self.path}: no room for another limit that a caller wrote out: those of rules and "
                    "plans fill its stripe; give the file a larger max_keys"
                )
        self.clear_slot(stripe, chosen)
        return chosen

    def name_slot(self, stripe: int, slot: int, digest: bytes) -> None:
        """Give a slot to a counter: its first half last, which makes it count."""
        at = self.stripes_at + stripe * self.stripe_bytes + slot * 16
        self.memory[at + 8 : at + 16] = digest[8:]
        self.words[at >> 3] = _WORD.unpack_from(digest)[0]

    def clear_slot(self, stripe: int, slot: int) -> None:
        """Let a slot go. The blocks of its log are free from then on, too: nothing commits to them any more."""
        at = self.stripes_at + stripe * self.stripe_bytes + slot * 16
        meta_at = self.meta_at(stripe, slot)
        self.words[at >> 3] = 0
        self.words[meta_at >> 3] = 0
        self.words[(meta_at >> 3) + 1] = 0
        cell_at = self.cell_at(stripe, slot)
        if not is_commit_count(self.words[cell_at >> 3]):
            self.words[cell_at >> 3] = 0

    def is_named(self, stripe: int, slot: int) -> bool:
        """Whether a slot holds a counter."""
        first: int = self.words[(self.stripes_at + stripe * self.stripe_bytes + slot * 16) >> 3]
        return first != 0

    def meta(self, stripe: int, slot: int) -> tuple[int, int]:
        """Expiry and last use of a slot, in microseconds; 0 when it is free."""
        expiry, used = _META.unpack_from(self.memory, self.meta_at(stripe, slot))
        return expiry, used if used >= 0 else used - INLINE_USE

    def meta_at(self, stripe: int, slot: int) -> int:
        return self.stripes_at + stripe * self.stripe_bytes + self.slots * 16 + slot * 16

    def cell_at(self, stripe: int, slot: int) -> int:
        return self.stripes_at + stripe * self.stripe_bytes + self.slots * 32 + slot * CELL_BYTES

    def ring_at(self, stripe: int, slot: int) -> int:
        return self.cell_at(stripe, self.slots) + slot * RING_CELLS * 16

    def signature(self, algorithm: Algorithm) -> tuple[int, int, int, int]:
        """What a slot keeps of the limit that wrote it."""
        signed = self.last_signed
        if signed[0] is algorithm:
            return signed[1]
        found = self.signatures.get(algorithm)
        if found is None:
            if len(self.signatures) >= 10_000:
                self.signatures.clear()
            found = self.writers.signature(algorithm)
            self.signatures[algorithm] = found
        self.last_signed = (algorithm, found)
        return found

    def counts(self) -> dict[str, int]:
        return {"store_resets": self.damage.resets, "store_logs_full": self.arena.refused}

    def try_lock(self, stripe: int) -> bool:
        return self.locks.try_acquire(FIRST_STRIPE + stripe)

    def unlock(self, stripe: int) -> None:
        self.locks.release(FIRST_STRIPE + stripe)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self.locks.all_threads():  # whoever is inside a check finishes it first
                self.locks.close()
                self.words.release()
                self.memory.close()
                if self.records is not None:
                    self.records.close()
