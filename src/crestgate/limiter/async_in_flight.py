"""In-flight limits for asyncio: see in_flight.py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.limiter.in_flight import Slots
from crestgate.runtime.tasks import run_to_completion
from crestgate.stores.port import BatchOutcomes, Outcome, Request

__all__ = ["AsyncHeldSlots"]


class AsyncHeldSlots:
    """Returned by `AsyncLimiter.hold`: `async with` takes on entering and releases on leaving."""

    def __init__(
        self,
        take: Callable[[], Awaitable[Slots]],
        apply: Callable[[Sequence[Request]], Awaitable[BatchOutcomes]],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._take = take
        self._apply = apply
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._slots: Slots | None = None
        self._process = 0
        self._lock = asyncio.Lock()

    @property
    def decision(self) -> Decision:
        """The decision that admitted it."""
        return self._require().decision

    @property
    def lost(self) -> bool:
        """Whether a renewal has found a slot gone, or its result is unknown: another may hold it by now."""
        return self._require().lost

    async def renew(self) -> float | None:
        """Renew the slots; returns the seconds until the next renewal, or None when there is nothing to renew."""
        slots = self._require()
        async with self._lock:
            request = slots.renewal()
            if request is None or os.getpid() != self._process:
                return None
            outcomes: Sequence[Outcome] = []
            try:
                with suppress(StoreError):  # closed meanwhile
                    outcomes = (await self._apply([request]))[0]
            finally:  # after a failure or a cancellation it is unknown whether it renewed
                slots.renewed(outcomes)
            return slots.renewal_seconds

    async def __aenter__(self) -> AsyncHeldSlots:
        if self._slots is not None:
            raise RuntimeError("this hold was entered already")
        self._slots = await self._take()
        self._process = os.getpid()
        seconds = self._slots.renewal_seconds
        if seconds is not None:
            self._task = asyncio.get_running_loop().create_task(self._keep(seconds))
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def release(self) -> None:
        """Release what is still held, also if the caller is cancelled; the second time there is nothing."""
        self._require()
        if os.getpid() == self._process:
            await run_to_completion(self._release())

    async def _keep(self, seconds: float | None) -> None:
        while seconds is not None:
            await asyncio.sleep(seconds)
            seconds = await self.renew()

    async def _release(self) -> None:
        async with self._lock:  # after a renewal that is under way: it moves the entries
            request = self._require().release()
            if self._task is not None:
                self._task.cancel()
            if request is not None:
                await self._apply([request])

    def _require(self) -> Slots:
        if self._slots is None:
            raise RuntimeError("enter the hold first: async with limiter.hold(...) as held")
        return self._slots
