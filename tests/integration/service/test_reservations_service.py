"""Reservations of a real service: over HTTP and gRPC, by plans and by rules, and by whom."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded, RequestContext
from crestgate.errors import ReservationClosedError, UnknownReservationError
from integration.service.api_helpers import make_key, problem
from integration.service.rpc_clients import LIMITER, Reflected
from integration.service.service_process import GENEROUS, Service

CONFIG = """
plans: {requests: 10/hour using fixed_window, tokens: 1000/hour using fixed_window, streams: 2 concurrent ttl 30s}
rules:
  - {rule_id: tokens-per-user, name: Tokens, dimension: user, algorithm: fixed_window, limit: 1000,
     window_seconds: 3600}
  - {rule_id: streams-per-client, name: Streams, dimension: client, algorithm: concurrency, limit: 2,
     window_seconds: 20}
  - {rule_id: calls-per-client, dimension: client, algorithm: fixed_window, limit: 100, window_seconds: 3600}
  - {rule_id: requests-per-user, dimension: user, algorithm: fixed_window, limit: 10, window_seconds: 86400}
"""
PLANS = ["requests", "tokens"]
ROOT = "/api/v1/reservations"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("reservations"), CONFIG, GENEROUS) as started:
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture(scope="module")
def admin(service: Service) -> Iterator[httpx.Client]:
    with service.client(service.key) as client:
        yield client


@pytest.fixture(scope="module")
def anyone(service: Service) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def key() -> str:
    return uuid4().hex


def reserve(client: httpx.Client, key: str, **more: Any) -> dict[str, Any]:
    body = {"key": key, "plans": PLANS, "costs": {"tokens": 800}, **more}
    response = client.post(ROOT, json=body)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def remaining(client: httpx.Client, key: str, plan: str = "tokens") -> int:
    left: int = client.post("/api/v1/quota", json={"key": key, "plans": [plan]}).json()["remaining"]
    return left


def wait_until_known(client: httpx.Client) -> None:
    """A new key is known to every worker within two seconds."""
    deadline = time.monotonic() + 20
    while client.post("/api/v1/quota", json={"key": "x", "plans": ["tokens"]}).status_code == 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_reserve_and_settle(anyone: httpx.Client, key: str) -> None:
    before = time.time()
    answer = reserve(anyone, key, ttl=120)
    assert answer["allowed"] is True
    assert [part["rule"] for part in answer["parts"]] == PLANS
    assert before + 119 < answer["expires_at"] < time.time() + 121
    assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (9, 200)
    settled = anyone.post(f"{ROOT}/{answer['id']}/settle", json={"actual": {"tokens": 620}})
    assert (settled.status_code, settled.json()) == (200, {"settled": True, "late": False})
    assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (9, 380)
    again = anyone.post(f"{ROOT}/{answer['id']}/settle", json={"actual": {"tokens": 0}})
    assert "the first settlement counts" in problem(again, 409)["detail"]
    problem(anyone.post(f"{ROOT}/{answer['id']}/release"), 409)
    assert remaining(anyone, key) == 380


def test_denial_is_200_and_reserves_nothing(anyone: httpx.Client, key: str) -> None:
    response = anyone.post(ROOT, json={"key": key, "plans": PLANS, "costs": {"tokens": 1001}})
    assert response.status_code == 200
    assert response.json()["allowed"] is False
    assert "id" not in response.json()
    assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (10, 1000)


def test_release_gives_everything_back(anyone: httpx.Client, key: str) -> None:
    answer = reserve(anyone, key)
    assert anyone.post(f"{ROOT}/{answer['id']}/release").json() == {"settled": True, "late": False}
    assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (10, 1000)


def test_extend_moves_the_end(anyone: httpx.Client, key: str) -> None:
    answer = reserve(anyone, key, ttl=10)
    extended = anyone.post(f"{ROOT}/{answer['id']}/extend", json={"ttl": 600}).json()
    assert extended["extended"] is True
    assert extended["expires_at"] > answer["expires_at"] + 500


def test_end_gives_back_what_was_not_settled(anyone: httpx.Client, key: str) -> None:
    answer = reserve(anyone, key, ttl=1, on_expiry="release")
    deadline = time.monotonic() + 20
    while remaining(anyone, key) < 1000:
        assert time.monotonic() < deadline, "not given back"
        time.sleep(0.1)
    assert remaining(anyone, key, "requests") == 10
    late = anyone.post(f"{ROOT}/{answer['id']}/settle", json={"actual": {"tokens": 620}})
    assert late.json() == {"settled": True, "late": True}
    assert remaining(anyone, key) == 380


def test_kept_reservation_is_settled_late(anyone: httpx.Client, key: str) -> None:
    answer = reserve(anyone, key, ttl=1)
    time.sleep(1.2)
    assert remaining(anyone, key) == 200
    problem(anyone.post(f"{ROOT}/{answer['id']}/extend", json={"ttl": 60}), 409)
    late = anyone.post(f"{ROOT}/{answer['id']}/settle", json={"actual": {"tokens": 1}})
    assert late.json() == {"settled": True, "late": True}
    assert remaining(anyone, key) == 999


def test_costs_by_rule_id_and_name(anyone: httpx.Client, key: str) -> None:
    body = {"dimension": "USER", "identifier": key, "costs": {"Tokens": 800}}
    answer = anyone.post(ROOT, json=body).json()
    settle = {"actual": {"tokens-per-user": 900, "requests-per-user": 2}}
    assert anyone.post(f"{ROOT}/{answer['id']}/settle", json=settle).status_code == 200
    decision = anyone.post("/api/v1/quota", json={"context": {"user": key}}).json()
    assert {part["rule"]: part["remaining"] for part in decision["parts"]} == {
        "tokens-per-user": 100,
        "requests-per-user": 8,
    }


def test_only_the_key_that_reserved_settles(service: Service, admin: httpx.Client, anyone: httpx.Client) -> None:
    keys = [make_key(service, name, "--scope", "check")[1] for name in ("first", "second")]
    with service.client(keys[0]) as first, service.client(keys[1]) as second:
        for client in (first, second):
            wait_until_known(client)
        answer = reserve(first, "owned")
        for other in (second, anyone):
            for action, body in (("settle", {"actual": {"tokens": 0}}), ("release", None), ("extend", {"ttl": 60})):
                problem(other.post(f"{ROOT}/{answer['id']}/{action}", json=body), 404)
        assert remaining(anyone, "owned") == 200
        own = reserve(admin, "owned-by-admin")
        assert admin.post(f"{ROOT}/{own['id']}/release").status_code == 200
        assert admin.post(f"{ROOT}/{answer['id']}/extend", json={"ttl": 90}).status_code == 200
        assert admin.post(f"{ROOT}/{answer['id']}/settle", json={"actual": {"tokens": 1}}).status_code == 200
        entries = admin.get("/api/v1/audit", params={"requests": "true"}).json()["entries"]
        for action in ("settle", "extend"):
            noted = [(entry["action"], entry["subject"]) for entry in entries if action in entry["action"]]
            assert noted == [(action, "owned"), (f"{action} requested", "owned")]
        assert not any(entry["action"].startswith("release") for entry in entries), "its own is not audited"
        problem(first.post(f"{ROOT}/{answer['id']}/release"), 409)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 86_401}, "ttl"),
        ({"ttl": "10"}, "ttl"),
        ({"on_expiry": "drop"}, "on_expiry"),
        ({"costs": {"tokens": -1}}, "costs.tokens"),
        ({"costs": {"tokens": 2**31}}, "costs.tokens"),
        ({"costs": {"unknown": 1}}, "costs.unknown"),
        ({"costs": {"Tokens": 1}}, "costs.Tokens"),  # the name of a rule, which does not apply to plans
        ({"costs": [1]}, "costs"),
        ({"costs": {str(n): 1 for n in range(101)}}, "costs"),
        ({"op": "peek"}, "op"),
        ({"other": 1}, "other"),
        ({"cost": -1}, "cost"),
    ],
)
def test_bad_fields_are_named(anyone: httpx.Client, key: str, body: dict[str, Any], field: str) -> None:
    response = anyone.post(ROOT, json={"key": key, "plans": PLANS, **body})
    assert problem(response, 400)["problems"][0]["field"] == field
    assert remaining(anyone, key) == 1000


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("settle", {}, "actual"),
        ("settle", {"actual": 5}, "actual"),
        ("settle", {"actual": -1}, "actual"),
        ("settle", {"actual": 1.5}, "actual"),
        ("settle", {"actual": {"tokens": -1}}, "actual.tokens"),
        ("settle", {"actual": {"other": 1}}, "actual.other"),
        ("settle", {"actual": {"tokens": 1}, "more": 1}, "more"),
        ("extend", {"ttl": 0}, "ttl"),
        ("extend", {}, "ttl"),
    ],
)
def test_bad_settlements_change_nothing(
    anyone: httpx.Client, key: str, action: str, body: dict[str, Any], field: str
) -> None:
    answer = reserve(anyone, key)
    response = anyone.post(f"{ROOT}/{answer['id']}/{action}", json=body)
    assert problem(response, 400)["problems"][0]["field"] == field
    assert remaining(anyone, key) == 200


@pytest.mark.parametrize("reservation_id", ["x", "A" * 22, "A" * 3000, "a/b", "%2e%2e", "none-"])
def test_unknown_ids(anyone: httpx.Client, reservation_id: str) -> None:
    problem(anyone.post(f"{ROOT}/{reservation_id}/settle", json={"actual": 1}), 404)


def test_wrong_methods_and_paths(anyone: httpx.Client) -> None:
    problem(anyone.get(f"{ROOT}/{'A' * 22}/settle"), 405)
    problem(anyone.get(ROOT), 405)
    problem(anyone.post(f"{ROOT}/{'A' * 22}/unknown", json={}), 404)


def test_idempotency_keys_are_refused(anyone: httpx.Client, key: str) -> None:
    response = anyone.post(ROOT, json={"key": key, "plans": PLANS}, headers={"idempotency-key": "k"})
    assert problem(response, 400)["problems"][0]["field"] == "Idempotency-Key"


def test_grpc(service: Service, anyone: httpx.Client, key: str) -> None:
    client = Reflected(service.rpc)
    try:
        fields = {"key": key, "plans": PLANS, "costs": {"tokens": 800}, "ttl": 60.0, "on_expiry": "release"}
        reserved = client.call(LIMITER, "Reserve", fields, {})
        assert reserved["decision"]["allowed"] is True
        assert remaining(anyone, key) == 200
        extended = client.call(LIMITER, "Extend", {"id": reserved["id"], "ttl": 120.0}, {})
        assert extended["expires_at"] > reserved["expires_at"] + 50
        settled = client.call(LIMITER, "Settle", {"id": reserved["id"], "actuals": {"tokens": 620}}, {})
        assert settled["settled"] is True
        assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (9, 380)
        other = client.call(LIMITER, "Reserve", {"key": key, "plans": ["tokens"], "cost": 80}, {})
        client.call(LIMITER, "Release", {"id": other["id"]}, {})
        assert remaining(anyone, key) == 380
        denied = client.call(LIMITER, "Reserve", {"key": key, "plans": ["tokens"], "cost": 381}, {})
        assert not denied.get("id")
    finally:
        client.close()


def test_slots_over_http(anyone: httpx.Client, key: str) -> None:
    body = {"key": key, "plans": ["streams", "tokens"], "costs": {"tokens": 300}}
    before = time.time()
    answers = [anyone.post(ROOT, json=body).json() for _ in range(2)]
    assert before + 29 < answers[0]["expires_at"] < time.time() + 31
    denied = anyone.post(ROOT, json=body)
    assert (denied.status_code, denied.json()["rule"]) == (200, "streams")
    assert remaining(anyone, key) == 400
    extended = anyone.post(f"{ROOT}/{answers[0]['id']}/extend", json={"ttl": 30})
    assert extended.json()["extended"] is True
    assert remaining(anyone, key, "streams") == 0
    settled = anyone.post(f"{ROOT}/{answers[0]['id']}/settle", json={"actual": {"tokens": 100}})
    assert settled.json() == {"settled": True, "late": False}
    assert (remaining(anyone, key, "streams"), remaining(anyone, key)) == (1, 600)
    problem(anyone.post(f"{ROOT}/{answers[0]['id']}/extend", json={"ttl": 30}), 409)
    assert anyone.post(f"{ROOT}/{answers[1]['id']}/release").status_code == 200
    assert (remaining(anyone, key, "streams"), remaining(anyone, key)) == (2, 900)


def test_ttl_and_actual_of_slots_are_checked(anyone: httpx.Client, key: str) -> None:
    body = {"key": key, "plans": ["streams", "tokens"]}
    refused = problem(anyone.post(ROOT, json={**body, "ttl": 31}), 400)["problems"][0]
    assert refused["field"] == "ttl"
    assert "at most 30" in str(refused)
    assert remaining(anyone, key, "streams") == 2
    answer = anyone.post(ROOT, json=body).json()
    for action, bad, field in (
        ("extend", {"ttl": 31}, "ttl"),
        ("settle", {"actual": {"streams": 1}}, "actual.streams"),
    ):
        response = anyone.post(f"{ROOT}/{answer['id']}/{action}", json=bad)
        assert problem(response, 400)["problems"][0]["field"] == field
    assert remaining(anyone, key, "streams") == 1


def test_slots_by_rules_are_taken_by_reservations_only(anyone: httpx.Client, key: str) -> None:
    body = {"context": {"client": key}, "costs": {"Streams": 2}}
    answer = anyone.post(ROOT, json=body).json()
    assert answer["allowed"] is True
    check = anyone.post("/api/v1/check", json={"context": {"client": key}}).json()
    assert (check["allowed"], check["rule"]) == (False, "streams-per-client")
    anyone.post(f"{ROOT}/{answer['id']}/release")
    for _ in range(3):
        assert anyone.post("/api/v1/check", json={"context": {"client": key}}).json()["allowed"] is True


def test_slots_over_grpc(service: Service, anyone: httpx.Client, key: str) -> None:
    client = Reflected(service.rpc)
    try:
        reserved = client.call(LIMITER, "Reserve", {"key": key, "plans": ["streams", "tokens"], "cost": 2}, {})
        assert reserved["decision"]["allowed"] is True
        assert not client.call(LIMITER, "Reserve", {"key": key, "plans": ["streams"]}, {}).get("id")
        assert client.call(LIMITER, "Extend", {"id": reserved["id"], "ttl": 30.0}, {})["extended"] is True
        assert remaining(anyone, key, "streams") == 0
        client.call(LIMITER, "Settle", {"id": reserved["id"], "actuals": {"tokens": 7}}, {})
        assert (remaining(anyone, key, "streams"), remaining(anyone, key)) == (2, 993)
    finally:
        client.close()


@pytest.fixture
def remote(service: Service) -> Iterator[Limiter]:
    with Limiter(f"crestgate://{service.url.removeprefix('http://')}?timeout_ms=5000") as limiter:
        yield limiter


def test_library_reserves_by_the_service(remote: Limiter, anyone: httpx.Client, key: str) -> None:
    reservation = remote.reserve(key, {"requests": 1, "tokens": 800}, ttl=60)
    assert reservation.decision.allowed
    assert [part.name for part in reservation.decision.parts] == PLANS
    assert (remaining(anyone, key, "requests"), remaining(anyone, key)) == (9, 200)
    assert reservation.id is not None
    assert reservation.extend(600) > time.time() + 500
    assert remote.reservation(reservation.id).settle({"tokens": 620}) == (True, False)
    with pytest.raises(ReservationClosedError):
        reservation.release()
    with pytest.raises(UnknownReservationError):
        remote.reservation("A" * 22).settle(1)
    assert remaining(anyone, key) == 380
    with pytest.raises(RateLimitExceeded):
        remote.reserve(key, {"requests": 1, "tokens": 381})
    with remote.reserve(key, {"tokens": 100}):
        pass
    assert remaining(anyone, key) == 280


def test_library_reserves_own_limits_and_rules_by_the_service(remote: Limiter, key: str) -> None:
    limit = "100/hour using fixed_window"
    reservation = remote.reserve(key, [(limit, 60), ("tokens", 5)])
    assert remote.peek(key, limit).remaining == 40
    reservation.settle({limit: 10, "tokens": 6})
    assert remote.peek(key, limit).remaining == 90
    context = RequestContext(user=key)
    with remote.reserve_request(context, {"Tokens": 800}) as r:
        r.settle({"tokens-per-user": 300})
    parts = {part.name: part.remaining for part in remote.peek_request(context).parts}
    assert parts == {"tokens-per-user": 700, "requests-per-user": 9}


def test_async_library_reserves_by_the_service(service: Service, anyone: httpx.Client, key: str) -> None:
    async def run() -> None:
        async with AsyncLimiter(f"crestgate://{service.url.removeprefix('http://')}?timeout_ms=5000") as limiter:
            reservation = await limiter.reserve(key, {"tokens": 800}, ttl=60)
            assert await reservation.settle(620) == (True, False)

    asyncio.run(run())
    assert remaining(anyone, key) == 380


def test_library_holds_slots_of_the_service(remote: Limiter, anyone: httpx.Client, key: str) -> None:
    limits = ["2 concurrent", "100/hour using fixed_window"]
    with remote.hold(key, limits) as held:
        assert held.decision.remaining == 1
        assert held.renew() == 20.0
        assert remote.peek(key, limits[0]).remaining == 1
        with remote.hold(key, limits), pytest.raises(RateLimitExceeded), remote.hold(key, limits):
            pass
        with remote.hold(key, "2 concurrent"), pytest.raises(TimeoutError), remote.hold(key, limits, timeout=0.2):
            pass
        assert not held.lost
    assert remote.peek(key, limits[0]).remaining == 2
    assert remote.peek(key, limits[1]).remaining == 98, "what rate limits have charged stays"
    with remote.hold(key, ["streams", "tokens"]):  # plans of the service
        assert (remaining(anyone, key, "streams"), remaining(anyone, key)) == (1, 999)
    assert (remaining(anyone, key, "streams"), remaining(anyone, key)) == (2, 999)
    with pytest.raises(ConfigError, match="needs an in-flight limit"), remote.hold(key, "tokens"):
        pass
    assert remaining(anyone, key) == 999
    with pytest.raises(ConfigError, match="limits what is in flight"):
        remote.check(key, "2 concurrent")


def test_library_waits_for_a_slot_of_the_service(remote: Limiter, key: str) -> None:
    entered = threading.Event()

    def wait() -> None:
        with remote.hold(key, "1 concurrent", timeout=60):
            entered.set()

    with remote.hold(key, "1 concurrent"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(60)
    waiting.join()
    assert remote.peek(key, "1 concurrent").remaining == 1


def test_library_renews_slots_of_the_service(service: Service, remote: Limiter, key: str) -> None:
    limit = "1 concurrent ttl 2s"
    with remote.hold(key, limit) as held:
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            assert remote.peek(key, limit).remaining == 0 or held.lost
            time.sleep(0.1)
        with Limiter(f"crestgate://:{service.key}@{service.url.removeprefix('http://')}?timeout_ms=5000") as admin:
            admin.reset(key, limit)
        held.renew()
        assert held.lost
    assert remote.peek(key, limit).remaining == 1


def test_async_library_holds_slots_of_the_service(service: Service, remote: Limiter, key: str) -> None:
    async def run() -> None:
        async with AsyncLimiter(f"crestgate://{service.url.removeprefix('http://')}?timeout_ms=5000") as limiter:
            async with limiter.hold(key, "1 concurrent") as held:
                assert await held.renew() == 20.0
                with pytest.raises(RateLimitExceeded):
                    async with limiter.hold(key, "1 concurrent"):
                        pass
            async with limiter.hold(key, "1 concurrent", timeout=60):
                pass

            async def enter() -> None:
                async with limiter.hold(key, "1 concurrent"):
                    await asyncio.Event().wait()

            for delay in (0.0, 0.001, 0.003, 0.01, 0.1):
                task = asyncio.create_task(enter())
                await asyncio.sleep(delay)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with limiter.hold(key, "1 concurrent", timeout=30):  # far less than its time to live
                    pass

    asyncio.run(run())
    assert remote.peek(key, "1 concurrent").remaining == 1


def test_hold_on_an_unreachable_service_holds_nothing() -> None:
    async def run() -> None:
        limiter = AsyncLimiter("crestgate://127.0.0.1:1")
        async with limiter.hold("acme", "1 concurrent") as held:
            assert held.decision.reason == "fail_open"
            assert await held.renew() is None
        await limiter.aclose()

    asyncio.run(run())


def test_several_services_cannot_hold() -> None:
    limiter = AsyncLimiter(["crestgate://127.0.0.1:1", "crestgate://127.0.0.1:2"])
    with pytest.raises(ConfigError, match="use a single crestgate:// URL"):
        limiter.hold("acme", "1 concurrent")


def test_unreachable_service_reserves_nothing() -> None:
    async def run() -> None:
        limiter = AsyncLimiter("crestgate://127.0.0.1:1")
        reservation = await limiter.reserve("acme", {"tokens": 800})
        assert reservation.decision.reason == "fail_open"
        assert await reservation.settle(620) == (False, False)
        await limiter.aclose()

    asyncio.run(run())
