"""The gRPC health service reports the readiness of /readyz for every service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from crestgate.protobuf import messages
from crestgate.service.grpc.services.health import WATCHERS_PER_TURN, HealthService
from crestgate.service.grpc.transport.call import RpcCall, RpcError, RpcStatus
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
    monkeypatch.setattr(service_health, "CACHE_SECONDS", 0.0)  # no caching
    worker = Worker(store=store)
    yield worker
    worker.close()


def health_of(worker: Worker, service: str) -> int:
    status: int = worker.call(f"{HEALTH}/Check", messages.HealthCheckRequest(service=service)).status
    return status


def list_statuses(worker: Worker) -> dict[str, int]:
    response = worker.call(f"{HEALTH}/List", messages.message_class("grpc.health.v1.HealthListRequest")())
    return {service: health.status for service, health in response.statuses.items()}


def test_every_service_is_serving_while_the_store_is_reachable(worker: Worker, store: Flaky) -> None:
    for broken, expected in [(False, SERVING), (True, NOT_SERVING), (False, SERVING)]:
        store.broken = broken
        statuses = list_statuses(worker)
        assert set(statuses) >= SERVICES
        assert set(statuses.values()) == {expected}
        assert {health_of(worker, service) for service in statuses} == {expected}


def test_stopping_worker_is_not_serving(worker: Worker) -> None:
    worker.health.stopping = True
    assert health_of(worker, "") == NOT_SERVING
    assert set(list_statuses(worker).values()) == {NOT_SERVING}


def test_unknown_service_is_not_found(worker: Worker) -> None:
    request = messages.HealthCheckRequest(service="planet.Mars")
    assert status_of(worker, f"{HEALTH}/Check", request) == ("NOT_FOUND", "there is no service 'planet.Mars' here")


async def send_requests(*requests: Any) -> AsyncIterator[bytes]:
    for message in requests:
        yield message.SerializeToString()


def watch(worker: Worker, service: str, steps: list[Callable[[], None]]) -> tuple[list[int], RpcError]:
    """The statuses sent to a watcher and the final error. Each sent status runs the next of `steps`."""
    statuses: list[int] = []

    async def send(message: bytes) -> None:
        statuses.append(messages.HealthCheckResponse.FromString(message).status)
        if steps:
            steps.pop(0)()

    async def run_watch() -> RpcError:
        watched = HealthService(worker.health, ["crestgate.v1.RateLimiter"], check_seconds=0.0)
        with pytest.raises(RpcError) as caught:
            await watched.watch(None, send_requests(messages.HealthCheckRequest(service=service)), send)  # type: ignore[arg-type]
        return caught.value

    return statuses, worker.runner.run(run_watch())


def test_watch_sends_changes_until_the_worker_stops(worker: Worker, store: Flaky) -> None:
    def break_store() -> None:
        store.broken = True

    def heal_store() -> None:
        store.broken = False

    def stop_worker() -> None:
        worker.health.stopping = True

    statuses, error = watch(worker, "crestgate.v1.RateLimiter", [break_store, heal_store, stop_worker])
    assert statuses == [SERVING, NOT_SERVING, SERVING, NOT_SERVING]
    assert error.status is RpcStatus.UNAVAILABLE


def test_unknown_service_can_be_watched(worker: Worker) -> None:
    def stop_worker() -> None:
        worker.health.stopping = True

    assert watch(worker, "planet.Mars", [stop_worker])[0] == [SERVICE_UNKNOWN]


def test_watch_without_request_is_refused_and_cancelled_watch_ends(worker: Worker) -> None:
    method = worker.methods[f"/{HEALTH}/Watch".encode()].streaming
    assert method is not None
    responses: list[bytes] = []

    async def send(message: bytes) -> None:
        responses.append(message)

    async def run_watch() -> None:
        with pytest.raises(RpcError) as caught:
            await method(RpcCall(b"", (), None, None), send_requests(), send)
        assert caught.value.status is RpcStatus.INVALID_ARGUMENT
        task = asyncio.ensure_future(
            method(RpcCall(b"", (), None, None), send_requests(messages.HealthCheckRequest()), send)
        )
        while not responses:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    worker.runner.run(run_watch())
    assert worker.requests() == {int(RpcStatus.INVALID_ARGUMENT): 1, int(RpcStatus.CANCELLED): 1}


class CountingHealth:
    """Readiness that tests can change, and that counts its probes."""

    def __init__(self) -> None:
        self.stopping = False
        self.ready = True
        self.probes = 0

    async def readiness(self) -> CountingHealth:
        self.probes += 1
        return self


def test_one_check_serves_all_watchers() -> None:
    health = CountingHealth()
    statuses: list[int] = []

    async def send(message: bytes) -> None:
        statuses.append(messages.HealthCheckResponse.FromString(message).status)

    async def until(count: int) -> None:
        while len(statuses) < count:
            await asyncio.sleep(0)

    async def run_watch() -> int:
        watched = HealthService(health, [], check_seconds=0.001)  # type: ignore[arg-type]
        request = messages.HealthCheckRequest()
        watchers = [asyncio.ensure_future(watched.watch(None, send_requests(request), send)) for _ in range(100)]  # type: ignore[arg-type]
        await until(100)
        health.probes, health.ready = 0, False
        await until(200)
        probes = health.probes
        for one in watchers:
            one.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        return probes

    probes = asyncio.run(run_watch())
    assert statuses == [SERVING] * 100 + [NOT_SERVING] * 100
    assert probes <= 2


def test_watchers_are_notified_a_few_per_turn_and_leave_in_any_order() -> None:
    health = CountingHealth()
    count = 5 * WATCHERS_PER_TURN
    statuses: list[int] = []

    async def send(message: bytes) -> None:
        statuses.append(messages.HealthCheckResponse.FromString(message).status)

    async def run_watch() -> int:
        watched = HealthService(health, [], check_seconds=0.001)  # type: ignore[arg-type]
        request = messages.HealthCheckRequest()
        watchers = [asyncio.ensure_future(watched.watch(None, send_requests(request), send)) for _ in range(count)]  # type: ignore[arg-type]
        while len(statuses) < count:
            await asyncio.sleep(0)
        health.ready = False
        max_sent = 0
        while len(statuses) < 2 * count:
            before = len(statuses)
            await asyncio.sleep(0)
            max_sent = max(max_sent, len(statuses) - before)
        for one in reversed(watchers):
            one.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        return max_sent

    assert asyncio.run(run_watch()) <= WATCHERS_PER_TURN
    assert statuses == [SERVING] * count + [NOT_SERVING] * count
