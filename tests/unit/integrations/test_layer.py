"""One layer's limits: the effect of each option on a request."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from crestgate import AsyncLimiter, Limit
from crestgate.errors import ConfigError
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.drivers import check_sync
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from crestgate.testing import FakeClock
from unit.integrations.plain import CLIENT, admits, layer_request, limiter_on

PREFLIGHT = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}


def gate_of(limits: Any = "3/minute", **options: Any) -> LimitLayer[Any]:
    return LimitLayer(options.pop("limiter", None) or limiter_on(), limits, **options)


def passes(layer: LimitLayer[Any], times: int, path: str = "/", **fields: Any) -> int:
    return admits(layer, times, lambda: layer_request(layer, path, **fields))


# -- keys, limits and costs -------------------------------------------------------------------------------------------


def test_default_key_is_the_address() -> None:
    layer = gate_of()
    assert passes(layer, 5, "/a") == 3
    assert passes(layer, 5, "/b") == 0
    assert passes(layer, 5, peer="198.51.100.1") == 3
    assert layer.limiter.peek(f"ip:{CLIENT}", "3/minute").remaining == 0


@pytest.mark.parametrize(
    "limits", ["3/minute", ["3/minute"], Limit(3, 60), [Limit(3, 60)], "5/minute; 3/minute", lambda: "3/minute"]
)
def test_limits_in_all_forms_of_check(limits: Any) -> None:
    assert passes(gate_of(limits), 5) == 3


def test_current_plan_applies() -> None:
    plans = {"gold": "3/minute"}
    layer = gate_of("gold", limiter=limiter_on(plans=plans.get))
    assert passes(layer, 5) == 3
    plans["gold"] = "5/minute"
    assert passes(layer, 5) == 2


def test_callable_limits() -> None:
    layer = gate_of(lambda request: {"free": "1/minute", "gold": "3/minute"}.get(request.headers.get("x-tier", "")))
    assert passes(layer, 5, headers={"X-Tier": "free"}, peer="10.0.0.1") == 1
    assert passes(layer, 5, headers={"X-Tier": "gold"}, peer="10.0.0.2") == 3
    assert passes(layer, 5) == 5, "None is no limit"


def test_invalid_limits_of_a_callable_raise() -> None:
    layer = gate_of(lambda: "many")
    with pytest.raises(ConfigError, match="many"):
        passes(layer, 1)


@pytest.mark.parametrize("plans", [None, {"gold": "9/minute"}])
def test_list_mutated_later_changes_nothing(plans: dict[str, str] | None) -> None:
    limits = ["3/minute"]
    layer = gate_of(limits, limiter=limiter_on(plans=plans))
    limits[0] = "100/minute"
    assert passes(layer, 5) == 3


def test_cost_as_number_and_callable() -> None:
    assert passes(gate_of("10/minute", cost=4), 5) == 2
    layer = gate_of("10/minute", cost=lambda request: int(request.headers["x-size"]))
    assert passes(layer, 1, headers={"X-Size": "7"}) == 1
    assert passes(layer, 1, headers={"X-Size": "4"}) == 0
    assert passes(layer, 9, headers={"X-Size": "1"}) == 3
    assert passes(layer, 5, headers={"X-Size": "0"}) == 5


@pytest.mark.parametrize("cost", [-1, "1", 2**31, 1.5, None])
def test_invalid_cost_is_refused(cost: Any) -> None:
    with pytest.raises(ValueError, match="cost must be a whole number"):
        gate_of(cost=cost)
    layer = gate_of(cost=lambda: cost)
    with pytest.raises(ValueError, match="cost must be a whole number"):
        passes(layer, 1)


def test_methods_option() -> None:
    layer = gate_of(methods=["post", "PUT"])
    assert passes(layer, 5) == 5
    assert passes(layer, 1, method="POST") == 1
    assert passes(layer, 1, method="post") == 1, "no spelling evades it"
    assert passes(layer, 5, method="PUT") == 1


def test_exempt_request_is_not_counted() -> None:
    layer = gate_of(exempt=["/healthz", "10.0.0.0/8"])
    assert passes(layer, 5, "/healthz") == 5
    assert passes(layer, 5, peer="10.0.0.1") == 5
    assert passes(layer, 5) == 3
    assert passes(gate_of(exempt=lambda request: request.path == "/free"), 5, "/free") == 5


def test_preflights_are_not_counted() -> None:
    layer = gate_of()
    assert passes(layer, 5, method="OPTIONS", headers=PREFLIGHT) == 5
    assert passes(layer, 5, method="OPTIONS") == 3


def test_address_behind_trusted_proxies() -> None:
    layer = gate_of(trusted_proxies=["10.0.0.0/8"])
    assert passes(layer, 5, peer="10.0.0.1", headers={"X-Forwarded-For": "198.51.100.1"}) == 3
    assert passes(layer, 5, peer="10.0.0.1", headers={"X-Forwarded-For": "198.51.100.2"}) == 3
    assert passes(layer, 5, peer="11.0.0.1", headers={"X-Forwarded-For": "198.51.100.3"}) == 3
    assert passes(layer, 5, peer="11.0.0.1", headers={"X-Forwarded-For": "198.51.100.4"}) == 0


def test_users_clients_and_api_keys() -> None:
    layer = gate_of(key="user", user=lambda request: request.headers.get("x-user"))
    assert passes(layer, 5, headers={"X-User": "alice"}) == 3
    assert passes(layer, 5, headers={"X-User": "bob"}, peer="198.51.100.1") == 3
    assert passes(layer, 5) == 3
    layer = gate_of(key="client|apikey", client=lambda: "acme", api_key_header="X-Secret")
    assert passes(layer, 5, headers={"X-Secret": "a", "X-API-Key": "b"}) == 3
    assert passes(layer, 5, headers={"X-Secret": "a", "X-API-Key": "c"}) == 0
    assert passes(layer, 5, headers={"X-Secret": "c"}) == 3


# -- routes -----------------------------------------------------------------------------------------------------------


def test_route_limits_count_per_caller_and_route() -> None:
    layer = gate_of()

    def by_route(times: int, route: str | None, **fields: Any) -> int:
        passed = 0
        for _ in range(times):
            admission = check_sync(layer, layer_request(layer, **fields), RequestState(), route)
            passed += admission is not None and not admission.refused
        return passed

    assert by_route(5, "GET /a") == 3
    assert by_route(5, "GET /b") == 3
    assert by_route(5, "GET /a", peer="198.51.100.1") == 3
    assert by_route(5, None) == 3
    assert layer.limiter.peek(f"ip:{CLIENT}|route:GET /a", "3/minute").remaining == 0


def test_scope_joins_routes() -> None:
    layer = gate_of(scope="writes")
    passed = [
        check_sync(layer, layer_request(layer), RequestState(), route)
        for route in ("GET /a", "GET /b", "POST /a", "GET /c")
    ]
    assert [one is not None and not one.refused for one in passed] == [True, True, True, False]


def test_long_route_name_is_accepted() -> None:
    layer = gate_of()
    long = "GET /" + "x" * 3000
    for _ in range(3):
        admission = check_sync(layer, layer_request(layer), RequestState(), long)
        assert admission is not None
        assert not admission.refused
    denied = check_sync(layer, layer_request(layer), RequestState(), long)
    assert denied is not None
    assert denied.refused
    assert passes(layer, 1) == 1


def test_key_cannot_imitate_a_route() -> None:
    limiter = limiter_on()
    middleware = gate_of(limiter=limiter, key="header:x-tenant")
    route = gate_of(limiter=limiter, key="header:x-tenant")
    assert passes(middleware, 3, headers={"X-Tenant": "blue|route:GET /login"}) == 3
    admission = check_sync(route, layer_request(route, headers={"X-Tenant": "blue"}), RequestState(), "GET /login")
    assert admission is not None
    assert admission.decision.remaining == 2


# -- applying the decision --------------------------------------------------------------------------------------------


def test_dry_run_denies_nothing_and_logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.5, 100.9, 101.0])
    monkeypatch.setattr("crestgate.limiter.dry_run.time.monotonic", lambda: next(seconds))
    layer = gate_of("1/minute", dry_run=True)
    with caplog.at_level(logging.WARNING, "crestgate"):
        assert passes(layer, 5) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "dry run: 1/minute would have denied (1 since last logged)",
        "dry run: 1/minute would have denied (3 since last logged)",
    ]
    assert layer.limiter.peek(f"ip:{CLIENT}", "1/minute").remaining == 0


def test_admitted_request_waits_on_the_clock_of_its_limiter() -> None:
    clock = FakeClock(1_700_000_000)
    layer = gate_of("1/second burst 3 using leaky_bucket", limiter=limiter_on(clock))
    waited = []
    for _ in range(3):
        admission = check_sync(layer, layer_request(layer), RequestState(), wait=False)
        assert admission is not None
        before = clock.now()
        assert layer.delay(admission.decision) == 0.0, "a virtual clock moves on instead"
        waited.append(clock.now() - before)
    assert waited == [0.0, 1.0, 1.0]


def test_requests_that_do_not_wait() -> None:
    clock = FakeClock(1_700_000_000)
    layer = gate_of("1/second burst 2 using leaky_bucket", limiter=limiter_on(clock), wait=False)
    decisions = [layer.limiter.check("k", "1/second burst 2 using leaky_bucket") for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, False, False]
    assert decisions[1].delay == 1.0
    assert [layer.delay(decision) for decision in decisions] == [0.0] * 4
    layer.wait = True
    layer.delay(decisions[-1])
    assert clock.now() == 1_700_000_000, "a denied request does not wait"


@pytest.mark.parametrize(
    ("given", "style"),
    [
        (None, HeaderStyle()),
        (True, HeaderStyle()),
        (False, HeaderStyle(ratelimit=False, x_ratelimit=False, retry_after=False)),
        (HeaderStyle(reset="epoch"), HeaderStyle(reset="epoch")),
    ],
)
def test_header_options(given: Any, style: HeaderStyle) -> None:
    assert gate_of(headers=given).style == style


# -- configuration errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": "many"}, "many"),
        ({"limits": "gold"}, "gold"),
        ({"limits": ["3/minute", 5]}, "5"),
        (
            {"limits": None},
            'a layer needs limits, such as limits="100/minute", or a limiter with rules, such as '
            'limiter="crestgate.yaml"',
        ),
        ({"methods": ["GET", ""]}, "methods must be a list such as ['POST', 'PUT'], with no '' in it"),
        ({"methods": [1]}, "methods must be a list such as ['POST', 'PUT'], with no 1 in it"),
        ({"methods": "POST"}, "methods must be a list such as ['POST', 'PUT'], not 'POST'"),
        ({"headers": "epoch"}, "headers must be True, False or a HeaderStyle, not 'epoch'"),
        ({"user": "alice"}, "user must be a callable, not 'alice'"),
        ({"tier": "gold"}, "tier must be a callable, not 'gold'"),
        ({"client": 5}, "client must be a callable, not 5"),
        ({"when": 401}, "when must be a callable, not 401"),
        ({"on_denied": "no"}, "on_denied must be a callable, not 'no'"),
        ({"key": "usr"}, "there is no key 'usr'"),
        ({"exempt": 5}, "exempt must be a callable, or a list of paths and networks, not 5"),
        ({"trusted_proxies": ["proxy"]}, "'proxy' is not a network: write one such as 10.0.0.0/8, or one address"),
        ({"trusted_proxies": 0}, "a number of proxies must be from 1 to 32, not 0"),
        ({"trusted_proxies": "10.0.0.0/8"}, "write a list of networks, such as ['10.0.0.0/8'], not '10.0.0.0/8'"),
    ],
)
def test_invalid_options_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        gate_of(**options)
    assert message in str(raised.value)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="kez"):
        gate_of(kez="ip")


# -- coroutines -------------------------------------------------------------------------------------------------------


async def _yes(request: object) -> bool:
    return True


class _AsyncCallable:
    async def __call__(self, request: object) -> str:
        return "alice"


@pytest.mark.parametrize(
    "options",
    [
        {"exempt": _yes},
        {"key": _yes},
        {"key": ["ip", _yes]},
        {"cost": _yes},
        {"user": _yes},
        {"tier": _yes},
        {"client": _yes},
        {"limits": _yes},
        {"user": _AsyncCallable()},
    ],
)
def test_async_callables_are_detected_and_refused_in_sync_layers(options: dict[str, Any]) -> None:
    layer = gate_of(**options)
    assert len(layer.coroutines) == 1
    with pytest.raises(ConfigError, match=r"is a coroutine function, which WSGI cannot await: use a plain function$"):
        layer.refuse_coroutines("WSGI")
    gate_of(limiter=AsyncLimiter("memory://")).refuse_coroutines("WSGI")


def test_async_when_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"when must be a plain function: a response waits for it"):
        gate_of(when=_yes)
