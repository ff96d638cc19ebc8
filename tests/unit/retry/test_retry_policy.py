"""`Retry`: which requests are retried, the waits, and when it gives up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate import ConfigError
from crestgate.retry import IDEMPOTENT, Retry

SECONDS = st.floats(0, 1e7)
CHANCES = st.floats(0, 1)


@pytest.mark.parametrize("method", ["GET", "get", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
def test_idempotent_methods_are_retried(method: str) -> None:
    assert [Retry().repeats(method, status) for status in (429, 503, None)] == [True, True, True]


@pytest.mark.parametrize("method", ["POST", "PATCH", "CONNECT", "ANYTHING"])
def test_other_methods_are_retried_only_if_not_executed(method: str) -> None:
    assert [Retry().repeats(method, status) for status in (429, 503, None)] == [True, False, False]


def test_caller_may_override_methods_and_statuses() -> None:
    retry = Retry(methods=["get", "post"], statuses=[500, 503])
    assert [retry.repeats("POST", status) for status in (429, 500, 503, None)] == [False, True, True, True]
    assert not retry.repeats("PUT", 503)
    assert not Retry(methods=()).repeats("GET", None)
    assert Retry(methods=()).repeats("GET", 429)


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 404, 500, 502, 504])
def test_other_statuses_are_not_retried(status: int) -> None:
    assert not Retry().repeats("GET", status)


@given(SECONDS, SECONDS, SECONDS | st.none(), SECONDS, CHANCES, st.floats(0, 2))
def test_suggested_wait_is_never_shortened_or_too_long(
    suggested: float, longest: float, deadline: float | None, elapsed: float, chance: float, jitter: float
) -> None:
    wait = Retry(max_wait=longest, deadline=deadline, jitter=jitter).wait(1, suggested, elapsed, chance)
    too_long = suggested > longest or (deadline is not None and suggested > deadline - elapsed)
    assert (wait is None) == too_long
    if wait is not None:
        assert suggested <= wait <= min(longest, suggested * (1 + jitter))
        assert deadline is None or wait <= deadline - elapsed


def test_jitter_adds_a_part_of_the_suggested_wait() -> None:
    assert [Retry(jitter=0.5).wait(1, 10.0, 0.0, chance) for chance in (0.0, 0.5, 1.0)] == [10.0, 12.5, 15.0]
    assert Retry(jitter=0).wait(1, 10.0, 0.0, 1.0) == 10.0
    assert Retry(max_wait=12, jitter=0.5).wait(1, 10.0, 0.0, 1.0) == 12.0


def test_backoff_without_a_suggested_wait_doubles() -> None:
    retry = Retry(attempts=6, backoff=2.0, max_wait=10.0)
    assert [retry.wait(attempt, None, 0.0, 1.0) for attempt in range(1, 7)] == [2.0, 4.0, 8.0, 10.0, 10.0, None]
    assert [retry.wait(attempt, None, 0.0, 0.25) for attempt in range(1, 5)] == [0.5, 1.0, 2.0, 2.5]
    assert retry.wait(1, None, 0.0, 0.0) == 0.0


def test_many_attempts_do_not_overflow() -> None:
    assert Retry(attempts=1000, backoff=1e300).wait(999, None, 0.0, 1.0) == 60.0


def test_backoff_ends_by_the_deadline() -> None:
    retry = Retry(backoff=8.0, deadline=10.0)
    assert retry.wait(1, None, 7.0, 1.0) == 3.0
    assert retry.wait(1, None, 10.1, 1.0) is None


@given(st.integers(1, 10), st.none() | SECONDS, CHANCES)
def test_number_of_attempts_is_bounded(attempts: int, suggested: float | None, chance: float) -> None:
    retry = Retry(attempts=attempts, max_wait=1e9)
    made = 1
    while retry.wait(made, suggested, 0.0, chance) is not None:
        made += 1
    assert made == attempts


def test_policy_is_a_value() -> None:
    assert Retry(methods=["get"], statuses=[503, 429]) == Retry(methods=("GET",), statuses={429, 503})
    assert hash(Retry()) == hash(Retry(methods=IDEMPOTENT))
    with pytest.raises(AttributeError):
        Retry().attempts = 5  # type: ignore[misc]  # that it is frozen is what is tested


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "attempts must be a whole number, 1 or more, not 0"),
        ({"attempts": 2.0}, "attempts must be a whole number"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"attempts": 1001}, "attempts must be 1000 or fewer"),
        ({"max_wait": -1}, "max_wait must be a number of 0 or more, not -1"),
        ({"max_wait": float("inf")}, "max_wait must be a number"),
        ({"backoff": float("nan")}, "backoff must be a number"),
        ({"jitter": "much"}, "jitter must be a number of 0 or more, not 'much'"),
        ({"deadline": -1}, "deadline must be a number"),
        ({"methods": "GET"}, "methods must be a collection, such as"),
        ({"methods": [b"GET"]}, "methods must be a collection"),
        ({"statuses": 429}, "statuses must be a collection of 400 to 599"),
        ({"statuses": "429"}, "statuses must be a collection"),
        ({"statuses": [200]}, "statuses must be a collection of 400 to 599"),
        ({"statuses": ["429"]}, "statuses must be a collection"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Retry(**options)  # type: ignore[arg-type]  # callers without types are who makes these
