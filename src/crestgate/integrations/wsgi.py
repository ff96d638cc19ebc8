"""Limits for any WSGI application: Flask, Bottle, Falcon, Pyramid, or a function of one's own.

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter="redis://localhost", limits="100/minute")

An application may answer at once, or not before the server takes the first piece of its body; it may begin an answer
and replace it; it may return a file that the server sends by itself. So the middleware does its work where the status
is told, in `start_response`, and the body is the application's own object, which nobody here looks into. Only an
application that has told no status when it returns (a generator) is followed to its first piece, since it may fail
until then, and be denied.

What a response does not count for (`when=`) is given back at the first status that is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Unpack

from crestgate.core.decision import Decision
from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.drivers import Admission, check_sync, settle
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.option_errors import refuse_unused
from crestgate.integrations.request import Request, Response, encoded_path, is_plain_path
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, sync_limiter_for
from crestgate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["RateLimitMiddleware", "WsgiRequest", "request_path", "request_state_of"]

RawHeaders = list[tuple[bytes, bytes]]
_CONTENT = (("CONTENT_TYPE", b"content-type"), ("CONTENT_LENGTH", b"content-length"))


class RateLimitMiddleware:
    """Asks a limiter about every request, and lets the application answer those that are admitted.

    `limits` as a check takes them, or a callable that tells them for a request; without any, the limiter's rules. Of a
    limiter that has none either, nothing is asked: then this is where the headers are written for the limits of inner
    layers, and where a RateLimitExceeded that the application raises becomes a response.

    Callables are given a `Request`; `request["HTTP_…"]` is the WSGI environment. What `on_denied` returns may be a
    WSGI application.
    """

    def __init__(
        self,
        app: WSGIApplication,
        limiter: GivenLimiter = None,
        limits: LayerLimits = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if not callable(app):
            raise ConfigError(f"app must be a WSGI application, such as app.wsgi_app of Flask, not {app!r}")
        self.app = app
        opened = sync_limiter_for(limiter)
        if limits is None and not opened.has_rules:
            refuse_unused(options)
            limits = no_limits
        self.layer = LimitLayer(opened, limits, **options)
        self.layer.refuse_coroutines("a WSGI application")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        layer = self.layer
        request_state = request_state_of(environ)
        request = WsgiRequest(environ, layer.identity)
        admission = check_sync(layer, request, request_state)
        answer = _StartResponse(self, request_state, admission, start_response)
        if admission is not None:
            if admission.refused:
                return self._deny(request, admission.decision, answer)
            delay = layer.delay(admission.decision)
            if delay:
                time.sleep(delay)
        try:
            body = self.app(environ, answer)
        except Exception as error:
            denied = self.failed(request, answer, error)
            if denied is None:
                raise
            return denied
        return body if answer.begun else _LazyBody(self, request, answer, body)

    def failed(self, request: Request, answer: _StartResponse, error: Exception) -> Iterable[bytes] | None:
        """The application raised an error: the answer to it, if it is a denial, and nothing was answered yet."""
        if answer.begun:
            return None
        if isinstance(error, RateLimitExceeded):
            answer.request_state.add_decision(error.decision)
            return self._deny(request, error.decision, answer)
        answer.settle(Response(500))
        return None

    def _deny(self, request: Request, decision: Decision, answer: _StartResponse) -> Iterable[bytes]:
        on_denied = self.layer.on_denied
        shaped = None if on_denied is None else on_denied(request, decision)
        denial = default_denial(decision) if shaped is None else shaped
        if not isinstance(denial, Denial):
            if not callable(denial):
                raise TypeError(f"on_denied must return a Denial, a WSGI application or None, not {denial!r}")
            body: Iterable[bytes] = denial(request.native, answer)
            return body
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in denial.raw_headers([])]
        answer(_status_line(denial.status), headers)
        return [] if request.method == "HEAD" else [denial.body]


class _StartResponse:
    """The `start_response` that the application is given: what it tells is settled, and told on with the headers."""

    __slots__ = ("_layer", "_passage", "_start", "_writes", "begun", "request_state")

    def __init__(
        self,
        layer: RateLimitMiddleware,
        request_state: RequestState,
        admission: Admission[Limiter] | None,
        start: StartResponse,
    ) -> None:
        self._layer = layer
        self._passage = admission
        self._start = start
        self._writes = request_state.writer is None
        self.request_state = request_state
        self.begun = False
        if self._writes:
            request_state.writer = layer

    def __call__(self, status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
        """As WSGI has it; `error` is `exc_info`, with which an application may replace what it told before."""
        self.begun = True
        admission = self._passage
        if admission is not None and admission.holding is not None:
            raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
            self.settle(Response(int(status[:3]), raw))
        if self._writes:
            layer = self._layer.layer
            limit_headers = self.request_state.headers(layer.style, layer.limiter.clock.ticks())
            if limit_headers:
                names = {name.decode("latin-1") for name, _ in limit_headers}
                headers = [header for header in headers if header[0].lower() not in names]
                headers += [(name.decode("latin-1"), value.decode("latin-1")) for name, value in limit_headers]
        return self._start(status, headers, *error)

    def settle(self, response: Response) -> None:
        """The response is known: what it does not count for is given back."""
        if self._passage is not None:
            settle(self._passage, response)


class _LazyBody:
    """The body of an application that tells its status with its first piece."""

    __slots__ = ("_answer", "_bodies", "_layer", "_pieces", "_request")

    def __init__(
        self, layer: RateLimitMiddleware, request: Request, answer: _StartResponse, body: Iterable[bytes]
    ) -> None:
        self._layer = layer
        self._request = request
        self._answer = answer
        self._bodies = [body]
        self._pieces: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._pieces is None:
                self._pieces = iter(self._bodies[0])
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception as error:
            denied = self._layer.failed(self._request, self._answer, error)
            if denied is None:
                raise
            self._bodies.append(denied)
            self._pieces = iter(denied)
            return next(self._pieces)

    def close(self) -> None:
        """The server is done with it, whether it took all of it or not."""
        for body in self._bodies:
            close = getattr(body, "close", None)
            if close is not None:
                close()


class WsgiRequest(Request):
    """A request by its WSGI environment.

    Servers join a header's lines with commas, and write `X-Name` and `X_Name` alike: who trusts proxies by a header has
    a server before the application that lets no header with an underscore pass, as they do unless told otherwise.
    """

    __slots__ = ()

    @property
    def environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = self.native
        return environ

    @property
    def method(self) -> str:
        method: str = self.environ["REQUEST_METHOD"]
        return method

    @property
    def path(self) -> str:
        return request_path(self.environ)

    @property
    def raw_headers(self) -> RawHeaders:
        environ = self.environ
        headers = [
            (name[5:].replace("_", "-").lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in environ.items()
            if name.startswith("HTTP_")
        ]
        for name, header in _CONTENT:
            value = environ.get(name)
            if value:
                headers.append((header, value.encode("latin-1", "replace")))
        return headers

    @property
    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR") or None

    def __getitem__(self, name: str) -> Any:
        return self.environ[name]


def request_state_of(environ: WSGIEnvironment) -> RequestState:
    """What the layers know of a request; they all find the same in its environment."""
    request_state = environ.get(NAME)
    if not isinstance(request_state, RequestState):
        request_state = environ[NAME] = RequestState()
    return request_state


def request_path(environ: WSGIEnvironment) -> str:
    """The path that the application is asked for, as a URL has it.

    It is made of what the application goes by: the server has decoded that once, and is encoded here, so that a `?` or
    `%` in it is read as what it is. The line that the client sent (REQUEST_URI, RAW_URI) is not looked at: where it
    says something else, after a rewriting, or because it has a whole URL in it, the application is not asked for that.
    """
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    if is_plain_path(path):
        return path
    try:
        raw = path.encode("latin-1")
    except UnicodeEncodeError:  # no server does that; a test's own environment may
        raw = path.encode("utf-8", "surrogatepass")
    quoted = encoded_path(raw)
    return quoted if quoted.startswith("/") else "/" + quoted  # frameworks take it for the same


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Denied"
