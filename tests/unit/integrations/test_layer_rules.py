"""A layer without limits: the rules of its limiter apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crestgate import AsyncLimiter, Limiter, RequestContext
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.drivers import LayerResult, check_sync, settle
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import RequestState
from crestgate.testing import FakeClock
from unit.integrations.plain import CLIENT, admits, layer_request, limiter_on

Made = Callable[..., LimitLayer[Limiter]]

RULES = """
rules:
  - {name: per user, dimension: user, limit: 3, window_seconds: 60, algorithm: fixed_window}
  - {name: gold, dimension: user, tier: gold, limit: 5, window_seconds: 60, algorithm: fixed_window}
  - {name: per address, dimension: ip, limit: 20, window_seconds: 60, algorithm: fixed_window}
  - {name: writes, dimension: global, method: POST, endpoint_pattern: /orders/*, limit: 2, window_seconds: 60,
     algorithm: fixed_window}
  - {name: by key, dimension: apikey, limit: 4, window_seconds: 60, algorithm: fixed_window}
  - {name: trial, dimension: user, limit: 1, window_seconds: 60, algorithm: fixed_window, mode: shadow}
"""


@pytest.fixture
def gate_of(tmp_path: Path) -> Iterator[Made]:
    limiters: list[Limiter] = []

    def make(configuration: str = RULES, **options: Any) -> LimitLayer[Limiter]:
        file = tmp_path / "crestgate.yaml"
        file.write_text(configuration)
        limiters.append(Limiter.from_config(file, environ={}, clock=FakeClock(1_700_000_000)))
        return LimitLayer(limiters[-1], **options)

    yield make
    for limiter in limiters:
        limiter.close()


def passes(layer: LimitLayer[Limiter], times: int, path: str = "/", **fields: Any) -> int:
    return admits(layer, times, lambda: layer_request(layer, path, **fields))


def admission_of(layer: LimitLayer[Limiter], path: str = "/", **fields: Any) -> LayerResult[Limiter]:
    admission = check_sync(layer, layer_request(layer, path, **fields), RequestState())
    assert admission is not None
    return admission


def test_rules_use_all_attributes_of_a_request(gate_of: Made) -> None:
    layer = gate_of(tier=lambda request: request.headers.get("x-tier"))
    assert passes(layer, 9, logged_in="alice") == 3
    assert passes(layer, 9, logged_in="bob", headers={"X-Tier": "gold"}) == 5
    assert passes(layer, 9, headers={"X-API-Key": "k"}) == 4
    assert passes(layer, 9, "/orders/1", method="POST") == 2
    assert passes(layer, 9, "/orders/1") == 6, "20 for the address in total"
    assert passes(layer, 5, peer="198.51.100.1") == 5


OWN = """
rules:
  - {name: per org and model, dimension: [org, model], limit: 2, window_seconds: 60, algorithm: fixed_window}
  - {name: acme, dimension: [org, model], identifier: [acme, "*"], limit: 3, window_seconds: 60,
     algorithm: fixed_window}
"""


def test_attributes_of_a_request(gate_of: Made) -> None:
    layer = gate_of(OWN, attributes=lambda request: {"org": request.headers.get("x-org"), "model": 7, "none": " "})
    assert passes(layer, 9, headers={"X-Org": "umbrella"}) == 2
    assert passes(layer, 9, headers={"X-Org": "acme"}) == 3
    assert passes(layer, 9, headers={"X-Org": "x" * 5000}) == 2, "a digest of it"
    assert passes(layer, 4) == 4, "no org, so no rule applies"
    request = layer_request(layer, "/", headers={"X-Org": "acme"})
    assert layer.context(request).attributes == {"org": "acme", "model": "7"}


def test_attributes_without_any(gate_of: Made) -> None:
    layer = gate_of(OWN, attributes=lambda: None)
    assert layer.context(layer_request(layer, "/")).attributes is None
    assert gate_of(OWN).context(layer_request(layer, "/")).attributes is None


def test_attributes_must_be_a_mapping(gate_of: Made) -> None:
    layer = gate_of(OWN, attributes=lambda: ["org"])
    with pytest.raises(TypeError, match="must return a mapping of names to text"):
        layer.context(layer_request(layer, "/"))


def test_costs_exemptions_and_methods_of_the_layer_apply(gate_of: Made) -> None:
    layer = gate_of(cost=lambda: 2, exempt="/free", methods=["GET"])
    assert passes(layer, 3, logged_in="alice") == 1
    assert passes(layer, 3, "/free", logged_in="alice") == 3
    assert passes(layer, 3, logged_in="alice", method="PUT") == 3


def test_two_layers_with_the_same_rules_count_once(gate_of: Made) -> None:
    layer = gate_of()
    again = LimitLayer(Limiter.sharing(layer.limiter))
    request_state = RequestState()
    assert check_sync(layer, layer_request(layer, logged_in="alice"), request_state) is not None
    assert check_sync(again, layer_request(again, logged_in="alice"), request_state) is None
    left = layer.limiter.peek_request(RequestContext(user="alice", ip=CLIENT))
    assert left.remaining == 2


def test_rules_and_limits_count_separately(gate_of: Made) -> None:
    layer = gate_of()
    own = LimitLayer(layer.limiter, "1/minute")
    request_state = RequestState()
    for one in (layer, own):
        assert check_sync(one, layer_request(one, logged_in="alice"), request_state) is not None
    decision = request_state.decision()
    assert decision is not None
    assert [part.name for part in decision.parts] == ["per-user", "per-address", "1/minute"]


def test_request_without_rules_passes_without_headers(gate_of: Made) -> None:
    layer = gate_of("rules:\n  - {name: u, dimension: user, limit: 3, window_seconds: 60}\n")
    admission = admission_of(layer)
    assert (admission.refused, admission.decision.reason) == (False, "no_rule")
    assert admission.request_state.headers(layer.style, 0) == []


def test_configuration_sets_defaults_of_the_layer(gate_of: Made) -> None:
    configuration = RULES + "server: {trusted_proxies: [10.0.0.0/8]}\nheaders: {x_ratelimit: false, reset: epoch}\n"
    layer = gate_of(configuration)
    assert layer.style == HeaderStyle(x_ratelimit=False, reset="epoch")
    assert layer_request(layer, peer="10.0.0.1", headers={"X-Forwarded-For": CLIENT}).address == CLIENT
    layer = gate_of(configuration, headers=HeaderStyle(), trusted_proxies=())
    assert layer.style == HeaderStyle()
    assert layer_request(layer, peer="10.0.0.1", headers={"X-Forwarded-For": CLIENT}).address == "10.0.0.1"


# -- keys of policies -------------------------------------------------------------------------------------------------

POLICIES = "policy_key: [user, route]\npolicies:\n  - {key: 'user:alice|route:/item/{id}', capacity: 2, "
POLICIES += "windowSeconds: 60, type: SLIDING_WINDOW}\n"


def test_route_of_a_policy_key_is_the_template(gate_of: Made) -> None:
    layer = gate_of(POLICIES)
    passed = sum(
        not admission_of(layer, f"/item/{n}", template="/item/{id}", logged_in="alice").refused for n in range(5)
    )
    assert passed == 2
    assert admission_of(layer, "/item/1", template="/item/{id}", logged_in="bob").decision.limit == 100


def test_policy_key_without_a_template_uses_the_path(gate_of: Made) -> None:
    layer = gate_of(POLICIES)
    assert [admission_of(layer, f"/item/{n}", logged_in="alice").decision.remaining for n in range(3)] == [99, 99, 99]


def test_limiter_returns_the_key_of_a_policy(gate_of: Made) -> None:
    limiter = gate_of(POLICIES).limiter
    alice = RequestContext(user="al|ice", path="/item/1")
    assert limiter.policy_key(alice, "/item/{id}") == "user:al%7Cice|route:/item/{id}"
    assert limiter.policy_key(RequestContext(user="alice", key="mine"), "/x") == "mine"
    assert gate_of("policy_key: [user, ip]\n").limiter.policy_key(alice, "/x") is None, "the route is no part of it"
    assert gate_of("policy_key: [route]\n").limiter.policy_key(alice, "/x") == "route:/x"
    assert limiter_on().policy_key(alice, "/x") is None, "there are no rules"


# -- hostile callers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", ["x" * 5000, "ä" * 600])
def test_too_long_names_are_not_errors(gate_of: Made, long: str) -> None:
    layer = gate_of(client=lambda request: request.headers.get("x-client"))
    assert passes(layer, 6, headers={"X-API-Key": long}) == 4
    assert passes(layer, 6, headers={"X-API-Key": long + "y"}) == 4
    assert passes(layer, 5, logged_in=long) == 3
    assert passes(layer, 1, headers={"X-Client": long}) == 1


def test_too_long_path_is_not_an_error(gate_of: Made) -> None:
    layer = gate_of("rules:\n  - {name: a, dimension: api, limit: 2, window_seconds: 60}\npolicy_key: [user, route]\n")
    assert passes(layer, 5, "/" + "x" * 5000, logged_in="u" * 900) == 2
    assert passes(layer, 5, "/" + "x" * 5000, template="/" + "y" * 5000, logged_in="u" * 900, peer="10.0.0.1") == 0


def test_give_back_under_rules(gate_of: Made) -> None:
    layer = gate_of(when=lambda response: response.status == 401)
    for status, left in ((200, 3), (401, 2), (500, 2), (401, 1)):
        admission = admission_of(layer, logged_in="alice")
        settle(admission, Response(status))
        assert admission.decision.parts[0].remaining == left
        assert [part.name for part in admission.decision.parts] == ["per-user", "per-address"], "and no shadow rule"
    assert layer.limiter.peek_request(RequestContext(user="alice")).remaining == 1
    assert layer.limiter.shadow_denials == {"trial": 2}


def test_rules_on_event_loops(gate_of: Made) -> None:
    layer: LimitLayer[AsyncLimiter] = LimitLayer(AsyncLimiter.sharing(gate_of().limiter))
    assert layer.context(layer_request(layer, "/x", method="POST", logged_in="alice")) == RequestContext(
        ip=CLIENT, user="alice", path="/x", method="POST"
    )
