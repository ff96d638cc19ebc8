# mypyc: compile
"""The slots of a shared counter file: where each one lies, which counter it holds, and the fast path of a take.

Everything here is done under the lock of the slot's stripe.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.decision import Decision
from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreError
from crestgate.stores.shared.corruption import is_commit_count
from crestgate.stores.shared.layout import COPY_WORDS, INLINE_USE, RING_CELLS, STATE_BYTES, Geometry
from crestgate.stores.shared.location import Location
from crestgate.stores.shared.slot_writers import SlotWriters

__all__ = ["SlotTable"]

_WORD = struct.Struct("@q")
_META = struct.Struct("@2q")
_NUMBERS = struct.Struct("@7q")
_STATE = struct.Struct("@3q32s")
_COPY = struct.Struct(f"@{COPY_WORDS}q")
COPY_BYTES: Final = COPY_WORDS * 8
USE_INTERVAL_US: Final = 10_000
"""How often at most the use of a counter is written down by one process."""


@final
class SlotTable:
    """All slots of one mapped file. Single words are written through `words`, in one store instruction each, because
    `struct` zeroes its target first."""

    def __init__(self, path: str, memory: mmap, words: memoryview, geometry: Geometry) -> None:
        self.path = path
        self.memory = memory
        self.words = words
        # Plain attributes: a property or a module lookup would cost as much as what it is used for.
        self.pack_numbers: Callable[[mmap, int, int, int, int, int, int, int, int], None] = _NUMBERS.pack_into
        self.unpack_state: Callable[[mmap, int], tuple[int, int, int, bytes]] = _STATE.unpack_from
        self.pack_state: Callable[[mmap, int, int, int, int, bytes], None] = _STATE.pack_into
        self.unpack_copy: Callable[[mmap, int], tuple[int, ...]] = _COPY.unpack_from
        self.stripes = geometry.stripes
        self.slots = geometry.slots
        """Slots of each stripe."""
        self.stripes_at = geometry.stripes_at
        self.stripe_bytes = geometry.stripe_bytes
        self.writers = SlotWriters()

    def find(self, stripe: int, digest: bytes) -> int:
        """The slot that holds this counter, or -1. Most counters are in the slot their digest points at."""
        start = self.stripes_at + stripe * self.stripe_bytes
        home = digest[12] % self.slots
        if self.memory[start + home * 16 : start + home * 16 + 16] == digest:
            return home
        digests = self.memory[start : start + self.slots * 16]
        at = digests.find(digest)
        while at >= 0 and at % 16:
            at = digests.find(digest, at + 1)
        return at // 16

    def load(self, location: Location, algorithm: Algorithm) -> bool:
        """Bring the state in `location` up to date. False when the counter does not exist, keeps a log, was written
        under another limit, or looks corrupt: `SlotCounter` then reads or reports it."""
        words = self.words
        if (
            location.algorithm is algorithm
            and words[location.commit_word] == location.commits
            and words[location.digest_word]  # not freed
        ):
            return True
        location.algorithm = None
        stripe = location.stripe
        slot = -1 if algorithm.keeps_log else self.find(stripe, location.digest)
        if slot < 0:
            return False
        at = self.state_at(stripe, slot)
        commits: int = words[at >> 3]
        then, a, b, signature = self.unpack_state(self.memory, at + 8 + (commits & 1) * COPY_BYTES)
        if (
            signature != self.writers.packed_signature(algorithm)
            or not is_commit_count(commits)
            or not algorithm.is_plausible(then, a, b)
        ):
            return False
        location.signature = signature
        location.state.put(then, a, b, 0)
        location.commits = commits
        location.used = 0
        location.first_copy = at + 8
        location.digest_word = (self.stripes_at + stripe * self.stripe_bytes + slot * 16) >> 3
        meta_word = self.meta_at(stripe, slot) >> 3
        location.expiry_word = meta_word
        location.used_word = meta_word + 1
        location.commit_word = at >> 3
        location.algorithm = algorithm
        return True

    def take(self, location: Location, algorithm: Algorithm, cost: i64, now: i64) -> Decision | None:
        """Fast path for a counter that was loaded; None for what it does not cover, and nothing is changed."""
        state = location.state
        allowed, when, a, b, remaining, wait, reset = algorithm.step(state, now, cost)
        if when < state.time or not cost:
            return None  # a rebase, which is written whatever the decision
        words = self.words
        used = now + INLINE_USE if algorithm.inline else now
        if not 0 <= used - location.used < USE_INTERVAL_US:
            words[location.used_word] = used
            location.used = used
        if allowed:
            # As in SlotCounter.changed: the expiry first, then the other copy, then the word that commits it.
            words[location.expiry_word] = now + reset
            commits = location.commits
            other = location.first_copy if commits & 1 else location.first_copy + COPY_BYTES
            self.pack_state(self.memory, other, when, a, b, location.signature)
            words[location.commit_word] = commits + 1
            state.time = when
            state.a = a
            state.b = b
            location.commits = commits + 1
        return Decision(algorithm, allowed, remaining, wait, reset, None)

    def allocate(self, stripe: int, digest: bytes, now: int, pinned: set[int], inline: bool) -> int:
        """A slot for a new counter: free, else expired, else the least recently used. Inline limits are evicted first
        and never evict another counter: otherwise any caller could flush the counters of rules and plans.

        A slot without a digest is free, whatever its expiry: its writer was killed after it had written the expiry of a
        new counter, or before it had cleared that of an old one."""
        first = stripe * self.slots
        chosen = digest[12] % self.slots
        in_use = self.meta(stripe, chosen)[0] > now and self.is_assigned(stripe, chosen)
        if in_use or first + chosen in pinned:
            chosen = -1
            oldest = 0
            is_free = False
            meta = struct.unpack_from(f"@{2 * self.slots}q", self.memory, self.meta_at(stripe, 0))
            digests_at = self.stripes_at + stripe * self.stripe_bytes
            digests = struct.unpack_from(f"@{2 * self.slots}q", self.memory, digests_at)
            for slot in range(self.slots):
                if first + slot in pinned:
                    continue
                if meta[2 * slot] <= now or not digests[2 * slot]:
                    chosen = slot
                    is_free = True
                    break
                if chosen < 0 or meta[2 * slot + 1] < oldest:
                    chosen = slot
                    oldest = meta[2 * slot + 1]
            if chosen < 0:
                raise StoreError(f"shared store {self.path}: one request has more counters than max_keys")
            if inline and oldest >= 0 and not is_free:
                raise StoreError(
                    f"shared store {self.path}: no room for another inline limit: counters of rules and plans fill its "
                    "stripe; give the file a larger max_keys"
                )
        self.clear(stripe, chosen)
        return chosen

    def assign(self, stripe: int, slot: int, digest: bytes) -> None:
        """Give a slot to a counter. The first half of the digest is written last: it makes the slot count."""
        at = self.stripes_at + stripe * self.stripe_bytes + slot * 16
        self.memory[at + 8 : at + 16] = digest[8:]
        self.words[at >> 3] = _WORD.unpack_from(digest)[0]

    def clear(self, stripe: int, slot: int) -> None:
        """Free a slot, and with it the blocks of its log: no committed state refers to them any more."""
        at = self.stripes_at + stripe * self.stripe_bytes + slot * 16
        meta_at = self.meta_at(stripe, slot)
        self.words[at >> 3] = 0
        self.words[meta_at >> 3] = 0
        self.words[(meta_at >> 3) + 1] = 0
        state_at = self.state_at(stripe, slot)
        if not is_commit_count(self.words[state_at >> 3]):
            self.words[state_at >> 3] = 0

    def clear_expired(self, stripe: int, now: int) -> None:
        """Free every slot that has expired at this time. Done before the clock steps back, which would bring the old
        states to life again; other stores may have dropped them by then."""
        for slot in range(self.slots):
            expiry, _ = self.meta(stripe, slot)
            if 0 < expiry <= now:
                self.clear(stripe, slot)

    def clear_after_restart(self, now: int) -> None:
        """The wall clock may be behind after a restart of the machine: as after a step back, free what had expired at
        the latest use of any counter. Nobody else uses the file yet."""
        latest = 0
        for stripe in range(self.stripes):
            for slot in range(self.slots):
                latest = max(latest, self.meta(stripe, slot)[1])
        if now < latest:
            for stripe in range(self.stripes):
                self.clear_expired(stripe, latest)

    def is_assigned(self, stripe: int, slot: int) -> bool:
        """Whether a slot holds a counter."""
        first: int = self.words[(self.stripes_at + stripe * self.stripe_bytes + slot * 16) >> 3]
        return first != 0

    def meta(self, stripe: int, slot: int) -> tuple[int, int]:
        """Expiry and last use of a slot, in microseconds; 0 when it is free."""
        expiry, used = _META.unpack_from(self.memory, self.meta_at(stripe, slot))
        return expiry, used if used >= 0 else used - INLINE_USE

    def meta_at(self, stripe: int, slot: int) -> int:
        return self.stripes_at + stripe * self.stripe_bytes + self.slots * 16 + slot * 16

    def state_at(self, stripe: int, slot: int) -> int:
        return self.stripes_at + stripe * self.stripe_bytes + self.slots * 32 + slot * STATE_BYTES

    def ring_at(self, stripe: int, slot: int) -> int:
        return self.state_at(stripe, self.slots) + slot * RING_CELLS * 16
