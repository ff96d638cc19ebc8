"""What event loops need of a store: connections and coalescers of each loop, and waiting without blocking it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any
from weakref import WeakSet

from crestgate.errors import StoreError
from crestgate.limiter.backend import Backend
from crestgate.limiter.local_decisions import LocalDecisions
from crestgate.limiter.loop_coalescer import LoopCoalescer
from crestgate.limiter.reservation import undo_requests
from crestgate.stores.port import BatchOutcomes, LocalStore, Op, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["LoopDriver"]

MIN_SLEEP = 0.0005
MAX_SLEEP = 0.01


class LoopDriver:
    """A backend, for the tasks of event loops."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = backend.store
        self.uses_coalescers = isinstance(backend.store, RemoteStore)
        """Whether the limiter submits its requests to a coalescer itself, without calling `apply`."""
        self.coalescers: dict[asyncio.AbstractEventLoop, LoopCoalescer] = {}
        """Of a remote store, for each loop on which it was connected, or connecting has failed."""
        self.connected: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._was_connected = False
        """Whether the store was reached on any loop, in the parent of a forked process too. From then on the first
        request on a loop opens its connection by its own deadline, and does not wait for `connect_async`."""
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._settling: set[asyncio.Task[BatchOutcomes]] = set()

    def apply(self, batch: Sequence[Request]) -> Coroutine[Any, Any, BatchOutcomes]:
        """Decide requests here, if that is possible, and else by the store."""
        decisions = self.backend.local_decisions
        return self.send(batch) if decisions is None else self._decide(decisions, batch)

    async def _decide(self, decisions: LocalDecisions, batch: Sequence[Request]) -> BatchOutcomes:
        """As `Backend.decide`."""
        call = decisions.prepare(batch)
        if call.replies is not None:
            return call.replies
        try:
            replies = await self.send(call.requests)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            return decisions.fail(call, error)
        return decisions.finish(call, replies)

    async def send(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send requests to the store."""
        store = self.store
        if not isinstance(store, LocalStore):
            return await (self.submit(batch) if isinstance(store, RemoteStore) else self._apply_in_thread(batch))
        replies = store.apply_within(batch, 0.0)
        if replies is not None:
            return replies
        if all(request.op in (Op.GIVE_BACK, Op.CHARGE) for request in batch):
            return await self._settle(store, batch)
        return await self._poll(store, batch)

    def fallback(self, error: StoreError, batch: Sequence[Request]) -> BatchOutcomes:
        """The failure policy's replies; what it takes back is sent."""
        fallback = self.backend.fallback(error, batch)
        coalescer = self.coalescers.get(asyncio.get_running_loop()) if fallback.undo else None
        if coalescer is not None:
            coalescer.send(fallback.undo)
        return fallback.replies

    async def connect(self) -> None:
        """Connect to a remote store; StoreError when that fails."""
        if isinstance(self.store, RemoteStore):
            await self.store.connect_async()
            self.connected.add(asyncio.get_running_loop())
            self._was_connected = True

    async def drain(self) -> None:
        """Wait for settlements whose callers were cancelled; each ends by the store's deadline."""
        loop = asyncio.get_running_loop()
        settling = [task for task in self._settling if task.get_loop() is loop]
        if settling:
            await asyncio.wait(settling)

    async def submit(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send requests to a remote store."""
        coalescer = self.coalescers.get(asyncio.get_running_loop()) or await self.open_coalescer()
        future = coalescer.submit(batch)
        try:
            return await future
        except asyncio.CancelledError:
            coalescer.abandon(batch, future)
            raise

    async def open_coalescer(self) -> LoopCoalescer:
        """The coalescer of the running event loop; the first request of all connects."""
        store = self.backend.remote
        assert store is not None
        loop = asyncio.get_running_loop()
        connecting = self._connecting.get(loop)
        if connecting is None and not self._was_connected and loop not in self.connected:
            connecting = self._connecting[loop] = loop.create_task(store.connect_async())
        try:
            if connecting is not None:
                await asyncio.shield(connecting)
                self._was_connected = True
        finally:
            if connecting is None or connecting.done():  # or this caller was cancelled, and others still wait
                self._connecting.pop(loop, None)
                if loop not in self.coalescers:
                    for closed in [other for other in list(self.coalescers) if other.is_closed()]:
                        self.coalescers.pop(closed, None)
                    self.coalescers[loop] = LoopCoalescer(store, loop, undo_requests)
        return self.coalescers[loop]

    async def _poll(self, store: LocalStore, batch: Sequence[Request]) -> BatchOutcomes:
        """Retry a busy local store until its deadline, and let other tasks run in between. After that a thread waits:
        only waiting threads are sure to get their turn."""
        is_stalled = store.watch(batch)
        seconds = MIN_SLEEP
        deadline = time.monotonic() + store.timeout
        while not is_stalled():
            if time.monotonic() > deadline:
                return await self._apply_in_thread(batch)
            await asyncio.sleep(seconds)
            replies = store.apply_within(batch, 0.0)
            if replies is not None:
                return replies
            seconds = min(seconds * 2, MAX_SLEEP)
        raise StoreError(f"the store was busy for {store.timeout * 1000:.0f} ms; a process that uses it may be stopped")

    async def _settle(self, store: LocalStore, batch: Sequence[Request]) -> BatchOutcomes:
        """`_poll` for a settlement, which goes on when its caller is cancelled: the cost was charged already."""

        async def settle() -> BatchOutcomes:
            try:
                return await self._poll(store, batch)
            except StoreError as error:  # here, because a caller that was cancelled does not see it
                return self.backend.fallback(error, batch).replies

        settling = asyncio.get_running_loop().create_task(settle())
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        return await asyncio.shield(settling)

    async def _apply_in_thread(self, batch: Sequence[Request]) -> BatchOutcomes:
        """A caller that is cancelled meanwhile gets no decision, so what the thread takes for it is given back."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, self.store.apply, batch)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:

            def give_back(done: asyncio.Future[BatchOutcomes]) -> None:
                if not done.cancelled() and done.exception() is None:
                    loop.run_in_executor(None, self.store.apply, undo_requests(batch, done.result()))

            future.add_done_callback(give_back)
            raise
