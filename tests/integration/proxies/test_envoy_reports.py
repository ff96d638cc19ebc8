"""A real Envoy that reports tokens after the response (`apply_on_stream_done`), with the files of deploy/envoy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from integration.proxies.crestgate_service import CrestgateService, print_logs
from integration.proxies.origin import Origin
from integration.proxies.proxy_processes import DEPLOY, Envoy, replace_each
from servers.machine import until

LIMITS = (DEPLOY / "envoy" / "token-limits.yaml").read_text()
SLOW = {"requests_per_unit: 60000": "requests_per_unit: 60"}
"""One token a minute, so that no debt is worked off during a test."""


@pytest.fixture(scope="module")
def crestgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrestgateService]:
    files = {"crestgate.yaml": "envoy: {config: limits.yaml}\n", "limits.yaml": replace_each(LIMITS, SLOW)}
    with CrestgateService(tmp_path_factory.mktemp("gate"), files) as started:
        yield started


@pytest.fixture(scope="module")
def envoy(crestgate: CrestgateService, application: Origin) -> Iterator[Envoy]:
    with Envoy(crestgate.grpc, application.port, Envoy.patient, "tokens.yaml") as started:
        yield started


@pytest.fixture(autouse=True)
def logs(envoy: Envoy, crestgate: CrestgateService) -> Iterator[None]:
    yield
    print_logs(envoy, crestgate)


def use(client: httpx.Client, customer: str, tokens: int) -> int:
    return client.get("/", headers={"x-customer": customer, "x-use-tokens": str(tokens)}).status_code


def remaining(crestgate: CrestgateService, customer: str) -> tuple[int, str]:
    """What is left, by a look as that of Envoy, and its code."""
    look = {"entries": [{"key": "customer", "value": customer}], "hitsAddend": 0}
    with crestgate.service.client(crestgate.service.key) as client:
        answer = client.post("/json", json={"domain": "models", "descriptors": [look]}).json()
    (status,) = answer["statuses"]
    return int(status.get("limitRemaining", 0)), status["code"]


def test_what_was_used_is_charged_after_the_response(envoy: Envoy, crestgate: CrestgateService) -> None:
    with httpx.Client(base_url=envoy.url, timeout=30) as client:
        assert use(client, "fits", 400) == 200
        until("400 are charged", lambda: remaining(crestgate, "fits") == (600, "OK"))
        assert use(client, "fits", 600) == 200
        until("1,000 are charged", lambda: remaining(crestgate, "fits") == (0, "OVER_LIMIT"))
        assert use(client, "fits", 1) == 429


def test_what_does_not_fit_is_a_debt(envoy: Envoy, crestgate: CrestgateService) -> None:
    with httpx.Client(base_url=envoy.url, timeout=30) as client:
        assert use(client, "owes", 995) == 200
        until("995 are charged", lambda: remaining(crestgate, "owes") == (5, "OK"))
        assert use(client, "owes", 900) == 200, "something is left, so it passes"
        until("900 are charged", lambda: remaining(crestgate, "owes") == (0, "OVER_LIMIT"))
        denied = [client.get("/", headers={"x-customer": "owes", "x-use-tokens": "900"}) for _ in range(3)]
    assert {response.status_code for response in denied} == {429}
    # 895 beyond the limit, one worked off each minute: a debt that denied requests do not grow.
    waits = [int(response.headers["retry-after"]) for response in denied]
    assert all(890 * 60 < wait <= 897 * 60 for wait in waits), waits


def test_a_budget_is_overspent_by_the_requests_in_flight_at_most(envoy: Envoy, crestgate: CrestgateService) -> None:
    """All of the first pass, since nothing is charged yet; of those after them none."""
    with httpx.Client(base_url=envoy.url, timeout=30) as client, ThreadPoolExecutor(10) as pool:
        first = list(pool.map(lambda _: use(client, "many", 150), range(10)))
        until("all are charged", lambda: remaining(crestgate, "many") == (0, "OVER_LIMIT"))
        second = list(pool.map(lambda _: use(client, "many", 150), range(10)))
    assert first.count(200) >= 7, "7 of 150 exhaust 1,000"
    assert set(second) == {429}
