"""Responses of the Flask extension: denials, error handlers, `on_denied`, and headers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Blueprint, Response
from werkzeug.exceptions import HTTPException, NotFound

from crestgate import RateLimitExceeded
from crestgate.integrations import Denial
from crestgate.integrations.flask import Crestgate
from crestgate.integrations.wsgi import RateLimitMiddleware
from unit.integrations.flask_sites import get, passes, site
from unit.integrations.wsgi_calls import limiter_on


def denied_site(**options: Any) -> tuple[Any, Crestgate]:
    """An application whose /a is always denied."""
    app, gate = site(**options)
    app.add_url_rule("/a", "a", gate.limit("0/minute")(lambda: "a"))
    return app, gate


def test_denial_is_a_problem_with_headers() -> None:
    app, gate = site()
    app.add_url_rule("/a", "a", gate.limit("1/minute")(lambda: "a"))
    get(app, "/a")
    denied = get(app, "/a")
    assert (denied.status_code, denied.content_type) == (429, "application/problem+json")
    assert json.loads(denied.data)["violated-policies"] == ["1/minute"]
    assert denied.headers["Retry-After"] == "60"
    assert denied.headers["RateLimit"] == '"1/minute";r=0;t=60'
    head = get(app, "/a", "HEAD")
    assert (head.status_code, head.data, head.headers["Content-Type"]) == (429, b"", "application/problem+json")


def test_error_description_has_no_key() -> None:
    app, _ = site(limiter=limiter_on(plans={"policy:user-123": "0/minute"}), application_limits="policy:user-123")
    app.register_error_handler(429, lambda error: (f"{error.name}: {error.description}", 429))
    denied = get(app, "/a")
    assert denied.text == "Too Many Requests: rate limit exceeded (policy): this request can never pass"


# -- error handlers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [429, RateLimitExceeded, HTTPException])
@pytest.mark.parametrize("raised", [False, True])
def test_error_handlers_shape_the_denials_of_the_extension_and_of_the_application(code: Any, raised: bool) -> None:
    limiter = limiter_on()
    app, gate = site(limiter=limiter)

    @app.errorhandler(code)
    def shape(error: Any) -> tuple[str, int]:
        return f"{error.decision.name} {getattr(error, 'code', 429)}", 420

    @app.get("/a")
    def a() -> str:
        if raised:
            raise RateLimitExceeded(limiter.check("x", "0/minute"))
        return "a"

    if not raised:
        gate.limit("0/minute")(a)
    denied = get(app, "/a")
    assert (denied.status_code, denied.text) == (420, "0/minute 429")
    if not (raised and code is RateLimitExceeded):  # this one is raised by the application
        assert denied.headers["RateLimit"] == '"0/minute";r=0'


def test_the_more_specific_handler_wins() -> None:
    app, _ = denied_site()
    app.register_error_handler(HTTPException, lambda error: ("general", 429))
    app.register_error_handler(RateLimitExceeded, lambda error: ("special", 429))
    assert get(app, "/a").text == "special"
    assert get(app, "/none").text == "general"


def test_handler_registered_before_the_extension_stays() -> None:
    from flask import Flask

    app = Flask("site")
    app.register_error_handler(RateLimitExceeded, lambda error: ("mine", 429))
    gate = Crestgate(app, limiter=limiter_on())
    app.add_url_rule("/a", "a", gate.limit("0/minute")(lambda: "a"))
    assert get(app, "/a").text == "mine"


def test_blueprint_handlers_shape_its_denials() -> None:
    app, gate = denied_site()
    pages = Blueprint("pages", __name__)
    pages.add_url_rule("/b", "b", gate.limit("0/minute")(lambda: "b"))
    pages.register_error_handler(429, lambda error: ("of pages", 429))
    app.register_blueprint(pages)
    assert get(app, "/b").text == "of pages"
    assert get(app, "/a").is_json


def test_catch_all_handler_that_skips_http_errors_skips_denials() -> None:
    app, gate = site()
    pages = Blueprint("pages", __name__)

    @pages.errorhandler(Exception)
    def everything(error: Exception) -> Any:
        return error if isinstance(error, HTTPException) else ("broken", 500)

    pages.add_url_rule("/b", "b", gate.limit("0/minute")(lambda: "b"))
    app.register_blueprint(pages)
    denied = get(app, "/b")
    assert (denied.status_code, denied.content_type) == (429, "application/problem+json")


# -- on_denied --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shaped", "status", "body", "kind"),
    [
        (Denial(418, b"tea", "text/plain", (("X-Pot", "hot"),)), 418, b"tea", "text/plain"),
        (("busy", 503), 503, b"busy", "text/html; charset=utf-8"),
        ({"error": "busy"}, 200, b'{"error":"busy"}\n', "application/json"),
        (Response("own", 420), 420, b"own", "text/html; charset=utf-8"),
    ],
)
def test_on_denied_returns_any_view_result(shaped: Any, status: int, body: bytes, kind: str) -> None:
    app, _ = denied_site(on_denied=lambda request, decision: shaped if request.args.get("shape") else None)
    denied = get(app, "/a?shape=1")
    assert (denied.status_code, denied.data, denied.content_type) == (status, body, kind)
    assert denied.headers["RateLimit"] == '"0/minute";r=0'
    assert get(app, "/a").status_code == 429


def test_on_denied_applies_to_functions_that_are_not_views() -> None:
    app, gate = site()

    @gate.limit("0/minute", on_denied=lambda request, decision: ("busy", 503))
    def costly() -> str:
        return "x"

    app.add_url_rule("/a", "a", lambda: costly())
    assert get(app, "/a").status_code == 503


def test_on_denied_applies_to_denials_raised_by_the_application() -> None:
    limiter = limiter_on()
    app, _ = site(limiter=limiter, on_denied=lambda request, decision: (f"{decision.name}", 503))

    @app.get("/a")
    @limiter.limit("1/minute", key="x")
    def a() -> str:
        return "a"

    assert [get(app, "/a").status_code, get(app, "/a").text] == [200, "1/minute"]


# -- headers ----------------------------------------------------------------------------------------------------------


def test_errors_and_streams_have_the_headers() -> None:
    app, _ = site(application_limits="100/minute")
    app.logger.disabled = True
    fails: Any = lambda: 1 / 0  # noqa: E731 - a view that fails
    app.add_url_rule("/fails", "fails", fails)

    @app.get("/missing")
    def missing() -> str:
        raise NotFound

    @app.get("/stream")
    def stream() -> Iterator[str]:
        yield "a"
        yield "b"

    found = [get(app, path) for path in ("/fails", "/missing", "/stream", "/nowhere")]
    assert [response.status_code for response in found] == [500, 404, 200, 404]
    assert [int(response.headers["X-RateLimit-Remaining"]) for response in found] == [99, 98, 97, 96]
    assert found[2].text == "ab"


def test_earlier_before_request_response_skips_the_extension() -> None:
    from flask import Flask

    app = Flask("site")
    app.before_request(lambda: "closed")
    Crestgate(app, limiter=limiter_on(), application_limits="1/minute")
    response = get(app, "/a")
    assert (response.text, "RateLimit" in response.headers) == ("closed", False)


def test_middleware_around_the_extension_counts_and_writes_once() -> None:
    limiter = limiter_on()
    app, gate = site(limiter=limiter, application_limits="5/minute")
    app.add_url_rule("/a", "a", gate.limit("3/minute")(lambda: "a"))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter, "5/minute")  # type: ignore[method-assign]  # Flask's way
    response = get(app, "/a")
    assert response.headers.getlist("RateLimit") == ['"5/minute";r=4;t=12, "3/minute";r=2;t=20']
    assert passes(app, "/a") == 2
    assert limiter.peek("ip:203.0.113.7", "5/minute").remaining == 0
    denied = get(app, "/a")
    assert denied.status_code == 429
    assert len(denied.headers.getlist("Retry-After")) == 1


def test_two_applications_in_one_request_share_its_state() -> None:
    """One is mounted in the other by a dispatcher, and both use the extension."""
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    limiter = limiter_on()
    outer, _ = site(limiter=limiter, application_limits="5/minute")
    inner, _ = site(limiter=limiter, application_limits="5/minute")
    inner.add_url_rule("/a", "a", lambda: "inner")
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/inner": inner})  # type: ignore[method-assign]
    assert get(outer, "/inner/a").headers["X-RateLimit-Remaining"] == "4"
    assert get(outer, "/a").headers["X-RateLimit-Remaining"] == "3"
