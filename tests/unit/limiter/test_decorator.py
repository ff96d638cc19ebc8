"""The decorator: keys, functions of both kinds, and mistakes found when decorating."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded
from crestgate.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", plans={"gold": "2/minute"}, clock=clock)


def test_key_template_uses_parameters(limiter: Limiter) -> None:
    @limiter.limit("gold", key="user:{user_id}")
    def handler(user_id: int, verbose: bool = False) -> int:
        return user_id

    assert [handler(1), handler(user_id=1), handler(2)] == [1, 1, 2]
    with pytest.raises(RateLimitExceeded) as denied:
        handler(1, verbose=True)
    assert denied.value.decision.name == "gold"
    assert limiter.peek("user:1", "gold").remaining == 0


def test_key_template_supports_defaults_attributes_and_braces(limiter: Limiter) -> None:
    class User:
        id = 7

    @limiter.limit("gold", key="{{{user.id}}}:{size}")
    def handler(user: User, size: str = "small") -> None:
        pass

    handler(User())
    assert limiter.peek("{7}:small", "gold").remaining == 1


def test_key_callable_gets_the_arguments(limiter: Limiter) -> None:
    @limiter.limit("gold", key=lambda user_id, **_: f"u{user_id}", cost=2)
    def handler(user_id: int, *, page: int) -> None:
        pass

    handler(3, page=1)
    assert limiter.peek("u3", "gold").remaining == 0


def test_key_defaults_to_the_function_name(limiter: Limiter) -> None:
    @limiter.limit("gold")
    def handler() -> None:
        pass

    handler()
    handler()
    with pytest.raises(RateLimitExceeded):
        handler()


def test_methods_can_be_decorated(limiter: Limiter) -> None:
    class Service:
        def __init__(self, name: str) -> None:
            self.name = name

        @limiter.limit("gold", key="service:{self.name}")
        def call(self) -> str:
            return self.name

        @staticmethod
        @limiter.limit("gold")
        def static() -> str:
            return "static"

    assert Service("a").call() == "a"
    assert Service.static() == "static"
    assert limiter.peek("service:a", "gold").remaining == 1


def test_async_functions_work_with_both_limiters(limiter: Limiter, clock: FakeClock) -> None:
    async def main() -> None:
        async_limiter = AsyncLimiter("memory://", clock=clock)

        @limiter.limit("1/minute", key="k")
        async def with_sync() -> str:
            return "done"

        @async_limiter.limit("1/minute", key="k")
        async def with_async() -> str:
            return "done"

        for function in (with_sync, with_async):
            assert inspect.iscoroutinefunction(function)
            assert await function() == "done"
            with pytest.raises(RateLimitExceeded):
                await function()

    asyncio.run(main())


def test_decorator_keeps_metadata(limiter: Limiter) -> None:
    @limiter.limit("gold")
    def handler(user_id: int) -> int:
        """Says hello."""
        return user_id

    assert (handler.__name__, handler.__doc__) == ("handler", "Says hello.")
    assert str(inspect.signature(handler)) == "(user_id: 'int') -> 'int'"


def test_leaky_bucket_delay_is_waited_for(limiter: Limiter, clock: FakeClock) -> None:
    @limiter.limit("2/second using leaky_bucket")
    def handler() -> float:
        return clock.now() - 1_700_000_000

    @limiter.limit("2/second using leaky_bucket", key="async")
    async def handler_async() -> float:
        return clock.now() - 1_700_000_000

    assert [handler(), handler()] == [0.0, 0.5]
    assert [asyncio.run(handler_async()), asyncio.run(handler_async())] == [0.5, 1.0]


def test_generator_functions_are_refused(limiter: Limiter) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def async_numbers() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, async_numbers):
        with pytest.raises(ConfigError, match="is a generator"):
            limiter.limit("gold")(function)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("user:{userid}", "has no parameter 'userid'; its parameters are: user_id"),
        ("user:{}", "name the parameter between the braces"),
        ("user:{0}", "name the parameter between the braces"),
        ("user:{user_id", "key template"),
        (42, "must be a template"),
        ("", "key must not be empty"),
    ],
)
def test_invalid_keys_are_refused_when_decorating(limiter: Limiter, key: object, message: str) -> None:
    def handler(user_id: int) -> None:
        pass

    with pytest.raises(ConfigError, match=message):
        limiter.limit("gold", key=key)(handler)  # type: ignore[arg-type]  # wrong on purpose


def test_invalid_uses_are_refused_when_decorating(limiter: Limiter, clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="no plan 'glod'"):
        limiter.limit("glod")
    with pytest.raises(ValueError, match="cost must be"):
        limiter.limit("gold", cost=-1)
    with pytest.raises(ConfigError, match="is not async"):
        AsyncLimiter("memory://", clock=clock).limit("1/s")(lambda: None)  # type: ignore[arg-type,return-value]
    for wrong in (42, int):
        with pytest.raises(ConfigError, match="only functions and methods can be limited"):
            limiter.limit("gold")(wrong)  # type: ignore[arg-type]  # wrong on purpose
    above: Any
    for above in (staticmethod(print), classmethod(print), property(print)):
        with pytest.raises(ConfigError, match=r"put @limiter.limit below @(static|class)?(method|property)"):
            limiter.limit("gold")(above)


def test_callable_objects_without_a_name_can_be_decorated(limiter: Limiter) -> None:
    assert limiter.limit("gold")(functools.partial(int, "7"))() == 7
    assert limiter.limit("gold", key="p")(functools.partial(int, "8"))() == 8
