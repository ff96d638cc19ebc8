"""A decorator used without brackets gets the function as its limits. That is an error when decorating."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from crestgate import AsyncLimiter, ConfigError, Limiter
from crestgate.integrations import django, fastapi
from integration.frameworks.apps.django_project import configure
from unit.integrations.flask_sites import site

configure()
DECORATORS: dict[str, tuple[Any, str]] = {
    "fastapi": (fastapi.limit, r'@limit\("5/minute"\)'),
    "django": (django.limit, r'@limit\("5/minute"\)'),
    "flask": (site()[1].limit, r'@gate\.limit\("5/minute"\)'),
    "functions": (Limiter().limit, r'@limiter\.limit\("5/minute"\)'),
    "async functions": (AsyncLimiter().limit, r'@limiter\.limit\("5/minute"\)'),
}


@pytest.fixture(params=list(DECORATORS))
def limit(request: pytest.FixtureRequest) -> Any:
    return DECORATORS[request.param][0]


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


@pytest.mark.parametrize("name", list(DECORATORS))
def test_missing_brackets_error_names_the_remedy(name: str) -> None:
    limit, form = DECORATORS[name]
    with pytest.raises(ConfigError, match=rf"view was given instead of limits: write {form}, with the limits in"):

        @limit  # type: ignore[untyped-decorator]  # of whatever kind
        async def view() -> None: ...


def test_missing_brackets_among_other_decorators(limit: Any) -> None:
    with pytest.raises(ConfigError, match="in parentheses"):

        @wrapping
        @limit  # type: ignore[untyped-decorator]  # of whatever kind
        @wrapping
        def view(request: Any) -> str:
            return "seen"


def test_missing_brackets_on_methods_and_classes(limit: Any) -> None:
    with pytest.raises(ConfigError, match="in parentheses"):

        class Method:
            @limit  # type: ignore[untyped-decorator]  # of whatever kind
            def get(self, request: Any) -> None: ...

    with pytest.raises(ConfigError, match="in parentheses"):

        @limit
        class View: ...


def test_callable_limits_are_accepted(limit: Any) -> None:
    def limits_of(*_: Any) -> str:
        return "5/minute"

    def made() -> Callable[..., str]:
        def inner(*_: Any) -> str:
            return "5/minute"

        return inner

    for limits in (limits_of, made(), functools.partial(limits_of, 1)):
        assert callable(limit(limits))
    assert callable(limit(lambda *_: "5/minute"))


def test_limit_function_itself_is_not_a_dependency() -> None:
    app = FastAPI()
    with pytest.raises(ConfigError, match=r'write Depends\(limit\("5/minute"\)\), with limits'):

        @app.get("/", dependencies=[Depends(fastapi.limit)])
        def hello() -> None: ...

    with pytest.raises(ConfigError, match="limit is not a dependency by itself"):

        @app.get("/")
        def hello_again(_: Annotated[Any, Depends(fastapi.limit)]) -> None: ...


def test_dependency_that_calls_it_limits() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(fastapi.limit("1/minute", limiter=Limiter()))])
    def hello() -> None: ...

    with TestClient(app) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
