"""A real nginx from deploy/nginx between clients and an application, limited by a real Crestgate service."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from integration.proxies.crestgate_service import CrestgateService, print_logs
from integration.proxies.origin import Origin
from integration.proxies.proxy_processes import DEPLOY, Nginx, replace_each
from servers.machine import until
from servers.process import ServerProcess

OpenClient = Callable[[ServerProcess], httpx.Client]
SETTINGS = (DEPLOY / "nginx" / "crestgate.yaml").read_text()
FAIL_CLOSED = {"return 204;": "return 500;"}
KEY = '# proxy_set_header X-Crestgate-Key "cg_...";'
LIMITS = ("ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
ORDERS = 3
SEARCHES = 5


@pytest.fixture(scope="module")
def crestgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrestgateService]:
    with CrestgateService(tmp_path_factory.mktemp("gate"), {"crestgate.yaml": SETTINGS}) as started:
        yield started


@pytest.fixture(scope="module")
def nginx(crestgate: CrestgateService, application: Origin) -> Iterator[Nginx]:
    """As in deploy/: without Crestgate, requests pass."""
    with Nginx(crestgate.http, application.port, Nginx.patient) as started:
        yield started


@pytest.fixture(scope="module")
def strict(crestgate: CrestgateService, application: Origin) -> Iterator[Nginx]:
    """Fails closed without Crestgate, and sends it an API key."""
    key = f'proxy_set_header X-Crestgate-Key "{crestgate.service.key}";'
    with Nginx(crestgate.http, application.port, {**Nginx.patient, **FAIL_CLOSED, KEY: key}) as started:
        yield started


@pytest.fixture(autouse=True)
def logs(nginx: Nginx, crestgate: CrestgateService) -> Iterator[None]:
    """Print both logs; pytest shows them if a test fails."""
    yield
    print_logs(nginx, crestgate)


def order(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/orders/7", content=b"one", **more)  # type: ignore[arg-type]


def statuses(responses: list[httpx.Response]) -> Counter[int]:
    return Counter(response.status_code for response in responses)


def test_concurrent_requests_admit_exactly_the_limit(
    nginx: Nginx, open_client: OpenClient, application: Origin
) -> None:
    before = application.request_paths.count("/orders/7")
    client = open_client(nginx)
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda _: order(client), range(36)))
    assert statuses(responses) == {200: ORDERS, 429: 36 - ORDERS}
    assert application.request_paths.count("/orders/7") == before + ORDERS, (
        "a denied request must not reach the application"
    )


def test_admitted_responses_have_remaining_headers(nginx: Nginx, open_client: OpenClient) -> None:
    first, second = order(open_client(nginx)), order(open_client(nginx))
    assert first.json()["bytes"] == 3
    assert '"orders-per-address";q=3;w=3600' in first.headers["ratelimit-policy"]
    assert [response.headers["x-ratelimit-remaining"] for response in (first, second)] == ["2", "1"]
    assert all(name in first.headers for name in LIMITS)
    assert "retry-after" not in first.headers


def test_denied_requests_get_429_with_all_headers_and_a_problem(nginx: Nginx, open_client: OpenClient) -> None:
    client = open_client(nginx)
    for _ in range(ORDERS):
        assert order(client).status_code == 200
    denied = order(client)
    assert denied.status_code == 429
    assert all(name in denied.headers for name in LIMITS)
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert denied.headers["x-ratelimit-state"] == "throttled"
    assert 0 < int(denied.headers["retry-after"]) <= 1200
    assert denied.headers["content-type"] == "application/problem+json"
    problem = denied.json()
    assert (problem["status"], problem["type"].rpartition("#")[2]) == (429, "quota-exceeded")
    assert {*problem} == {"type", "title", "status", "detail", "error", "message", "timestamp"}
    assert client.get("/orders/7").status_code == 200, "another method is under another limit"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "192.0.2.9"},
        {"forwarded": "for=192.0.2.9", "x-real-ip": "192.0.2.9"},
        {"x-user-id": "somebody", "x-client-id": "somebody"},
        {"x-original-uri": "/free", "x-original-method": "GET"},
        {"x-forwarded-uri": "/free", "x-forwarded-method": "GET", "x-http-method-override": "GET"},
        {"authorization": "Bearer cg_x", "x-crestgate-key": "cg_x"},
        {"idempotency-key": "again", "connection": "x-original-uri, x-forwarded-for"},
    ],
    ids=lambda headers: " ".join(headers),
)
def test_client_headers_do_not_evade_the_limit(headers: dict[str, str], nginx: Nginx, open_client: OpenClient) -> None:
    client = open_client(nginx)
    responses = [order(client, headers=headers) for _ in range(ORDERS + 2)]
    assert statuses(responses) == {200: ORDERS, 429: 2}


@pytest.mark.parametrize("path", ["/orders/7/", "//orders/7", "/%6frders/7", "/orders/./7", "/orders/7?page=2"])
def test_path_spelling_does_not_evade_the_limit(path: str, nginx: Nginx, address: str) -> None:
    connection = HTTPConnection("127.0.0.1", nginx.port, timeout=30, source_address=(address, 0))  # sends it as is
    codes = []
    for _ in range(ORDERS + 1):
        connection.request("POST", path)
        response = connection.getresponse()
        response.read()
        codes.append(response.status)
    connection.close()
    assert codes == [200] * ORDERS + [429]


def test_application_receives_the_counted_address(nginx: Nginx, open_client: OpenClient, address: str) -> None:
    received = (
        open_client(nginx).get("/", headers={"x-forwarded-for": "192.0.2.9", "x-api-key": "k1"}).json()["headers"]
    )
    assert [value for name, value in received if name == "x-forwarded-for"] == [address]
    assert [value for name, value in received if name == "x-api-key"] == ["k1"]


def test_each_api_key_has_its_own_limit_and_repeated_headers_share_one(nginx: Nginx, open_client: OpenClient) -> None:
    client = open_client(nginx)
    keys = [("x-api-key", "first"), ("x-api-key", "second")]
    used = [client.get("/search", headers=keys) for _ in range(SEARCHES + 1)]
    assert statuses(used) == {200: SEARCHES, 429: 1}
    (key,) = {value for response in used[:-1] for name, value in response.json()["headers"] if name == "x-api-key"}
    assert client.get("/search", headers={"x-api-key": key}).status_code == 429, "the application saw what was counted"
    assert client.get("/search", headers={"x-api-key": "third"}).status_code == 200


def test_header_refused_by_crestgate_blocks_the_request(nginx: Nginx, open_client: OpenClient) -> None:
    response = order(open_client(nginx), headers={"x-api-key": "k" * 2000})
    assert (response.status_code, response.json()["status"]) == (400, 400)


@pytest.mark.parametrize(("path", "status"), [("/forbidden", 403), ("/broken", 500), ("/absent", 404)])
def test_application_errors_pass_through(path: str, status: int, nginx: Nginx, open_client: OpenClient) -> None:
    response = open_client(nginx).get(path)
    assert response.status_code == status
    assert response.json()["path"] == path
    assert response.headers["x-ratelimit-remaining"] == "599", "the remaining header is still sent"


def test_internal_location_is_not_reachable_by_clients(nginx: Nginx, open_client: OpenClient) -> None:
    assert open_client(nginx).get("/_crestgate").status_code == 404


def test_large_bodies_arrive_complete_and_connections_stay_usable(nginx: Nginx, open_client: OpenClient) -> None:
    client = open_client(nginx)
    large = b"x" * 5_000_000
    assert client.put("/upload", content=large).json()["bytes"] == len(large)
    assert client.put("/upload", content=(large[:1_000_000] for _ in range(5))).json()["bytes"] == len(large)
    assert client.put("/upload", content=large, headers={"expect": "100-continue"}).json()["bytes"] == len(large)
    head = client.head("/upload")
    assert (head.status_code, head.content) == (200, b"")
    for _ in range(ORDERS):
        assert client.post("/orders/7", content=large).json()["bytes"] == len(large)
    assert client.post("/orders/7", content=large).status_code == 429
    assert client.post("/orders/7", content=(large[:1_000_000] for _ in range(5))).status_code == 429
    assert client.get("/").status_code == 200


def test_denied_response_keeps_the_connection_open(nginx: Nginx, open_client: OpenClient) -> None:
    client = open_client(nginx)
    used = {order(client).extensions["network_stream"].get_extra_info("client_addr") for _ in range(ORDERS + 3)}
    assert len(used) == 1


def test_connections_to_crestgate_are_reused(
    nginx: Nginx, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    client = open_client(nginx)
    client.get("/")
    before = connections(crestgate.http)
    assert before >= 1
    for _ in range(30):
        client.get("/")
    assert connections(crestgate.http) <= before + 1


def connections(port: int) -> int:
    """The number of connections to a local port, including recently closed ones."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(f":{port:04X}" in (row[1][8:], row[2][8:]) and row[3] != "0A" for row in rows)


def test_shadow_rule_counts_without_blocking(
    nginx: Nginx, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    def would_be_denied() -> float:
        return crestgate.metric("crestgate_shadow_blocked_total", 'rule="fewer-reports"')

    client = open_client(nginx)
    before = would_be_denied()
    responses = [client.get("/reports/today") for _ in range(5)]
    assert statuses(responses) == {200: 5}
    assert "fewer-reports" not in responses[0].headers["ratelimit-policy"]
    until("the shadow's denials are counted", lambda: would_be_denied() == before + 3)


def test_changed_rule_applies_and_keeps_usage(
    nginx: Nginx, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    client = open_client(nginx)
    assert statuses([order(client) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    raised = replace_each(SETTINGS, {"limit: 3\n": "limit: 5\n"})
    crestgate.write("crestgate.yaml", raised)
    try:
        until("one more is let through", lambda: order(client).status_code == 200)
        assert statuses([order(client) for _ in range(4)]) == {200: 1, 429: 3}
    finally:
        crestgate.write("crestgate.yaml", SETTINGS)
        until("the old rule is back", lambda: '"orders-per-address";q=3;' in order(client).headers["ratelimit-policy"])


def test_invalid_file_changes_nothing(nginx: Nginx, crestgate: CrestgateService, open_client: OpenClient) -> None:
    crestgate.write("crestgate.yaml", replace_each(SETTINGS, {"limit: 3\n": "limit: three\n"}))
    try:
        until("the error is logged", lambda: "three" in crestgate.service.logged)
        assert statuses([order(open_client(nginx)) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    finally:
        crestgate.write("crestgate.yaml", SETTINGS)


def test_wrong_key_fails_closed(crestgate: CrestgateService, application: Origin, open_client: OpenClient) -> None:
    """With fail-closed that is 503, never 401 for the client."""
    wrong = {**Nginx.patient, **FAIL_CLOSED, KEY: 'proxy_set_header X-Crestgate-Key "cg_wrong";'}
    with Nginx(crestgate.http, application.port, wrong) as with_wrong_key:
        response = order(open_client(with_wrong_key))
    assert (response.status_code, response.json()["status"]) == (503, 503)
    assert "www-authenticate" not in response.headers


def test_hanging_crestgate_times_out(crestgate: CrestgateService, application: Origin, open_client: OpenClient) -> None:
    with (
        Nginx(crestgate.http, application.port) as proxy,
        Nginx(crestgate.http, application.port, FAIL_CLOSED) as closed,
    ):
        crestgate.service.signal(signal.SIGSTOP)
        try:
            passed, refused = order(open_client(proxy)), order(open_client(closed))
        finally:
            crestgate.service.signal(signal.SIGCONT)
    assert (passed.status_code, refused.status_code) == (200, 503)
    assert "ratelimit" not in passed.headers


def test_crestgate_killed_and_restarted(
    nginx: Nginx, strict: Nginx, crestgate: CrestgateService, open_client: OpenClient
) -> None:
    """The proxies share limits. Without Crestgate each follows its own policy. Usage survives the restart."""
    client, strict_client = open_client(nginx), open_client(strict)
    assert [order(client).status_code, order(strict_client).status_code] == [200, 200]
    crestgate.kill()
    for _ in range(5):
        passed, refused = order(client), order(strict_client)
        assert passed.status_code == 200
        assert json.loads(passed.content)["bytes"] == 3
        assert not {*LIMITS, "retry-after"} & {*passed.headers}
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    crestgate.restart()
    assert statuses([order(client), *(order(strict_client) for _ in range(3))]) == {200: 1, 429: 3}
    assert order(client).status_code == 429
