"""Wait hints in responses: every header, their precedence, and values that are ignored."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate import Limiter
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.retry import exhausted_wait, suggested_wait
from crestgate.retry.wait_hints import MAX_SUGGESTED_SECONDS
from crestgate.testing import FakeClock

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


def suggested(**fields: str) -> float | None:
    return suggested_wait(httpx.Headers({name.replace("_", "-"): value for name, value in fields.items()}), NOW)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("0", 0.0),
        ("17", 17.0),
        (" 17 ", 17.0),
        ("007", 7.0),
        ("1.5", 1.5),
        ("99999999999999999999", MAX_SUGGESTED_SECONDS),
        ("9" * 350, MAX_SUGGESTED_SECONDS),
        ("Fri, 15 Jan 2027 08:00:20 GMT", 20.0),
        ("Friday, 15-Jan-27 08:00:20 GMT", 20.0),
        ("Fri Jan 15 08:00:20 2027", 20.0),
        ("Fri, 15 Jan 2027 07:59:59 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_SUGGESTED_SECONDS),
    ],
)
def test_retry_after_header(text: str, wait: float) -> None:
    assert suggested(Retry_After=text) == wait


@pytest.mark.parametrize("text", ["", "-1", "+5", "soon", "1e3", "0x10", "5, 7", "5s", "nan", "inf", "1.", ".5"])
def test_malformed_retry_after_is_ignored(text: str) -> None:
    assert suggested(Retry_After=text) is None
    assert suggested(Retry_After=text, RateLimit='"a";r=0;t=3') == 3.0


def test_retry_after_date_is_relative_to_the_date_header() -> None:
    """The server's clock is an hour ahead of ours; the wait is ten seconds all the same."""
    assert suggested(Retry_After="Fri, 15 Jan 2027 09:00:10 GMT", Date="Fri, 15 Jan 2027 09:00:00 GMT") == 10.0
    assert (
        suggested(X_RateLimit_Remaining="0", X_RateLimit_Reset="1800003610", Date="Fri, 15 Jan 2027 09:00:00 GMT")
        == 10.0
    )


@pytest.mark.parametrize(
    ("field", "wait"),
    [
        ('"per-user";r=0;t=17', 17.0),
        ('"per-user";r=0;t=17, "per-day";r=0;t=3600, "other";r=5;t=9000', 3600.0),
        ('"per-user";r=0;t=0', 0.0),
        ("per-user;r=0;t=17", 17.0),
        ('"per-user";t=17;r=0;pk=:Zm9v:', 17.0),
        ('"per-user";r=0;t=999999999999999', MAX_SUGGESTED_SECONDS),
        ('"per-user";r=1;t=17', None),
        ('"per-user";r=0', None),
        ('"per-user";t=17', None),
        ('"per-user";r=0;t=-1', None),
        ('"per-user";r=0;t=1.5', None),
        ('"per-user";r="0";t=5', None),
        ('"per-user";r=0;t=17,', None),
        ("limit=100, remaining=0, reset=5", None),
        ("", None),
    ],
)
def test_ratelimit_header(field: str, wait: float | None) -> None:
    assert suggested(RateLimit=field) == wait


def test_two_ratelimit_lines_are_one_list() -> None:
    headers = httpx.Headers([("RateLimit", '"a";r=0;t=5'), ("RateLimit", '"b";r=0;t=8')])
    assert suggested_wait(headers, NOW) == 8.0


@pytest.mark.parametrize("prefix", ["RateLimit", "X-RateLimit"])
@pytest.mark.parametrize(
    ("remaining", "reset", "wait"),
    [
        ("0", "17", 17.0),
        ("0", "0", 0.0),
        ("0", "1800000030", 30.0),
        ("0", "1799999999", 0.0),
        ("0", "99999999", MAX_SUGGESTED_SECONDS),
        ("1", "17", None),
        ("0", "100000000", None),
        ("0", "1800000030000", None),
        ("0", "soon", None),
        ("0", "-5", None),
        ("", "17", None),
        ("none", "17", None),
    ],
)
def test_remaining_and_reset_headers(prefix: str, remaining: str, reset: str, wait: float | None) -> None:
    headers = httpx.Headers({f"{prefix}-Remaining": remaining, f"{prefix}-Reset": reset})
    assert suggested_wait(headers, NOW) == exhausted_wait(headers, NOW) == wait


def test_first_usable_header_wins() -> None:
    fields = {"Retry-After": "4", "RateLimit": '"a";r=0;t=5'}
    fields |= {
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "6",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "7",
    }
    waits = []
    for name in ("Retry-After", "RateLimit", "RateLimit-Reset", "X-RateLimit-Reset"):
        waits.append(suggested_wait(httpx.Headers(fields), NOW))
        del fields[name]
    assert waits == [4.0, 5.0, 6.0, 7.0]
    assert suggested_wait(httpx.Headers(fields), NOW) is None


def test_retry_after_of_a_successful_response_is_ignored() -> None:
    assert exhausted_wait(httpx.Headers({"Retry-After": "17"}), NOW) is None


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(["retry-after", "ratelimit", "date"]))
def test_arbitrary_headers_raise_no_error(text: str, other: str, name: str) -> None:
    headers = {name: text, "ratelimit-remaining": "0", "ratelimit-reset": other, "x-ratelimit-reset": text}
    wait = suggested_wait(headers, NOW)
    assert wait is None or 0 <= wait <= MAX_SUGGESTED_SECONDS


@given(st.integers(1, 20), st.integers(1, 5000), st.sampled_from(["seconds", "epoch"]))
def test_wait_from_crestgate_headers_is_sufficient(count: int, period: int, reset: str) -> None:
    clock = FakeClock(NOW + 0.25)
    limiter = Limiter("memory://", clock=clock)
    limit = f"{count} per {period} seconds"
    for _ in range(count):
        limiter.check("you", limit)
    denied = limiter.check("you", limit)
    assert denied.retry_after is not None
    for style in (
        HeaderStyle(reset=reset),  # type: ignore[arg-type]  # one of the two
        HeaderStyle(retry_after=False),
        HeaderStyle(retry_after=False, ratelimit=False, reset=reset),  # type: ignore[arg-type]
    ):
        headers_sent = rate_limit_headers(denied, style, clock.ticks())
        wait = suggested_wait({name.decode(): value.decode() for name, value in headers_sent}, clock.now())
        assert wait is not None
        assert wait >= denied.retry_after
    clock.advance(denied.retry_after)
    assert limiter.check("you", limit).allowed
