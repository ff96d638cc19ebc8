"""The interceptor: selects the limits of a call, and wraps its handler."""

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
from crestgate.integrations.grpc.async_handlers import AsyncRpc, limited_coroutine, limited_responses
from crestgate.integrations.grpc.calls import RpcRequest, RpcResponse
from crestgate.integrations.grpc.sync_handlers import SyncRpc, limited_call, limited_callback, limited_stream
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
_request_state: ContextVar[RequestState | None] = ContextVar(NAME, default=None)
"""The state of the call that is being intercepted, shared by nested interceptors."""


class RateLimitInterceptor(grpc.ServerInterceptor, grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no types
    """Limits the calls of a server.

    `limiter` and the options are those of all integrations; `limits` may also be a mapping of methods to limits.
    `on_denied` may return a code and a string, or a `grpc.Status`. `when` is called with the RpcResponse:
    `when=lambda response: response.code is grpc.StatusCode.UNAUTHENTICATED` counts only calls with this status.
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
        self._limits = _reusable(limits)
        self._scope = scope
        self._options = cast(LayerOptions, {name: _reusable(value) for name, value in options.items()})
        self._async_layers: Layers[AsyncLimiter] = self._layers(async_limiter_for(limiter))
        self._sync_layers: Layers[Limiter] | None = None
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # most likely for threads: connect to the store before the first call
            self._sync_layers = self._layers(sync_limiter_for(limiter))

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """The wrapped handler of a call. On an event loop's server, a coroutine that returns it."""
        request_state = _request_state.get() or RequestState()
        token = _request_state.set(request_state)
        try:
            original = continuation(handler_call_details)
        finally:
            _request_state.reset(token)
        if inspect.isawaitable(original):
            return self._intercept_async(original, handler_call_details.method, request_state)
        return self._wrap(original, _unknown_sync_handler, handler_call_details.method, request_state)

    async def _intercept_async(self, continuation: Any, name: str, request_state: RequestState) -> Any:
        token = _request_state.set(request_state)
        try:
            original = await continuation
        finally:
            _request_state.reset(token)
        return self._wrap(original, _unknown_async_handler, name, request_state)

    def _wrap(self, original: Any, unknown: Any, name: str, request_state: RequestState) -> Any:
        """The wrapped handler. It is the same kind of function as the original, by which the server calls it."""
        handler = unknown if original is None else original
        kind = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)
        if inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour):
            limited = self._wrap_async(behaviour, name, request_state)
        else:
            limited = self._wrap_sync(behaviour, handler.response_streaming, name, request_state)
        if limited is None:
            return original
        create_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return create_handler(
            wraps(behaviour)(limited),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _wrap_async(self, behaviour: Any, name: str, request_state: RequestState) -> Any:
        layer = self._async_layers(name)
        if layer is None:
            return None
        wrap = limited_responses if inspect.isasyncgenfunction(behaviour) else limited_coroutine
        return wrap(behaviour, lambda context: AsyncRpc(layer, request_state, context, name, self._route(name)))

    def _wrap_sync(self, behaviour: Any, streams: bool, name: str, request_state: RequestState) -> Any:
        layer = self._async_layers(name)  # the sync layer, created later in a thread, has the same options
        if layer is None:
            return None
        layer.refuse_coroutines("a handler that is a plain function")
        if streams and getattr(behaviour, "experimental_non_blocking", False):
            wrap = limited_callback
        else:
            wrap = limited_stream if streams else limited_call
        return wrap(
            behaviour,
            lambda context: SyncRpc(self._sync_layer(name), request_state, context, name, self._route(name)),
        )

    def _sync_layer(self, name: str) -> LimitLayer[Limiter]:
        layers = self._sync_layers
        if layers is None:  # the interceptor was created on an event loop, but this handler is a plain function
            layers = self._sync_layers = self._layers(sync_limiter_for(self._limiter))
        layer = layers(name)
        assert layer is not None, name
        return layer

    def _layers(self, limiter: L) -> Layers[L]:
        """A function that returns the layer of a method by its name."""
        limits = self._limits
        if not isinstance(limits, Mapping):
            layer = LimitLayer(limiter, limits, scope=self._scope, **self._options)
            return lambda _: layer
        named = {_method_name(name): self._layer(limiter, value) for name, value in limits.items()}
        if not named:
            raise ConfigError("limits names no method: write limits={'/package.Service/Method': '5/minute'}")
        return lambda name: named[name] if name in named else named.get(f"{name.rpartition('/')[0]}/*")

    def _route(self, name: str) -> str | None:
        """The route in the key, if limits count per method."""
        return name if isinstance(self._limits, Mapping) else None

    def _layer(self, limiter: L, limits: LayerLimits) -> LimitLayer[L] | None:
        return None if limits is None else LimitLayer(limiter, limits, scope=self._scope, **self._options)


def _reusable(value: Any) -> Any:
    """A list instead of an iterator, which could be read only once."""
    return list(value) if isinstance(value, Iterator) else value


def _method_name(name: object) -> str:
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


# stream_unary reads no message before the handler runs: the kind of an unknown method is not known.
_unknown_sync_handler = grpc.stream_unary_rpc_method_handler(_unknown)
_unknown_async_handler = grpc.stream_unary_rpc_method_handler(_unknown_async)
