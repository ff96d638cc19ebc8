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

from headgate.core.decision import Decision
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.errors import RateLimitExceeded
from headgate.integrations.denial import Denial, denial_of
from headgate.integrations.django.request import DjangoRequest, visit_of
from headgate.integrations.gate import Gate
from headgate.integrations.passing import enter, enter_async, settle, settle_async
from headgate.integrations.request import Response
from headgate.integrations.visit import Visit

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
    gate: Gate[Limiter], request: DjangoRequest, handle: Handle, route: str | None = None, counts: bool = True
) -> Any:
    """Have a request handled in a thread if the limits admit it; the response, with headers. One that does not count
    is handled, and told of the limits of others."""
    visit = visit_of(request.native)
    writes = _claim(visit, gate)
    try:
        response = _handled(gate, request, visit, handle, route, counts)
    finally:
        if writes:
            visit.writer = None
    return _told(response, visit, gate) if writes else response


def _handled(
    gate: Gate[Limiter], request: DjangoRequest, visit: Visit, handle: Handle, route: str | None, counts: bool
) -> Any:
    passage = enter(gate, request, visit, route) if counts else None
    if passage is not None:
        if passage.refused:
            return denied(gate, request, passage.decision, _answer(gate, request, passage.decision))
        delay = gate.delay(passage.decision)
        if delay:
            time.sleep(delay)
    try:
        response = handle()
    except RateLimitExceeded as error:
        visit.tell(error.decision)
        response = denied(gate, request, error.decision, _answer(gate, request, error.decision))
    except Exception as error:
        if passage is not None:
            settle(passage, Response(_status_of(error)))
        raise
    if passage is not None and passage.holding is not None:
        settle(passage, _seen(response))
    return response


async def through_async(
    gate: Gate[AsyncLimiter], request: DjangoRequest, handle: Handle, route: str | None = None, counts: bool = True
) -> Any:
    """The same on an event loop."""
    visit = visit_of(request.native)
    writes = _claim(visit, gate)
    try:
        response = await _handled_async(gate, request, visit, handle, route, counts)
    finally:
        if writes:
            visit.writer = None
    return _told(response, visit, gate) if writes else response


async def _handled_async(
    gate: Gate[AsyncLimiter], request: DjangoRequest, visit: Visit, handle: Handle, route: str | None, counts: bool
) -> Any:
    passage = await enter_async(gate, request, visit, route) if counts else None
    if passage is not None:
        if passage.refused:
            return denied(gate, request, passage.decision, await _awaited(_answer(gate, request, passage.decision)))
        delay = gate.delay(passage.decision)
        if delay:
            await asyncio.sleep(delay)
    try:
        response = await _awaited(handle())
    except RateLimitExceeded as error:
        visit.tell(error.decision)
        response = denied(gate, request, error.decision, await _awaited(_answer(gate, request, error.decision)))
    except Exception as error:
        if passage is not None:
            await settle_async(passage, Response(_status_of(error)))
        raise
    if passage is not None and passage.holding is not None:
        await settle_async(passage, _seen(response))
    return response


def denied(gate: Gate[Any], request: DjangoRequest, decision: Decision, answer: Any) -> HttpResponseBase:
    """The response to a denial; `answer` is what `on_denied` has said to it."""
    if isinstance(answer, HttpResponseBase):
        return answer
    if answer is not None and not isinstance(answer, Denial):
        raise TypeError(f"on_denied {gate.on_denied!r} must return an HttpResponse, a Denial or None, not {answer!r}")
    denial = denial_of(decision) if answer is None else answer
    response = HttpResponse(
        b"" if request.method == "HEAD" else denial.body, status=denial.status, content_type=denial.content_type
    )
    response["Content-Length"] = str(len(denial.body))
    for name, value in denial.headers:
        response[name] = value
    return response


def _answer(gate: Gate[Any], request: DjangoRequest, decision: Decision) -> Any:
    return None if gate.on_denied is None else gate.on_denied(request, decision)


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _claim(visit: Visit, gate: Gate[Any]) -> bool:
    """Whether the headers are for this layer to write."""
    if visit.writer is not None:
        return False
    visit.writer = gate
    return True


def _told(response: Any, visit: Visit, gate: Gate[Any]) -> Any:
    if not isinstance(response, HttpResponseBase):
        return response  # a mistake in the view, which Django tells of
    for name, value in visit.headers(gate.style, gate.limiter.clock.ticks()):
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
    told = getattr(error, "status_code", None)  # as Django REST framework's have it
    return told if isinstance(told, int) else 500
