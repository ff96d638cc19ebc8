"""Limits for gRPC handlers that run on an event loop."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.drivers import check_async, release_slots_async, settle_async
from crestgate.integrations.grpc.calls import Context, Rpc, denial_status
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["AsyncRpc", "limited_coroutine", "limited_responses"]

RpcFactory = Callable[[Any], "AsyncRpc"]
"""Creates the Rpc for a context."""


class AsyncRpc(Rpc[AsyncLimiter]):
    """One call at one layer, on an event loop."""

    __slots__ = ()

    async def admit(self) -> None:
        """Check the call; abort it, which raises, if it is denied."""
        admission = self.admission = await check_async(self.layer, self.request, self.request_state, self.route)
        if admission is not None and admission.refused:
            await self.deny(admission.decision)

    async def deny(self, decision: Decision) -> None:
        custom = self.layer.custom_denial(self.request, decision)
        if inspect.isawaitable(custom):
            custom = await custom
        await self.abort(*denial_status(custom, decision))

    async def abort(self, code: Any, details: str, trailing: Any) -> None:
        if trailing:
            self.set_trailing(trailing)
        await self.finish(code)
        await self.native.abort(code, details)

    async def finish(self, code: object = None, *, failed: bool = False) -> None:
        """Settle the check and write the trailing metadata, once."""
        if not self.mark_finished():
            return
        settlement = self.settlement(code, failed=failed)
        if settlement is not None:
            await settle_async(*settlement)
        self.write_trailing()

    async def release(self) -> None:
        """Release the slots of in-flight limits: the call has ended."""
        if self.admission is not None and self.admission.held is not None:
            await release_slots_async([self.admission])

    async def fail(self, error: Exception) -> None:
        """Called with an error of the handler. Denies the call if it is a RateLimitExceeded."""
        if isinstance(error, RateLimitExceeded) and not self.finished:
            self.request_state.add_decision(error.decision)
            await self.deny(error.decision)
        await self.finish(failed=True)


class AsyncContext(Context):
    """The context of a handler on an event loop."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        await self._crestgate_rpc.abort(code, details, trailing_metadata)

    async def abort_with_status(self, status: Any) -> None:
        await self._crestgate_rpc.abort(status.code, status.details, status.trailing_metadata)


def limited_coroutine(behaviour: Callable[..., Any], create_rpc: RpcFactory) -> Callable[..., Any]:
    """Wrap a handler that returns one response, or writes its responses to the context."""

    async def call(request: Any, context: Any) -> Any:
        rpc = create_rpc(context)
        await rpc.admit()
        try:
            response = await behaviour(request, AsyncContext(rpc))
        except Exception as error:
            await rpc.fail(error)
            raise
        else:
            await rpc.finish()
            return response
        finally:
            await rpc.release()

    return call


def limited_responses(behaviour: Callable[..., Any], create_rpc: RpcFactory) -> Callable[..., Any]:
    """Wrap a handler that yields its responses."""

    async def responses(request: Any, context: Any) -> AsyncIterator[Any]:
        rpc = create_rpc(context)
        await rpc.admit()
        try:
            async with aclosing(behaviour(request, AsyncContext(rpc))) as stream:
                async for response in stream:
                    yield response
        except Exception as error:
            await rpc.fail(error)
            raise
        else:
            await rpc.finish()
        finally:
            await rpc.release()

    return responses
