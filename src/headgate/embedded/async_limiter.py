"""`AsyncLimiter`: the library's front door for asyncio. What it shares with `Limiter` is in ruled.py and asking.py."""

from __future__ import annotations

import asyncio
from typing import SupportsIndex

from headgate.core.decision import Decision
from headgate.embedded.ruled import Ruled
from headgate.engine import async_limiter
from headgate.rules.context import RequestContext
from headgate.stores.port import Op

__all__ = ["AsyncLimiter"]


class AsyncLimiter(Ruled, async_limiter.AsyncLimiter):
    """The same limits for asyncio: the methods of `Limiter` as coroutines, and `async with` for `reserve`."""

    async def check_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """Decide a request under all rules that apply to it, and consume its cost when it is admitted."""
        return await self._decide_request(Op.TAKE, context, cost)

    async def peek_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """The decision `check_request` would give now; consumes nothing."""
        return await self._decide_request(Op.PEEK, context, cost)

    async def reset_request(self, context: RequestContext) -> None:
        """Forget the counters of all rules that apply to a request."""
        prepared = self._rules().prepare(Op.RESET, context, 0)
        if prepared.request is not None:
            await self._apply([prepared.request])
            prepared.forgotten()

    async def aclose(self) -> None:
        """Let go of the store, if this limiter opened it, and of the rules, if `from_config` did."""
        if self._owns_catalog:
            await asyncio.to_thread(self.catalog.close)
        await super().aclose()

    async def _decide_request(self, op: Op, context: RequestContext, cost: SupportsIndex) -> Decision:
        prepared = self._rules().prepare(op, context, cost)
        return prepared.decision([] if prepared.request is None else (await self._apply([prepared.request]))[0])
