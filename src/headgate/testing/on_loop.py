"""The asyncio side of a store, as a plain store: so that the same kit, vectors and comparisons hold it too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from threading import Thread

from headgate.errors import StoreError
from headgate.stores.port import Replies, Request
from headgate.stores.remote import RemoteStore

__all__ = ["OnLoop"]


class OnLoop:
    """A store across a network whose `apply` goes through `begin`, on an event loop in a thread of its own."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.clock = store.clock
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="event loop of a store", daemon=True)
        self._thread.start()

    def apply(self, batch: Sequence[Request]) -> Replies:
        """Decide on the event loop; once that is closed on another one, so that the store itself says what it says."""
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

    async def _decide(self, batch: Sequence[Request]) -> Replies:
        decided: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()

        def done(answer: Replies | StoreError) -> None:
            if isinstance(answer, StoreError):
                decided.set_exception(answer)
            else:
                decided.set_result(answer)

        self.store.begin(batch, time.monotonic() + self.store.timeout, done)
        return await decided
