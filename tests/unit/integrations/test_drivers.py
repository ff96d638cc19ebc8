"""Checking a request and settling it by its response, on threads and on event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crestgate import AsyncLimiter, Limiter
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.drivers import LayerResult, check_async, check_sync, settle, settle_async
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import RequestState
from crestgate.testing import FakeClock
from flaky_store import Flaky
from unit.integrations.plain import CLIENT, layer_request, limiter_on

KEY = f"ip:{CLIENT}"


class Layer:
    """A layer with one interface for threads and event loops."""

    def __init__(self, kind: str, limits: Any, limiter: Limiter | None = None, **options: Any) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.limiter = limiter or limiter_on(self.clock)
        self.sync = kind == "sync"
        self.runner = asyncio.Runner()
        made: Any = self.limiter if self.sync else AsyncLimiter.sharing(self.limiter)
        self.layer: LimitLayer[Any] = LimitLayer(made, limits, **options)

    def check_sync(
        self, request_state: RequestState | None = None, route: str | None = None, **fields: Any
    ) -> LayerResult[Any] | None:
        request, request_state = layer_request(self.layer, **fields), request_state or RequestState()
        if self.sync:
            return check_sync(self.layer, request, request_state, route)
        return self.runner.run(check_async(self.layer, request, request_state, route))

    def entered(self, request_state: RequestState | None = None, **fields: Any) -> LayerResult[Any]:
        admission = self.check_sync(request_state, **fields)
        assert admission is not None
        return admission

    def settle(self, admission: LayerResult[Any], status: int) -> None:
        if self.sync:
            settle(admission, Response(status))
        else:
            self.runner.run(settle_async(admission, Response(status)))

    def left(self, limits: str) -> int:
        return self.limiter.peek(KEY, limits).remaining


Made = Callable[..., Layer]


@pytest.fixture(params=["sync", "async"])
def layer_of(request: pytest.FixtureRequest) -> Iterator[Made]:
    made: list[Layer] = []

    def make(limits: Any = "5/minute using fixed_window", **options: Any) -> Layer:
        made.append(Layer(request.param, limits, **options))
        return made[-1]

    yield make
    for layer in made:
        layer.runner.close()


def only_401(response: Response) -> bool:
    return response.status == 401


def headers_of(admission: LayerResult[Any]) -> dict[str, str]:
    headers = admission.request_state.headers(HeaderStyle(), admission.layer.limiter.clock.ticks())
    return {name.decode(): value.decode() for name, value in headers}


def test_request_is_admitted_or_denied(layer_of: Made) -> None:
    layer = layer_of("2/minute; 9/hour")
    passed = [layer.entered() for _ in range(3)]
    assert [admission.refused for admission in passed] == [False, False, True]
    assert [admission.decision.allowed for admission in passed] == [True, True, False]
    assert passed[0].holding is None
    assert layer.left("9/hour") == 7
    assert headers_of(passed[2])["retry-after"] == "30"


def test_exempt_request_has_no_admission(layer_of: Made) -> None:
    assert layer_of(exempt="/").check_sync() is None
    assert layer_of(lambda: None).check_sync() is None


def test_settling_without_when_changes_nothing(layer_of: Made) -> None:
    layer = layer_of()
    layer.settle(layer.entered(), 500)
    assert layer.left("5/minute using fixed_window") == 4


def test_response_that_does_not_count_is_given_back(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    for status, left in ((200, 5), (401, 4), (200, 4), (404, 4), (401, 3)):
        admission = layer.entered()
        layer.settle(admission, status)
        assert layer.left("5/minute using fixed_window") == left, status
        assert headers_of(admission)["x-ratelimit-remaining"] == str(left), "the headers are correct"


def test_unsettled_request_stays_charged(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    layer.entered()
    assert layer.left("5/minute using fixed_window") == 4


def test_admission_is_settled_once(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    layer.entered()
    admission = layer.entered()
    layer.settle(admission, 200)
    layer.settle(admission, 200)
    assert layer.left("5/minute using fixed_window") == 4


def test_request_in_progress_counts(layer_of: Made) -> None:
    layer = layer_of("2/minute using fixed_window", when=only_401)
    under_way = [layer.entered(), layer.entered()]
    assert layer.entered().refused
    for admission in under_way:
        layer.settle(admission, 200)
    assert layer.left("2/minute using fixed_window") == 2


def test_denied_request_gives_nothing_back(layer_of: Made) -> None:
    layer = layer_of("1/minute using fixed_window; 9/hour using fixed_window", when=only_401)
    layer.settle(layer.entered(), 401)
    denied = layer.entered()
    layer.settle(denied, 200)
    assert denied.refused
    assert (layer.left("1/minute using fixed_window"), layer.left("9/hour using fixed_window")) == (0, 8)
    assert headers_of(denied)["ratelimit"].startswith('"1/minute using fixed_window";r=0;')


def test_chain_is_given_back_with_its_cost(layer_of: Made) -> None:
    layer = layer_of("5/minute using fixed_window; 9/hour using fixed_window", when=only_401, cost=3)
    admission = layer.entered()
    assert [part.remaining for part in admission.decision.parts] == [2, 6]
    layer.settle(admission, 200)
    assert [part.remaining for part in admission.decision.parts] == [5, 9]
    assert headers_of(admission)["ratelimit-policy"].count(";q=") == 2


def test_give_back_goes_to_the_charged_window(layer_of: Made) -> None:
    layer = layer_of("2/minute using fixed_window", when=only_401)
    admission = layer.entered()
    layer.clock.advance(60)
    layer.entered()
    layer.settle(admission, 200)
    assert layer.left("2/minute using fixed_window") == 1, "the charged window is over"


def test_headers_after_a_give_back_include_the_pressure(layer_of: Made) -> None:
    layer = layer_of("10/minute using fixed_window", when=only_401)
    for _ in range(9):
        admission = layer.entered()
        layer.settle(admission, 401)
    assert headers_of(admission)["x-ratelimit-state"] == "warning"
    admission = layer.entered()
    assert headers_of(admission)["x-ratelimit-state"] == "throttled"
    layer.settle(admission, 200)
    assert headers_of(admission)["x-ratelimit-remaining"] == "1"
    assert headers_of(admission)["x-ratelimit-state"] == "warning"


def test_settling_changes_only_the_headers_of_its_layer(layer_of: Made) -> None:
    layer = layer_of("5/minute using fixed_window", when=only_401)
    other: LimitLayer[Any] = LimitLayer(layer.layer.limiter, "9/hour using fixed_window")
    request_state = RequestState()
    first = layer.entered(request_state)
    outer, layer.layer = layer.layer, other
    layer.entered(request_state)
    layer.layer = outer
    layer.settle(first, 200)
    assert headers_of(first)["ratelimit"].startswith(
        '"5/minute using fixed_window";r=5;t=0, "9/hour using fixed_window";r=8;'
    )


def test_denying_dry_run_settles_nothing(layer_of: Made) -> None:
    layer = layer_of("1/minute using fixed_window", when=only_401, dry_run=True)
    for status in (401, 200, 401):
        admission = layer.entered()
        assert not admission.refused
        layer.settle(admission, status)
    assert layer.left("1/minute using fixed_window") == 0
    assert headers_of(admission) == {}


def test_when_may_read_the_headers(layer_of: Made) -> None:
    layer = layer_of(when=lambda response: "x-cache" not in response.headers)
    admission = layer.entered()
    held = admission.take_hold(Response(200, [(b"X-Cache", b"hit")]))
    assert held is admission.take_hold(Response(200)) or held is not None
    assert admission.holding is None


def test_hold_without_when_counts_for_every_response() -> None:
    limits = "5/minute using fixed_window"
    layer = LimitLayer(limiter_on(), limits)
    admission = check_sync(layer, layer_request(layer), RequestState(), hold=True)
    assert admission is not None
    assert admission.holding is not None
    settle(admission, Response(500))
    assert layer.limiter.peek(KEY, limits).remaining == 4


def test_store_failure_while_settling_keeps_the_charge(layer_of: Made) -> None:
    store = Flaky()
    layer = layer_of(limiter=Limiter(store), when=only_401)
    admission = layer.entered()
    store.broken = True
    layer.settle(admission, 200)
    store.broken = False
    assert not admission.refused
    assert layer.left("5/minute using fixed_window") == 4


def test_failed_store_is_answered_by_the_policy(layer_of: Made) -> None:
    store = Flaky()
    layer = layer_of("1/minute", limiter=Limiter(store), when=only_401)
    store.broken = True
    for _ in range(3):
        admission = layer.entered()
        assert admission.decision.reason == "fail_open"
        layer.settle(admission, 200)
    closed = layer_of("1/minute", limiter=Limiter(store, on_store_error="closed"))
    assert closed.entered().refused


# -- coroutines -------------------------------------------------------------------------------------------------------


def test_async_callables_are_awaited_on_an_event_loop() -> None:
    calls: list[str] = []

    async def user() -> str:
        calls.append("user")
        await asyncio.sleep(0)
        return "alice"

    async def exempt(request: Any) -> bool:
        await asyncio.sleep(0)
        return bool(request.path == "/free")

    async def limits(request: Any) -> str | None:
        await asyncio.sleep(0)
        return None if request.path == "/unlimited" else "2/minute"

    async def cost(request: Any) -> int:
        await asyncio.sleep(0)
        return 2

    layer = Layer("async", limits, key="user", user=user, exempt=exempt, cost=cost)
    assert layer.check_sync(path="/free") is None
    assert layer.check_sync(path="/unlimited") is None
    assert layer.entered().decision.remaining == 0
    assert layer.entered().refused
    assert layer.limiter.peek("user:alice", "2/minute").remaining == 0
    assert calls == ["user"] * 4, "once a request"
    layer.runner.close()
