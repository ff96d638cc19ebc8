"""`AsyncLimiter`: the library's front door for asyncio. What it shares with `Limiter` is in ruled.py and asking.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import SupportsIndex

from headgate.core.decision import Decision
from headgate.embedded.asking import Holding, Prepared, PreparedChain, Simple, Taken, decided_at_once, decisions_of
from headgate.embedded.ruled import Ruled
from headgate.engine import async_limiter
from headgate.errors import StoreError
from headgate.rules.context import Asked, RequestContext
from headgate.stores.port import Once, Op, Request

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
        await self.reset_prepared(self.prepare(Op.RESET, context, 0))

    @property
    def answers_at_once(self) -> bool:
        """Whether the store is on this machine, so that most can be decided without waiting."""
        return self._engine.local is not None

    def take_at_once(self, contexts: Sequence[Asked], costs: Sequence[int]) -> list[Taken] | None:
        """The simplest requests, decided without waiting and without ceremony; None where `decide` is needed."""
        local = self._engine.local
        if local is None:
            return None
        rules = self._rules()
        simple = rules.simple(contexts, costs, local.clock.ticks())
        if simple is None:
            return None
        try:
            return rules.take_simple(local, simple)
        except StoreError:
            return None

    def simple(self, contexts: Sequence[Asked], costs: Sequence[int]) -> Simple | None:
        """Such requests, ready for `take_simple`; None where `decide` is needed."""
        local = self._engine.local
        return None if local is None else self._rules().simple(contexts, costs, local.clock.ticks())

    def take_simple(self, simple: Simple) -> list[Taken] | None:
        """Decide them without waiting and without ceremony; None where that cannot be, and nothing was done then."""
        local = self._engine.local
        if local is None:
            return None
        try:
            return self._rules().take_simple(local, simple)
        except StoreError:
            return None

    def decide_at_once(self, prepared: Sequence[Prepared | PreparedChain]) -> list[Decision] | None:
        """What `decide` would say, where the store answers without waiting; None where it does not, or not now."""
        local = self._engine.local
        if local is None:
            return None
        try:
            return decided_at_once(local, prepared, self._engine.failure)
        except StoreError:
            return None  # `decide` asks again, and has a policy for it

    async def decide(
        self, prepared: Sequence[Prepared | PreparedChain], once: Once | None = None
    ) -> list[Decision] | None:
        """The decisions on all that was prepared, each for itself, in one call of the store.

        With `once` all of them are decided once: None when they had been before, and `once` says what came of it.
        """
        asked: list[Request] = []
        for one in prepared:
            request = one.request
            if once is not None:
                asked.append(Request(Op.TAKE, [] if request is None else request.members, once))
            elif request is not None:
                asked.append(request)
        replies = await self._apply(asked) if asked else []
        if once is None:
            return decisions_of(prepared, replies)
        if once.kept is not None or once.pending:
            return None
        return [one.decision(reply) for one, reply in zip(prepared, replies, strict=True)]

    async def hold(self, prepared: Prepared | PreparedChain) -> Holding:
        """Decide what was prepared for a TAKE, and keep what is needed to give it back."""
        return Holding(prepared, [] if prepared.request is None else (await self._apply([prepared.request]))[0])

    async def give_back(self, holding: Holding) -> Decision:
        """Undo what was held; how its counters stand then."""
        request = holding.returning()
        return holding.returned(self._engine, [] if request is None else (await self._apply([request]))[0])

    async def reset_prepared(self, prepared: Prepared | PreparedChain) -> None:
        """Forget the counters of what was prepared for a RESET."""
        if prepared.request is not None:
            await self._apply([prepared.request])
            prepared.forgotten()

    async def aclose(self) -> None:
        """Let go of the store, if this limiter opened it, and of the rules, if `from_config` did."""
        if self._owns_catalog:
            await asyncio.to_thread(self.catalog.close)
        await super().aclose()

    async def _decide_request(self, op: Op, context: RequestContext, cost: SupportsIndex) -> Decision:
        prepared = self.prepare(op, context, cost)
        return prepared.decision([] if prepared.request is None else (await self._apply([prepared.request]))[0])
