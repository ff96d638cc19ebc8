"""A large batch must not delay other callers: it is decided in slices, and others are served in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import httpx
import pytest

from crestgate.protobuf import messages
from integration.service.service_process import GENEROUS, Service
from security.bystander import Bystander, Control, memory_bytes, unharmed

ROUNDS = 3
UNLIMITED = {**GENEROUS, "CRESTGATE_SERVER__LIMITS__CHECKS": "1000000000/second"}
MEMORY = 64 * 1024 * 1024
WIDE = [f"{1_000_000 + number}/day using fixed_window" for number in range(10)]
LOG = "10000/day using sliding_window_log"
CONFIG = "envoy: {config: descriptors.yaml}\n"
DESCRIPTORS = """
domain: edge
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1000000}
"""


def counters(number: int) -> list[dict[str, Any]]:
    """1,000 checks of 10 counters each, with 10,000 different limits."""
    return [
        {"counters": [{"key": f"k{n}", "limit": f"{10 * n + i + 1 + number}/d"} for i in range(10)]}
        for n in range(1000)
    ]


def same_limit(number: int) -> list[dict[str, Any]]:
    return [{"counters": [{"key": f"{number}-{n}-{i}", "limit": "9/d"} for i in range(10)]} for n in range(1000)]


def plans(number: int) -> list[dict[str, Any]]:
    return [{"key": f"{number}-{n}", "plans": ["wide"]} for n in range(1000)]


def by_rules(number: int) -> list[dict[str, Any]]:
    return [{"dimension": "user", "identifier": f"{number}-{n}", "endpoint": f"/a/{n}"} for n in range(1000)]


LONG_PATHS = {
    "slashes": "/" + "%2f" * 2729,
    "nested": "/" + ("%" + "25" * 9 + "41") * 390,
    "percent signs": "/" + "%" * 8150 + "%2525252541",
}


@pytest.fixture
def service(serve: Callable[..., Service], tmp_path: Any) -> Service:
    (tmp_path / "descriptors.yaml").write_text(DESCRIPTORS)
    started = serve(config=CONFIG, environment=UNLIMITED)
    with started.client(started.key) as admin:
        assert admin.post("/api/v1/plans", json={"name": "wide", "limits": WIDE}).status_code == 201
        for window in (60, 3600, 86_400):
            rule = {"name": f"per {window}", "dimension": "user", "limit": 1000, "window_seconds": window}
            assert admin.post("/api/v1/rules", json=rule).status_code == 201
    return started


def attacked(service: Service, attack: Callable[[int], None], rounds: int = ROUNDS) -> tuple[str, int]:
    """The waits of another caller during repeated attacks, and the growth of memory."""
    before = memory_bytes(service)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        for number in range(rounds):
            attack(number)
        end = time.monotonic()
    assert bystander.statuses(start, end) == {200}
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    return figures, memory_bytes(service) - before


@pytest.mark.parametrize(
    ("checks", "exact"), [(counters, False), (counters, True), (same_limit, True), (plans, False), (by_rules, False)]
)
def test_others_are_answered_during_a_large_batch(
    service: Service, checks: Callable[[int], Sequence[Any]], exact: bool, report: Callable[[str], None]
) -> None:
    with service.client() as client:

        def attack(number: int) -> None:
            body = {"checks": checks(number), "exact": exact}
            response = client.post("/api/v1/check/batch", json=body)
            assert response.status_code == 200, response.text[:300]
            assert len(response.json()["decisions"]) == 1000

        waits, grown = attacked(service, attack)
    report(f"batch of 1,000 checks ({checks.__name__}, exact {exact}): {waits}; memory {grown / 2**20:+.1f} MiB")
    assert grown < MEMORY


def full_logs(_: int) -> list[dict[str, Any]]:
    """As many checks as one slice has counters, each denied by a log of 10,000 entries."""
    return [{"counters": [{"key": "full", "limit": LOG, "cost": 10_000}]}] * 64


def late_errors(number: int) -> list[dict[str, Any]]:
    """Checks of 99 counters with new limits, and then one without a limit."""
    return [
        {
            "counters": [
                *({"key": "k", "limit": f"1/{(number * 60 + n) * 99 + i + 1}s"} for i in range(99)),
                {"key": "k"},
            ]
        }
        for n in range(60)
    ]


@pytest.mark.parametrize("checks", [full_logs, late_errors])
def test_others_are_answered_during_a_small_batch_of_much_work(
    service: Service, checks: Callable[[int], Sequence[Any]], report: Callable[[str], None]
) -> None:
    with service.client() as client:
        if checks is full_logs:
            fill = {"checks": [{"counters": [{"key": "full", "limit": LOG}]}] * 1000}
            for _ in range(10):
                assert client.post("/api/v1/check/batch", json=fill).json()["decisions"][-1]["allowed"]

        def attack(number: int) -> None:
            response = client.post("/api/v1/check/batch", json={"checks": checks(number), "exact": True})
            assert response.status_code == 200, response.text[:300]

        waits, grown = attacked(service, attack)
    report(f"small batch of much work ({checks.__name__}): {waits}; memory {grown / 2**20:+.1f} MiB")
    assert grown < MEMORY


@pytest.mark.parametrize("path", LONG_PATHS)
def test_others_are_answered_during_a_batch_of_long_paths(
    service: Service, path: str, report: Callable[[str], None]
) -> None:
    """Repeated decoding of escapes is work that the number of checks does not show."""
    with service.client() as client:

        def attack(number: int) -> None:
            checks = [{"dimension": "user", "identifier": f"{n}", "endpoint": LONG_PATHS[path]} for n in range(120)]
            response = client.post("/api/v1/check/batch", json={"checks": checks})
            assert response.status_code == 200, response.text[:300]

        waits, grown = attacked(service, attack, 2 * ROUNDS)
    report(f"batch of 120 paths of 8 KiB ({path}): {waits}; memory {grown / 2**20:+.1f} MiB")
    assert grown < MEMORY


def test_idempotent_batch_is_bounded(service: Service) -> None:
    """It is decided in one step with its record, so it cannot be sliced."""
    with service.client() as client:
        for size, status in ((25, 200), (25, 200), (26, 413)):
            body = {"checks": [{"key": f"{size}-{n}", "plans": ["wide"]} for n in range(size)]}
            response = client.post("/api/v1/check/batch", json=body, headers={"idempotency-key": f"{size}"})
            assert response.status_code == status, response.text[:300]


@pytest.mark.parametrize("method", ["batch", "descriptors"])
def test_others_are_answered_during_large_grpc_messages(
    service: Service, method: str, report: Callable[[str], None]
) -> None:
    path, answer = {
        "batch": ("/crestgate.v1.RateLimiter/CheckRateLimitBatch", messages.CheckBatchResponse),
        "descriptors": ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", messages.RateLimitResponse),
    }[method]
    with grpc.insecure_channel(service.rpc) as channel:
        ask = channel.unary_unary(path, lambda message: message.SerializeToString(), answer.FromString)

        def attack(number: int) -> None:
            if method == "batch":
                message = messages.CheckBatchRequest()
                for n in range(1000):
                    message.checks.add(key=f"{number}-{n}", plans=["wide"])
                assert len(ask(message, timeout=60).decisions) == 1000
            else:
                message = messages.RateLimitRequest(domain="edge")
                for n in range(250):
                    message.descriptors.add().entries.add(key="user", value=f"{number}-{n}")
                assert len(ask(message, timeout=60).statuses) == 250

        waits, grown = attacked(service, attack, ROUNDS if method == "batch" else 12 * ROUNDS)
    report(f"gRPC {method}: {waits}; memory {grown / 2**20:+.1f} MiB")
    assert grown < MEMORY


def test_counters_count_against_the_ceiling_of_the_node(serve: Callable[..., Service]) -> None:
    service = serve(environment={**GENEROUS, "CRESTGATE_SERVER__LIMITS__CHECKS": "200/minute"})
    ten = [{"counters": [{"key": f"k{n}-{i}", "limit": "9/d"} for i in range(10)]} for n in range(10)]
    with service.client() as client:
        statuses = [client.post("/api/v1/check/batch", json={"checks": ten}).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


def test_error_at_the_end_of_a_large_batch_refuses_all_of_it(service: Service) -> None:
    fine = [{"key": "one", "plans": ["wide"]} for _ in range(999)]
    with service.client() as client:
        response: httpx.Response = client.post("/api/v1/check/batch", json={"checks": [*fine, {"key": ""}]})
        assert (response.status_code, "checks[999]" in response.text) == (400, True)
        left = client.post("/api/v1/quota", json={"key": "one", "plans": ["wide"]}).json()
        assert left["current_count"] == 0


def test_large_batch_is_decided_in_order(service: Service) -> None:
    inline = [{"counters": [{"key": "x", "limit": "500/day using fixed_window"}]}] * 600
    with service.client() as client:
        decisions = client.post("/api/v1/check/batch", json={"checks": inline}).json()["decisions"]
        assert [one["allowed"] for one in decisions] == [True] * 500 + [False] * 100
        assert [one["remaining"] for one in decisions[:500]] == list(range(499, -1, -1))
        body = {"checks": [{"dimension": "user", "identifier": "y", "endpoint": "/"}] * 1000}
        decisions = client.post("/api/v1/check/batch", json=body).json()["decisions"]
        assert [one["remaining"] for one in decisions] == list(range(999, -1, -1))
