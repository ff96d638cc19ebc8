"""The interceptor: which limits a call has, and how its handler is wrapped."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeAlias, Unpack, cast

import grpc

from crestgate.errors import ConfigError
from crestgate.integrations.grpc.async_handlers import LoopRpc, limited_coroutine, limited_responses
from crestgate.integrations.grpc.calls import RpcRequest, RpcResponse
from crestgate.integrations.grpc.sync_handlers import ThreadRpc, limited_call, limited_callback, limited_stream
from crestgate.integrations.layer import L, LayerLimits, LayerOptions, LimitLayer
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for, sync_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["RateLimitInterceptor", "RpcRequest", "RpcResponse"]

MethodLimits: TypeAlias = "LayerLimits | Mapping[str, LayerLimits]"
Layers = Callable[[str], "LimitLayer[L] | None"]
_KINDS: dict[tuple[bool, bool], str] = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
_METHOD = re.compile(r"/[\w.]+/(?:\w+|\*)", re.ASCII)
_visit: ContextVar[RequestState | None] = ContextVar(NAME, default=None)
"""Of the call that interceptors are just asked about: those further in share it with those around them."""


class RateLimitInterceptor(grpc.ServerInterceptor, grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no types
    """Limits the calls of a server.

    `limiter` and the options are those of every integration; `limits` may also be a mapping of methods to limits.
    `on_denied` may return the code and the text of the denial, or a `grpc.Status`. `when` is given the RpcResponse:
    `when=lambda response: response.code is grpc.StatusCode.UNAUTHENTICATED` counts only calls that end so.
    """

    def __init__(
        self,
        limiter: GivenLimiter = None,
        limits: MethodLimits = None,
        *,
        scope: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if options.get("methods") is not None:
            raise ConfigError(
                "methods= is of HTTP, and every call is a POST to it: name the methods that are limited in "
                "limits={'/package.Service/Method': …}, or those that are not in exempt=['/package.Service/Method']"
            )
        self._limiter = limiter
        self._limits = _kept(limits)
        self._scope = scope
        self._options = cast(LayerOptions, {name: _kept(given) for name, given in options.items()})
        self._on_loops: Layers[AsyncLimiter] = self._gates(async_limiter_for(limiter))
        self._on_threads: Layers[Limiter] | None = None
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # most likely for threads: reach the store now, so that no call is the first to
            self._on_threads = self._gates(sync_limiter_for(limiter))

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """The handler of a call with the limits before it. On an event loop's server, a coroutine that finds it."""
        request_state = _visit.get() or RequestState()
        before = _visit.set(request_state)
        try:
            handler_found = continuation(handler_call_details)
        finally:
            _visit.reset(before)
        if inspect.isawaitable(handler_found):
            return self._intercept_on_loop(handler_found, handler_call_details.method, request_state)
        return self._limited(handler_found, _unknown_in_thread, handler_call_details.method, request_state)

    async def _intercept_on_loop(self, finding: Any, name: str, request_state: RequestState) -> Any:
        before = _visit.set(request_state)
        try:
            handler_found = await finding
        finally:
            _visit.reset(before)
        return self._limited(handler_found, _unknown_on_loop, name, request_state)

    def _limited(self, handler_found: Any, unknown: Any, name: str, request_state: RequestState) -> Any:
        """The same handler, limited. A server treats one by what kind of function it is, so that stays."""
        handler = unknown if handler_found is None else handler_found
        kind = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)
        if inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour):
            limited = self._limited_on_loop(behaviour, name, request_state)
        else:
            limited = self._limited_in_thread(behaviour, handler.response_streaming, name, request_state)
        if limited is None:
            return handler_found
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wraps(behaviour)(limited),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _limited_on_loop(self, behaviour: Any, name: str, request_state: RequestState) -> Any:
        layer = self._on_loops(name)
        if layer is None:
            return None
        limited = limited_responses if inspect.isasyncgenfunction(behaviour) else limited_coroutine
        return limited(behaviour, lambda context: LoopRpc(layer, request_state, context, name, self._route(name)))

    def _limited_in_thread(self, behaviour: Any, streams: bool, name: str, request_state: RequestState) -> Any:
        layer = self._on_loops(name)  # those for threads have the same, and are asked for in a thread
        if layer is None:
            return None
        layer.refuse_coroutines("a handler that is a plain function")
        if streams and getattr(behaviour, "experimental_non_blocking", False):
            limited = limited_callback
        else:
            limited = limited_stream if streams else limited_call
        return limited(
            behaviour,
            lambda context: ThreadRpc(self._for_threads(name), request_state, context, name, self._route(name)),
        )

    def _for_threads(self, name: str) -> LimitLayer[Limiter]:
        gates = self._on_threads
        if gates is None:  # made on an event loop, for a server of threads or plain functions among its own
            gates = self._on_threads = self._gates(sync_limiter_for(self._limiter))
        layer = gates(name)
        assert layer is not None, name
        return layer

    def _gates(self, limiter: L) -> Layers[L]:
        """Which limits a method has, by its name."""
        limits = self._limits
        if not isinstance(limits, Mapping):
            everywhere = LimitLayer(limiter, limits, scope=self._scope, **self._options)
            return lambda _: everywhere
        named = {_checked(name): self._gate(limiter, of) for name, of in limits.items()}
        if not named:
            raise ConfigError("limits names no method: write limits={'/package.Service/Method': '5/minute'}")
        return lambda name: named[name] if name in named else named.get(f"{name.rpartition('/')[0]}/*")

    def _route(self, name: str) -> str | None:
        """What limits of its own are counted for, beside the caller."""
        return name if isinstance(self._limits, Mapping) else None

    def _gate(self, limiter: L, limits: LayerLimits) -> LimitLayer[L] | None:
        return None if limits is None else LimitLayer(limiter, limits, scope=self._scope, **self._options)


def _kept(given: Any) -> Any:
    """What is looked at more than once: an iterator gives its items only the first time."""
    return list(given) if isinstance(given, Iterator) else given


def _checked(name: object) -> str:
    if not isinstance(name, str) or _METHOD.fullmatch(name) is None:
        raise ConfigError(
            f"limits are for methods such as '/package.Service/Method', or '/package.Service/*' for all of a service, "
            f"not {name!r}"
        )
    return name


def _unknown(_: Any, context: Any) -> None:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def _unknown_async(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


# Of a kind that reads no message: nobody knows which kind the client thinks it is.
_unknown_in_thread = grpc.stream_unary_rpc_method_handler(_unknown)
_unknown_on_loop = grpc.stream_unary_rpc_method_handler(_unknown_async)
