"""Configuration mistakes that would leave requests unlimited, or have unclear errors."""

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
from unit.integrations.plain import layer_request, limiter_on


@pytest.fixture
def limiter() -> Limiter:
    return limiter_on()


def test_limit_on_get_applies_to_head(limiter: Limiter) -> None:
    layer = LimitLayer(limiter, "1/minute", methods=["GET"])
    admissions = [
        check_sync(layer, layer_request(layer, method=method), RequestState()) for method in ("HEAD", "GET", "POST")
    ]
    assert [None if admission is None else admission.refused for admission in admissions] == [False, True, None]


def test_dry_run_layer_does_not_weaken_a_real_layer(limiter: Limiter) -> None:
    dry, real = LimitLayer(limiter, "1/minute", dry_run=True), LimitLayer(limiter, "1/minute")
    refused = []
    for _ in range(2):
        request_state = RequestState()
        for layer in (dry, real):
            admission = check_sync(layer, layer_request(layer), request_state)
            refused.append(None if admission is None else admission.refused)
    assert refused == [False, None, False, True]  # the first was counted once, by the dry run


@pytest.mark.parametrize("everybody", ["0.0.0.0/0", "*"])
def test_trusting_all_addresses_is_refused(everybody: str, limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=rf"'{re.escape(everybody)}' trusts every peer"):
        LimitLayer(limiter, "1/minute", trusted_proxies=[everybody])


def test_advice_for_proxies_given_as_text_is_valid(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"write a list of networks, such as \['10.0.0.0/8'\], not '\*'$"):
        LimitLayer(limiter, "1/minute", trusted_proxies="*")
    LimitLayer(limiter, "1/minute", trusted_proxies=["10.0.0.0/8"])


def test_unknown_option_is_refused(limiter: Limiter) -> None:
    with pytest.raises(
        ConfigError, match=r"^there is no option costs \(did you mean cost\?\): there are limiter, limits, "
    ):
        LimitLayer(limiter, "1/minute", costs=2)


def test_misspelt_limits_option_has_a_suggestion(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"^there is no option limit \(did you mean limits\?\): there are "):
        RateLimitMiddleware(lambda environ, start: [], limiter, limit="5/minute")  # type: ignore[call-arg]  # that is the slip


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("storage_uri", "here it is limiter"),
        ("strategy", "here it is default_algorithm, or part of a limit, as in '5/minute using fixed_window'"),
        ("headers_enabled", "here it is headers, and True by default"),
        ("error_message", "here it is on_denied, which makes the response"),
        ("rate", "here it is limits"),
        ("group", "here it is scope"),
        ("block", "here requests over a limit are always denied, except with dry_run=True"),
    ],
)
def test_option_name_of_another_library_has_a_hint(name: str, hint: str, limiter: Limiter) -> None:
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(ConfigError) as error:
        LimitLayer(limiter, "1/minute", **given)
    assert str(error.value) == f"there is no option {name}: {hint}"


def test_limits_passed_as_the_limiter_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no file either; a limit is given as limits='100/minute'$"):
        sync_limiter_for("100/minute")


def test_limit_options_without_limits_are_refused(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=r"^cost= is for limits, and the middleware has none"):
        RateLimitMiddleware(lambda environ, start: [], limiter, cost=2)
