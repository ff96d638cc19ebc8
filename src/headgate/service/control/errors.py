"""Every error as problem+json: those of the readers and the editor, those of the framework, and what nobody foresaw."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.errors import HeadgateError, Invalid, Problem
from headgate.http.problem import CONTENT_TYPE, encode_problem, problem, problem_of
from headgate.service.control.desk import visit_of

__all__ = ["LastResort", "add_error_handlers", "problem_response"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
UNFORESEEN = "something went wrong here, and was logged under the request's id"
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "there is no such parameter",
    "int_parsing": "must be a whole number",
    "string_too_short": "must not be empty",
}
_log = logging.getLogger("headgate")


def problem_response(
    status: int, detail: str, more: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    body = encode_problem(problem(status, detail, **(more or {})))
    return Response(body, status, dict(headers or {}), CONTENT_TYPE)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HeadgateError, _ours)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_exception_handler(HTTPException, _http)


async def _ours(request: Request, error: Exception) -> Response:
    status, detail, more = problem_of(error)
    if status >= 500:
        _log.error("%s: %s (request %s)", _called(request.scope), detail, visit_of(request).request_id)
    return problem_response(status, detail, more)


async def _parameters(request: Request, error: Exception) -> Response:
    """Parameters of the path, the query or a header that cannot be used. Bodies have readers of their own."""
    assert isinstance(error, RequestValidationError)
    return await _ours(request, Invalid(_told(found) for found in error.errors()))


def _told(found: Mapping[str, Any]) -> Problem:
    place: Sequence[Any] = found["loc"]
    words = _WORDS.get(found["type"]) or str(found["msg"])
    return Problem(".".join(map(str, place[1:])) or str(place[0]), words[0].lower() + words[1:])


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem_response(404, f"there is nothing at {request.url.path}: see /docs for what there is")
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"{request.method} is not possible at {request.url.path}: there is {allowed}"
        return problem_response(405, detail, headers={"Allow": allowed})
    return problem_response(error.status_code, error.detail, headers=error.headers)


def _methods(request: Request) -> list[str]:
    """All methods of a path, whichever routes they are on; where there is GET there is HEAD."""
    found = []
    for method in METHODS:
        scope: MutableMapping[str, Any] = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            found.append(method)
    return ["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found


def _called(scope: Scope) -> str:
    """What was called, for the log: the route, without the keys and names that its path had in it."""
    return f"{scope['method']} {getattr(scope.get('route'), 'path', 'nothing that is known')}"


class LastResort:
    """Answers what nobody foresaw with 500 and few words. The log has the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception:
            visit = scope.get("headgate")
            request_id = visit.request_id if visit is not None else "-"
            _log.exception("unforeseen error in %s (request %s)", _called(scope), request_id)
            if begun:  # half of an answer is out: only breaking off tells that it is not whole
                raise
            await problem_response(500, UNFORESEEN)(scope, receive, send)
