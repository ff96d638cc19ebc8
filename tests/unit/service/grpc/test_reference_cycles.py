"""Refused calls leave no reference cycles: a cycle would keep the decoded message, which may take 60 times the bytes
that were sent, until the garbage collector runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from crestgate.errors import InvalidRequestError
from crestgate.protobuf.messages import DecodeError
from crestgate.service.errors import ApiError
from crestgate.service.grpc.transport.call import Method, RpcCall, RpcError
from unit.service.worker import Worker

RPC = RpcCall(b"", (), "192.0.2.1", None)
UNREADABLE = b"\xff"
WRONG_CHECK = b"\x0a\x00"
REFUSED = {
    "at once, undecodable": ("CheckRateLimit", UNREADABLE),
    "at once, wrong field": ("CheckRateLimit", b""),
    "at once, wrong check": ("CheckRateLimitBatch", WRONG_CHECK),
    "task, wrong check": ("CheckRateLimitBatch", WRONG_CHECK + b"\x0a\x02\x08\x01" * 5000),
    "task, wrong field": ("GetRemainingQuota", b""),
    "no key": ("ResetLimit", b""),
    "not configured": ("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", b""),
    "unknown service": ("grpc.health.v1.Health/Check", b"\x0a\x04mars"),
}


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.mark.parametrize(("name", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_call_leaves_no_cycle(worker: Worker, name: str, message: bytes) -> None:
    assert cycles_of(lambda: refuse(worker, name, message)) == []


def test_refused_checks_of_an_http_batch_leave_no_cycle(worker: Worker) -> None:
    body = {"exact": True, "checks": [{"op": "take"}, {"op": "peek", "key": "k", "plans": ["unknown"]}]}
    assert cycles_of(lambda: worker.post("/api/v1/check/batch", body)) == []


def cycles_of(refused: Callable[[], object]) -> list[Exception]:
    """The errors that are still alive after a refused request."""
    refused()  # the first request creates caches
    gc.collect()
    gc.disable()
    try:
        before = errors()
        refused()
        return [error for error in errors() if not any(error is one for one in before)]
    finally:
        gc.enable()


def errors() -> list[Exception]:
    # By type: `isinstance` would evaluate lazy objects of other tests, such as Django's settings.
    kinds = (RpcError, ApiError, InvalidRequestError, DecodeError)
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def refuse(worker: Worker, name: str, message: bytes) -> None:
    path = f"/{name}" if "/" in name else f"/crestgate.v1.RateLimiter/{name}"
    worker.runner.run(call(worker.methods[path.encode()], message))


async def call(method: Method, message: bytes) -> None:
    """Like the listener: the error ends in the calling frame."""
    assert method.unary is not None
    try:
        reply = method.unary(RPC, message)
        if not isinstance(reply, bytes):
            await reply
    except RpcError:
        return
    raise AssertionError("the call was answered")
