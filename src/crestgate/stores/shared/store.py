# mypyc: compile
"""Counters in one memory-mapped file, shared by every process of this machine. No server.

Theory of operation. A counter's digest selects its stripe; everything about the counter is in that stripe, and is read
and written only under the stripe's lock, which the kernel releases when its holder is killed. A request locks the
stripes of its counters in order, a batch each stripe once; then it reads the clock, decides with the same steps as
every other store, and commits each changed counter with a single word (slot.py). So a process that is killed at any
instruction has either counted its request or not, and one that is stopped delays the others by their timeout at most,
and only in the stripes it holds. A chain commits several counters, and is all or nothing by a journal (journal.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from mmap import mmap
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import DEFAULT_PREFIX
from crestgate.core.decision import Decision
from crestgate.core.mypyc_types import i64
from crestgate.errors import ConfigError, StoreClosedError
from crestgate.runtime.clock import Clock, MachineClock, nanoseconds_of
from crestgate.runtime.file_locks import NEEDS_LINUX, has_shared_memory
from crestgate.stores.decide import decide, decision_of
from crestgate.stores.port import LocalStore, Member, Op, Outcome, Request, SingleTake
from crestgate.stores.shared.arena import Arena
from crestgate.stores.shared.batch import apply_batch
from crestgate.stores.shared.corruption import CorruptionGuard
from crestgate.stores.shared.digests import DigestCache
from crestgate.stores.shared.idempotency import SharedRecords
from crestgate.stores.shared.idempotency_file import RECORD_STRIPES
from crestgate.stores.shared.idempotent_batch import apply_idempotent
from crestgate.stores.shared.journal import Journals
from crestgate.stores.shared.layout import OTHER_LOCKS, load_or_reset_clock_offset, open_file, same_boot
from crestgate.stores.shared.locks import FIRST_STRIPE, HEADER, LockBusyError, StripeLocks
from crestgate.stores.shared.slot import SlotCounter
from crestgate.stores.shared.slot_table import SlotTable
from crestgate.stores.shared.take_many import take_many

__all__ = ["DEFAULT_TIMEOUT_MS", "SharedStore"]

DEFAULT_TIMEOUT_MS = 100


@final
class SharedStore(LocalStore):
    """At least `max_keys` counters in the file at `path`, which is created if it is missing."""

    def __init__(
        self,
        path: str,
        max_keys: int | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
        require_owner: bool = False,
    ) -> None:
        if not has_shared_memory():  # before a file is created
            raise ConfigError(NEEDS_LINUX)
        self.path = path
        self.timeout = timeout_ms / 1000
        file, memory, geometry = open_file(path, max_keys, require_owner)
        self.memory: mmap = memory
        self.words = memoryview(memory).cast("q")
        self.geometry = geometry
        self.blocks_at = geometry.blocks_at
        self.table = SlotTable(path, memory, self.words, geometry)
        # The locks of records come after those of the stripes. Their file is opened when it is first needed.
        self.first_record = FIRST_STRIPE + geometry.stripes
        count = self.first_record + RECORD_STRIPES
        assert count <= geometry.stripes + OTHER_LOCKS
        self.locks = StripeLocks(
            path, file, count, self.timeout, self.words, geometry.stamps_at >> 3, geometry.refs_at >> 3
        )
        self.journals = Journals(self)
        self.locks.recovery = self.journals
        self.prefix = prefix
        self.require_owner = require_owner
        self.records: SharedRecords | None = None
        self.arena = Arena(self)
        self.corruption = CorruptionGuard(self)
        self.next_size_check: i64 = 0
        self.digests = DigestCache(prefix, geometry.salt, geometry.stripes)
        self.locks.acquire(HEADER, self.timeout)
        try:
            if not same_boot(memory):
                self.table.clear_after_restart(time.time_ns() // 1000)
            anchor = load_or_reset_clock_offset(memory)
        finally:
            self.locks.release(HEADER)
        # As in the memory store: the time is anchor + nanoseconds() // 1000, without a call of the clock object.
        self.anchor: i64 = 0
        if clock is None:
            self.anchor = anchor
            self.clock = MachineClock(anchor)
            self.nanoseconds: Callable[[], int] = time.monotonic_ns
        else:
            self.clock = clock
            self.nanoseconds = partial(nanoseconds_of, clock)
        self.has_virtual_clock = clock is not None
        self.latest = 0
        self.closed = False
        self.waits = True

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:
        if self.closed:
            raise StoreClosedError(f"shared store {self.path} is closed")
        if self.has_virtual_clock:
            self.follow_clock()
        location = self.digests.locate(algorithm.name, key)
        nanoseconds: i64 = self.nanoseconds()
        now = self.anchor + nanoseconds // 1000
        if now >= self.next_size_check:
            self.corruption.check_size()  # before anything in the file is touched, also its stamps
        table = self.table
        stripe = location.stripe
        if self.locks.acquire(FIRST_STRIPE + stripe, self.timeout):
            nanoseconds = self.nanoseconds()  # it had to wait
            now = self.anchor + nanoseconds // 1000
        try:
            if table.load(location, algorithm):
                decision = table.take(location, algorithm, cost, now)
                if decision is not None:
                    return decision
            digest = location.digest
            slot = table.find(stripe, digest)
            pinned = {stripe * table.slots + slot} if slot >= 0 else set()
            counter = SlotCounter(self, algorithm, digest, stripe, slot, now, pinned, (stripe,))
            counter.touch()
            state = counter.state
            if state is not None and counter.writer is algorithm:
                step = algorithm.step(state, now, cost)
                allowed, at, a, b, _, _, _ = step
                if at >= state.time:
                    if allowed and cost:
                        state.put(at, a, b, cost)
                        counter.changed()
                    return decision_of(algorithm, step)
            return decide(Op.TAKE, [Member(key, algorithm, cost)], [counter], now)[0].decision
        finally:
            self.locks.release(FIRST_STRIPE + stripe)

    def take_many(self, takes: Sequence[SingleTake]) -> list[Decision] | None:
        if self.closed:
            raise StoreClosedError(f"shared store {self.path} is closed")
        if self.has_virtual_clock:
            self.follow_clock()
        return take_many(self, takes)

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.has_virtual_clock:
            self.follow_clock()
        return self.apply_in(batch, self.timeout)

    def apply_within(self, batch: Sequence[Request], timeout: float) -> list[list[Outcome]] | None:
        if self.has_virtual_clock:
            self.follow_clock()
        try:
            return self.apply_in(batch, timeout)
        except LockBusyError:
            return None

    def apply_in(self, batch: Sequence[Request], timeout: float) -> list[list[Outcome]]:
        """LockBusyError, and nothing is decided, when a lock is not free within `timeout` seconds."""
        if self.closed:
            raise StoreClosedError(f"shared store {self.path} is closed")
        if self.anchor + self.nanoseconds() // 1000 >= self.next_size_check:
            self.corruption.check_size()
        for request in batch:
            if request.record is not None:
                return apply_idempotent(self, batch, timeout)
        return apply_batch(self, batch, timeout)

    def watch(self, batch: Sequence[Request]) -> Callable[[], bool]:
        detector = self.locks.detector(self.timeout)
        locations = [self.digests.locate(m.algorithm.name, m.key) for request in batch for m in request.members]
        numbers = sorted({FIRST_STRIPE + location.stripe for location in locations})
        return partial(self.locks.is_stalled, numbers, detector)

    def follow_clock(self) -> None:
        """Read a virtual clock. Unlike the machine's it may step back: what had expired before that is cleared, whether
        or not its slot was given to another counter."""
        now = self.clock.ticks()
        if now < self.latest and not self.closed:
            for stripe in range(self.table.stripes):
                self.locks.acquire(FIRST_STRIPE + stripe, self.timeout)
                try:
                    self.table.clear_expired(stripe, self.latest)
                finally:
                    self.locks.release(FIRST_STRIPE + stripe)
        self.latest = now

    def open_records(self, timeout: float) -> SharedRecords:
        """Open the file of idempotency records, when it is first needed."""
        self.locks.acquire(HEADER, timeout)
        try:
            if self.records is None:
                self.records = SharedRecords(self, self.prefix)
            return self.records
        finally:
            self.locks.release(HEADER)

    def counts(self) -> dict[str, int]:
        return {"store_resets": self.corruption.resets, "store_logs_full": self.arena.failures}

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self.locks.all_threads() as idle:
                if not idle:
                    return  # a check still uses the descriptor, whose number another file would get
                self.locks.close()
                self.words.release()
                self.memory.close()
                if self.records is not None:
                    self.records.close()
