"""Error handlers: every error becomes problem+json, also those of FastAPI and unhandled ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from crestgate.errors import ConfigError, CrestgateError, Problem, ReadOnlyError, ValidationError
from crestgate.http.problem import CONTENT_TYPE, encode_problem, problem, problem_of
from crestgate.service.admin.context import call_context_of
from crestgate.service.observability.request_log import LineLimit

__all__ = ["UnhandledErrors", "add_error_handlers", "naming_fields", "problem_response"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
UNHANDLED = "unhandled error, logged under the request's id"
_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "there is no such parameter",
    "int_parsing": "must be a whole number",
    "string_too_short": "must not be empty",
}
_log = logging.getLogger("crestgate")


def problem_response(
    status: int, detail: str, more: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    body = encode_problem(problem(status, detail, **(more or {})))
    return Response(body, status, dict(headers or {}), CONTENT_TYPE)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(CrestgateError, _crestgate_error)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_exception_handler(HTTPException, _http)


async def _crestgate_error(request: Request, error: Exception) -> Response:
    status, detail, more = problem_of(error)
    if status >= 500:
        _log.error("%s: %s (request %s)", _endpoint(request.scope), detail, call_context_of(request).request_id)
    return problem_response(status, detail, more)


async def _parameters(request: Request, error: Exception) -> Response:
    """Invalid parameters of the path, the query or a header. Bodies have their own readers."""
    assert isinstance(error, RequestValidationError)
    return await _crestgate_error(request, ValidationError(_problem(one) for one in error.errors()))


def _problem(error: Mapping[str, Any]) -> Problem:
    path: Sequence[Any] = error["loc"]
    message = _MESSAGES.get(error["type"]) or str(error["msg"])
    return Problem(".".join(map(str, path[1:])) or str(path[0]), message[0].lower() + message[1:])


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem_response(404, f"no such path: {request.url.path}; see /docs for all paths")
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"{request.method} is not allowed at {request.url.path}: use {allowed}"
        return problem_response(405, detail, headers={"Allow": allowed})
    return problem_response(error.status_code, error.detail, headers=error.headers)


def _methods(request: Request) -> list[str]:
    """All methods of a path, over all routes; GET implies HEAD."""
    methods = []
    for method in METHODS:
        scope: MutableMapping[str, Any] = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            methods.append(method)
    return ["GET", "HEAD", *methods[1:]] if methods[:1] == ["GET"] else methods


def _endpoint(scope: Scope) -> str:
    """The method and route for the log, without the keys and names in its path."""
    return f"{scope['method']} {getattr(scope.get('route'), 'path', 'unknown route')}"


@contextmanager
def naming_fields(**parameters: str) -> Iterator[None]:
    """Turn a ConfigError into a ValidationError of its field, with the name of that field in the API."""
    try:
        yield
    except (ValidationError, ReadOnlyError):
        raise
    except ConfigError as error:
        raise ValidationError([Problem(parameters.get(error.field, error.field), error.reason)]) from None


class UnhandledErrors:
    """Middleware: responds to unhandled errors with 500, without details, and logs them with their traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._lines = LineLimit("failed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def tracked_send(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, tracked_send)
        except Exception:
            call = scope.get("crestgate")
            request_id = call.request_id if call is not None else "-"
            if self._lines.allows():
                _log.exception("unhandled error in %s (request %s)", _endpoint(scope), request_id)
            if started:  # part of the response is sent: only aborting the connection shows that it is incomplete
                raise
            await problem_response(500, UNHANDLED)(scope, receive, send)
