"""Several stores as one: runs the rounds of a batch on all of them concurrently, with and without an event loop.

Which request goes to which store, and in which order, is decided without I/O by a generator of rounds (see
multi_node.py). Subclasses provide it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork
from crestgate.stores.breaker import Breaker
from crestgate.stores.multi_node import Round, RoundResults
from crestgate.stores.port import BatchCallback, BatchOutcomes, LocalStore, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["StoreGroup"]


class StoreGroup(RemoteStore):
    """Stores by number. A subclass says what to send them."""

    several_nodes = True

    def __init__(self, stores: Sequence[LocalStore | RemoteStore], title: str) -> None:
        self.stores = list(stores)
        self.title = title
        self.clock = self.stores[0].clock
        self.timeout = max(store.timeout for store in self.stores) or 0.1
        self.max_concurrent_batches = max(
            (store.max_concurrent_batches for store in self.stores if isinstance(store, RemoteStore)), default=1
        )
        remote = [store for store in self.stores if isinstance(store, RemoteStore)]
        self.max_members = min([self.max_members, *(store.max_members for store in remote)])
        self._lock = fork_safe_lock()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        renew_after_fork(self)

    def rounds(self, batch: Sequence[Request]) -> Generator[Round, RoundResults, BatchOutcomes]:
        """The requests for each store, round by round; returns the outcomes of the batch."""
        raise NotImplementedError

    def renew(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = None

    def supports(self, algorithm: Algorithm) -> bool:
        return all(store.supports(algorithm) for store in self.stores if isinstance(store, RemoteStore))

    def allows_local_decisions(self) -> bool:
        """If all stores allow it: not with one in memory, where counters are at hand and a give-back always counts."""
        return all(
            store.allows_local_decisions() if isinstance(store, RemoteStore) else store.waits for store in self.stores
        )

    def breakers(self) -> dict[str, Breaker]:
        remote = [store for store in self.stores if isinstance(store, RemoteStore)]
        return {name: breaker for store in remote for name, breaker in store.breakers().items()}

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
        rounds = self.rounds(batch)
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
                self._threads = ThreadPoolExecutor(self.max_concurrent_batches * len(self.stores), "crestgate-stores")
            return self._threads

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.title}: this store is closed")


class _AsyncBatch:
    """One batch on an event loop."""

    def __init__(self, group: StoreGroup, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        self.group = group
        self.stores = group.stores
        self.rounds = group.rounds(batch)
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
                    self.group.thread_pool(), self.group.call_node, node, batch, self.deadline
                )
                future.add_done_callback(lambda done: on_result(_result(done)))
            else:
                on_result(store.apply(batch))
        except StoreError as error:
            on_result(error)


def _result(future: asyncio.Future[BatchOutcomes | StoreError]) -> BatchOutcomes | StoreError:
    error = future.exception() if not future.cancelled() else None
    if future.cancelled() or error is not None:
        return StoreError(f"a store failed: {error!r}")
    return future.result()
