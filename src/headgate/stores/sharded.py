"""Several stores as one: each subject lives in one of them, chosen by consistent hashing.

Every store has many points on a ring of hashes, and a subject belongs to the next point after its own hash. Taking
one of N stores out moves only the subjects that were its own, about 1/N of all; the others stay where they are. All
counters of a subject are in one store, so its chains are atomic; chains over several subjects follow spread.py. What
is decided once is kept in the store that its record's name belongs to, as if it were a subject.

A store's place on the ring comes from its address, without user, password and options: those may change freely. The
order in which stores are listed does not matter.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.errors import ConfigError, StoreClosed, StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.forking import fork_safe_lock, renew_after_fork
from headgate.stores.port import Done, LocalStore, Member, Replies, Request
from headgate.stores.remote import PROBE, RemoteStore
from headgate.stores.spread import Round, spread

__all__ = ["ShardedStore"]

POINTS = 512
"""Points on the ring for each store: enough that their shares differ by a few percent only."""


@final
class ShardedStore(RemoteStore):
    """Several stores by address; at least one."""

    def __init__(self, stores: Mapping[str, LocalStore | RemoteStore]) -> None:
        if not stores:
            raise ConfigError("a sharded store needs at least one store")
        self.stores = [stores[address] for address in sorted(stores)]
        ring = sorted(
            (_hash(f"{address}\0{point}".encode()), place)
            for place, address in enumerate(sorted(stores))
            for point in range(POINTS)
        )
        self._hashes = [point for point, _ in ring]
        self._places = [place for _, place in ring]
        self.title = f"{len(self.stores)} stores"
        self.clock = self.stores[0].clock
        self.timeout = max(store.timeout for store in self.stores) or 0.1
        self.lanes = max((store.lanes for store in self.stores if isinstance(store, RemoteStore)), default=1)
        self._lock = fork_safe_lock()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = None

    def place_of(self, subject: str) -> int:
        """Which store a subject lives in: its position in `stores`."""
        at = bisect(self._hashes, _hash(subject.encode("utf-8", "surrogatepass")))
        return self._places[at % len(self._places)]

    def supports(self, algorithm: Algorithm) -> bool:
        return all(store.supports(algorithm) for store in self.stores if isinstance(store, RemoteStore))

    def breakers(self) -> dict[str, Breaker]:
        remote = [store for store in self.stores if isinstance(store, RemoteStore)]
        return {name: breaker for store in remote for name, breaker in store.breakers().items()}

    def probe_keys(self) -> list[str]:
        """One for each store; of a cluster in the list, only one of its nodes is asked."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < len(self.stores):  # every store has its share of the keys
            key = f"{PROBE}-{number}"
            found.setdefault(self.place_of(key), key)
            number += 1
        return list(found.values())

    def connect(self) -> None:
        self._check_open()
        for store in self.stores:
            if isinstance(store, RemoteStore):
                store.connect()

    async def connect_async(self) -> None:
        for store in self.stores:
            if isinstance(store, RemoteStore):
                await store.connect_async()

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        self._check_open()
        rounds = spread(batch, self._place_of_member, self.place_of, self.clock)
        try:
            asked = next(rounds)
            while True:
                asked = rounds.send(self._ask_all(asked, deadline))
        except StopIteration as over:
            replies: Replies = over.value
            return replies

    def begin(self, batch: Sequence[Request], deadline: float, done: Done) -> None:
        self._check_open()
        _Spreading(self, batch, deadline, done).go_on(None)

    def close(self) -> None:
        self._closed = True
        for store in self.stores:
            store.close()
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    async def aclose(self) -> None:
        for store in self.stores:
            if isinstance(store, RemoteStore):
                await store.aclose()
        self.close()

    def _place_of_member(self, member: Member) -> int:
        return self.place_of(member.key)

    def _ask_all(self, asked: Round, deadline: float) -> dict[int, Replies | StoreError]:
        """All stores of a round at the same time: one that hangs must not use up the time of the others."""
        waiting: list[tuple[int, Future[Replies | StoreError]]] = []
        *others, last = asked.items()
        for place, requests in others:
            waiting.append((place, self._pool().submit(self._ask, place, requests, deadline)))
        answers = {last[0]: self._ask(last[0], last[1], deadline)}
        answers.update((place, future.result()) for place, future in waiting)
        return answers

    def _ask(self, place: int, requests: Sequence[Request], deadline: float) -> Replies | StoreError:
        store = self.stores[place]
        try:
            if isinstance(store, RemoteStore):
                return store.call(requests, min(deadline, time.monotonic() + store.timeout))
            return store.apply(requests)
        except StoreError as error:
            return error

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._check_open()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.lanes * len(self.stores), "headgate-shards")
            return self._threads

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.title}: this store is closed")


@final
class _Spreading:
    """One batch on its way through the stores, on an event loop."""

    def __init__(self, sharded: ShardedStore, batch: Sequence[Request], deadline: float, done: Done) -> None:
        self.sharded = sharded
        self.stores = sharded.stores
        self.rounds = spread(batch, sharded._place_of_member, sharded.place_of, sharded.clock)
        self.deadline = deadline
        self.done = done
        self.answers: dict[int, Replies | StoreError] = {}
        self.missing = 0

    def go_on(self, answers: dict[int, Replies | StoreError] | None) -> None:
        while True:
            try:
                asked = next(self.rounds) if answers is None else self.rounds.send(answers)
            except StopIteration as over:
                self.done(over.value)
                return
            except StoreError as error:
                self.done(error)
                return
            self.answers = {}
            self.missing = len(asked) + 1  # one more while they are being asked
            for place, requests in asked.items():
                self.ask(place, requests)
            self.missing -= 1
            if self.missing:
                return
            answers = self.answers

    def ask(self, place: int, requests: Sequence[Request]) -> None:
        store = self.stores[place]

        def heard(answer: Replies | StoreError) -> None:
            self.answers[place] = answer
            self.missing -= 1
            if not self.missing:
                self.go_on(self.answers)

        try:
            if isinstance(store, RemoteStore):
                store.begin(requests, min(self.deadline, time.monotonic() + store.timeout), heard)
            elif store.waits:  # for other processes, and the loop must not
                loop = asyncio.get_running_loop()
                asked = loop.run_in_executor(self.sharded._pool(), self.sharded._ask, place, requests, self.deadline)
                asked.add_done_callback(lambda answered: heard(_result(answered)))
            else:
                heard(store.apply(requests))
        except StoreError as error:
            heard(error)


def _result(answered: asyncio.Future[Replies | StoreError]) -> Replies | StoreError:
    error = answered.exception() if not answered.cancelled() else None
    if answered.cancelled() or error is not None:
        return StoreError(f"a store of the list could not be asked: {error!r}")
    return answered.result()


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest())
