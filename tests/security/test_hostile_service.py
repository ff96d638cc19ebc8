"""A service behind `crestgate://` that is hostile or broken: a StoreError, after bounded bytes and by the deadline."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator

import pytest

from crestgate import Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.port import BatchOutcomes, Member, Op, Request
from crestgate.stores.remote.http_connection import ServiceAddress
from crestgate.stores.remote.store import ServiceStore
from crestgate.stores.server_side_limits import placeholder
from security.hostile_server import HostileServer

PATIENT_MS = 20_000
SOCKET_BUFFERS = 16 * 1024 * 1024
LIMIT = build(Limit.parse("100/minute"), "limit")
ONE = [Request(Op.TAKE, [Member("key", LIMIT, 1)])]
COUNTER = {"at": 0, "allowed": True, "remaining": 99, "wait": 0, "reset": 600_000, "reason": "ok", "tick": 1}
REAL = {**COUNTER, "key": "k", "limit": "5/minute", "name": "n", "label": "l", "binds": True}
OK = b"HTTP/1.1 200 OK\r\n"


def decide(
    server: HostileServer, batch: list[Request] | None = None, timeout_ms: int = PATIENT_MS
) -> BatchOutcomes | StoreError:
    store = ServiceStore(ServiceAddress("127.0.0.1", server.port), timeout_ms=timeout_ms, pool_size=1)
    try:
        return store.call(batch or ONE, time.monotonic() + store.timeout)
    except StoreError as error:
        return error
    finally:
        store.close()


def body(text: str) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n%b" % (len(text), text.encode())


def counters(*given: object) -> bytes:
    return body(json.dumps({"decisions": [{"counters": given}]}))


def endless(first: bytes, piece: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield piece


STREAMS = {
    "a body": (OK + b"\r\n", b"x" * 65_536),
    "a body of a huge length": (OK + b"Content-Length: 99999999999999\r\n\r\n", b" " * 65_536),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "tiny chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 10_000),
    "headers": (OK, b"X: y\r\n" * 10_000),
    "a header": (OK + b"X: ", b"y" * 65_536),
    "a status line": (b"HTTP/1.1 ", b"2" * 65_536),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
}


@pytest.mark.parametrize("name", STREAMS)
def test_stream_without_end_is_cut_off(name: str) -> None:
    """The deadline is far away: the bound on bytes ends the call."""
    with HostileServer(lambda _: endless(*STREAMS[name])) as server:
        answer = decide(server)
        assert isinstance(answer, StoreError)
        assert "in time" not in str(answer)
        assert server.sent_bytes < SOCKET_BUFFERS


@pytest.mark.parametrize(
    "first", [OK, OK + b"Content-Length: 100\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\n"]
)
def test_slow_bytes_end_with_the_deadline(first: bytes) -> None:
    def drip(_: bytes) -> Iterable[bytes]:
        yield first
        while True:
            time.sleep(0.02)
            yield b"x"

    with HostileServer(drip) as server:
        answer = decide(server, timeout_ms=100)
    assert isinstance(answer, StoreError)
    assert "in time" in str(answer)


BROKEN = {
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    "no chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a negative length": OK + b"Content-Length: -1\r\n\r\n{}",
    "nested lists": body("[" * 30_000),
    "a nested problem": b"HTTP/1.1 400 No\r\nContent-Length: 30000\r\n\r\n" + b"[" * 30_000,
    "no decisions": body("{}"),
    "a list": body("[]"),
    "decisions that are text": body('{"decisions": "x"}'),
    "counters that are text": body('{"decisions": [{"counters": "x"}]}'),
    "a counter that is text": counters("x"),
    "no counters": counters(),
    "two counters": counters(COUNTER, COUNTER),
    "a huge number": counters({**COUNTER, "remaining": 10**30}),
    "a negative number": counters({**COUNTER, "remaining": -1}),
    "a fraction": counters({**COUNTER, "wait": 0.5}),
    "no number at all": counters({**COUNTER, "reset": 1e400}),
    "an answer that is text": counters({**COUNTER, "allowed": "no"}),
    "a reason that is a list": counters({**COUNTER, "reason": []}),
    "a long number": body('{"decisions": [{"counters": [{"remaining": %s}]}]}' % ("9" * 10_000)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answer_is_a_store_error(name: str) -> None:
    with HostileServer(lambda _: [BROKEN[name]]) as server:
        assert isinstance(decide(server), StoreError)


@pytest.mark.parametrize("field", ["key", "limit", "name", "label", "binds"])
@pytest.mark.parametrize("value", [5, None, [], {}])
def test_broken_rules_are_a_store_error(field: str, value: object) -> None:
    """Limits that only the service knows become part of the request."""
    with HostileServer(lambda _: [counters({**REAL, field: value})]) as server:
        assert isinstance(decide(server, [Request(Op.TAKE, [Member("{}", placeholder(None), 1)])]), StoreError)


def test_policy_answers_when_answers_are_broken() -> None:
    broken = False

    def answer(_: bytes) -> Iterable[bytes]:
        return [BROKEN["nested lists"]] if broken else [counters(COUNTER), b""]

    with HostileServer(answer) as server:
        url = f"crestgate://127.0.0.1:{server.port}?timeout_ms={PATIENT_MS}"
        with Limiter(url, on_store_error="closed") as limiter:
            assert limiter.check("key", "100/minute").reason == "ok"
            broken = True
            assert limiter.check("key", "100/minute").reason == "fail_closed"


@pytest.mark.parametrize("seed", range(3))
def test_mutated_answers(seed: int) -> None:
    """Any response leads to a plausible decision, or a StoreError."""
    rolls = random.Random(seed)
    context = [Request(Op.TAKE, [Member("{}", placeholder(None), 1)])]
    batch, good = (ONE, counters(COUNTER)) if seed % 2 else (context, counters(REAL, REAL))
    sent = b""
    with HostileServer(lambda _: [sent]) as server:
        for _ in range(60):
            data = bytearray(good)
            for _ in range(rolls.randint(1, 3)):
                at = rolls.randrange(len(data))
                if rolls.random() < 0.5:
                    data[at] = rolls.choice(b'0129-"{}[],:ntf\r\n\xff')
                else:
                    data[at : at + rolls.randint(0, 9)] = rolls.choice((b"null", b"1e999", b"[", b'"', b"-1", b"\r\n"))
            sent = bytes(data)
            answer = decide(server, [Request(request.op, request.members) for request in batch])
            if isinstance(answer, StoreError):
                continue
            for decision in [outcome.decision for outcomes in answer for outcome in outcomes]:
                assert isinstance(decision.allowed, bool), sent
                assert min(decision.remaining, decision.reset_after) >= 0, sent
