"""Slips that would leave requests unlimited, or tell nobody what is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from crestgate import ConfigError, Limiter
from crestgate.integrations.drivers import check_sync
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from crestgate.integrations.shared_limiters import sync_limiter_for
from crestgate.integrations.wsgi import RateLimitMiddleware
from unit.integrations.plain import asked, limiter_on


@pytest.fixture
def limiter() -> Limiter:
    return limiter_on()


def test_a_limit_on_get_is_one_on_head(limiter: Limiter) -> None:
    layer = LimitLayer(limiter, "1/minute", methods=["GET"])
    admissions = [check_sync(layer, asked(layer, method=method), RequestState()) for method in ("HEAD", "GET", "POST")]
    assert [None if admission is None else admission.refused for admission in admissions] == [False, True, None]


def test_what_a_dry_run_would_deny_is_denied_where_it_is_none(limiter: Limiter) -> None:
    dry, real = LimitLayer(limiter, "1/minute", dry_run=True), LimitLayer(limiter, "1/minute")
    refused = []
    for _ in range(2):
        request_state = RequestState()
        for layer in (dry, real):
            admission = check_sync(layer, asked(layer), request_state)
            refused.append(None if admission is None else admission.refused)
    assert refused == [False, None, False, True]  # the first was counted once, by the dry run


@pytest.mark.parametrize("everybody", ["0.0.0.0/0", "*"])
def test_everybody_is_no_proxy(everybody: str, limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=rf"'{re.escape(everybody)}' is everybody"):
        LimitLayer(limiter, "1/minute", trusted_proxies=[everybody])


def test_what_is_advised_for_a_text_of_proxies_can_be_written(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"write a list of networks, such as \['10.0.0.0/8'\], not '\*'$"):
        LimitLayer(limiter, "1/minute", trusted_proxies="*")
    LimitLayer(limiter, "1/minute", trusted_proxies=["10.0.0.0/8"])


def test_an_option_that_does_not_exist(limiter: Limiter) -> None:
    with pytest.raises(
        ConfigError, match=r"^there is no option costs \(did you mean cost\?\): there are limiter, limits, "
    ):
        LimitLayer(limiter, "1/minute", costs=2)


def test_limits_by_nearly_their_name(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"^there is no option limit \(did you mean limits\?\): there are "):
        RateLimitMiddleware(lambda environ, start: [], limiter, limit="5/minute")  # type: ignore[call-arg]  # that is the slip


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("storage_uri", "here it is limiter"),
        ("strategy", "here it is said in the limit, as in '5/minute using fixed_window'"),
        ("headers_enabled", "here it is headers, and True unless said"),
        ("error_message", "here it is on_denied, which makes the response"),
        ("rate", "here it is limits"),
        ("group", "here it is scope"),
        ("block", "here whoever is over a limit is always denied, except with dry_run=True"),
    ],
)
def test_an_option_by_the_name_of_another_library(name: str, told: str, limiter: Limiter) -> None:
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(ConfigError) as error:
        LimitLayer(limiter, "1/minute", **given)
    assert str(error.value) == f"there is no option {name}: {told}"


def test_limits_in_the_place_of_the_limiter() -> None:
    with pytest.raises(ConfigError, match=r"no file either; a limit is given as limits='100/minute'$"):
        sync_limiter_for("100/minute")


def test_options_for_limits_where_there_are_none(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"^cost= is for limits, and the middleware has none"):
        RateLimitMiddleware(lambda environ, start: [], limiter, cost=2)
