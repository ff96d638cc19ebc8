"""A real Envoy from deploy/envoy between clients and an application, with a real service for its limits."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from integration.proxies.fronts import DEPLOY, Envoy, replaced
from integration.proxies.gate import Gate, show
from integration.proxies.origin import Origin
from servers.machine import until
from servers.process import ServerProcess

Client = Callable[[ServerProcess], httpx.Client]
FILES = {name: (DEPLOY / "envoy" / name).read_text() for name in ("crestgate.yaml", "ratelimit.yaml")}
LIMITS = ("ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
FAIL_CLOSED = {"failure_mode_deny: false": "failure_mode_deny: true"}
KEY = '# initial_metadata: [{ key: x-api-key, value: "cg_..." }]'
ORDERS = 3
AT_ONCE = 5
DAY = 86_400
PATIENCE = 240
"""Seconds. On the busiest machine these tests do not take so long."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Its windows are days of UTC: should one be about to end, the next is waited for."""
    if (left := DAY - time.time() % DAY) < PATIENCE:
        time.sleep(left)
    with Gate(tmp_path_factory.mktemp("gate"), FILES) as started:
        yield started


@pytest.fixture(scope="module")
def envoy(gate: Gate, application: Origin) -> Iterator[Envoy]:
    """As it is in deploy/: without Crestgate, requests pass."""
    with Envoy(gate.grpc, application.port, Envoy.patient) as started:
        yield started


@pytest.fixture(scope="module")
def strict(gate: Gate, application: Origin) -> Iterator[Envoy]:
    """One that lets nothing pass without Crestgate, and shows it a key."""
    key = KEY.removeprefix("# ").replace("cg_...", gate.service.key)
    with Envoy(gate.grpc, application.port, {**Envoy.patient, **FAIL_CLOSED, KEY: key}) as started:
        yield started


@pytest.fixture(autouse=True)
def logs(envoy: Envoy, gate: Gate) -> Iterator[None]:
    """What both have logged, where a test fails."""
    yield
    show(envoy, gate)


def order(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/orders/7", content=b"one", **more)  # type: ignore[arg-type]


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def test_limit_holds_exactly_for_many_at_once(envoy: Envoy, client: Client, application: Origin) -> None:
    before = application.reached.count("/orders/7")
    asking = client(envoy)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: order(asking), range(36)))
    assert statuses(answers) == {200: ORDERS, 429: 36 - ORDERS}
    assert application.reached.count("/orders/7") == before + ORDERS, "a denied request must not get there"


def test_admitted_requests_say_what_is_left(envoy: Envoy, client: Client) -> None:
    first, second = order(client(envoy)), order(client(envoy))
    assert first.json()["bytes"] == 3
    assert all(name in first.headers for name in LIMITS)
    assert {part.partition(";")[2] for part in first.headers["ratelimit-policy"].split(", ")} == {
        "q=600;w=60",
        "q=3;w=86400",
    }
    assert [answer.headers["x-ratelimit-remaining"] for answer in (first, second)] == ["2", "1"]
    assert first.headers.get_list("x-ratelimit-limit") == ["3"], "once, and not Envoy's own beside it"
    assert "retry-after" not in first.headers


def test_headers_that_envoy_adds_itself_are_there_once(tmp_path: Path, application: Origin, client: Client) -> None:
    files = {**FILES, "crestgate.yaml": re.sub(r" *x_ratelimit: true.*\n", "", FILES["crestgate.yaml"])}
    adding = {**Envoy.patient, 'enable_x_ratelimit_headers: "OFF"': "enable_x_ratelimit_headers: DRAFT_VERSION_03"}
    with Gate(tmp_path, files) as quiet, Envoy(quiet.grpc, application.port, adding) as proxy:
        answers = [order(client(proxy)) for _ in range(ORDERS + 1)]
    assert statuses(answers) == {200: ORDERS, 429: 1}
    for answer in answers:
        for name in LIMITS:
            assert len(answer.headers.get_list(name)) == 1, name
    assert answers[0].headers["x-ratelimit-limit"].startswith("3, 3;w=86400"), "which is Envoy's own"
    assert "x-ratelimit-state" not in answers[-1].headers


def test_denied_requests_are_429_with_all_headers_and_use_nothing_up(envoy: Envoy, client: Client) -> None:
    asking = client(envoy)
    for _ in range(ORDERS):
        assert order(asking).status_code == 200
    denied = [order(asking) for _ in range(4)][-1]
    assert denied.status_code == 429
    assert all(name in denied.headers for name in LIMITS)
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert 0 < int(denied.headers["retry-after"]) <= DAY
    assert denied.headers["x-envoy-ratelimited"] == "true"
    passed = asking.get("/orders/7")
    assert passed.status_code == 200, "another method has no such limit"
    used = 600 - int(passed.headers["x-ratelimit-remaining"])
    assert used <= ORDERS + 1, "what one limit denies is not counted by the others"


def test_each_api_key_has_a_bucket_and_two_at_once_are_one(envoy: Envoy, client: Client) -> None:
    asking = client(envoy)
    keys = [("x-api-key", "first"), ("x-api-key", "second")]
    used = [asking.get("/", headers=keys) for _ in range(AT_ONCE + 1)]
    assert statuses(used) == {200: AT_ONCE, 429: 1}
    assert used[0].headers["x-ratelimit-limit"] == str(AT_ONCE)
    assert 0 < int(used[-1].headers["retry-after"]) <= 60, "one comes back each minute: no window has to end"
    (key,) = {value for answer in used[:-1] for name, value in answer.json()["headers"] if name == "x-api-key"}
    assert asking.get("/", headers={"x-api-key": key}).status_code == 429, "the application saw what was counted"
    assert asking.get("/", headers={"x-api-key": "third"}).status_code == 200
    assert not any(name == "x-api-key" for name, _ in asking.get("/").json()["headers"])


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-envoy-external-address", "x-real-ip", "x-envoy-internal"])
def test_address_that_a_client_makes_up_is_no_way_around(header: str, envoy: Envoy, client: Client) -> None:
    asking = client(envoy)
    answers = [order(asking, headers={header: f"192.0.2.{number}"}) for number in range(ORDERS + 2)]
    assert statuses(answers) == {200: ORDERS, 429: 2}


@pytest.mark.parametrize("spelled", ["/orders", "//orders/7", "/%6frders/7", "/x/../orders/7", "/orders?page=2"])
def test_another_spelling_of_a_path_is_no_way_around(spelled: str, envoy: Envoy, address: str) -> None:
    connection = HTTPConnection("127.0.0.1", envoy.port, timeout=30, source_address=(address, 0))  # sends it as it is
    told = []
    for _ in range(ORDERS + 1):
        connection.request("POST", spelled)
        answer = connection.getresponse()
        answer.read()
        told.append(answer.status)
    connection.close()
    assert told == [200] * ORDERS + [429]


def test_shadow_limit_does_not_block_and_is_counted(envoy: Envoy, gate: Gate, client: Client) -> None:
    def would_be_denied() -> float:
        return gate.metric("crestgate_shadow_blocked_total", "reports")

    before = would_be_denied()
    assert statuses([client(envoy).get("/reports") for _ in range(5)]) == {200: 5}
    until("the shadow's denials are counted", lambda: would_be_denied() == before + 3)


def test_changed_limit_takes_effect_and_keeps_what_was_used(envoy: Envoy, gate: Gate, client: Client) -> None:
    asking = client(envoy)
    assert statuses([order(asking) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    gate.write("ratelimit.yaml", replaced(FILES["ratelimit.yaml"], {"requests_per_unit: 3": "requests_per_unit: 5"}))
    try:
        until("one more is let through", lambda: order(asking).status_code == 200)
        assert statuses([order(asking) for _ in range(4)]) == {200: 1, 429: 3}
    finally:
        gate.write("ratelimit.yaml", FILES["ratelimit.yaml"])
        until("the old limit is back", lambda: "q=3;w=86400" in order(asking).headers["ratelimit-policy"])


def test_file_with_a_mistake_changes_nothing(envoy: Envoy, gate: Gate, client: Client) -> None:
    broken = replaced(FILES["ratelimit.yaml"], {"requests_per_unit: 3": "requests_per_unit: three"})
    gate.write("ratelimit.yaml", broken)
    try:
        until("the mistake is logged", lambda: "three" in gate.service.logged)
        assert statuses([order(client(envoy)) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    finally:
        gate.write("ratelimit.yaml", FILES["ratelimit.yaml"])


def test_wrong_key_is_no_decision(gate: Gate, application: Origin, client: Client) -> None:
    key = KEY.removeprefix("# ").replace("cg_...", "cg_wrong")
    with Envoy(gate.grpc, application.port, {**Envoy.patient, **FAIL_CLOSED, KEY: key}) as mistaken:
        assert order(client(mistaken)).status_code == 503
        assert mistaken.counted("cluster.application.ratelimit.error") == 1


def test_crestgate_that_hangs_holds_nobody_up(gate: Gate, application: Origin, client: Client) -> None:
    with (
        Envoy(gate.grpc, application.port) as proxy,
        Envoy(gate.grpc, application.port, FAIL_CLOSED) as closed,
    ):
        gate.service.signal(signal.SIGSTOP)
        try:
            passed, refused = order(client(proxy)), order(client(closed))
        finally:
            gate.service.signal(signal.SIGCONT)
    assert (passed.status_code, refused.status_code) == (200, 503)
    assert "ratelimit" not in passed.headers


def test_crestgate_killed_and_back(envoy: Envoy, strict: Envoy, gate: Gate, client: Client) -> None:
    """The proxies share the limits; without Crestgate each does as it is told; and what was used stays used."""
    asking, strictly = client(envoy), client(strict)
    assert [order(asking).status_code, order(strictly).status_code] == [200, 200]
    before = envoy.counted("cluster.application.ratelimit.failure_mode_allowed")
    gate.kill()
    for _ in range(5):
        passed, refused = order(asking), order(strictly)
        assert (passed.status_code, refused.status_code) == (200, 503)
        assert not {*LIMITS, "retry-after"} & {*passed.headers}
    assert envoy.counted("cluster.application.ratelimit.failure_mode_allowed") == before + 5
    gate.back()
    assert statuses([order(asking), *(order(strictly) for _ in range(3))]) == {200: 1, 429: 3}
    assert order(asking).status_code == 429
