"""Pacing of outbound calls: limits, cooldowns from responses, and both together, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter
from crestgate.retry import AsyncOutbound, Outbound, host_of
from crestgate.retry import cooldowns as module
from crestgate.retry.cooldowns import MAX_COOLDOWN_SECONDS, Cooldowns
from crestgate.testing import FakeClock

HERE = "https://api.example.com/orders"
ELSEWHERE = "https://other.example.com/"
START = 1_800_000_000.0


def outbound(clock: FakeClock, limits: str = "1/second burst 1", timeout: float | None = 60.0) -> Outbound:
    return Outbound(Limiter("memory://", clock=clock), limits, timeout=timeout, clock=clock)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.Example.com/a?b#c", "api.example.com"),
        ("https://api.example.com:443/", "api.example.com"),
        ("http://api.example.com:443/", "api.example.com:443"),
        ("http://user:secret@api.example.com:80/", "api.example.com"),
        ("http://[::1]:8000/", "[::1]:8000"),
        ("http://[::1]/", "[::1]"),
        ("http+unix:///path", "-"),
    ],
)
def test_default_key_is_the_host(url: str, host: str) -> None:
    assert host_of(url) == host


def test_calls_wait_per_host() -> None:
    clock = FakeClock(START)
    paced = outbound(clock)
    at = []
    for url in (HERE, HERE, ELSEWHERE, HERE):
        paced.wait(url)
        at.append(clock.now() - START)
    assert at == [0.0, 1.0, 1.0, 2.0]


def test_custom_key() -> None:
    clock = FakeClock(START)
    limiter = Limiter("memory://", clock=clock)
    for key in ("account", lambda url: url[:5]):
        paced = Outbound(limiter, "1/minute using fixed_window", key=key, clock=clock)
        before = clock.now()
        paced.wait(HERE)
        paced.wait(ELSEWHERE)
        assert clock.now() > before
        paced.learn(HERE, 429, {"retry-after": "100"})
        with pytest.raises(TimeoutError, match="cooldown for 100 s"):
            paced.wait(ELSEWHERE)


def test_counters_are_shared_through_the_store() -> None:
    clock = FakeClock(START)
    first = Limiter("memory://", clock=clock)
    second = Limiter(first.store)
    Outbound(first, "1/second burst 1", clock=clock).wait(HERE)
    Outbound(second, "1/second burst 1", clock=clock).wait(HERE)
    assert clock.now() == START + 1


@pytest.mark.parametrize(
    ("status", "headers", "hold"),
    [
        (429, {"retry-after": "17"}, 17.0),
        (503, {"retry-after": "17"}, 17.0),
        (429, {"ratelimit": '"a";r=0;t=9'}, 9.0),
        (200, {"ratelimit": '"a";r=0;t=9, "b";r=0;t=12'}, 12.0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000007"}, 7.0),
        (200, {"retry-after": "17"}, 0.0),
        (301, {"retry-after": "17"}, 0.0),
        (200, {"ratelimit": '"a";r=1;t=9'}, 0.0),
        (429, {}, 0.0),
        (429, {"retry-after": "soon"}, 0.0),
        (429, {"retry-after": "86400"}, MAX_COOLDOWN_SECONDS),
    ],
)
def test_response_starts_a_cooldown(status: int, headers: dict[str, str], hold: float) -> None:
    clock = FakeClock(START)
    paced = outbound(clock, "100/second", timeout=None)
    paced.learn(HERE, status, headers)
    paced.wait(ELSEWHERE)
    assert clock.now() == START, "another host is not affected"
    paced.wait(HERE)
    assert clock.now() == START + hold
    paced.wait(HERE)
    assert clock.now() == START + hold, "a cooldown ends"


def test_cooldown_is_only_extended() -> None:
    clock = FakeClock(START)
    paced = outbound(clock, "100/second")
    for wait in ("10", "3", "0"):
        paced.learn(HERE, 429, {"retry-after": wait})
    paced.wait(HERE)
    assert clock.now() == START + 10
    paced.learn(HERE, 429, {"retry-after": "5"})
    clock.advance(4)
    paced.learn(HERE, 429, {"retry-after": "8"})
    paced.wait(HERE)
    assert clock.now() == START + 10 + 4 + 8


def test_calls_after_a_cooldown_are_paced() -> None:
    """No call takes from the limit during a cooldown, only to start with all others at its end."""
    clock = FakeClock(START)
    paced = outbound(clock)
    paced.learn(HERE, 429, {"retry-after": "30"})
    at = []
    for _ in range(3):
        paced.wait(HERE)
        at.append(clock.now() - START)
    assert at == [30.0, 31.0, 32.0]


def test_cooldown_that_starts_during_a_wait_applies() -> None:
    clock = FakeClock(START)

    class Interrupted(Limiter):
        def acquire(self, *args: object, **options: object) -> object:  # type: ignore[override]  # passed on as it is
            decision = super().acquire(*args, **options)  # type: ignore[arg-type]
            if clock.now() == START:
                clock.advance(1)
                paced.learn(HERE, 503, {"retry-after": "5"})
            return decision

    paced = Outbound(Interrupted("memory://", clock=clock), "100/second", clock=clock)
    paced.wait(HERE)
    assert clock.now() == START + 6


def test_too_long_wait_fails_immediately() -> None:
    clock = FakeClock(START)
    paced = outbound(clock, "1/minute", timeout=10.0)
    paced.wait(HERE)
    with pytest.raises(
        TimeoutError, match=r"call to 'api\.example\.com' not allowed within 10 s: not admitted within 10 s"
    ):
        paced.wait(HERE)
    paced.learn(HERE, 429, {"retry-after": "11"})
    with pytest.raises(TimeoutError, match=r"within 10 s: cooldown for 11 s"):
        paced.wait(HERE)
    assert clock.now() == START


def test_cooldown_and_wait_together_respect_the_timeout() -> None:
    clock = FakeClock(START)
    paced = outbound(clock, "1/minute", timeout=50.0)
    paced.wait(HERE)
    paced.learn(HERE, 429, {"retry-after": "5"})
    with pytest.raises(TimeoutError, match="not admitted within 45 s"):
        paced.wait(HERE)


def test_impossible_cost_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="can never pass the limit '0/minute'"):
        outbound(FakeClock(START), "0/minute", timeout=None).wait(HERE)


def test_async_outbound_waits_the_same() -> None:
    async def main() -> list[float]:
        clock = FakeClock(START)
        at = []
        async with AsyncLimiter("memory://", clock=clock) as limiter:
            paced = AsyncOutbound(limiter, "1/second burst 1", timeout=10.0, clock=clock)
            for _ in range(2):
                await paced.wait(HERE)
                at.append(clock.now() - START)
            paced.learn(HERE, 429, {"retry-after": "5"})
            await paced.wait(HERE)
            at.append(clock.now() - START)
            paced.learn(HERE, 429, {"retry-after": "11"})
            with pytest.raises(TimeoutError, match="cooldown for 11 s"):
                await paced.wait(HERE)
            hourly = AsyncOutbound(limiter, "1/hour", timeout=10.0, clock=clock)
            await hourly.wait(HERE)
            with pytest.raises(TimeoutError, match="within 10 s: not admitted within 10 s"):
                await hourly.wait(HERE)
        return at

    assert asyncio.run(main()) == [0.0, 1.0, 6.0]


def test_cancelled_task_leaves_the_queue() -> None:
    async def main() -> None:
        async with AsyncLimiter("memory://") as limiter:
            paced = AsyncOutbound(limiter, "1/hour", timeout=None)
            await paced.wait(HERE)
            paced.learn(ELSEWHERE, 429, {"retry-after": "3000"})
            waiting = [asyncio.create_task(paced.wait(url)) for url in (HERE, HERE, ELSEWHERE)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
            assert [type(error) for error in ended] == [asyncio.CancelledError] * 3
            assert limiter.wait_queue.waiting == {}

    asyncio.run(main())


def test_cooldowns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COOLDOWNS", 10)
    clock = FakeClock(START)
    cooldowns = Cooldowns(clock)
    for number in range(100):
        cooldowns.learn(f"host{number}", 429, {"retry-after": str(100 + number)})
        assert len(cooldowns._until) <= 10
        assert cooldowns.left(f"host{number}") == 100 + number
    assert cooldowns.left("host0") == 0.0
    clock.advance(1000)
    cooldowns.learn("later", 429, {"retry-after": "5"})
    for number in range(9):
        cooldowns.learn(f"more{number}", 429, {"retry-after": "5"})
    assert cooldowns.left("later") == 5.0, "those that have ended make room first"


def test_invalid_options_are_refused_at_construction() -> None:
    limiter, async_limiter = Limiter("memory://"), AsyncLimiter("memory://")
    with pytest.raises(ConfigError, match="with an AsyncLimiter use AsyncOutbound"):
        Outbound(async_limiter, "10/second")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="with a Limiter use Outbound"):
        AsyncOutbound(limiter, "10/second")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown unit 'fortnight'"):
        Outbound(limiter, "10/fortnight")
    with pytest.raises(ConfigError, match="key must be a name"):
        Outbound(limiter, "10/second", key="")
    for timeout in (-1, "soon", True, float("nan")):
        with pytest.raises(ConfigError, match="timeout must be seconds"):
            Outbound(limiter, "10/second", timeout=timeout)  # type: ignore[arg-type]
