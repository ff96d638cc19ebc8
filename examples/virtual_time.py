"""Tests on virtual time: a clock that moves only when told, so an hour takes no time and nothing is flaky."""

from crestgate import Limiter
from crestgate.testing import FakeClock


def test_the_third_call_comes_back_after_half_a_minute() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    assert [limiter.check("user:42", "2/minute").allowed for _ in range(3)] == [True, True, False]
    clock.advance(29.999999)
    assert not limiter.check("user:42", "2/minute")
    clock.advance(0.000001)
    assert limiter.check("user:42", "2/minute")


def test_acquire_moves_the_clock_instead_of_sleeping() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    for _ in range(25):
        limiter.acquire("job", "1/hour")
    assert clock.now() == 1_700_000_000 + 24 * 3600


if __name__ == "__main__":
    test_the_third_call_comes_back_after_half_a_minute()
    test_acquire_moves_the_clock_instead_of_sleeping()
    print("both passed: 24 hours and 30 seconds of virtual time")
