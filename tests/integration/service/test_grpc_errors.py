"""Errors and deadlines as a client sees them: over a real connection to a listener, with the worker in this process."""

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
from crestgate.service.grpc.transport.listener import Listener
from flaky_store import Flaky
from slow_store import SlowStore
from unit.service.worker import ADMIN, MESSAGES, Worker

RECORDS = {("rule", "r"): {"rule_id": "r", "dimension": "user", "limit": 3, "window_seconds": 60}}
ASKED = messages.CheckRequest(dimension=1, identifier="42")
RESET = messages.ResetRequest(dimension=1, identifier="42")
CHECK, RESETS = "crestgate.v1.RateLimiter/CheckRateLimit", "crestgate.v1.RateLimiter/ResetLimit"
HEALTH = "grpc.health.v1.Health/Check"
KEY = {"authorization": f"Bearer {ADMIN}"}
NAMES = {status.value[0]: status.name for status in grpc.StatusCode}


class Caller:
    """A channel to a worker's listener."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    async def __call__(
        self, path: str, asked: Any, metadata: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> tuple[str, Any, dict[str, str]]:
        """The name of the status, the answer or what is said in place of it, and the trailers."""
        answer = MESSAGES.get(path, (None, messages.CheckResponse))[1]
        call = self.channel.unary_unary(f"/{path}", lambda told: told, answer.FromString)
        sent = asked if isinstance(asked, bytes) else asked.SerializeToString()
        calling = call(sent, timeout=timeout, metadata=list((metadata or {}).items()))
        try:
            told = await calling
        except grpc.aio.AioRpcError as error:
            said = [*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())]
            return error.code().name, error.details(), dict(said)
        return "OK", told, dict(await calling.initial_metadata())


@pytest.fixture
def talk() -> Iterator[Callable[..., Any]]:
    """Has a test talk to a worker: `talk(worker, talking)` runs `talking(caller)` beside its listener."""
    workers: list[Worker] = []

    async def with_shadows(worker: Worker, talking: Callable[[Caller], Awaitable[Any]]) -> Any:
        listening = socket.create_server(("127.0.0.1", 0))
        listener = Listener(worker.methods)
        await listener.start(listening)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{listening.getsockname()[1]}") as channel:
                return await talking(Caller(channel))
        finally:
            await listener.close(0)

    def run(worker: Worker, talking: Callable[[Caller], Awaitable[Any]]) -> Any:
        workers.append(worker)
        return worker.runner.run(with_shadows(worker, talking))

    yield run
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(
    ("path", "asked", "metadata", "expected"),
    [
        (CHECK, ASKED, {}, "UNAUTHENTICATED"),
        (CHECK, ASKED, {"x-api-key": "cg_nothing"}, "UNAUTHENTICATED"),
        (CHECK, ASKED, KEY, "OK"),
        (RESETS, RESET, {}, "UNAUTHENTICATED"),
        (RESETS, RESET, {"checking": "yes"}, "PERMISSION_DENIED"),
        (RESETS, RESET, KEY, "OK"),
        (CHECK, messages.CheckRequest(), KEY, "INVALID_ARGUMENT"),
        (CHECK, b"\xff\xff", KEY, "INVALID_ARGUMENT"),
        (HEALTH, messages.HealthCheckRequest(), {}, "OK"),
        (HEALTH, messages.HealthCheckRequest(service="planet.Mars"), {}, "NOT_FOUND"),
        ("crestgate.v1.RateLimiter/Nothing", b"", KEY, "UNIMPLEMENTED"),
        ("planet.Mars/Nothing", b"", KEY, "UNIMPLEMENTED"),
    ],
)
def test_what_is_wrong_has_its_status(
    talk: Callable[..., Any], path: str, asked: Any, metadata: dict[str, str], expected: str
) -> None:
    worker = Worker(RECORDS, server={"grpc": Address("192.0.2.1", 8081)})
    if "checking" in metadata:
        metadata = {"authorization": f"Bearer {worker.key('check')}"}
    status, told, said = talk(worker, lambda call: call(path, asked, {**metadata, "x-request-id": "mine"}))
    assert status == expected, told
    if expected != "UNIMPLEMENTED":
        assert said["x-request-id"] == "mine"
        assert {NAMES[number]: count for number, count in worker.requests().items()} == {expected: 1}


def test_a_message_comes_whole_whatever_is_in_it(talk: Callable[..., Any]) -> None:
    asked = messages.CheckRequest(key="a", plans=["100 % größer\n\U0001f600"])
    status, told, _ = talk(Worker(RECORDS), lambda call: call(CHECK, asked))
    assert (status, told) == (
        "INVALID_ARGUMENT",
        "plans[0]: there is no plan '100 % größer\\n\U0001f600': make it with POST /api/v1/plans",
    )


def test_who_asks_too_often_is_told_when_to_come_back(talk: Callable[..., Any]) -> None:
    async def ask_twice(call: Caller) -> Any:
        assert (await call(CHECK, ASKED))[0] == "OK"
        return await call(CHECK, ASKED)

    status, told, said = talk(Worker(RECORDS, limits={"checks": Limit(1, 60)}), ask_twice)
    assert (status, said["retry-after"]) == ("RESOURCE_EXHAUSTED", "60")
    assert told.startswith("too many checks on this node")


def test_a_store_that_is_away_is_unavailable(talk: Callable[..., Any]) -> None:
    store = Flaky()
    worker = Worker(RECORDS, store)
    store.broken = True
    status, told, _ = talk(worker, lambda call: call(RESETS, RESET, KEY))
    assert (status, told) == ("UNAVAILABLE", "the store at nowhere does not answer")


def test_a_deadline_ends_a_call_and_nothing_hangs(talk: Callable[..., Any]) -> None:
    """The store never answers the first call. Whichever side notices first, both have ended it."""
    store = SlowStore()
    worker = Worker(RECORDS, store)

    async def ask(call: Caller) -> None:
        status, _, _ = await call(CHECK, ASKED, timeout=0.05)
        assert status == "DEADLINE_EXCEEDED"
        while not worker.requests():
            await asyncio.sleep(0.005)
        later = asyncio.ensure_future(call(CHECK, ASKED))
        while not later.done():
            if store.held:
                store.answer()
            await asyncio.sleep(0.001)
        assert (await later)[0] == "OK"

    talk(worker, ask)
    counted = {NAMES[number]: count for number, count in worker.requests().items()}
    assert counted.pop("OK") == 1
    assert counted in ({"DEADLINE_EXCEEDED": 1}, {"CANCELLED": 1})


def test_a_caller_that_goes_away_ends_its_call(talk: Callable[..., Any]) -> None:
    store = SlowStore()
    worker = Worker(RECORDS, store)

    async def leave(call: Caller) -> None:
        asking = asyncio.ensure_future(call(CHECK, ASKED))
        while not store.held:
            await asyncio.sleep(0.001)
        asking.cancel()
        while not worker.requests():
            await asyncio.sleep(0.001)
        await store.answer_all()

    talk(worker, leave)
    assert worker.requests() == {int(grpc.StatusCode.CANCELLED.value[0]): 1}
