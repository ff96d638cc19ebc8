"""gRPC errors and deadlines over a real connection to a listener, with the worker in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio
import pytest

from crestgate import Limit
from crestgate.config.server import Address
from crestgate.protobuf import messages
from crestgate.service.grpc.transport.listener import GrpcListener
from flaky_store import Flaky
from slow_store import SlowStore
from unit.service.worker import ADMIN, MESSAGES, Worker

RECORDS = {("rule", "r"): {"rule_id": "r", "dimension": "user", "limit": 3, "window_seconds": 60}}
CHECK_REQUEST = messages.CheckRequest(dimension=1, identifier="42")
RESET_REQUEST = messages.ResetRequest(dimension=1, identifier="42")
CHECK, RESET = "crestgate.v1.RateLimiter/CheckRateLimit", "crestgate.v1.RateLimiter/ResetLimit"
HEALTH = "grpc.health.v1.Health/Check"
KEY = {"authorization": f"Bearer {ADMIN}"}
NAMES = {status.value[0]: status.name for status in grpc.StatusCode}


class Client:
    """A channel to a worker's listener."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    async def __call__(
        self, path: str, payload: Any, metadata: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> tuple[str, Any, dict[str, str]]:
        """The name of the status, the response or the error details, and the metadata."""
        response_type = MESSAGES.get(path, (None, messages.CheckResponse))[1]
        call = self.channel.unary_unary(f"/{path}", lambda raw: raw, response_type.FromString)
        data = payload if isinstance(payload, bytes) else payload.SerializeToString()
        pending = call(data, timeout=timeout, metadata=list((metadata or {}).items()))
        try:
            result = await pending
        except grpc.aio.AioRpcError as error:
            response_metadata = [*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())]
            return error.code().name, error.details(), dict(response_metadata)
        return "OK", result, dict(await pending.initial_metadata())


@pytest.fixture
def run_with_client() -> Iterator[Callable[..., Any]]:
    """`run_with_client(worker, scenario)` runs `scenario(client)` while the worker's listener is open."""
    workers: list[Worker] = []

    async def serve_and_run(worker: Worker, scenario: Callable[[Client], Awaitable[Any]]) -> Any:
        server_socket = socket.create_server(("127.0.0.1", 0))
        listener = GrpcListener(worker.methods)
        await listener.start(server_socket)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server_socket.getsockname()[1]}") as channel:
                return await scenario(Client(channel))
        finally:
            await listener.close(0)

    def run(worker: Worker, scenario: Callable[[Client], Awaitable[Any]]) -> Any:
        workers.append(worker)
        return worker.runner.run(serve_and_run(worker, scenario))

    yield run
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(
    ("path", "payload", "metadata", "expected"),
    [
        (CHECK, CHECK_REQUEST, {}, "UNAUTHENTICATED"),
        (CHECK, CHECK_REQUEST, {"x-api-key": "cg_nothing"}, "UNAUTHENTICATED"),
        (CHECK, CHECK_REQUEST, KEY, "OK"),
        (RESET, RESET_REQUEST, {}, "UNAUTHENTICATED"),
        (RESET, RESET_REQUEST, {"checking": "yes"}, "PERMISSION_DENIED"),
        (RESET, RESET_REQUEST, KEY, "OK"),
        (CHECK, messages.CheckRequest(), KEY, "INVALID_ARGUMENT"),
        (CHECK, b"\xff\xff", KEY, "INVALID_ARGUMENT"),
        (HEALTH, messages.HealthCheckRequest(), {}, "OK"),
        (HEALTH, messages.HealthCheckRequest(service="planet.Mars"), {}, "NOT_FOUND"),
        ("crestgate.v1.RateLimiter/Nothing", b"", KEY, "UNIMPLEMENTED"),
        ("planet.Mars/Nothing", b"", KEY, "UNIMPLEMENTED"),
    ],
)
def test_errors_have_their_status(
    run_with_client: Callable[..., Any], path: str, payload: Any, metadata: dict[str, str], expected: str
) -> None:
    worker = Worker(RECORDS, server={"grpc": Address("192.0.2.1", 8081)})
    if "checking" in metadata:
        metadata = {"authorization": f"Bearer {worker.key('check')}"}
    status, result, response_metadata = run_with_client(
        worker, lambda call: call(path, payload, {**metadata, "x-request-id": "mine"})
    )
    assert status == expected, result
    if expected != "UNIMPLEMENTED":
        assert response_metadata["x-request-id"] == "mine"
        assert {NAMES[number]: count for number, count in worker.requests().items()} == {expected: 1}


def test_error_message_is_transmitted_unchanged(run_with_client: Callable[..., Any]) -> None:
    payload = messages.CheckRequest(key="a", plans=["100 % größer\n\U0001f600"])
    status, result, _ = run_with_client(Worker(RECORDS), lambda call: call(CHECK, payload))
    assert (status, result) == (
        "INVALID_ARGUMENT",
        "plans[0]: there is no plan '100 % größer\\n\U0001f600': make it with POST /api/v1/plans",
    )


def test_too_many_checks_get_retry_after(run_with_client: Callable[..., Any]) -> None:
    async def call_twice(call: Client) -> Any:
        assert (await call(CHECK, CHECK_REQUEST))[0] == "OK"
        return await call(CHECK, CHECK_REQUEST)

    status, result, response_metadata = run_with_client(Worker(RECORDS, limits={"checks": Limit(1, 60)}), call_twice)
    assert (status, response_metadata["retry-after"]) == ("RESOURCE_EXHAUSTED", "60")
    assert result.startswith("too many checks on this node")


def test_store_outage_is_unavailable(run_with_client: Callable[..., Any]) -> None:
    store = Flaky()
    worker = Worker(RECORDS, store)
    store.broken = True
    status, result, _ = run_with_client(worker, lambda call: call(RESET, RESET_REQUEST, KEY))
    assert (status, result) == ("UNAVAILABLE", "the store at nowhere does not answer")


def test_deadline_ends_a_call_on_both_sides(run_with_client: Callable[..., Any]) -> None:
    """The store never completes the first call. Whichever side notices first, both end it."""
    store = SlowStore()
    worker = Worker(RECORDS, store)

    async def check_twice(call: Client) -> None:
        status, _, _ = await call(CHECK, CHECK_REQUEST, timeout=0.05)
        assert status == "DEADLINE_EXCEEDED"
        while not worker.requests():
            await asyncio.sleep(0.005)
        later = asyncio.ensure_future(call(CHECK, CHECK_REQUEST))
        while not later.done():
            if store.held:
                store.answer()
            await asyncio.sleep(0.001)
        assert (await later)[0] == "OK"

    run_with_client(worker, check_twice)
    counted = {NAMES[number]: count for number, count in worker.requests().items()}
    assert counted.pop("OK") == 1
    assert counted in ({"DEADLINE_EXCEEDED": 1}, {"CANCELLED": 1})


def test_cancelled_client_ends_its_call(run_with_client: Callable[..., Any]) -> None:
    store = SlowStore()
    worker = Worker(RECORDS, store)

    async def cancel_call(call: Client) -> None:
        pending = asyncio.ensure_future(call(CHECK, CHECK_REQUEST))
        while not store.held:
            await asyncio.sleep(0.001)
        pending.cancel()
        while not worker.requests():
            await asyncio.sleep(0.001)
        await store.answer_all()

    run_with_client(worker, cancel_call)
    assert worker.requests() == {int(grpc.StatusCode.CANCELLED.value[0]): 1}
