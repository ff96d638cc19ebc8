"""Health over gRPC is what /readyz says, of every service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from crestgate.protobuf import messages
from crestgate.service.grpc.services.health import WATCHERS_PER_TURN, HealthService
from crestgate.service.grpc.transport.call import RpcCall, RpcError, Status
from crestgate.service.observability import health as service_health
from flaky_store import Flaky
from unit.service.worker import Worker, status_of

HEALTH = "grpc.health.v1.Health"
SERVICES = {
    "",
    "crestgate.v1.RateLimiter",
    HEALTH,
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def store() -> Flaky:
    return Flaky()


@pytest.fixture
def worker(store: Flaky, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(service_health, "CACHE_SECONDS", 0.0)  # every look is a new one
    worker = Worker(store=store)
    yield worker
    worker.close()


def health_of(worker: Worker, service: str) -> int:
    status: int = worker.call(f"{HEALTH}/Check", messages.HealthCheckRequest(service=service)).status
    return status


def listed(worker: Worker) -> dict[str, int]:
    answer = worker.call(f"{HEALTH}/List", messages.message_class("grpc.health.v1.HealthListRequest")())
    return {service: told.status for service, told in answer.statuses.items()}


def test_every_service_is_serving_while_the_store_is_reachable(worker: Worker, store: Flaky) -> None:
    for broken, expected in [(False, SERVING), (True, NOT_SERVING), (False, SERVING)]:
        store.broken = broken
        told = listed(worker)
        assert set(told) >= SERVICES
        assert set(told.values()) == {expected}
        assert {health_of(worker, service) for service in told} == {expected}


def test_stopping_worker_is_not_serving(worker: Worker) -> None:
    worker.health.stopping = True
    assert health_of(worker, "") == NOT_SERVING
    assert set(listed(worker).values()) == {NOT_SERVING}


def test_unknown_service_is_not_found(worker: Worker) -> None:
    asked = messages.HealthCheckRequest(service="planet.Mars")
    assert status_of(worker, f"{HEALTH}/Check", asked) == ("NOT_FOUND", "there is no service 'planet.Mars' here")


async def sent(*asked: Any) -> AsyncIterator[bytes]:
    for message in asked:
        yield message.SerializeToString()


def watch(worker: Worker, service: str, steps: list[Callable[[], None]]) -> tuple[list[int], RpcError]:
    """What somebody is told who watches, when after each thing that is told the next step is made."""
    told: list[int] = []

    async def send(message: bytes) -> None:
        told.append(messages.HealthCheckResponse.FromString(message).status)
        if steps:
            steps.pop(0)()

    async def watching() -> RpcError:
        watched = HealthService(worker.health, ["crestgate.v1.RateLimiter"], check_seconds=0.0)
        with pytest.raises(RpcError) as caught:
            await watched.watch(None, sent(messages.HealthCheckRequest(service=service)), send)  # type: ignore[arg-type]
        return caught.value

    return told, worker.runner.run(watching())


def test_watch_sends_changes_until_the_worker_stops(worker: Worker, store: Flaky) -> None:
    def breaks() -> None:
        store.broken = True

    def heals() -> None:
        store.broken = False

    def stops() -> None:
        worker.health.stopping = True

    told, error = watch(worker, "crestgate.v1.RateLimiter", [breaks, heals, stops])
    assert told == [SERVING, NOT_SERVING, SERVING, NOT_SERVING]
    assert error.status is Status.UNAVAILABLE


def test_unknown_service_can_be_watched(worker: Worker) -> None:
    def stops() -> None:
        worker.health.stopping = True

    assert watch(worker, "planet.Mars", [stops])[0] == [SERVICE_UNKNOWN]


def test_watch_without_request_is_refused_and_cancelled_watch_ends(worker: Worker) -> None:
    method = worker.methods[f"/{HEALTH}/Watch".encode()].streaming
    assert method is not None
    told: list[bytes] = []

    async def send(message: bytes) -> None:
        told.append(message)

    async def watching() -> None:
        with pytest.raises(RpcError) as caught:
            await method(RpcCall(b"", (), None, None), sent(), send)
        assert caught.value.status is Status.INVALID_ARGUMENT
        task = asyncio.ensure_future(method(RpcCall(b"", (), None, None), sent(messages.HealthCheckRequest()), send))
        while not told:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    worker.runner.run(watching())
    assert worker.requests() == {int(Status.INVALID_ARGUMENT): 1, int(Status.CANCELLED): 1}


class Counted:
    """Readiness that is counted, and changes when it is told to."""

    def __init__(self) -> None:
        self.stopping = False
        self.ready = True
        self.looks = 0

    async def readiness(self) -> Counted:
        self.looks += 1
        return self


def test_one_check_serves_all_watchers() -> None:
    health = Counted()
    told: list[int] = []

    async def send(message: bytes) -> None:
        told.append(messages.HealthCheckResponse.FromString(message).status)

    async def until(count: int) -> None:
        while len(told) < count:
            await asyncio.sleep(0)

    async def watching() -> int:
        watched = HealthService(health, [], check_seconds=0.001)  # type: ignore[arg-type]
        asked = messages.HealthCheckRequest()
        everybody = [asyncio.ensure_future(watched.watch(None, sent(asked), send)) for _ in range(100)]  # type: ignore[arg-type]
        await until(100)
        health.looks, health.ready = 0, False
        await until(200)
        looks = health.looks
        for one in everybody:
            one.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        return looks

    looks = asyncio.run(watching())
    assert told == [SERVING] * 100 + [NOT_SERVING] * 100
    assert looks <= 2


def test_watchers_are_notified_a_few_per_turn_and_leave_in_any_order() -> None:
    health = Counted()
    count = 5 * WATCHERS_PER_TURN
    told: list[int] = []

    async def send(message: bytes) -> None:
        told.append(messages.HealthCheckResponse.FromString(message).status)

    async def watching() -> int:
        watched = HealthService(health, [], check_seconds=0.001)  # type: ignore[arg-type]
        asked = messages.HealthCheckRequest()
        everybody = [asyncio.ensure_future(watched.watch(None, sent(asked), send)) for _ in range(count)]  # type: ignore[arg-type]
        while len(told) < count:
            await asyncio.sleep(0)
        health.ready = False
        most = 0
        while len(told) < 2 * count:
            before = len(told)
            await asyncio.sleep(0)
            most = max(most, len(told) - before)
        for one in reversed(everybody):
            one.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)
        return most

    assert asyncio.run(watching()) <= WATCHERS_PER_TURN
    assert told == [SERVING] * count + [NOT_SERVING] * count
