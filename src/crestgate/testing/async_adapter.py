"""Runs the conformance kit against the asyncio side of a remote store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from threading import Thread

from crestgate.errors import StoreError
from crestgate.stores.port import BatchOutcomes, Request
from crestgate.stores.remote_port import RemoteStore

__all__ = ["AsyncStoreAdapter"]


class AsyncStoreAdapter:
    """A remote store whose `apply` calls `begin` on an event loop in a thread of its own."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.clock = store.clock
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="crestgate event loop", daemon=True)
        self._thread.start()

    def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Decide on the event loop; if that is closed on another one, so that the error is the store's own."""
        deciding = self._decide(batch)
        if self._loop.is_closed():
            return asyncio.run(deciding)
        return asyncio.run_coroutine_threadsafe(deciding, self._loop).result()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self.store.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _decide(self, batch: Sequence[Request]) -> BatchOutcomes:
        decided: asyncio.Future[BatchOutcomes] = asyncio.get_running_loop().create_future()

        def done(answer: BatchOutcomes | StoreError) -> None:
            if isinstance(answer, StoreError):
                decided.set_exception(answer)
            else:
                decided.set_result(answer)

        self.store.begin(batch, time.monotonic() + self.store.timeout, done)
        return await decided
