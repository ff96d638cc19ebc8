"""A real Envoy from deploy/envoy between clients and an application, limited by a real Crestgate service."""

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

from integration.proxies.crestgate_service import CrestgateService, print_logs
from integration.proxies.origin import Origin
from integration.proxies.proxy_processes import DEPLOY, Envoy, replace_each
from servers.machine import until
from servers.process import ServerProcess

OpenClient = Callable[[ServerProcess], httpx.Client]
FILES = {name: (DEPLOY / "envoy" / name).read_text() for name in ("crestgate.yaml", "ratelimit.yaml")}
LIMITS = ("ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
FAIL_CLOSED = {"failure_mode_deny: false": "failure_mode_deny: true"}
KEY = '# initial_metadata: [{ key: x-api-key, value: "cg_..." }]'
ORDERS = 3
BURST = 5
DAY = 86_400
MAX_TEST_SECONDS = 240
"""Seconds: an upper bound on the duration of these tests, even on a busy machine."""


@pytest.fixture(scope="module")
def crestgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrestgateService]:
    """Its windows are UTC days: if one is about to end, wait for the next."""
    if (seconds_left := DAY - time.time() % DAY) < MAX_TEST_SECONDS:
        time.sleep(seconds_left)
    with CrestgateService(tmp_path_factory.mktemp("gate"), FILES) as started:
        yield started


@pytest.fixture(scope="module")
def envoy(crestgate: CrestgateService, application: Origin) -> Iterator[Envoy]:
    """As in deploy/: without Crestgate, requests pass."""
    with Envoy(crestgate.grpc, application.port, Envoy.patient) as started:
        yield started


@pytest.fixture(scope="module")
def strict(crestgate: CrestgateService, application: Origin) -> Iterator[Envoy]:
    """Fails closed without Crestgate, and sends it an API key."""
    key = KEY.removeprefix("# ").replace("cg_...", crestgate.service.key)
    with Envoy(crestgate.grpc, application.port, {**Envoy.patient, **FAIL_CLOSED, KEY: key}) as started:
        yield started


@pytest.fixture(autouse=True)
def logs(envoy: Envoy, crestgate: CrestgateService) -> Iterator[None]:
    """Print both logs; pytest shows them if a test fails."""
    yield
    print_logs(envoy, crestgate)


def order(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/orders/7", content=b"one", **more)  # type: ignore[arg-type]


def statuses(responses: list[httpx.Response]) -> Counter[int]:
    return Counter(response.status_code for response in responses)


def test_concurrent_requests_admit_exactly_the_limit(
    envoy: Envoy, open_client: OpenClient, application: Origin
) -> None:
    before = application.request_paths.count("/orders/7")
    client = open_client(envoy)
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda _: order(client), range(36)))
    assert statuses(responses) == {200: ORDERS, 429: 36 - ORDERS}
    assert application.request_paths.count("/orders/7") == before + ORDERS, (
        "a denied request must not reach the application"
    )


def test_admitted_responses_have_remaining_headers(envoy: Envoy, open_client: OpenClient) -> None:
    first, second = order(open_client(envoy)), order(open_client(envoy))
    assert first.json()["bytes"] == 3
    assert all(name in first.headers for name in LIMITS)
    assert {part.partition(";")[2] for part in first.headers["ratelimit-policy"].split(", ")} == {
        "q=600;w=60",
        "q=3;w=86400",
    }
    assert [response.headers["x-ratelimit-remaining"] for response in (first, second)] == ["2", "1"]
    assert first.headers.get_list("x-ratelimit-limit") == ["3"], "once, without Envoy's own"
    assert "retry-after" not in first.headers


def test_headers_added_by_envoy_appear_once(tmp_path: Path, application: Origin, open_client: OpenClient) -> None:
    files = {**FILES, "crestgate.yaml": re.sub(r" *x_ratelimit: true.*\n", "", FILES["crestgate.yaml"])}
    adding = {**Envoy.patient, 'enable_x_ratelimit_headers: "OFF"': "enable_x_ratelimit_headers: DRAFT_VERSION_03"}
    with (
        CrestgateService(tmp_path, files) as other_crestgate,
        Envoy(other_crestgate.grpc, application.port, adding) as proxy,
    ):
        responses = [order(open_client(proxy)) for _ in range(ORDERS + 1)]
    assert statuses(responses) == {200: ORDERS, 429: 1}
    for response in responses:
        for name in LIMITS:
            assert len(response.headers.get_list(name)) == 1, name
    assert responses[0].headers["x-ratelimit-limit"].startswith("3, 3;w=86400"), "this is Envoy's own"
    assert "x-ratelimit-state" not in responses[-1].headers


def test_denied_requests_get_429_with_all_headers_and_consume_nothing(envoy: Envoy, open_client: OpenClient) -> None:
    client = open_client(envoy)
    for _ in range(ORDERS):
        assert order(client).status_code == 200
    denied = [order(client) for _ in range(4)][-1]
    assert denied.status_code == 429
    assert all(name in denied.headers for name in LIMITS)
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert 0 < int(denied.headers["retry-after"]) <= DAY
    assert denied.headers["x-envoy-ratelimited"] == "true"
    passed = client.get("/orders/7")
    assert passed.status_code == 200, "another method has no such limit"
    used = 600 - int(passed.headers["x-ratelimit-remaining"])
    assert used <= ORDERS + 1, "a request denied by one limit is not counted by the others"


def test_each_api_key_has_a_bucket_and_repeated_headers_share_one(envoy: Envoy, open_client: OpenClient) -> None:
    client = open_client(envoy)
    keys = [("x-api-key", "first"), ("x-api-key", "second")]
    used = [client.get("/", headers=keys) for _ in range(BURST + 1)]
    assert statuses(used) == {200: BURST, 429: 1}
    assert used[0].headers["x-ratelimit-limit"] == str(BURST)
    assert 0 < int(used[-1].headers["retry-after"]) <= 60, "one comes back each minute: no window has to end"
    (key,) = {value for response in used[:-1] for name, value in response.json()["headers"] if name == "x-api-key"}
    assert client.get("/", headers={"x-api-key": key}).status_code == 429, "the application saw what was counted"
    assert client.get("/", headers={"x-api-key": "third"}).status_code == 200
    assert not any(name == "x-api-key" for name, _ in client.get("/").json()["headers"])


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-envoy-external-address", "x-real-ip", "x-envoy-internal"])
def test_forged_address_does_not_evade_the_limit(header: str, envoy: Envoy, open_client: OpenClient) -> None:
    client = open_client(envoy)
    responses = [order(client, headers={header: f"192.0.2.{number}"}) for number in range(ORDERS + 2)]
    assert statuses(responses) == {200: ORDERS, 429: 2}


@pytest.mark.parametrize("path", ["/orders", "//orders/7", "/%6frders/7", "/x/../orders/7", "/orders?page=2"])
def test_path_spelling_does_not_evade_the_limit(path: str, envoy: Envoy, address: str) -> None:
    connection = HTTPConnection("127.0.0.1", envoy.port, timeout=30, source_address=(address, 0))  # sends it as is
    codes = []
    for _ in range(ORDERS + 1):
        connection.request("POST", path)
        response = connection.getresponse()
        response.read()
        codes.append(response.status)
    connection.close()
    assert codes == [200] * ORDERS + [429]


def test_shadow_limit_counts_without_blocking(
    envoy: Envoy, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    def would_be_denied() -> float:
        return crestgate.metric("crestgate_shadow_blocked_total", "reports")

    before = would_be_denied()
    assert statuses([open_client(envoy).get("/reports") for _ in range(5)]) == {200: 5}
    until("the shadow's denials are counted", lambda: would_be_denied() == before + 3)


def test_changed_limit_applies_and_keeps_usage(
    envoy: Envoy, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    client = open_client(envoy)
    assert statuses([order(client) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    crestgate.write(
        "ratelimit.yaml", replace_each(FILES["ratelimit.yaml"], {"requests_per_unit: 3": "requests_per_unit: 5"})
    )
    try:
        until("one more is let through", lambda: order(client).status_code == 200)
        assert statuses([order(client) for _ in range(4)]) == {200: 1, 429: 3}
    finally:
        crestgate.write("ratelimit.yaml", FILES["ratelimit.yaml"])
        until("the old limit is back", lambda: "q=3;w=86400" in order(client).headers["ratelimit-policy"])


def test_invalid_file_changes_nothing(envoy: Envoy, crestgate: CrestgateService, open_client: OpenClient) -> None:
    broken = replace_each(FILES["ratelimit.yaml"], {"requests_per_unit: 3": "requests_per_unit: three"})
    crestgate.write("ratelimit.yaml", broken)
    try:
        until("the error is logged", lambda: "three" in crestgate.service.logged)
        assert statuses([order(open_client(envoy)) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    finally:
        crestgate.write("ratelimit.yaml", FILES["ratelimit.yaml"])


def test_wrong_key_fails_closed(crestgate: CrestgateService, application: Origin, open_client: OpenClient) -> None:
    key = KEY.removeprefix("# ").replace("cg_...", "cg_wrong")
    with Envoy(crestgate.grpc, application.port, {**Envoy.patient, **FAIL_CLOSED, KEY: key}) as with_wrong_key:
        assert order(open_client(with_wrong_key)).status_code == 503
        assert with_wrong_key.counter("cluster.application.ratelimit.error") == 1


def test_hanging_crestgate_times_out(crestgate: CrestgateService, application: Origin, open_client: OpenClient) -> None:
    with (
        Envoy(crestgate.grpc, application.port) as proxy,
        Envoy(crestgate.grpc, application.port, FAIL_CLOSED) as closed,
    ):
        crestgate.service.signal(signal.SIGSTOP)
        try:
            passed, refused = order(open_client(proxy)), order(open_client(closed))
        finally:
            crestgate.service.signal(signal.SIGCONT)
    assert (passed.status_code, refused.status_code) == (200, 503)
    assert "ratelimit" not in passed.headers


def test_crestgate_killed_and_restarted(
    envoy: Envoy, strict: Envoy, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    """The proxies share limits. Without Crestgate each follows its own policy. Usage survives the restart."""
    client, strict_client = open_client(envoy), open_client(strict)
    assert [order(client).status_code, order(strict_client).status_code] == [200, 200]
    before = envoy.counter("cluster.application.ratelimit.failure_mode_allowed")
    crestgate.kill()
    for _ in range(5):
        passed, refused = order(client), order(strict_client)
        assert (passed.status_code, refused.status_code) == (200, 503)
        assert not {*LIMITS, "retry-after"} & {*passed.headers}
    assert envoy.counter("cluster.application.ratelimit.failure_mode_allowed") == before + 5
    crestgate.restart()
    assert statuses([order(client), *(order(strict_client) for _ in range(3))]) == {200: 1, 429: 3}
    assert order(client).status_code == 429
