"""Limits before a gRPC handler that runs on an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.drivers import check_async, settle_async
from crestgate.integrations.grpc.calls import Context, Rpc, shaped_denial
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["LoopRpc", "limited_coroutine", "limited_responses"]

Begun = Callable[[Any], "LoopRpc"]
"""Makes the call that a context is of."""


class LoopRpc(Rpc[AsyncLimiter]):
    """One call at one layer, on an event loop."""

    __slots__ = ()

    async def admit(self) -> None:
        """Let the call go on, or abort it, which raises."""
        admission = self.admission = await check_async(self.layer, self.request, self.request_state, self.route)
        if admission is None:
            return
        if admission.refused:
            await self.deny(admission.decision)
        delay = self.layer.delay(admission.decision)
        if delay:
            await asyncio.sleep(delay)

    async def deny(self, decision: Decision) -> None:
        on_denied = self.layer.on_denied
        shaped = None if on_denied is None else on_denied(self.request, decision)
        if inspect.isawaitable(shaped):
            shaped = await shaped
        await self.abort(*shaped_denial(shaped, decision))

    async def abort(self, code: Any, details: str, trailing: Any) -> None:
        if trailing:
            self.set_trailing(trailing)
        await self.finish(code)
        await self.native.abort(code, details)

    async def finish(self, code: object = None, *, failed: bool = False) -> None:
        """The call ends."""
        if self.is_over():
            return
        ending = self.ends(code, failed=failed)
        if ending is not None:
            await settle_async(*ending)
        self.call()

    async def failed(self, error: Exception) -> None:
        """The handler has raised."""
        if isinstance(error, RateLimitExceeded) and not self.over:
            self.request_state.add_decision(error.decision)
            await self.deny(error.decision)
        await self.finish(failed=True)


class LoopContext(Context):
    """The context of a handler on an event loop."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        await self._crestgate_rpc.abort(code, details, trailing_metadata)

    async def abort_with_status(self, status: Any) -> None:
        await self._crestgate_rpc.abort(status.code, status.details, status.trailing_metadata)


def limited_coroutine(behaviour: Callable[..., Any], begun: Begun) -> Callable[..., Any]:
    """A handler that returns its one response, or writes its responses to the context."""

    async def call(request: Any, context: Any) -> Any:
        rpc = begun(context)
        await rpc.admit()
        try:
            response = await behaviour(request, LoopContext(rpc))
        except Exception as error:
            await rpc.failed(error)
            raise
        await rpc.finish()
        return response

    return call


def limited_responses(behaviour: Callable[..., Any], begun: Begun) -> Callable[..., Any]:
    """A handler that yields its responses."""

    async def responses(request: Any, context: Any) -> AsyncIterator[Any]:
        rpc = begun(context)
        await rpc.admit()
        try:
            async with aclosing(behaviour(request, LoopContext(rpc))) as iterated:
                async for response in iterated:
                    yield response
        except Exception as error:
            await rpc.failed(error)
            raise
        await rpc.finish()

    return responses
