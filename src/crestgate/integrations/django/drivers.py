"""Handle a Django request under the limits of one layer, for the middleware and for the decorator."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.django.request import DjangoRequest, request_state_of
from crestgate.integrations.drivers import (
    LayerResult,
    check_async,
    check_sync,
    release_slots,
    release_slots_async,
    settle,
    settle_async,
)
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response, encode_headers
from crestgate.integrations.request_state import RequestState
from crestgate.integrations.wsgi import HeldBody
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["denial_response", "handle_async", "handle_sync"]

Handler = Callable[[], Any]
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Http404, 404),
    (PermissionDenied, 403),
    (BadRequest, 400),
    (SuspiciousOperation, 400),
    (MultiPartParserError, 400),
)
"""Django's status for the exceptions of a view; 500 for all others."""


def handle_sync(
    layer: LimitLayer[Limiter], request: DjangoRequest, handler: Handler, route: str | None = None, limited: bool = True
) -> Any:
    """Handle a request in a thread if the limits admit it; returns the response with headers. With `limited=False` it
    is not checked, but the headers for inner layers are written."""
    request_state = request_state_of(request.native)
    writes = _claim(request_state, layer)
    try:
        response = _checked_sync(layer, request, request_state, handler, route, limited)
    finally:
        if writes:
            request_state.writer = None
    return _with_headers(response, request_state, layer) if writes else response


def _checked_sync(
    layer: LimitLayer[Limiter],
    request: DjangoRequest,
    request_state: RequestState,
    handler: Handler,
    route: str | None,
    limited: bool,
) -> Any:
    admission = check_sync(layer, request, request_state, route) if limited else None
    if admission is None or admission.held is None:
        return _respond_sync(layer, request, request_state, handler, admission)
    try:
        response = _respond_sync(layer, request, request_state, handler, admission)
    except BaseException:
        release_slots(admission)
        raise
    _release_at_end(request, response, admission)
    return response


def _respond_sync(
    layer: LimitLayer[Limiter],
    request: DjangoRequest,
    request_state: RequestState,
    handler: Handler,
    admission: LayerResult[Limiter] | None,
) -> Any:
    if admission is not None and admission.refused:
        decision = admission.decision
        return denial_response(layer, request, decision, layer.custom_denial(request, decision))
    try:
        response = handler()
    except RateLimitExceeded as error:
        request_state.add_decision(error.decision)
        response = denial_response(layer, request, error.decision, layer.custom_denial(request, error.decision))
    except Exception as error:
        if admission is not None:
            settle(admission, Response(_status_of(error)))
        raise
    if admission is not None and admission.holding is not None:
        settle(admission, _response_view(response))
    return response


async def handle_async(
    layer: LimitLayer[AsyncLimiter],
    request: DjangoRequest,
    handler: Handler,
    route: str | None = None,
    limited: bool = True,
) -> Any:
    """`handle_sync` on an event loop."""
    request_state = request_state_of(request.native)
    writes = _claim(request_state, layer)
    try:
        response = await _checked_async(layer, request, request_state, handler, route, limited)
    finally:
        if writes:
            request_state.writer = None
    return _with_headers(response, request_state, layer) if writes else response


async def _checked_async(
    layer: LimitLayer[AsyncLimiter],
    request: DjangoRequest,
    request_state: RequestState,
    handler: Handler,
    route: str | None,
    limited: bool,
) -> Any:
    admission = await check_async(layer, request, request_state, route, layer.keep_in_thread) if limited else None
    if admission is None or admission.held is None:
        return await _respond_async(layer, request, request_state, handler, admission)
    try:
        response = await _respond_async(layer, request, request_state, handler, admission)
    except BaseException:
        await release_slots_async([admission])
        raise
    _release_at_end(request, response, admission)
    return response


async def _respond_async(
    layer: LimitLayer[AsyncLimiter],
    request: DjangoRequest,
    request_state: RequestState,
    handler: Handler,
    admission: LayerResult[AsyncLimiter] | None,
) -> Any:
    if admission is not None and admission.refused:
        decision = admission.decision
        return denial_response(layer, request, decision, await _resolve(layer.custom_denial(request, decision)))
    try:
        response = await _resolve(handler())
    except RateLimitExceeded as error:
        decision = error.decision
        request_state.add_decision(decision)
        response = denial_response(layer, request, decision, await _resolve(layer.custom_denial(request, decision)))
    except Exception as error:
        if admission is not None:
            await settle_async(admission, Response(_status_of(error)))
        raise
    if admission is not None and admission.holding is not None:
        await settle_async(admission, _response_view(response))
    return response


def _release_at_end(request: DjangoRequest, response: Any, admission: LayerResult[Any]) -> None:
    """Release the slots of in-flight limits when the response has ended. Django closes the request with the response
    that it has sent, also if another middleware has replaced this one. The content of a stream tells its end itself:
    Django does not close a response whose stream fails on an event loop."""

    def release() -> None:
        release_slots(admission)

    native = getattr(request.native, "_request", request.native)  # that of Django REST framework is a wrapper
    close = native.close

    def close_and_release() -> None:
        try:
            close()
        finally:
            release()

    native.close = close_and_release
    if getattr(response, "streaming", False):
        content = response.streaming_content
        is_async = response.is_async
        response.streaming_content = _held_stream(content, admission) if is_async else HeldBody(content, release)


async def _held_stream(
    content: AsyncGenerator[bytes, None], admission: LayerResult[Any]
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(content):
            async for chunk in content:
                yield chunk
    finally:
        await release_slots_async([admission])


def denial_response(
    layer: LimitLayer[Any], request: DjangoRequest, decision: Decision, custom: Any
) -> HttpResponseBase:
    """The response to a denial; `custom` is the result of `on_denied`."""
    if isinstance(custom, HttpResponseBase):
        return custom
    if custom is not None and not isinstance(custom, Denial):
        raise TypeError(f"on_denied {layer.on_denied!r} must return an HttpResponse, a Denial or None, not {custom!r}")
    denial = default_denial(decision) if custom is None else custom
    response = HttpResponse(
        b"" if request.method == "HEAD" else denial.body, status=denial.status, content_type=denial.content_type
    )
    response["Content-Length"] = str(len(denial.body))
    for name, value in denial.headers:
        response[name] = value
    return response


async def _resolve(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _claim(request_state: RequestState, layer: LimitLayer[Any]) -> bool:
    """Make this layer the one that writes the headers; False if another is."""
    if request_state.writer is not None:
        return False
    request_state.writer = layer
    return True


def _with_headers(response: Any, request_state: RequestState, layer: LimitLayer[Any]) -> Any:
    if not isinstance(response, HttpResponseBase):
        return response  # an error of the view, which Django reports
    for name, value in layer.limit_headers(request_state):
        response[name] = value
    return response


def _response_view(response: Any) -> Response:
    if not isinstance(response, HttpResponseBase):
        return Response(500)
    return Response(response.status_code, encode_headers(response.items()))


def _status_of(error: Exception) -> int:
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    rest_status = getattr(error, "status_code", None)  # of Django REST framework
    return rest_status if isinstance(rest_status, int) else 500
