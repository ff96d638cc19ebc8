"""Decisions as values, and the decision of a chain."""

from __future__ import annotations

import copy
import pickle

import pytest

from crestgate import Decision, Limiter, RateLimitExceeded
from crestgate.testing import FakeClock


@pytest.fixture
def limiter() -> Limiter:
    return Limiter("memory://", clock=FakeClock(1_700_000_000))


def test_decision_is_true_when_allowed(limiter: Limiter) -> None:
    assert limiter.check("k", "1/hour")
    assert not limiter.check("k", "1/hour")


def test_decision_is_immutable(limiter: Limiter) -> None:
    decision = limiter.check("k", "1/hour")
    for name in ("allowed", "limit", "remaining", "retry_after", "reset_after", "delay", "reason", "name", "parts"):
        with pytest.raises(AttributeError):
            setattr(decision, name, 0)


def test_equal_decisions_are_equal(limiter: Limiter) -> None:
    first, second = limiter.peek("a", "5/hour"), limiter.peek("b", "5/hour")
    assert first == second
    assert hash(first) == hash(second)
    assert first != limiter.check("a", "5/hour")
    assert first != "allowed"


def test_single_limit_is_its_own_part(limiter: Limiter) -> None:
    decision = limiter.check("k", "5/hour")
    assert decision.parts == (decision,)


def test_allowed_chain_shows_the_part_with_the_fewest_remaining(limiter: Limiter) -> None:
    decision = limiter.check("k", ["100/day", "3/hour", "50/hour", "3/minute using gcra"])
    assert (decision.name, decision.limit, decision.remaining) == ("3/hour", 3, 2)
    assert [part.name for part in decision.parts] == ["100/day", "3/hour", "50/hour", "3/minute using gcra"]
    assert [part.remaining for part in decision.parts] == [99, 2, 49, 2]


def test_denied_chain_shows_the_longest_wait(limiter: Limiter) -> None:
    chain = ["2/minute", "1/hour", "1/day using fixed_window", "9/second"]
    limiter.check("k", chain)
    decision = limiter.check("k", chain)
    assert [part.retry_after for part in decision.parts] == [0.0, 3600.0, 6400.0, 0.0]  # the day ends in 6,400 s
    assert (decision.name, decision.retry_after) == ("1/day using fixed_window", 6400.0)
    assert [part.allowed for part in decision.parts] == [True, False, False, True]
    assert decision.parts[0].remaining == 1, "a limit that would have admitted has not been charged"


def test_never_is_the_longest_wait(limiter: Limiter) -> None:
    limiter.check("k", "9/year", cost=9)
    decision = limiter.check("k", ["9/year", "5/minute"], cost=6)
    assert (decision.name, decision.reason, decision.retry_after) == ("5/minute", "cost_exceeds_limit", None)


def test_delay_of_a_chain_is_the_longest(limiter: Limiter) -> None:
    chain = ["10/second burst 5 using leaky_bucket", "2/second burst 9 using leaky_bucket", "100/minute"]
    limiter.check("k", chain)
    decision = limiter.check("k", chain)
    assert decision.delay == 0.5
    assert [part.delay for part in decision.parts] == [0.1, 0.5, 0.0]


def test_repr_shows_all_fields(limiter: Limiter) -> None:
    text = repr(limiter.check("k", ["5/hour", "7/hour"]))
    assert text.startswith("Decision(allowed=True, limit=5, remaining=4, retry_after=0.0, reset_after=720.0,")
    assert text.count("Decision(") == 3
    assert isinstance(limiter.check("k", "5/hour"), Decision)


def test_decisions_can_be_pickled(limiter: Limiter) -> None:
    limiter.check("k", "1/hour")
    for decision in (limiter.peek("a", "5/hour"), limiter.check("k", ["1/hour", "2/hour using leaky_bucket"])):
        assert pickle.loads(pickle.dumps(decision)) == decision
        assert copy.deepcopy(decision) == decision
    error = RateLimitExceeded(limiter.check("k", "1/hour"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
