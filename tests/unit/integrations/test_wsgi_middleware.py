"""The WSGI middleware: how it changes the calls between a server and an application."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.validate import validator

import pytest

from crestgate import ConfigError, Limiter, RateLimitExceeded
from crestgate.integrations import Denial
from crestgate.integrations.request_state import NAME
from crestgate.integrations.wsgi import RateLimitMiddleware
from crestgate.testing import FakeClock
from unit.integrations.wsgi_calls import CLIENT, call, environ_for, limiter_on

Start = Callable[..., Any]


def plain(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"fine"]


def lazy(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    yield b"one"
    yield b"two"


def layer(app: Any = plain, limits: Any = "2/minute", limiter: Any = None, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(validator(app), limiter or limiter_on(), limits, **options)


def raw_call(app: RateLimitMiddleware, **more: Any) -> tuple[list[tuple[Any, ...]], Any, object]:
    """The calls of start_response, the return value of the application, and `write`."""
    starts: list[tuple[Any, ...]] = []
    write = object()

    def start(*given: Any) -> object:
        starts.append(given)
        return write

    return starts, app(environ_for(**more), start), write  # type: ignore[arg-type]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", [plain, lazy])
def test_requests_above_the_limit_are_denied_with_a_problem(app: Any) -> None:
    limited = layer(app)
    assert [call(limited).remaining for _ in range(2)] == [1, 0]
    denied = call(limited)
    assert denied.status == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["retry-after"] == "30"
    assert denied.headers["ratelimit"] == '"2/minute";r=0;t=30'
    assert json.loads(denied.body)["status"] == 429
    assert call(limited, REMOTE_ADDR="198.51.100.1").status == 200


def test_denied_head_has_content_length_and_no_body() -> None:
    limited = layer(limits="0/minute")
    denied = call(limited, method="HEAD")
    assert (denied.status, denied.body) == (429, b"")
    assert int(denied.headers["content-length"]) > 100


def test_middleware_without_limits_writes_headers_of_inner_layers() -> None:
    limiter = limiter_on()
    inner = layer(limiter=limiter)
    outer = RateLimitMiddleware(inner, limiter)
    assert call(outer).remaining == 1
    assert "ratelimit" not in call(RateLimitMiddleware(plain, limiter)).headers


def test_rules_of_the_configuration_apply_without_limits(tmp_path: Any) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text(
        "store: memory://\nrules:\n  - {name: orders, dimension: ip, endpoint_pattern: /orders/*, limit: 1, "
        "window_seconds: 60, algorithm: token_bucket}\n"
    )
    with Limiter.from_config(path) as limiter:
        limited = RateLimitMiddleware(plain, limiter)
        assert [call(limited, "/orders/1").status for _ in range(2)] == [200, 429]
        assert call(limited, "/other").headers.get("ratelimit") is None
        assert call(limited, "/orders/?x").status == 429, "a question mark in a segment does not end the path"
        assert raw_call(limited, path="orders/2")[0][0][0].startswith("429"), "frameworks take it for /orders/2"
        assert call(limited, "/2", SCRIPT_NAME="/orders").status == 429, "the path includes the mount point"


def test_two_layers_with_one_limit_count_once_and_write_once() -> None:
    limiter = limiter_on()
    both = RateLimitMiddleware(layer(limiter=limiter), limiter, "2/minute")
    assert [call(both).status for _ in range(3)] == [200, 200, 429]


def test_headers_list_both_layers() -> None:
    limiter = limiter_on()
    both = RateLimitMiddleware(layer(limiter=limiter), limiter, "10/hour")
    assert call(both).headers["ratelimit-policy"] == '"10/hour";q=10;w=3600, "2/minute";q=2;w=60'
    call(both)
    denied = call(both)
    assert denied.status == 429
    assert denied.headers["ratelimit"].startswith('"10/hour";r=7;')


def test_leaky_bucket_delays_the_request_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    for wait in (True, False):
        limited = layer(limits="60/minute burst 3 using leaky_bucket", wait=wait, limiter=Limiter("memory://"))
        assert [call(limited).status for _ in range(3)] == [200] * 3
    assert len(slept) == 2


def test_only_headers_of_the_same_names_are_replaced() -> None:
    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain"), ("RateLimit", "lies"), ("Set-Cookie", "a=b")])
        return [b"fine"]

    answer = call(layer(app))
    assert answer.headers["ratelimit"] == '"2/minute";r=1;t=30'
    assert answer.headers["set-cookie"] == "a=b"


# -- responses of the application -------------------------------------------------------------------------------------


def test_body_object_is_passed_through() -> None:
    body = [b"a", b"b"]

    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("200 OK", [])
        return body

    _, returned, _ = raw_call(RateLimitMiddleware(app, limiter_on(), "2/minute", when=lambda response: False))
    assert returned is body


def test_write_callable_is_passed_through() -> None:
    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        return [start("200 OK", [])]

    _, (returned,), write = raw_call(RateLimitMiddleware(app, limiter_on(), "2/minute"))
    assert returned is write


def test_response_replaced_with_exc_info_keeps_the_headers() -> None:
    error = (ValueError, ValueError("x"), None)

    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("200 OK", [])
        start("500 Oops", [("X-Own", "yes")], error)
        return [b"oops"]

    starts, _, _ = raw_call(RateLimitMiddleware(app, limiter_on(), "2/minute"))
    assert [len(given) for given in starts] == [2, 3]
    assert starts[1][0] == "500 Oops"
    assert starts[1][2] is error
    for given in starts:
        assert [name for name, _ in given[1]].count("ratelimit") == 1


def test_generator_is_not_started_before_the_server_iterates() -> None:
    steps: list[str] = []

    def app(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        steps.append("begun")
        start("200 OK", [])
        yield b"one"
        steps.append("second")
        yield b"two"

    starts, body, _ = raw_call(RateLimitMiddleware(app, limiter_on(), "2/minute"))
    assert (steps, starts) == ([], [])
    pieces = iter(body)
    assert next(pieces) == b"one"
    assert steps == ["begun"]
    assert [name for name, _ in starts[0][1]][:2] == ["ratelimit-policy", "ratelimit"]
    assert list(pieces) == [b"two"]


def test_closing_the_body_closes_the_inner_body() -> None:
    closed: list[str] = []

    def app(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        try:
            start("200 OK", [])
            yield b"one"
            yield b"two"
        finally:
            closed.append("yes")

    _, body, _ = raw_call(RateLimitMiddleware(app, limiter_on(), "2/minute"))
    next(iter(body))
    body.close()
    assert closed == ["yes"]


# -- errors -----------------------------------------------------------------------------------------------------------


def raises(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    raise RuntimeError("boom")


def raises_late(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
    raise RuntimeError("boom")
    yield b""


@pytest.mark.parametrize("app", [raises, raises_late])
def test_application_error_propagates_and_counts_as_500(app: Any) -> None:
    values: list[int] = []

    def when(response: Any) -> bool:
        values.append(response.status)
        return False

    limiter = limiter_on()
    with pytest.raises(RuntimeError, match="boom"):
        list(RateLimitMiddleware(app, limiter, "2/minute", when=when)(environ_for(), lambda *_: None))  # type: ignore[arg-type]
    assert values == [500]
    assert limiter.peek(f"ip:{CLIENT}", "2/minute").remaining == 2


@pytest.mark.parametrize("late", [False, True])
def test_denial_raised_by_the_application_becomes_a_response(late: bool) -> None:
    limiter = limiter_on()

    @limiter.limit("1/hour", key="report")
    def report() -> bytes:
        return b"fine"

    def at_once(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        body = report()
        start("200 OK", [("Content-Type", "text/plain")])
        return [body]

    def later(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        yield from at_once(environ, start)

    limited = RateLimitMiddleware(later if late else at_once, limiter)
    assert call(limited).status == 200
    denied = call(limited)
    assert denied.status == 429
    assert denied.headers["ratelimit"] == '"1/hour";r=0;t=3600'


def test_denial_raised_after_the_response_started_propagates() -> None:
    limiter = limiter_on()

    def app(environ: dict[str, Any], start: Start) -> Iterator[bytes]:
        start("200 OK", [])
        yield b"one"
        raise RateLimitExceeded(limiter.check("x", "0/minute"))

    _, body, _ = raw_call(RateLimitMiddleware(app, limiter))
    pieces = iter(body)
    next(pieces)
    with pytest.raises(RateLimitExceeded):
        next(pieces)


# -- which responses count --------------------------------------------------------------------------------------------


def test_headers_reflect_responses_that_do_not_count() -> None:
    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("401 Unauthorized" if environ["PATH_INFO"] == "/wrong" else "200 OK", [("Content-Type", "text/plain")])
        return [b"x"]

    limited = layer(app, when=lambda response: response.status == 401)
    assert [call(limited, "/right").remaining for _ in range(3)] == [2, 2, 2]
    assert [call(limited, "/wrong").remaining for _ in range(2)] == [1, 0]
    assert call(limited, "/right").status == 429


def test_disconnect_before_the_response_stays_charged() -> None:
    limiter = limiter_on()
    limited = RateLimitMiddleware(lazy, limiter, "2/minute", when=lambda response: False)
    _, body, _ = raw_call(limited)
    body.close()
    assert limiter.peek(f"ip:{CLIENT}", "2/minute").remaining == 1


# -- shaping a denial -------------------------------------------------------------------------------------------------


def test_on_denied_may_return_a_denial_a_wsgi_application_or_nothing() -> None:
    def page(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("503 Later", [("Content-Type", "text/html")])
        return [environ["PATH_INFO"].encode()]

    given = {
        "/denial": Denial(418, b"tea", "text/plain", (("X-Pot", "hot"),)),
        "/page": page,
        "/usual": None,
    }
    limited = layer(limits="0/minute", on_denied=lambda request, decision: given[request.path])
    denial = call(limited, "/denial")
    assert (denial.status, denial.body, denial.headers["x-pot"]) == (418, b"tea", "hot")
    assert denial.headers["content-type"] == "text/plain"
    answer = call(limited, "/page")
    assert (answer.status, answer.body) == (503, b"/page")
    assert answer.headers["ratelimit"] == '"0/minute";r=0'
    assert call(limited, "/usual").status == 429


def test_invalid_result_of_on_denied_is_an_error() -> None:
    limited = layer(limits="0/minute", on_denied=lambda request, decision: "no")
    with pytest.raises(TypeError, match="a WSGI application"):
        call(limited)


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"PATH_INFO": "/a/b"}, "/a/b"),
        ({"PATH_INFO": "/b", "SCRIPT_NAME": "/a"}, "/a/b"),
        ({"PATH_INFO": ""}, "/"),
        ({"PATH_INFO": "a"}, "/a"),
        ({"PATH_INFO": "/caf\xc3\xa9"}, "/caf%C3%A9"),
        ({"PATH_INFO": "/a?b#c%2F d\0"}, "/a%3Fb%23c%252F%20d%00"),
        ({"PATH_INFO": "/café\u2028"}, "/caf%C3%A9%E2%80%A8"),
        ({"PATH_INFO": "/real", "RAW_URI": "/healthz", "REQUEST_URI": "/healthz"}, "/real"),
        ({"PATH_INFO": "/x;v=1/../y"}, "/x;v=1/../y"),
    ],
)
def test_path_is_that_of_the_request(environ: dict[str, Any], path: str) -> None:
    values: list[str] = []

    def key(request: Any) -> str:
        values.append(request.path)
        return "x"

    RateLimitMiddleware(plain, limiter_on(), "9/minute", key=key)(environ_for(**environ), lambda *_: None)  # type: ignore[arg-type]
    assert values == [path]


def test_request_has_headers_peer_and_environ() -> None:
    values: list[Any] = []

    def key(request: Any) -> str:
        headers = request.headers
        values.append(
            (headers["X-Tenant"], headers["content-type"], headers["content-length"], "content-md5" in headers)
        )
        values.append((request.peer, request["HTTP_X_TENANT"], request.get("nothing"), request.route, request.user_id))
        return "x"

    call(layer(key=key), HTTP_X_TENANT="acme", CONTENT_TYPE="text/plain", CONTENT_LENGTH="0")
    assert values == [("acme", "text/plain", "0", False), (CLIENT, "acme", None, None, None)]


def test_unix_socket_has_no_address_and_may_be_a_trusted_proxy() -> None:
    limited = layer(trusted_proxies=["unix"])
    for address in ("198.51.100.1", "198.51.100.2"):
        assert call(limited, REMOTE_ADDR="", HTTP_X_FORWARDED_FOR=f"evil, {address}").remaining == 1
    assert call(limited, HTTP_X_FORWARDED_FOR="198.51.100.1").remaining == 1, "a TCP peer is not that proxy"
    assert call(layer(), REMOTE_ADDR="", HTTP_X_FORWARDED_FOR="198.51.100.3").remaining == 1


def test_request_state_does_not_leak_into_the_next_request() -> None:
    limited = layer()
    environ = environ_for()
    limited(environ, lambda *_: None).close()  # type: ignore[arg-type,attr-defined]
    assert NAME in environ
    assert call(limited).remaining == 0


# -- configuration errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["key", "exempt", "cost", "user", "limits"])
def test_async_callables_are_refused_at_construction(name: str) -> None:
    async def coroutine(request: Any) -> Any:
        return None

    options: dict[str, Any] = {"limits": "2/minute", name: coroutine}
    with pytest.raises(ConfigError, match="coroutine"):
        RateLimitMiddleware(plain, limiter_on(), **options)


def test_invalid_options_are_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match="WSGI application"):
        RateLimitMiddleware(None, limiter_on(), "2/minute")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        RateLimitMiddleware(plain, limiter_on(), "2/fortnight")


def test_time_passing_admits_again() -> None:
    clock = FakeClock(1_700_000_000)
    limited = layer(limiter=limiter_on(clock))
    assert [call(limited).status for _ in range(3)] == [200, 200, 429]
    clock.advance(30)
    assert call(limited).status == 200
