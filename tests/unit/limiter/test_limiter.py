"""The methods of both limiters behave the same."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, StoreClosedError
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock

PLANS = {"gold": "10/second burst 20", "daily": "5000/day", "both": ["2/second", Limit(5, 60)], "text": "3/s; 4/m"}


class Calls:
    """A limiter whose coroutines, if it has any, are run to completion."""

    def __init__(self, limiter: Limiter | AsyncLimiter, loop: asyncio.AbstractEventLoop) -> None:
        self.limiter = limiter
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = getattr(self.limiter, name)(*args, **kwargs)
            return self._loop.run_until_complete(result) if inspect.iscoroutine(result) else result

        return call


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture(params=[Limiter, AsyncLimiter], ids=["sync", "async"])
def calls(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Calls]:
    loop = asyncio.new_event_loop()
    yield Calls(request.param("memory://", plans=PLANS, clock=clock), loop)
    loop.close()


def test_readme_example() -> None:
    limiter = Limiter("memory://")
    assert limiter.check("user:42", "100/minute").allowed


def test_check_consumes_and_peek_does_not(calls: Calls) -> None:
    assert calls.check("user:42", "100/minute").remaining == 99
    assert calls.peek("user:42", "100/minute").remaining == 99
    assert calls.peek("user:42", "100/minute", cost=100).allowed is False
    assert calls.check("user:42", "100/minute", cost=99).remaining == 0


def test_peek_equals_check(calls: Calls) -> None:
    calls.check("k", "5/minute", cost=4)
    for cost in (0, 1, 2, 6):
        expected = calls.peek("k", "5/minute", cost=cost)
        assert (expected.allowed, expected.reason) == ((True, "ok") if cost < 2 else (False, expected.reason))
    denied = calls.peek("k", "5/minute", cost=2)
    assert calls.check("k", "5/minute", cost=2) == denied


def test_plans_and_chains(calls: Calls) -> None:
    decision = calls.check("user:42", ["gold", "daily"], cost=3)
    assert [(part.name, part.remaining) for part in decision.parts] == [("gold", 17), ("daily", 4997)]


def test_limits_of_a_plan_are_numbered(calls: Calls) -> None:
    assert [part.name for part in calls.check("k", "both").parts] == ["both", "both#2"]
    assert [part.name for part in calls.check("k", "text").parts] == ["text", "text#2"]


def test_counters_are_identified_by_name(calls: Calls, clock: FakeClock) -> None:
    calls.check("k", "10/second burst 20", cost=20)
    assert calls.check("k", "gold").remaining == 19, "a plan does not share with the same limit inline"
    assert calls.peek("k", Limit(10, 1, 20)).remaining == 0, "the same inline limit is one counter"
    assert calls.peek("k", "10 per SECOND burst 20").remaining == 0, "however it is spelled"
    assert calls.peek("k", Limit(10, 1, 20, name="mine")).remaining == 20, "a name is a counter of its own"


def test_duplicate_limit_in_a_chain_is_charged_once(calls: Calls) -> None:
    decision = calls.check("k", ["5/minute", "9/minute", "5 per minute"])
    assert [part.remaining for part in decision.parts] == [4, 8, 4]


def test_different_limits_of_one_name_in_a_chain_are_refused(calls: Calls) -> None:
    with pytest.raises(ConfigError, match="name them apart"):
        calls.check("k", [Limit(5, 60, name="x"), Limit(6, 60, name="x")])


def test_reset_clears_the_counter(calls: Calls) -> None:
    calls.check("k", ["gold", "daily"], cost=20)
    calls.reset("k", ["gold", "daily"])
    assert [part.remaining for part in calls.peek("k", ["gold", "daily"], cost=0).parts] == [20, 5000]


def test_check_many_decides_in_order(calls: Calls) -> None:
    decisions = calls.check_many([("a", "gold", 15), ("a", "gold", 6), ("b", ["gold", "daily"]), ("a", "gold", 5)])
    assert [d.allowed for d in decisions] == [True, False, True, True]
    assert calls.check_many([]) == []
    with pytest.raises(ValueError, match=r"\(key, limits\)"):
        calls.check_many([("a",)])


def test_bind_compiles_once(calls: Calls) -> None:
    gold = Calls(calls.bind("gold"), calls._loop)
    assert gold.check("user:42").remaining == 19
    assert gold.peek("user:42", cost=19).allowed
    gold.reset("user:42")
    assert gold.check("user:42", 20).remaining == 0


def test_plans_may_change(clock: FakeClock) -> None:
    plans: dict[str, Any] = {"gold": "100/minute"}
    limiter = Limiter("memory://", plans=plans, clock=clock)
    limiter.check("k", "gold", cost=60)
    plans["gold"] = "1000/minute"
    assert limiter.peek("k", "gold").remaining == 940
    del plans["gold"]
    with pytest.raises(ConfigError, match="no plan 'gold'"):
        limiter.check("k", "gold")


def test_plan_with_an_added_limit_keeps_its_counter(clock: FakeClock) -> None:
    plans: dict[str, Any] = {"gold": "10/hour"}
    limiter = Limiter("memory://", plans=plans, clock=clock)
    limiter.check("k", "gold", cost=10)
    plans["gold"] = ["10/hour", "100/day"]
    assert not limiter.check("k", "gold").allowed


def test_plans_may_be_a_callable(clock: FakeClock) -> None:
    limiter = Limiter("memory://", plans={"gold": "3/minute"}.get, clock=clock)
    assert limiter.check("k", "gold").limit == 3
    assert limiter.check("k", "5/minute").limit == 5
    with pytest.raises(ConfigError, match="no plan 'silver'"):
        limiter.check("k", "silver")


BAD_INPUT = [
    ({"key": ""}, ValueError, "key must not be empty"),
    ({"key": "k" * 1025}, ValueError, "1025 bytes"),
    ({"key": "é" * 513}, ValueError, "1026 bytes"),
    ({"key": 42}, TypeError, "key must be text such as 'user:42', not 42"),
    ({"key": b"k"}, TypeError, "key must be text"),
    ({"cost": -1}, ValueError, "cost must be a whole number from 0 to 2147483647"),
    ({"cost": 1.5}, ValueError, "cost must be a whole number"),
    ({"cost": 1.0}, ValueError, "cost must be a whole number"),
    ({"cost": "1"}, ValueError, "cost must be a whole number"),
    ({"cost": None}, ValueError, "cost must be a whole number"),
    ({"cost": 2**31}, ValueError, "cost must be a whole number"),
    ({"cost": 2**70}, ValueError, "cost must be a whole number"),
]


@pytest.mark.parametrize("method", ["check", "peek", "acquire", "reserve"])
@pytest.mark.parametrize(("bad", "error", "message"), BAD_INPUT, ids=[str(bad)[:20] for bad, _, _ in BAD_INPUT])
def test_invalid_input_changes_nothing(
    calls: Calls, method: str, bad: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"key": "k", "cost": 1, **bad}
    with pytest.raises(error, match=message):
        getattr(calls, method)(arguments["key"], "5/minute", cost=arguments["cost"])
    with pytest.raises(error, match=message):
        calls.check_many([("k", "5/minute"), (arguments["key"], "5/minute", arguments["cost"])])
    assert calls.peek("k", "5/minute").remaining == 5


def test_maximum_cost_and_key_are_accepted(calls: Calls) -> None:
    assert calls.check("k" * 1024, Limit(2**31 - 1, 86400, algorithm="fixed_window"), cost=2**31 - 1).remaining == 0
    assert calls.check("🚦" * 256, "5/minute").remaining == 4
    assert calls.check("k", "5/minute", cost=True).remaining == 4  # an int, if an odd one


BAD_LIMITS = [
    ("5/mnute", "unknown unit"),
    ("glod", "no plan 'glod': did you mean 'gold'"),
    ([], "at least one limit"),
    (["gold", 5], "not 5"),
    (5, "not 5"),
    (None, "not None"),
    (b"5/s", "not b'5/s'"),
    ({"5/s": 1}, "limits are written as"),
]


@pytest.mark.parametrize(("limits", "message"), BAD_LIMITS)
def test_invalid_limits_are_config_errors(calls: Calls, limits: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calls.check("k", limits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plans": {"gold": "10/mnute"}}, "plan 'gold': .*unknown unit"),
        ({"plans": {"gold": []}}, "plan 'gold' must be a limit or a list"),
        ({"plans": {"gold": 5}}, "plan 'gold' must be a limit or a list"),
        ({"plans": {"gold": [5]}}, "plan 'gold' must be a limit or a list"),
        ({"plans": {"": "5/s"}}, "a plan's name"),
        ({"plans": {"gold#2": "5/s"}}, "may not end like 'gold#2'"),
        ({"plans": {"rule|user|*|60|*": "5/s"}}, "may not begin like"),
        ({"plans": 5}, "plans must be a mapping"),
        ({"on_store_error": "opne"}, "on_store_error must be one of open, closed, local"),
        ({"store": "memori://"}, "unknown store URL"),
        ({"store": 5}, "needs a store URL"),
        ({"plans": {"gold": None}}, "plan 'gold' must be a limit or a list of limits, not None"),
        ({"on_pressure": 5}, "on_pressure must be a callable"),
        ({"clock": FakeClock}, "clock must be a clock"),
        ({"clock": 5}, "clock must be a clock"),
    ],
)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_invalid_configuration_fails_at_construction(kind: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**{"store": "memory://", **options})


def test_clock_with_a_store_object_is_refused(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    with pytest.raises(ConfigError, match="a store object has its own clock"):
        Limiter(store, clock=clock)
    with Limiter(store) as limiter:
        limiter.check("k", "5/minute")
    assert Limiter(store).peek("k", "5/minute").remaining == 4, "a given store is closed by its owner"


def test_closed_limiter_raises() -> None:
    with Limiter("memory://") as limiter:
        limiter.check("k", "5/minute")
    for call in (limiter.check, limiter.peek, limiter.reset, limiter.acquire, limiter.reserve):
        with pytest.raises(StoreClosedError, match="closed"):
            call("k", "5/minute")
    with pytest.raises(StoreClosedError, match="closed"):
        limiter.check_many([("k", "5/minute")])

    async def main() -> None:
        async with AsyncLimiter("memory://") as limiter:
            await limiter.check("k", "5/minute")
        for call in (limiter.check, limiter.peek, limiter.reset, limiter.acquire):
            with pytest.raises(StoreClosedError, match="closed"):
                await call("k", "5/minute")

    asyncio.run(main())


def test_compiled_limit_caches_are_bounded() -> None:
    limiter = Limiter("memory://?max_keys=100", plans=lambda name: None)
    for number in range(1, 10_001):
        limiter.check("k", f"{number}/minute")
    assert len(limiter.resolver.cache) <= 4096
    assert len(limiter.chains) <= 4096
