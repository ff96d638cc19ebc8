"""Limits for any WSGI application: Flask, Bottle, Falcon, Pyramid, or a plain function.

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter="redis://localhost", limits="100/minute")

An application may call `start_response` before it returns, or only when the server takes the first chunk of the body.
It may call it again to replace the response, and it may return a file that the server sends. So the middleware adds the
headers in `start_response`, and returns the application's body object unchanged. Only the body of an application that
has not called `start_response` when it returns (a generator) is wrapped up to its first chunk, because until then it
may raise an error or a denial.

A charge for a response that does not count (`when=`) is given back at the first call of `start_response`. Slots of
in-flight limits are released when the body has ended, or the server closes it. So a body under such a limit is wrapped,
and no file for the server to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Unpack

from crestgate.core.decision import Decision
from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.drivers import LayerResult, check_sync, release_slots, settle
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.option_errors import refuse_unused
from crestgate.integrations.request import Request, Response, encode_headers, encoded_path, is_plain_path
from crestgate.integrations.request_state import RequestState, request_state_in
from crestgate.integrations.shared_limiters import GivenLimiter, sync_limiter_for
from crestgate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["HeldBody", "RateLimitMiddleware", "WsgiRequest", "environ_headers", "request_path"]

RawHeaders = list[tuple[bytes, bytes]]
_CONTENT = (("CONTENT_TYPE", b"content-type"), ("CONTENT_LENGTH", b"content-length"))


class RateLimitMiddleware:
    """Limits the requests to an application.

    `limits` are as `check` takes them, or a callable that returns them for a request. Without `limits` the limiter's
    rules apply. Without either, the middleware checks nothing: it only writes the headers for the limits of inner
    layers, and responds to a RateLimitExceeded that the application raises.

    Callables are given a `Request`; `request["HTTP_…"]` reads the WSGI environment. `on_denied` may return a WSGI
    application.
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
        sync_limiter = sync_limiter_for(limiter)
        if limits is None and not sync_limiter.has_rules:
            refuse_unused(options, ["default_algorithm"])  # no routes inherit it, as those of ASGI do
            limits = no_limits
        self.layer = LimitLayer(sync_limiter, limits, **options)
        self.layer.refuse_coroutines("a WSGI application")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        layer = self.layer
        request_state = request_state_in(environ)
        request = WsgiRequest(environ, layer.identity)
        admission = check_sync(layer, request, request_state)
        start = _StartResponse(layer, request_state, admission, start_response)
        if admission is None or admission.held is None:
            return self._respond(request, admission, start)
        try:
            body = self._respond(request, admission, start)
        except BaseException:
            release_slots(admission)
            raise
        return HeldBody(body, partial(release_slots, admission))

    def _respond(
        self, request: WsgiRequest, admission: LayerResult[Limiter] | None, start: _StartResponse
    ) -> Iterable[bytes]:
        """The body of the response, by the application or a denial."""
        if admission is not None and admission.refused:
            return self._deny(request, admission.decision, start)
        try:
            body = self.app(request.environ, start)
        except Exception as error:
            denial_body = self.handle_error(request, start, error)
            if denial_body is None:
                raise
            return denial_body
        return body if start.started else _LazyBody(self, request, start, body)

    def handle_error(self, request: Request, start: _StartResponse, error: Exception) -> Iterable[bytes] | None:
        """Respond to a RateLimitExceeded of the application, unless its response has started. Returns the body; None
        for all other errors."""
        if start.started:
            return None
        if isinstance(error, RateLimitExceeded):
            start.request_state.add_decision(error.decision)
            return self._deny(request, error.decision, start)
        start.settle(Response(500))
        return None

    def _deny(self, request: Request, decision: Decision, start: _StartResponse) -> Iterable[bytes]:
        denial = self.layer.custom_denial(request, decision)
        if denial is None:
            denial = default_denial(decision)
        if not isinstance(denial, Denial):
            if not callable(denial):
                raise TypeError(f"on_denied must return a Denial, a WSGI application or None, not {denial!r}")
            body: Iterable[bytes] = denial(request.native, start)
            return body
        start(_status_line(denial.status), denial.all_headers())
        return [] if request.method == "HEAD" else [denial.body]


class _StartResponse:
    """The application's `start_response`: settles the check, adds the headers, and calls the server's."""

    __slots__ = ("_admission", "_layer", "_start", "_writes", "request_state", "started")

    def __init__(
        self,
        layer: LimitLayer[Limiter],
        request_state: RequestState,
        admission: LayerResult[Limiter] | None,
        start: StartResponse,
    ) -> None:
        self._layer = layer
        self._admission = admission
        self._start = start
        self._writes = request_state.writer is None
        self.request_state = request_state
        self.started = False
        if self._writes:
            request_state.writer = layer

    def __call__(self, status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
        """As WSGI defines it. `error` is `exc_info`, with which an application may replace its response."""
        self.started = True
        admission = self._admission
        if admission is not None and admission.holding is not None:
            self.settle(Response(int(status[:3]), encode_headers(headers)))
        if self._writes:
            limit_headers = self._layer.limit_headers(self.request_state)
            if limit_headers:
                names = {name for name, _ in limit_headers}
                headers = [header for header in headers if header[0].lower() not in names]
                headers += limit_headers
        return self._start(status, headers, *error)

    def settle(self, response: Response) -> None:
        if self._admission is not None:
            settle(self._admission, response)


class _LazyBody:
    """The body of an application that calls `start_response` with its first chunk."""

    __slots__ = ("_bodies", "_chunks", "_middleware", "_request", "_start")

    def __init__(
        self, middleware: RateLimitMiddleware, request: Request, start: _StartResponse, body: Iterable[bytes]
    ) -> None:
        self._middleware = middleware
        self._request = request
        self._start = start
        self._bodies = [body]
        self._chunks: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._chunks is None:
                self._chunks = iter(self._bodies[0])
            return next(self._chunks)
        except StopIteration:
            raise
        except Exception as error:
            denial_body = self._middleware.handle_error(self._request, self._start, error)
            if denial_body is None:
                raise
            self._bodies.append(denial_body)
            self._chunks = iter(denial_body)
            return next(self._chunks)

    def close(self) -> None:
        for body in self._bodies:
            close = getattr(body, "close", None)
            if close is not None:
                close()


class HeldBody:
    """A body that calls a function once it has ended, has failed, or is closed."""

    __slots__ = ("_body", "_chunks", "_release")

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._chunks: Iterator[bytes] | None = None
        self._release = release

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._chunks is None:
                self._chunks = iter(self._body)
            return next(self._chunks)
        except BaseException:  # its end, too
            self._release()
            raise

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._release()


class WsgiRequest(Request):
    """A request in its WSGI environment.

    Servers join repeated headers with commas, and do not distinguish `X-Name` and `X_Name`. With trusted proxies, the
    server or proxy must drop headers with underscores, which is their default.
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
        return environ_headers(self.environ)

    @property
    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR") or None

    def __getitem__(self, name: str) -> Any:
        return self.environ[name]


def environ_headers(environ: Mapping[str, Any]) -> RawHeaders:
    """The request headers in a WSGI environment. Values are text, except perhaps in tests."""
    headers = [
        (name[5:].replace("_", "-").lower().encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    for name, header in _CONTENT:
        value = environ.get(name)
        if value:
            headers.append((header, str(value).encode("latin-1", "replace")))
    return headers


def request_path(environ: WSGIEnvironment) -> str:
    """The percent-encoded path of the request.

    It is built from the variables that applications route by, which the server has decoded: they are encoded again, so
    that a `?` or `%` in them is part of the path. The request line (REQUEST_URI, RAW_URI) is not used: after a rewrite,
    or if it contains a whole URL, the application does not see that path.
    """
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    if is_plain_path(path):
        return path
    try:
        raw = path.encode("latin-1")
    except UnicodeEncodeError:  # only in tests: servers decode as Latin-1
        raw = path.encode("utf-8", "surrogatepass")
    quoted = encoded_path(raw)
    return quoted if quoted.startswith("/") else "/" + quoted  # as frameworks do


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Denied"
