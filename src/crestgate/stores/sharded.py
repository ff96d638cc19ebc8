"""Several stores as one, sharded by consistent hashing of the subject.

Every store has many points on a hash ring, and a subject belongs to the next point after its own hash. Removing one of
N stores moves only its own subjects, about 1/N of all. All counters of a subject are in one store, so its chains are
atomic; for chains over several subjects see multi_node.py. An idempotency record is in the store of its name, as if
that were a subject.

A store's points depend on its address, without user, password and options: those may change. The order of the list
does not matter.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.errors import ConfigError, StoreClosedError, StoreError
from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork
from crestgate.stores.breaker import Breaker
from crestgate.stores.multi_node import Round, decide_by_node
from crestgate.stores.port import BatchCallback, BatchOutcomes, LocalStore, Member, Request
from crestgate.stores.remote_store import PROBE, RemoteStore

__all__ = ["ShardedStore"]

POINTS = 512
"""Points on the ring per store: enough that shares differ by a few percent only."""


@final
class ShardedStore(RemoteStore):
    """Several stores by address; at least one."""

    several_nodes = True

    def __init__(self, stores: Mapping[str, LocalStore | RemoteStore]) -> None:
        if not stores:
            raise ConfigError("a sharded store needs at least one store")
        self.stores = [stores[address] for address in sorted(stores)]
        ring = sorted(
            (_hash(f"{address}\0{point}".encode()), node)
            for node, address in enumerate(sorted(stores))
            for point in range(POINTS)
        )
        self._hashes = [point for point, _ in ring]
        self._nodes = [node for _, node in ring]
        self.title = f"{len(self.stores)} stores"
        self.clock = self.stores[0].clock
        self.timeout = max(store.timeout for store in self.stores) or 0.1
        self.max_concurrent_batches = max(
            (store.max_concurrent_batches for store in self.stores if isinstance(store, RemoteStore)), default=1
        )
        self._lock = fork_safe_lock()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = None

    def node_of(self, subject: str) -> int:
        """The index in `stores` of a subject's store."""
        at = bisect(self._hashes, _hash(subject.encode("utf-8", "surrogatepass")))
        return self._nodes[at % len(self._nodes)]

    def supports(self, algorithm: Algorithm) -> bool:
        return all(store.supports(algorithm) for store in self.stores if isinstance(store, RemoteStore))

    def breakers(self) -> dict[str, Breaker]:
        remote = [store for store in self.stores if isinstance(store, RemoteStore)]
        return {name: breaker for store in remote for name, breaker in store.breakers().items()}

    def probe_keys(self) -> list[str]:
        """One for each store; of a cluster in the list, only one node is probed."""
        keys_by_node: dict[int, str] = {}
        number = 0
        while len(keys_by_node) < len(self.stores):  # every store has a share of the keys
            key = f"{PROBE}-{number}"
            keys_by_node.setdefault(self.node_of(key), key)
            number += 1
        return list(keys_by_node.values())

    def connect(self) -> None:
        self._check_open()
        for store in self.stores:
            if isinstance(store, RemoteStore):
                store.connect()

    async def connect_async(self) -> None:
        for store in self.stores:
            if isinstance(store, RemoteStore):
                await store.connect_async()

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self._check_open()
        rounds = decide_by_node(batch, self.node_of_member, self.node_of, self.clock)
        try:
            requests = next(rounds)
            while True:
                requests = rounds.send(self._call_all(requests, deadline))
        except StopIteration as finished:
            outcomes: BatchOutcomes = finished.value
            return outcomes

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        self._check_open()
        _AsyncBatch(self, batch, deadline, done).advance(None)

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

    def node_of_member(self, member: Member) -> int:
        return self.node_of(member.key)

    def _call_all(self, requests: Round, deadline: float) -> dict[int, BatchOutcomes | StoreError]:
        """Call all stores of a round concurrently: one that hangs must not use up the time of the others."""
        *others, last = requests.items()
        futures = [(node, self.thread_pool().submit(self.call_node, node, batch, deadline)) for node, batch in others]
        results = {last[0]: self.call_node(last[0], last[1], deadline)}
        results.update((node, future.result()) for node, future in futures)
        return results

    def call_node(self, node: int, batch: Sequence[Request], deadline: float) -> BatchOutcomes | StoreError:
        store = self.stores[node]
        try:
            if isinstance(store, RemoteStore):
                return store.call(batch, min(deadline, time.monotonic() + store.timeout))
            return store.apply(batch)
        except StoreError as error:
            return error

    def thread_pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._check_open()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.max_concurrent_batches * len(self.stores), "crestgate-shards")
            return self._threads

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.title}: this store is closed")


@final
class _AsyncBatch:
    """One batch on an event loop."""

    def __init__(self, sharded: ShardedStore, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        self.sharded = sharded
        self.stores = sharded.stores
        self.rounds = decide_by_node(batch, sharded.node_of_member, sharded.node_of, sharded.clock)
        self.deadline = deadline
        self.done = done
        self.results: dict[int, BatchOutcomes | StoreError] = {}
        self.missing = 0

    def advance(self, results: dict[int, BatchOutcomes | StoreError] | None) -> None:
        """Start the next round, until there is a result to wait for."""
        while True:
            try:
                requests = next(self.rounds) if results is None else self.rounds.send(results)
            except StopIteration as finished:
                self.done(finished.value)
                return
            except StoreError as error:
                self.done(error)
                return
            self.results = {}
            self.missing = len(requests) + 1  # one more while they are being started
            for node, batch in requests.items():
                self.start(node, batch)
            self.missing -= 1
            if self.missing:
                return
            results = self.results

    def start(self, node: int, batch: Sequence[Request]) -> None:
        store = self.stores[node]

        def on_result(result: BatchOutcomes | StoreError) -> None:
            self.results[node] = result
            self.missing -= 1
            if not self.missing:
                self.advance(self.results)

        try:
            if isinstance(store, RemoteStore):
                store.begin(batch, min(self.deadline, time.monotonic() + store.timeout), on_result)
            elif store.waits:  # for other processes, and the loop must not block
                loop = asyncio.get_running_loop()
                future = loop.run_in_executor(
                    self.sharded.thread_pool(), self.sharded.call_node, node, batch, self.deadline
                )
                future.add_done_callback(lambda done: on_result(_result(done)))
            else:
                on_result(store.apply(batch))
        except StoreError as error:
            on_result(error)


def _result(future: asyncio.Future[BatchOutcomes | StoreError]) -> BatchOutcomes | StoreError:
    error = future.exception() if not future.cancelled() else None
    if future.cancelled() or error is not None:
        return StoreError(f"a store of the list failed: {error!r}")
    return future.result()


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest())
