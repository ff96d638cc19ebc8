"""Runs the conformance kit against the asyncio side of a remote store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from threading import Thread

from crestgate.errors import StoreError
from crestgate.stores.port import BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["AsyncStoreAdapter"]


class AsyncStoreAdapter:
    """A remote store whose `apply` calls `begin` on an event loop in a separate thread."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.clock = store.clock
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="crestgate event loop", daemon=True)
        self._thread.start()

    def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Apply on the event loop. After `close`, on a new one, so that the store raises its own error."""
        coroutine = self._apply(batch)
        if self._loop.is_closed():
            return asyncio.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self.store.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        future: asyncio.Future[BatchOutcomes] = asyncio.get_running_loop().create_future()

        def done(result: BatchOutcomes | StoreError) -> None:
            if isinstance(result, StoreError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.store.begin(batch, time.monotonic() + self.store.timeout, done)
        return await future
