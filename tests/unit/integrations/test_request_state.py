"""One request through several layers: counted once, with one set of headers."""

from __future__ import annotations

from typing import Any

from crestgate import Limiter
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.drivers import check_sync
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from unit.integrations.plain import CLIENT, layer_request, limiter_on


def headers_of(request_state: RequestState) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in request_state.headers(HeaderStyle(), 0)}


def layer_on(limiter: Limiter, limits: str, **options: Any) -> LimitLayer[Limiter]:
    return LimitLayer(limiter, limits, **options)


def test_counter_is_charged_once_per_request() -> None:
    request_state = RequestState()
    assert request_state.mark_counted(1, "k", "n")
    assert not request_state.mark_counted(1, "k", "n")
    assert request_state.mark_counted(2, "k", "n")
    assert request_state.mark_counted(1, "other", "n")
    assert request_state.mark_counted(1, "k", "other")
    assert RequestState().mark_counted(1, "k", "n")


def test_two_layers_with_one_limit_count_once() -> None:
    limiter = limiter_on()
    outer, inner = layer_on(limiter, "5/minute"), layer_on(limiter, "5 per minute")
    request_state = RequestState()
    assert check_sync(outer, layer_request(outer), request_state) is not None
    assert check_sync(inner, layer_request(inner), request_state) is None
    assert limiter.peek(f"ip:{CLIENT}", "5/minute").remaining == 4
    assert headers_of(request_state)["ratelimit"] == '"5/minute";r=4;t=12'


def test_limiters_with_shared_counters_count_once() -> None:
    limiter = limiter_on()
    outer, inner = layer_on(limiter, "5/minute"), layer_on(Limiter.sharing(limiter), "5/minute")
    request_state = RequestState()
    assert check_sync(outer, layer_request(outer), request_state) is not None
    assert check_sync(inner, layer_request(inner), request_state) is None


def test_limiters_without_shared_counters_both_count() -> None:
    request_state = RequestState()
    for one in (layer_on(limiter_on(), "5/minute"), layer_on(limiter_on(), "5/minute")):
        admission = check_sync(one, layer_request(one), request_state)
        assert admission is not None
        assert admission.decision.remaining == 4


def test_different_keys_both_count() -> None:
    limiter = limiter_on()
    request_state = RequestState()
    for one in (layer_on(limiter, "5/minute"), layer_on(limiter, "5/minute", key="route")):
        assert check_sync(one, layer_request(one), request_state) is not None
    assert len(request_state.decisions) == 2


def test_chain_charges_only_uncounted_limits() -> None:
    limiter = limiter_on()
    outer, inner = layer_on(limiter, "5/minute"), layer_on(limiter, "5/minute; 9/hour")
    request_state = RequestState()
    check_sync(outer, layer_request(outer), request_state)
    admission = check_sync(inner, layer_request(inner), request_state)
    assert admission is not None
    assert [part.name for part in admission.decision.parts] == ["9/hour"]
    assert limiter.peek(f"ip:{CLIENT}", "5/minute").remaining == 4
    assert limiter.peek(f"ip:{CLIENT}", "9/hour").remaining == 8
    headers = headers_of(request_state)
    assert headers["ratelimit-policy"] == '"5/minute";q=5;w=60, "9/hour";q=9;w=3600'
    assert headers["ratelimit"] == '"5/minute";r=4;t=12, "9/hour";r=8;t=400'
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("5", "4")


def test_headers_are_those_of_the_denying_layer() -> None:
    limiter = limiter_on()
    outer, inner = layer_on(limiter, "5/minute"), layer_on(limiter, "1/hour")
    for _ in range(2):
        request_state = RequestState()
        check_sync(outer, layer_request(outer), request_state)
        check_sync(inner, layer_request(inner), request_state)
    decision = request_state.decision()
    assert decision is not None
    assert not decision.allowed
    headers = headers_of(request_state)
    assert headers["ratelimit"] == '"5/minute";r=3;t=24, "1/hour";r=0;t=3600'
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"], headers["retry-after"]) == (
        "1",
        "0",
        "3600",
    )
    assert headers["x-ratelimit-state"] == "throttled"


def test_denial_of_the_application_is_reported_once() -> None:
    limiter = limiter_on()
    layer = layer_on(limiter, "5/minute")
    request_state = RequestState()
    check_sync(layer, layer_request(layer), request_state)
    denied = limiter.check("report", "1/hour", cost=2)
    request_state.add_decision(denied)
    request_state.add_decision(denied)
    assert len(request_state.decisions) == 2
    assert headers_of(request_state)["ratelimit"] == '"5/minute";r=4;t=12, "1/hour";r=1'


def test_denying_dry_run_sets_no_headers() -> None:
    limiter = limiter_on()
    layer = layer_on(limiter, "1/minute", dry_run=True)
    states = [RequestState(), RequestState()]
    for request_state in states:
        check_sync(layer, layer_request(layer), request_state)
    assert headers_of(states[0])["ratelimit"] == '"1/minute";r=0;t=60'
    assert headers_of(states[1]) == {}


def test_no_decision_has_no_headers() -> None:
    assert RequestState().decision() is None
    assert RequestState().headers(HeaderStyle(), 0) == []
