"""Decorators of the Flask extension: they count once in any order, and are never ignored silently."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View

from crestgate import ConfigError
from crestgate.integrations.flask import Crestgate
from unit.integrations.flask_sites import get, passes, site
from unit.integrations.wsgi_calls import limiter_on

Decorator = Callable[[Any], Any]


def wrapping(function: Any) -> Any:
    """A decorator that sets `__wrapped__`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def hiding(function: Any) -> Any:
    """A decorator that does not set `__wrapped__`."""

    def wrapper(**kwargs: Any) -> Any:
        return function(**kwargs)

    return wrapper


class Holding:
    """A decorator that is an object."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, **kwargs: Any) -> Any:
        return self.function(**kwargs)


def partly(function: Any) -> Any:
    return functools.partial(function, extra="x")


ARRANGEMENTS: dict[str, list[str]] = {
    # what is applied, innermost first
    "below the route": ["limit", "route"],
    "above the route": ["route", "limit"],
    "below a decorator": ["limit", "wrapping", "route"],
    "above a decorator": ["wrapping", "limit", "route"],
    "between decorators": ["wrapping", "limit", "wrapping", "route"],
    "above a decorator above the route": ["route", "wrapping", "limit"],
    "between decorators above the route": ["route", "wrapping", "limit", "wrapping"],
    "below one that hides": ["limit", "hiding", "route"],
    "above one that hides": ["hiding", "limit", "route"],
    "above one that hides above the route": ["route", "hiding", "limit"],
    "far above the route": ["wrapping", "route", "hiding", "wrapping", "Holding", "limit", "hiding"],
    "below an object": ["limit", "Holding", "route"],
    "above an object above the route": ["route", "Holding", "limit"],
    "above a partial above the route": ["route", "partly", "limit"],
    "in a partial": ["limit", "partly", "route"],
}


def arranged(on: Any, gate: Crestgate, number: int, arrangement: list[str]) -> None:
    """A view with decorators. Afterwards only the application refers to it."""
    steps: dict[str, Decorator] = {
        "limit": gate.limit("3/minute"),
        "route": on.route(f"/{number}/<name>", endpoint=f"view-{number}"),
        "wrapping": wrapping,
        "hiding": hiding,
        "Holding": Holding,
        "partly": partly,
    }

    def view(name: str, extra: str = "") -> str:
        return name

    decorated: Any = view
    for step in arrangement:
        decorated = steps[step](decorated)


@pytest.mark.parametrize("of_blueprint", [False, True])
def test_decorator_order_does_not_matter(of_blueprint: bool) -> None:
    app, gate = site()
    on: Any = Blueprint("pages", __name__) if of_blueprint else app
    for number, arrangement in enumerate(ARRANGEMENTS.values()):
        arranged(on, gate, number, arrangement)
    gc.collect()
    if of_blueprint:
        app.register_blueprint(on)
    passed = {}
    for number, name in enumerate(ARRANGEMENTS):
        passed[name] = (get(app, f"/{number}/1").headers.get("X-RateLimit-Remaining"), passes(app, f"/{number}/2", 4))
    assert passed == dict.fromkeys(ARRANGEMENTS, ("2", 2))


def test_two_limits_on_one_view_both_count_in_any_order() -> None:
    app, gate = site()

    @gate.limit("8/minute")
    @app.get("/a")
    @gate.limit("5/minute")
    @gate.limit("3/minute")
    def a() -> str:
        return "a"

    assert get(app, "/a").headers["RateLimit-Policy"].count(";q=") == 3
    assert passes(app, "/a") == 2


def test_equal_limits_on_one_view_count_once() -> None:
    app, gate = site()
    app.add_url_rule("/a", "a", gate.limit("3/minute")(gate.limit("3/minute")(lambda: "a")))
    assert passes(app, "/a") == 3


def test_visible_limit_above_the_route_replaces_the_defaults() -> None:
    app, gate = site(default_limits="2/minute")

    @gate.limit("5/minute")
    @app.get("/a")
    def a() -> str:
        return "a"

    @gate.exempt
    @app.get("/b")
    def b() -> str:
        return "b"

    assert [passes(app, "/a"), passes(app, "/b")] == [5, 10]


def test_hidden_limit_counts_beside_the_defaults() -> None:
    app, gate = site(default_limits="4/minute")
    app.add_url_rule("/few", "few", hiding(gate.limit("2/minute")(lambda: "few")))
    app.add_url_rule("/many", "many", hiding(gate.limit("8/minute")(lambda: "many")))
    assert [passes(app, "/few"), passes(app, "/many")] == [2, 4]


def test_function_may_have_different_limits_per_url() -> None:
    app, gate = site()

    def view() -> str:
        return "x"

    app.add_url_rule("/free", "free", view)
    app.add_url_rule("/three", "three", gate.limit("3/minute")(view))
    app.add_url_rule("/four", "four", gate.limit("4/minute")(view))
    assert [passes(app, path) for path in ("/free", "/three", "/four")] == [10, 3, 4]


def test_coroutine_views_stay_coroutines_and_are_limited() -> None:
    app, gate = site()

    @app.get("/seen")
    @gate.limit("3/minute")
    async def outer() -> str:
        return "x"

    async def inner() -> str:
        return "x"

    limited = gate.limit("3/minute")(inner)

    @app.get("/hidden")
    async def wrapper() -> str:
        return await limited()

    assert [passes(app, "/seen"), passes(app, "/hidden")] == [3, 3]


def test_function_that_is_not_a_view_is_checked_once_per_request() -> None:
    app, gate = site()

    @gate.limit("3/minute")
    def costly() -> str:
        return "x"

    @gate.limit("3/minute")
    def other() -> str:
        return "y"

    @app.get("/a/<int:times>")
    def a(times: int) -> str:
        return "".join(costly() + other() for _ in range(times))

    assert costly() == "x", "outside of a request nothing is limited"
    assert passes(app, "/a/0") == 10
    assert get(app, "/a/2").headers["X-RateLimit-Remaining"] == "2"
    assert passes(app, "/a/1") == 2


def test_views_of_one_factory_are_not_confused() -> None:
    """In an application factory every function can refer to every other. A call is not a wrapper."""
    app, gate = site()

    @app.get("/plain")
    def plain() -> str:
        return "plain"

    @gate.limit("2/minute")
    def helper() -> str:
        return plain()

    @app.get("/helped")
    def helped() -> str:
        return helper()

    assert [passes(app, "/plain"), passes(app, "/helped")] == [10, 2]


def test_class_based_views_have_limits_on_class_and_methods() -> None:
    app, gate = site(default_limits="2/minute")

    class Whole(View):
        decorators = [gate.limit("3/minute")]  # noqa: RUF012 - as Flask has it

        def dispatch_request(self) -> str:
            return "whole"

    class Methods(MethodView):
        @gate.limit("4/minute")
        def get(self) -> str:
            return "get"

        @gate.limit("4/minute")
        def post(self) -> str:
            return "post"

        def put(self) -> str:
            return "put"

        @gate.exempt
        def delete(self) -> str:
            return "delete"

    app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    app.add_url_rule("/methods", view_func=Methods.as_view("methods"))
    assert passes(app, "/whole") == 3
    assert passes(app, "/methods", method="POST") == 4
    assert passes(app, "/methods") == 4
    assert passes(app, "/methods", method="PUT") == 2
    assert passes(app, "/methods", method="DELETE") == 10


def test_class_and_method_limits_combine() -> None:
    app, gate = site()

    class Both(MethodView):
        decorators = [gate.limit("5/minute")]  # noqa: RUF012 - as Flask has it

        @gate.limit("3/minute")
        def get(self) -> str:
            return "get"

        def post(self) -> str:
            return "post"

    app.add_url_rule("/both", view_func=Both.as_view("both"))
    assert passes(app, "/both", 3) == 3
    assert passes(app, "/both", method="HEAD") == 0, "HEAD is the same method of the class"
    assert passes(app, "/both", method="POST") == 2


def test_invalid_targets_are_refused() -> None:
    _, gate = site()
    with pytest.raises(ConfigError, match=r"decorators = \[gate.limit"):

        @gate.limit("3/minute")
        class Page(View):
            pass

    with pytest.raises(ConfigError, match="views and blueprints"):
        gate.limit("3/minute")("/a")


def test_extension_without_an_application_is_an_error() -> None:
    app = Flask("site")
    app.config["PROPAGATE_EXCEPTIONS"] = True
    gate = Crestgate(limiter=limiter_on())
    app.add_url_rule("/a", "a", gate.limit("3/minute")(lambda: "a"))
    with pytest.raises(ConfigError, match="init_app"):
        get(app, "/a")


def test_views_of_collected_applications_are_freed() -> None:
    gate = Crestgate(limiter=limiter_on())

    def made() -> None:
        app = Flask("site")
        gate.init_app(app)
        app.add_url_rule("/a", "a", gate.limit("3/minute")(lambda: str(app)))
        assert passes(app, "/a") == 3

    made()
    gc.collect()
    assert gate._registry.wrappers() == []
    assert gate._existing_app_limits() == []
