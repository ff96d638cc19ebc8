"""A request passes the limits of one layer in Django, and its response is told of them.

The middleware and the decorator do the same here: they differ in what they hand the request on to.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.django.request import DjangoRequest, request_state_of
from crestgate.integrations.drivers import check_async, check_sync, settle, settle_async
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["denied", "through", "through_async"]

Handle = Callable[[], Any]
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Http404, 404),
    (PermissionDenied, 403),
    (BadRequest, 400),
    (SuspiciousOperation, 400),
    (MultiPartParserError, 400),
)
"""What Django answers to what a view raises; to everything else, 500."""


def through(
    layer: LimitLayer[Limiter], request: DjangoRequest, handle: Handle, route: str | None = None, counts: bool = True
) -> Any:
    """Have a request handled in a thread if the limits admit it; the response, with headers. One that does not count
    is handled, and told of the limits of others."""
    request_state = request_state_of(request.native)
    writes = _claim(request_state, layer)
    try:
        response = _handled(layer, request, request_state, handle, route, counts)
    finally:
        if writes:
            request_state.writer = None
    return _with_headers(response, request_state, layer) if writes else response


def _handled(
    layer: LimitLayer[Limiter],
    request: DjangoRequest,
    request_state: RequestState,
    handle: Handle,
    route: str | None,
    counts: bool,
) -> Any:
    admission = check_sync(layer, request, request_state, route) if counts else None
    if admission is not None:
        if admission.refused:
            return denied(layer, request, admission.decision, _answer(layer, request, admission.decision))
        delay = layer.delay(admission.decision)
        if delay:
            time.sleep(delay)
    try:
        response = handle()
    except RateLimitExceeded as error:
        request_state.add_decision(error.decision)
        response = denied(layer, request, error.decision, _answer(layer, request, error.decision))
    except Exception as error:
        if admission is not None:
            settle(admission, Response(_status_of(error)))
        raise
    if admission is not None and admission.holding is not None:
        settle(admission, _seen(response))
    return response


async def through_async(
    layer: LimitLayer[AsyncLimiter],
    request: DjangoRequest,
    handle: Handle,
    route: str | None = None,
    counts: bool = True,
) -> Any:
    """The same on an event loop."""
    request_state = request_state_of(request.native)
    writes = _claim(request_state, layer)
    try:
        response = await _handled_async(layer, request, request_state, handle, route, counts)
    finally:
        if writes:
            request_state.writer = None
    return _with_headers(response, request_state, layer) if writes else response


async def _handled_async(
    layer: LimitLayer[AsyncLimiter],
    request: DjangoRequest,
    request_state: RequestState,
    handle: Handle,
    route: str | None,
    counts: bool,
) -> Any:
    admission = await check_async(layer, request, request_state, route) if counts else None
    if admission is not None:
        if admission.refused:
            return denied(
                layer, request, admission.decision, await _awaited(_answer(layer, request, admission.decision))
            )
        delay = layer.delay(admission.decision)
        if delay:
            await asyncio.sleep(delay)
    try:
        response = await _awaited(handle())
    except RateLimitExceeded as error:
        request_state.add_decision(error.decision)
        response = denied(layer, request, error.decision, await _awaited(_answer(layer, request, error.decision)))
    except Exception as error:
        if admission is not None:
            await settle_async(admission, Response(_status_of(error)))
        raise
    if admission is not None and admission.holding is not None:
        await settle_async(admission, _seen(response))
    return response


def denied(layer: LimitLayer[Any], request: DjangoRequest, decision: Decision, answer: Any) -> HttpResponseBase:
    """The response to a denial; `answer` is what `on_denied` has said to it."""
    if isinstance(answer, HttpResponseBase):
        return answer
    if answer is not None and not isinstance(answer, Denial):
        raise TypeError(f"on_denied {layer.on_denied!r} must return an HttpResponse, a Denial or None, not {answer!r}")
    denial = default_denial(decision) if answer is None else answer
    response = HttpResponse(
        b"" if request.method == "HEAD" else denial.body, status=denial.status, content_type=denial.content_type
    )
    response["Content-Length"] = str(len(denial.body))
    for name, value in denial.headers:
        response[name] = value
    return response


def _answer(layer: LimitLayer[Any], request: DjangoRequest, decision: Decision) -> Any:
    return None if layer.on_denied is None else layer.on_denied(request, decision)


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _claim(request_state: RequestState, layer: LimitLayer[Any]) -> bool:
    """Whether the headers are for this layer to write."""
    if request_state.writer is not None:
        return False
    request_state.writer = layer
    return True


def _with_headers(response: Any, request_state: RequestState, layer: LimitLayer[Any]) -> Any:
    if not isinstance(response, HttpResponseBase):
        return response  # a mistake in the view, which Django tells of
    for name, value in request_state.headers(layer.style, layer.limiter.clock.ticks()):
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


def _seen(response: Any) -> Response:
    if not isinstance(response, HttpResponseBase):
        return Response(500)
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    return Response(response.status_code, headers)


def _status_of(error: Exception) -> int:
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    own = getattr(error, "status_code", None)  # as Django REST framework's have it
    return own if isinstance(own, int) else 500
