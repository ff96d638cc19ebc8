"""A real nginx from deploy/nginx between clients and an application, with a real service to ask."""

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

from integration.proxies.fronts import DEPLOY, Nginx, replaced
from integration.proxies.gate import Gate, show
from integration.proxies.origin import Origin
from servers.machine import until
from servers.process import ServerProcess

Client = Callable[[ServerProcess], httpx.Client]
SETTINGS = (DEPLOY / "nginx" / "crestgate.yaml").read_text()
FAIL_CLOSED = {"return 204;": "return 500;"}
KEY = '# proxy_set_header X-Crestgate-Key "cg_...";'
LIMITS = ("ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
ORDERS = 3
SEARCHES = 5


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with Gate(tmp_path_factory.mktemp("gate"), {"crestgate.yaml": SETTINGS}) as started:
        yield started


@pytest.fixture(scope="module")
def nginx(gate: Gate, application: Origin) -> Iterator[Nginx]:
    """As it is in deploy/: without Crestgate, requests pass."""
    with Nginx(gate.http, application.port, Nginx.patient) as started:
        yield started


@pytest.fixture(scope="module")
def strict(gate: Gate, application: Origin) -> Iterator[Nginx]:
    """One that lets nothing pass without Crestgate, and shows it a key."""
    key = f'proxy_set_header X-Crestgate-Key "{gate.service.key}";'
    with Nginx(gate.http, application.port, {**Nginx.patient, **FAIL_CLOSED, KEY: key}) as started:
        yield started


@pytest.fixture(autouse=True)
def logs(nginx: Nginx, gate: Gate) -> Iterator[None]:
    """What both have logged, where a test fails."""
    yield
    show(nginx, gate)


def order(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/orders/7", content=b"one", **more)  # type: ignore[arg-type]


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def test_limit_holds_exactly_for_many_at_once(nginx: Nginx, client: Client, application: Origin) -> None:
    before = application.reached.count("/orders/7")
    asking = client(nginx)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: order(asking), range(36)))
    assert statuses(answers) == {200: ORDERS, 429: 36 - ORDERS}
    assert application.reached.count("/orders/7") == before + ORDERS, "a denied request must not get there"


def test_admitted_requests_say_what_is_left(nginx: Nginx, client: Client) -> None:
    first, second = order(client(nginx)), order(client(nginx))
    assert first.json()["bytes"] == 3
    assert '"orders-per-address";q=3;w=3600' in first.headers["ratelimit-policy"]
    assert [answer.headers["x-ratelimit-remaining"] for answer in (first, second)] == ["2", "1"]
    assert all(name in first.headers for name in LIMITS)
    assert "retry-after" not in first.headers


def test_denied_requests_are_429_with_all_headers_and_a_problem(nginx: Nginx, client: Client) -> None:
    asking = client(nginx)
    for _ in range(ORDERS):
        assert order(asking).status_code == 200
    denied = order(asking)
    assert denied.status_code == 429
    assert all(name in denied.headers for name in LIMITS)
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert denied.headers["x-ratelimit-state"] == "throttled"
    assert 0 < int(denied.headers["retry-after"]) <= 1200
    assert denied.headers["content-type"] == "application/problem+json"
    problem = denied.json()
    assert (problem["status"], problem["type"].rpartition("#")[2]) == (429, "quota-exceeded")
    assert {*problem} == {"type", "title", "status", "detail", "error", "message", "timestamp"}
    assert asking.get("/orders/7").status_code == 200, "another method is under another limit"


@pytest.mark.parametrize(
    "said",
    [
        {"x-forwarded-for": "192.0.2.9"},
        {"forwarded": "for=192.0.2.9", "x-real-ip": "192.0.2.9"},
        {"x-user-id": "somebody", "x-client-id": "somebody"},
        {"x-original-uri": "/free", "x-original-method": "GET"},
        {"x-forwarded-uri": "/free", "x-forwarded-method": "GET", "x-http-method-override": "GET"},
        {"authorization": "Bearer cg_x", "x-crestgate-key": "cg_x"},
        {"idempotency-key": "again", "connection": "x-original-uri, x-forwarded-for"},
    ],
    ids=lambda said: " ".join(said),
)
def test_what_a_client_says_of_itself_is_no_way_around(said: dict[str, str], nginx: Nginx, client: Client) -> None:
    asking = client(nginx)
    answers = [order(asking, headers=said) for _ in range(ORDERS + 2)]
    assert statuses(answers) == {200: ORDERS, 429: 2}


@pytest.mark.parametrize("spelled", ["/orders/7/", "//orders/7", "/%6frders/7", "/orders/./7", "/orders/7?page=2"])
def test_another_spelling_of_a_path_is_no_way_around(spelled: str, nginx: Nginx, address: str) -> None:
    connection = HTTPConnection("127.0.0.1", nginx.port, timeout=30, source_address=(address, 0))  # sends it as it is
    told = []
    for _ in range(ORDERS + 1):
        connection.request("POST", spelled)
        answer = connection.getresponse()
        answer.read()
        told.append(answer.status)
    connection.close()
    assert told == [200] * ORDERS + [429]


def test_application_is_told_the_address_that_was_counted(nginx: Nginx, client: Client, address: str) -> None:
    told = client(nginx).get("/", headers={"x-forwarded-for": "192.0.2.9", "x-api-key": "k1"}).json()["headers"]
    assert [value for name, value in told if name == "x-forwarded-for"] == [address]
    assert [value for name, value in told if name == "x-api-key"] == ["k1"]


def test_each_api_key_has_its_own_limit_and_two_at_once_are_one(nginx: Nginx, client: Client) -> None:
    asking = client(nginx)
    keys = [("x-api-key", "first"), ("x-api-key", "second")]
    used = [asking.get("/search", headers=keys) for _ in range(SEARCHES + 1)]
    assert statuses(used) == {200: SEARCHES, 429: 1}
    (key,) = {value for answer in used[:-1] for name, value in answer.json()["headers"] if name == "x-api-key"}
    assert asking.get("/search", headers={"x-api-key": key}).status_code == 429, "the application saw what was counted"
    assert asking.get("/search", headers={"x-api-key": "third"}).status_code == 200


def test_header_that_crestgate_refuses_lets_nothing_pass(nginx: Nginx, client: Client) -> None:
    answer = order(client(nginx), headers={"x-api-key": "k" * 2000})
    assert (answer.status_code, answer.json()["status"]) == (400, 400)


@pytest.mark.parametrize(("path", "status"), [("/forbidden", 403), ("/broken", 500), ("/absent", 404)])
def test_refusals_of_the_application_are_its_own(path: str, status: int, nginx: Nginx, client: Client) -> None:
    answer = client(nginx).get(path)
    assert answer.status_code == status
    assert answer.json()["path"] == path
    assert answer.headers["x-ratelimit-remaining"] == "599", "and still say what is left"


def test_question_to_crestgate_cannot_be_asked_from_outside(nginx: Nginx, client: Client) -> None:
    assert client(nginx).get("/_crestgate").status_code == 404


def test_bodies_arrive_whole_and_connections_go_on(nginx: Nginx, client: Client) -> None:
    asking = client(nginx)
    large = b"x" * 5_000_000
    assert asking.put("/upload", content=large).json()["bytes"] == len(large)
    assert asking.put("/upload", content=(large[:1_000_000] for _ in range(5))).json()["bytes"] == len(large)
    assert asking.put("/upload", content=large, headers={"expect": "100-continue"}).json()["bytes"] == len(large)
    head = asking.head("/upload")
    assert (head.status_code, head.content) == (200, b"")
    for _ in range(ORDERS):
        assert asking.post("/orders/7", content=large).json()["bytes"] == len(large)
    assert asking.post("/orders/7", content=large).status_code == 429
    assert asking.post("/orders/7", content=(large[:1_000_000] for _ in range(5))).status_code == 429
    assert asking.get("/").status_code == 200


def test_denied_answer_leaves_the_connection_open(nginx: Nginx, client: Client) -> None:
    asking = client(nginx)
    used = {order(asking).extensions["network_stream"].get_extra_info("client_addr") for _ in range(ORDERS + 3)}
    assert len(used) == 1


def test_crestgate_is_asked_over_connections_that_stay_open(nginx: Nginx, gate: Gate, client: Client) -> None:
    asking = client(nginx)
    asking.get("/")
    before = connections(gate.http)
    assert before >= 1
    for _ in range(30):
        asking.get("/")
    assert connections(gate.http) <= before + 1


def connections(port: int) -> int:
    """How many connections to a port of this machine there are, with those that were closed a moment ago."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(f":{port:04X}" in (row[1][8:], row[2][8:]) and row[3] != "0A" for row in rows)


def test_shadow_rule_does_not_block_and_is_counted(nginx: Nginx, gate: Gate, client: Client) -> None:
    def would_be_denied() -> float:
        return gate.metric("crestgate_shadow_blocked_total", 'rule="fewer-reports"')

    asking = client(nginx)
    before = would_be_denied()
    answers = [asking.get("/reports/today") for _ in range(5)]
    assert statuses(answers) == {200: 5}
    assert "fewer-reports" not in answers[0].headers["ratelimit-policy"]
    until("the shadow's denials are counted", lambda: would_be_denied() == before + 3)


def test_changed_rule_takes_effect_and_keeps_what_was_used(nginx: Nginx, gate: Gate, client: Client) -> None:
    asking = client(nginx)
    assert statuses([order(asking) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    raised = replaced(SETTINGS, {"limit: 3\n": "limit: 5\n"})
    gate.write("crestgate.yaml", raised)
    try:
        until("one more is let through", lambda: order(asking).status_code == 200)
        assert statuses([order(asking) for _ in range(4)]) == {200: 1, 429: 3}
    finally:
        gate.write("crestgate.yaml", SETTINGS)
        until("the old rule is back", lambda: '"orders-per-address";q=3;' in order(asking).headers["ratelimit-policy"])


def test_file_with_a_mistake_changes_nothing(nginx: Nginx, gate: Gate, client: Client) -> None:
    gate.write("crestgate.yaml", replaced(SETTINGS, {"limit: 3\n": "limit: three\n"}))
    try:
        until("the mistake is logged", lambda: "three" in gate.service.logged)
        assert statuses([order(client(nginx)) for _ in range(ORDERS + 1)]) == {200: ORDERS, 429: 1}
    finally:
        gate.write("crestgate.yaml", SETTINGS)


def test_wrong_key_is_no_decision(gate: Gate, application: Origin, client: Client) -> None:
    """Where nothing passes without a decision that is 503, and never the client's own 401."""
    wrong = {**Nginx.patient, **FAIL_CLOSED, KEY: 'proxy_set_header X-Crestgate-Key "cg_wrong";'}
    with Nginx(gate.http, application.port, wrong) as mistaken:
        answer = order(client(mistaken))
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert "www-authenticate" not in answer.headers


def test_crestgate_that_hangs_holds_nobody_up(gate: Gate, application: Origin, client: Client) -> None:
    with (
        Nginx(gate.http, application.port) as proxy,
        Nginx(gate.http, application.port, FAIL_CLOSED) as closed,
    ):
        gate.service.signal(signal.SIGSTOP)
        try:
            passed, refused = order(client(proxy)), order(client(closed))
        finally:
            gate.service.signal(signal.SIGCONT)
    assert (passed.status_code, refused.status_code) == (200, 503)
    assert "ratelimit" not in passed.headers


def test_crestgate_killed_and_back(nginx: Nginx, strict: Nginx, gate: Gate, client: Client) -> None:
    """The proxies share the limits; without Crestgate each does as it is told; and what was used stays used."""
    asking, strictly = client(nginx), client(strict)
    assert [order(asking).status_code, order(strictly).status_code] == [200, 200]
    gate.kill()
    for _ in range(5):
        passed, refused = order(asking), order(strictly)
        assert passed.status_code == 200
        assert json.loads(passed.content)["bytes"] == 3
        assert not {*LIMITS, "retry-after"} & {*passed.headers}
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    gate.back()
    assert statuses([order(asking), *(order(strictly) for _ in range(3))]) == {200: 1, 429: 3}
    assert order(asking).status_code == 429
