"""Base of stores with a blocking driver: on an event loop a few threads make its calls.

A hop to a thread and back costs tens of microseconds, per batch and not per check, because concurrent checks are
batched. So one blocking driver serves threads and event loops, and there is no second one to maintain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import final

from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.port import BatchCallback, BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["ThreadedStore"]


class ThreadedStore(RemoteStore):
    """Implements `connect_async` and `begin` by `connect` and `call`."""

    def __init__(self, title: str) -> None:
        self.threads = _Threads(title)

    async def connect_async(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.threads.pool(self.max_concurrent_batches), self.connect)

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        check_record_size(batch)  # here, where the caller gets the ValueError
        loop = asyncio.get_running_loop()
        pending = PendingBatch(loop, done, self.threads.title)
        pending.timer = loop.call_later(max(deadline - time.monotonic(), 0.0), pending.time_out)

        def work() -> None:
            if pending.finished:
                return  # timed out before a thread was free: nothing was sent
            result: BatchOutcomes | StoreError
            try:
                result = self.call(batch, deadline)
            except StoreError as error:
                result = error
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller must get it
                result = StoreError(f"{type(error).__name__}: {error}")
                result.__cause__ = error
            pending.set_result(result)

        try:
            self.threads.pool(self.max_concurrent_batches).submit(work)
        except StoreClosedError as error:
            pending.set_result(error)
        except RuntimeError as error:  # the interpreter is shutting down
            pending.set_result(StoreError(str(error)))

    def close(self) -> None:
        self.threads.close()


@final
class PendingBatch:
    """The caller of one batch on an event loop: gets one result, by the deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: BatchCallback, title: str) -> None:
        self.title = title
        self.loop = loop
        self.done = done
        self.finished = False
        self.result: BatchOutcomes | StoreError | None = None
        """Of the thread; the loop may not know yet."""
        self.timer: asyncio.TimerHandle | None = None

    def set_result(self, result: BatchOutcomes | StoreError) -> None:
        """From any thread."""
        self.result = result
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self.loop.call_soon_threadsafe(self.finish, result)

    def finish(self, result: BatchOutcomes | StoreError) -> None:
        """On the loop."""
        if self.finished:
            return  # a late result
        self.finished = True
        if self.timer is not None:
            self.timer.cancel()
        self.done(result)

    def time_out(self) -> None:
        if self.result is not None:  # it was there in time, and the loop was late
            self.finish(self.result)
            return
        self.finish(StoreError(f"{self.title}: no answer in time; the requests may have been counted"))


@final
class _Threads:
    """The thread pool of one store, created on first use, and again in a forked child."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lock = fork_safe_lock()
        self.executor: ThreadPoolExecutor | None = None
        self.closed = False
        renew_after_fork(self)

    def pool(self, size: int) -> ThreadPoolExecutor:
        with self.lock:
            if self.closed:
                raise StoreClosedError(f"{self.title}: this store is closed")
            if self.executor is None:
                self.executor = ThreadPoolExecutor(size, thread_name_prefix=self.title)
            return self.executor

    def renew(self) -> None:
        self.executor = None  # its threads are the parent's

    def close(self) -> None:
        """Does not wait for calls in progress: each ends by its deadline."""
        with self.lock:
            self.closed = True
            executor, self.executor = self.executor, None
        if executor is not None:
            executor.shutdown(wait=False)
