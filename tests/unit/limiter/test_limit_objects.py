"""Limit objects are looked up as cheaply as notation, in a bounded cache."""

from __future__ import annotations

import asyncio
import gc

import pytest

from crestgate import AsyncLimiter, Limit, Limiter
from crestgate.core import algorithms, plans

MAX_REMEMBERED = 4096


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the counters that were compiled."""
    names: list[str] = []

    def build(limit: Limit, name: str, label: str | None = None) -> algorithms.Algorithm:
        names.append(name)
        return algorithms.build(limit, name, label)

    monkeypatch.setattr(plans, "build", build)
    return names


@pytest.fixture
def no_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when a Limit is hashed, compared or formatted: each costs more than the check itself."""

    def fail(*_: object) -> None:
        raise AssertionError("a known Limit was hashed, compared or written out")

    for method in ("__hash__", "__eq__", "__str__"):
        monkeypatch.setattr(Limit, method, fail)


@pytest.mark.parametrize("with_plans", [{}, None])
def test_known_limit_is_found_by_identity(with_plans: dict[str, str] | None, request: pytest.FixtureRequest) -> None:
    limiter = Limiter(plans=with_plans)
    limit, other = Limit(100, 60), Limit(5, 1, name="other")
    first = limiter.bind(limit)
    chain = limiter.bind([limit, other])
    request.getfixturevalue("no_comparing")
    assert limiter.bind(limit) is first
    assert limiter.bind([limit, other]) is chain
    assert limiter.check("k", limit).remaining == 99
    assert [decision.allowed for decision in limiter.check_many([("k", limit), ("k", (limit, other), 2)])] == [True] * 2


def test_async_limiter_finds_known_limits_by_identity(request: pytest.FixtureRequest) -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        limit = Limit(100, 60)
        await limiter.check("k", limit)
        request.getfixturevalue("no_comparing")
        assert (await limiter.check("k", limit)).remaining == 98
        assert [one.remaining for one in await limiter.check_many([("k", limit), ("k", limit)])] == [97, 96]

    asyncio.run(main())


def test_equal_limits_are_compiled_once_and_share_a_counter(built: list[str]) -> None:
    limiter = Limiter()
    assert limiter.check("k", "100/minute").remaining == 99
    assert [limiter.check("k", Limit(100, 60)).remaining for _ in range(3)] == [98, 97, 96]
    assert limiter.check("k", [Limit(100, 60.0), "5/second"]).parts[0].remaining == 95
    assert built == ["100/minute", "5/second"]


def test_names_separate_equal_limits(built: list[str]) -> None:
    limiter = Limiter()
    for name in ("a", "b", None):
        assert limiter.check("k", Limit(100, 60, name=name)).remaining == 99
    assert limiter.check("k", Limit(100, 60, name="b")).remaining == 98
    assert built == ["a", "b", "100/minute"]


def test_reused_memory_address_does_not_confuse_limits() -> None:
    limiter = Limiter()
    for count in range(1, 2 * MAX_REMEMBERED):  # each may reuse the memory of a freed one
        assert limiter.check(f"k{count}", Limit(count, 60)).limit == count
        assert limiter.check(f"k{count}", [Limit(count, 60), "9999/second"]).parts[0].limit == count


@pytest.mark.parametrize("same", [True, False])
def test_limit_cache_is_bounded(same: bool) -> None:
    limiter = Limiter("memory://?max_keys=100")
    before = count_limits()
    for number in range(1, 4 * MAX_REMEMBERED):
        limiter.check("k", Limit(1_000_000 if same else number, 60))
    # Those of the checks, of the chains and of the compiled limits.
    assert count_limits() - before <= 3 * MAX_REMEMBERED


def count_limits() -> int:
    """How many Limit objects this process has in use, also from other tests."""
    gc.collect()
    return sum(type(found) is Limit for found in gc.get_objects())


def test_equal_periods_in_different_notation_are_equal() -> None:
    assert len({Limit(1, 60), Limit(1, 60.0), Limit.parse("1/minute")}) == 1
    assert Limit(1, 0.1).period_us == 100_000
    assert Limit(1, 1.5).period_us == 1_500_000
