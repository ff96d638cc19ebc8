"""Options of the decorator, for sync and async functions and both limiters."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded
from crestgate.stores.port import Store
from crestgate.testing import FakeClock
from flaky_store import Flaky

Decorate = Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]
KINDS = ("function", "coroutine", "coroutine of an AsyncLimiter")


@pytest.fixture
def store() -> Flaky:
    """The limiters do not know it as an in-memory store: checks of async functions run in a thread."""
    return Flaky()


@pytest.fixture(params=KINDS)
def limit(request: pytest.FixtureRequest, store: Flaky) -> Decorate:
    """The decorator of a limiter. Takes plain functions, and makes them async where needed."""

    def decorate(limits: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda function: decorated(request.param, store, function, limits, options)

    return decorate


def decorated(kind: str, store: Flaky, function: Callable[..., Any], limits: Any, options: Any) -> Callable[..., Any]:
    if kind == "function":
        return Limiter(cast(Store, store)).limit(limits, **options)(function)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    coroutine.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # as functools.wraps would
    limiter: Any = Limiter(cast(Store, store)) if kind == "coroutine" else AsyncLimiter(cast(Store, store))
    limited: Callable[..., Coroutine[Any, Any, Any]] = limiter.limit(limits, **options)(coroutine)
    return lambda *args, **kwargs: asyncio.run(cast(Any, limited(*args, **kwargs)))


def outcomes_of(function: Callable[..., Any], arguments: Iterable[Any]) -> list[Any]:
    """The outcomes of calls: their results, `denied`, or the names of other errors."""
    found: list[Any] = []
    for argument in arguments:
        try:
            found.append(function(argument))
        except RateLimitExceeded:
            found.append("denied")
        except RuntimeError as error:
            found.append(str(error))
    return found


def left(store: Flaky, key: str, limits: Any) -> int:
    return Limiter(cast(Store, store)).peek(key, limits).remaining


def test_cost_callable(limit: Decorate, store: Flaky) -> None:
    send = limit("10/minute", key="k", cost=lambda text: len(text))(lambda text: text.upper())
    assert outcomes_of(send, ["abcd", "abc", "abcd", "abc", "", "a"]) == ["ABCD", "ABC", "denied", "ABC", "", "denied"]
    with pytest.raises(ValueError, match="cost must be a whole number"):
        limit("10/minute", cost=lambda _: 0.5)(lambda text: text)("a")


def test_limits_callable(limit: Decorate, store: Flaky) -> None:
    tiers = {"free": "1/minute", "gold": ["2/minute", "9/hour"], "staff": None}
    work = limit(lambda tier: tiers[tier], key="tier:{tier}")(lambda tier: tier)
    assert outcomes_of(work, ["free", "free", "gold", "gold", "gold"]) == ["free", "denied", "gold", "gold", "denied"]
    assert outcomes_of(work, ["staff"] * 3) == ["staff"] * 3
    tiers["free"] = "5/minute"
    assert outcomes_of(work, ["free"]) == ["free"]
    tiers["free"] = "5/fortnight"
    with pytest.raises(ConfigError, match="unknown unit"):
        work("free")


def test_exempt_calls_are_not_counted(limit: Decorate, store: Flaky) -> None:
    asked = []

    def key(user: str) -> str:
        asked.append(user)
        return user

    work = limit("1/minute", key=key, exempt=lambda user: user == "root")(lambda user: user)
    assert outcomes_of(work, ["root", "root", "bob", "bob"]) == ["root", "root", "bob", "denied"]
    assert asked == ["bob", "bob"], "exempt calls compute no key"


def test_when_decides_by_the_return_value(limit: Decorate, store: Flaky) -> None:
    log_in = limit("2/minute", key="log-in", when=lambda user: user is None)(
        lambda password: None if password == "wrong" else "bob"
    )
    assert outcomes_of(log_in, ["right"] * 5 + ["wrong", "right", "wrong", "right"]) == ["bob"] * 5 + [
        None,
        "bob",
        None,
        "denied",
    ]
    assert left(store, "log-in", "2/minute") == 0


def test_when_decides_by_the_exception(limit: Decorate, store: Flaky) -> None:
    def work(what: str) -> str:
        if what.startswith("fail"):
            raise RuntimeError(what)
        return what

    given: list[object] = []

    def counts(outcome: object) -> bool:
        given.append(outcome)
        return not (isinstance(outcome, RuntimeError) and str(outcome) == "fail for free")

    limited = limit("5/minute", key="k", cost=2, when=counts)(work)
    assert outcomes_of(limited, ["fail for free"] * 4) == ["fail for free"] * 4
    assert outcomes_of(limited, ["done", "fail", "done"]) == ["done", "fail", "denied"]
    assert [str(outcome) for outcome in given] == ["fail for free"] * 4 + ["done", "fail"]
    assert left(store, "k", "5/minute") == 1


def test_system_exit_keeps_the_charge(store: Flaky) -> None:
    limited = decorated("function", store, interrupted, "5/minute", {"key": "k", "when": lambda _: False})
    with pytest.raises(KeyboardInterrupt):
        limited()
    assert left(store, "k", "5/minute") == 4


def interrupted() -> None:
    raise KeyboardInterrupt


def test_cancelled_call_keeps_the_charge(store: Flaky) -> None:
    limiter = AsyncLimiter(cast(Store, store))
    entered = asyncio.Event()

    @limiter.limit("5/minute", key="k", when=lambda _: False)
    async def work() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert left(store, "k", "5/minute") == 4


def test_dry_run_counts_and_denies_nobody(limit: Decorate, store: Flaky, caplog: pytest.LogCaptureFixture) -> None:
    work = limit("2/minute", key="k", dry_run=True)(lambda x: x)
    with caplog.at_level(logging.WARNING, "crestgate"):
        assert outcomes_of(work, range(4)) == [0, 1, 2, 3]
    assert caplog.messages[0] == "dry run: 2/minute would have denied (1 since last logged)"
    assert left(store, "k", "2/minute") == 0
    asked = limit("2/minute", key="k", dry_run=True, when=lambda _: False)(lambda x: x)
    assert outcomes_of(asked, range(4)) == [0, 1, 2, 3]


def test_wait_false_skips_the_leaky_bucket_delay(limit: Decorate, store: Flaky) -> None:
    work = limit("2/second using leaky_bucket", key="k", wait=False)(lambda _: store.clock.now() - 1_700_000_000)
    assert outcomes_of(work, "ab") == [0.0, 0.0]
    waited = limit("2/second using leaky_bucket", key="w")(lambda _: store.clock.now() - 1_700_000_000)
    assert outcomes_of(waited, "ab") == [0.0, 0.5]
    settled = limit("2/second using leaky_bucket", key="s", when=bool)(lambda _: store.clock.now() - 1_700_000_000)
    assert outcomes_of(settled, "ab") == [0.5, 1.0]


def test_failed_store_gets_nothing_back(limit: Decorate, store: Flaky) -> None:
    work = limit("1/minute", key="k", when=lambda _: False)(lambda x: x)
    store.broken = True
    assert outcomes_of(work, range(3)) == [0, 1, 2]
    store.broken = False
    assert outcomes_of(work, range(3)) == [0, 1, 2]

    def break_it(x: int) -> int:
        store.broken = True
        return x

    assert outcomes_of(limit("1/minute", key="k", when=lambda _: False)(break_it), [7]) == [7], (
        "and the call has its result"
    )


def test_all_options_together() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", plans={"gold": "3/minute"}, clock=clock)

    @limiter.limit(
        lambda user, **_: None if user == "guest" else "gold",
        key="user:{user}",
        cost=lambda user, *, size=1: size,
        exempt=lambda user, size=1: user == "root",
        when=lambda result: result > 0,
    )
    async def work(user: str, *, size: int = 1) -> int:
        return size - 1

    async def main() -> list[int]:
        return [await work("bob"), await work("bob", size=3), await work("root", size=9), await work("guest", size=9)]

    assert asyncio.run(main()) == [0, 2, 8, 8]
    assert limiter.peek("user:bob", "gold").remaining == 0
    with pytest.raises(RateLimitExceeded):
        asyncio.run(work("bob"))


async def coroutine_function(*_: object, **__: object) -> Any:
    return "k"


class AsyncCallable:
    async def __call__(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": "401"}, "when must be a callable, not '401'"),
        ({"when": coroutine_function}, "when must be a plain function, and coroutine_function is"),
        ({"when": lambda: True}, "when is given one thing"),
        ({"exempt": ["root"]}, "exempt must be a callable"),
        ({"exempt": AsyncCallable()}, "exempt must be a plain function"),
        ({"exempt": lambda: True}, r"exempt is given the arguments of the call, and takes \(\) where"),
        ({"cost": lambda user, size: size}, r"takes \(user, size\) where .* is called with \(user\)"),
        ({"cost": coroutine_function}, "cost must be a plain function"),
        ({"limits": coroutine_function}, "limits must be a plain function"),
        ({"limits": lambda: "1/s"}, "limits is given the arguments"),
        ({"key": coroutine_function}, "key must be a plain function"),
        ({"key": lambda *, name: name}, "key is given the arguments"),
        ({"wait": "no"}, "wait must be True or False, not 'no'"),
        ({"dry_run": 1}, "dry_run must be True or False, not 1"),
    ],
)
def test_invalid_options_are_refused_when_decorating(kind: Any, options: dict[str, Any], message: str) -> None:
    async def work(user: str) -> None:
        pass

    with pytest.raises(ConfigError, match=message):
        kind("memory://").limit(**{"limits": "1/minute", **options})(work)


def test_callables_that_accept_some_calls_are_allowed() -> None:
    limiter = Limiter("memory://")

    def work(user: str, size: int = 1, *rest: str) -> str:
        return user

    def sized(user: str, size: int = 1) -> str:
        return user

    assert limiter.limit("1/minute", key=lambda: "k")(work) is not None, "the arguments are unknown"
    assert limiter.limit("1/minute", cost=lambda user, size: size)(sized)("bob", 1) == "bob"
    assert limiter.limit("1/minute", cost=max)(sized) is not None, "its signature is unknown"
