"""Plans that change while the program runs: decorated functions follow them, as `check` does; bound chains do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded
from crestgate.core.plans import Limits, Plans
from crestgate.testing import FakeClock

Kind = Literal["sync", "async", "sync on async"]
Make = Callable[["Plans | None", Limits], Callable[[], int]]


@pytest.fixture(params=["sync", "async", "sync on async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def decorated(kind: Kind) -> Make:
    """Decorates a function of one kind by a limiter of that kind; a call returns the number of calls."""

    def make(plans: Plans | None, limits: Limits) -> Callable[[], int]:
        clock = FakeClock(1_700_000_000)
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        async def count_async() -> int:
            return count()

        if kind == "sync":
            return Limiter("memory://", plans=plans, clock=clock).limit(limits, key="k")(count)
        made = AsyncLimiter if kind == "async" else Limiter
        limiter: Any = made("memory://", plans=plans, clock=clock)
        function = limiter.limit(limits, key="k")(count_async)
        return lambda: asyncio.run(function())

    return make


def admitted(function: Callable[[], int], times: int) -> int:
    passed = 0
    for _ in range(times):
        try:
            function()
            passed += 1
        except RateLimitExceeded:
            pass
    return passed


def test_mapping_of_plans_may_change(decorated: Make) -> None:
    plans = {"gold": "2/minute"}
    function = decorated(plans, "gold")
    assert admitted(function, 5) == 2
    plans["gold"] = "5/minute"
    assert admitted(function, 5) == 3, "what was used stays used"
    plans["gold"] = "1/minute"
    assert admitted(function, 5) == 0


def test_callable_plans_may_change(decorated: Make) -> None:
    plans = {"gold": "2/minute"}
    function = decorated(plans.get, "gold")
    assert admitted(function, 5) == 2
    plans["gold"] = "5/minute"
    assert admitted(function, 5) == 3


@pytest.mark.parametrize("listed", [list, tuple, iter])
def test_chain_of_any_iterable(decorated: Make, listed: Callable[[list[str]], Any]) -> None:
    plans = {"gold": "2/minute"}
    function = decorated(plans, listed(["gold", "9/hour"]))
    assert admitted(function, 5) == 2
    plans["gold"] = "20/minute"
    assert admitted(function, 20) == 7


def test_list_mutated_later_changes_nothing(decorated: Make) -> None:
    limits = ["3/minute"]
    functions = [decorated(plans, limits) for plans in (None, {"gold": "2/minute"})]
    limits[0] = "9/minute"
    assert [admitted(function, 20) for function in functions] == [3, 3]


def test_limits_are_parsed_once_without_plans(decorated: Make) -> None:
    read = 0

    def limits() -> Iterator[str]:
        nonlocal read
        read += 1
        yield "2/minute"
        yield "9/hour"

    assert admitted(decorated(None, limits()), 5) == 2
    assert read == 1


def test_removed_plan_is_an_error_as_in_check(decorated: Make) -> None:
    plans = {"gold": "2/minute"}
    function = decorated(plans, "gold")
    assert function() == 1
    del plans["gold"]
    with pytest.raises(ConfigError, match="there is no plan 'gold'"):
        function()
    plans["gold"] = "2/minute"
    assert function() == 2


@pytest.mark.parametrize("wrong", ["glod", ["gold", "glod"], [], {"gold": 1}, b"gold", 7])
@pytest.mark.parametrize("plans", [None, {"gold": "2/minute"}])
def test_invalid_limits_are_refused_when_decorating(decorated: Make, plans: Plans | None, wrong: Any) -> None:
    with pytest.raises(ConfigError):
        decorated(plans, wrong)


def test_bound_limits_do_not_change() -> None:
    plans = {"gold": "2/minute"}
    gold = Limiter("memory://", plans=plans, clock=FakeClock(1_700_000_000)).bind("gold")
    plans["gold"] = "9/minute"
    assert [gold.check("k").allowed for _ in range(4)] == [True, True, False, False]

    async def main() -> None:
        gold = AsyncLimiter("memory://", plans=plans, clock=FakeClock(1_700_000_000)).bind("gold")
        plans["gold"] = "1/minute"
        assert [(await gold.check("k")).limit for _ in range(2)] == [9, 9]

    asyncio.run(main())
