"""A hostile or broken Redis: a check ends with a StoreError, after reading no more than a valid reply can have."""

from __future__ import annotations

import asyncio
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.factory import open_store
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.redis import RedisStore
from crestgate.stores.redis.codec import BatchEncoder
from crestgate.stores.redis.script import SCRIPT_SHA
from security.hostile_server import HostileServer

NOW = 1_700_000_000_000_000
GIVE_UP = 60.0
"""Seconds after which a call that should have ended counts as hung."""
PATIENT_MS = 20_000
"""A deadline that no test waits for."""
SOCKET_BUFFERS = 16 * 1024 * 1024
"""The bytes that the kernel buffers without a reader."""
LIMIT = build(Limit.parse("100/minute"), "limit")
ONE = [Request(Op.TAKE, [Member("key", LIMIT, 1)])]
CHAIN = [Request(Op.TAKE, [Member("a", LIMIT, 1), Member("b", LIMIT, 1)]), Request(Op.PEEK, [Member("c", LIMIT, 1)])]

DecideFunction = Callable[[RedisStore, Sequence[Request]], BatchOutcomes | StoreError]


def record(verdict: int = 3, remaining: int = 99) -> bytes:
    return struct.pack(">BqqqqI", verdict, remaining, 0, 600_000, NOW, 1)


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def reply_to(batch: Sequence[Request]) -> bytes:
    """A reply like that of the script."""
    members = sum(len(request.members) for request in batch)
    return bulk(struct.pack(">q", NOW) + record() * members)


def threaded(store: RedisStore, batch: Sequence[Request]) -> BatchOutcomes | StoreError:
    try:
        return store.call(batch, time.monotonic() + store.timeout)
    except StoreError as error:
        return error
    finally:
        store.close()


def on_loop(store: RedisStore, batch: Sequence[Request]) -> BatchOutcomes | StoreError:
    async def call() -> BatchOutcomes | StoreError:
        done: asyncio.Future[BatchOutcomes | StoreError] = asyncio.get_running_loop().create_future()
        store.begin(batch, time.monotonic() + store.timeout, done.set_result)
        try:
            return await asyncio.wait_for(done, GIVE_UP)
        finally:
            await store.aclose()

    return asyncio.run(call())


@pytest.fixture(params=[threaded, on_loop])
def decide(request: pytest.FixtureRequest) -> DecideFunction:
    function: DecideFunction = request.param
    return function


def opened(port: int, scheme: str = "redis", rest: str = "", timeout_ms: int = PATIENT_MS) -> RedisStore:
    store = open_store(f"{scheme}://127.0.0.1:{port}{rest}?timeout_ms={timeout_ms}")
    assert isinstance(store, RedisStore)
    return store


def endless(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


BROKEN = {
    "time alone": bulk(struct.pack(">q", NOW)),
    "nothing": bulk(b""),
    "half a record": bulk(struct.pack(">q", NOW) + record()[:-1]),
    "a record too many": bulk(struct.pack(">q", NOW) + record() * 2),
    "no such verdict": bulk(struct.pack(">q", NOW) + record(verdict=77)),
    "more left than the limit": bulk(struct.pack(">q", NOW) + record(remaining=101)),
    "less than nothing left": bulk(struct.pack(">q", NOW) + record(remaining=-1)),
    "a time beyond all times": bulk(struct.pack(">q", 2**63 - 1) + record()),
    "no value": b"$-1\r\n",
    "a number": b":7\r\n",
    "a status": b"+OK\r\n",
    "another reply behind it": reply_to(ONE) * 2,
    "a huge array": b"*2000000000\r\n",
    "an array": b"*1\r\n" + reply_to(ONE),
    "arrays in arrays": b"*1\r\n" * 100_000,
    "a huge text": b"$2000000000\r\n",
    "a length that is none": b"$1x\r\n",
    "a long length": b"$" + b"9" * 5000 + b"\r\n",
    "a type of RESP3": b"%1\r\n+a\r\n+b\r\n",
    "an error that is not text": b"-\xff\xfe\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_reply_is_a_store_error(name: str, decide: DecideFunction) -> None:
    with HostileServer(lambda _: [BROKEN[name], b""]) as server:
        answer = decide(opened(server.port), ONE)
    assert isinstance(answer, StoreError)
    assert not isinstance(answer, PartialStoreError)


@pytest.mark.parametrize("announced", [b"*2000000000\r\n", b"$2000000000\r\n", b"*1\r\n*2000000000\r\n"])
def test_announced_length_reserves_no_memory(announced: bytes, decide: DecideFunction) -> None:
    with HostileServer(lambda _: [announced, b""]) as server:
        store = opened(server.port)
        tracemalloc.start()
        try:
            assert isinstance(decide(store, ONE), StoreError)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


STREAMS = {
    "a line": b"+" + b"x" * 65_536,
    "errors": b"-ERR no\r\n" * 8_000,
    "a text": b"$2000000000\r\n" + b"x" * 65_536,
    "an array": b"*2000000000\r\n" + b":1\r\n" * 16_000,
    "good replies": reply_to(ONE) * 1_000,
}


@pytest.mark.parametrize("name", STREAMS)
def test_stream_without_end_is_cut_off(name: str, decide: DecideFunction) -> None:
    """The deadline is far away: the bound on bytes ends the call."""
    with HostileServer(lambda _: endless(STREAMS[name])) as server:
        answer = decide(opened(server.port), ONE)
        assert isinstance(answer, StoreError)
        assert "in time" not in str(answer)
        assert server.sent_bytes < BatchEncoder("cg").encode(ONE, -1)[1] + SOCKET_BUFFERS


def test_stream_of_small_pieces_ends_with_the_deadline(decide: DecideFunction) -> None:
    def drip(_: bytes) -> Iterable[bytes]:
        yield b"$45\r\n"
        while True:
            time.sleep(0.02)
            yield b"x"

    with HostileServer(drip) as server:
        answer = decide(opened(server.port, timeout_ms=100), ONE)
    assert isinstance(answer, StoreError)


def test_policy_answers_when_replies_are_broken() -> None:
    """The same through the limiters, which are connected to a server that worked at first."""
    broken = False

    def answer(received: bytes) -> Iterable[bytes]:
        if b"EVALSHA" in received:
            return [BROKEN["time alone"] if broken else reply_to(ONE), b""]
        if b"SCRIPT" in received:
            return [b"+PONG\r\n" + bulk(SCRIPT_SHA.encode()), b""]
        return [bulk(b"redis_mode:standalone"), b""]

    async def check(url: str) -> str:
        nonlocal broken
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            broken = True
            return (await asyncio.wait_for(limiter.check("key", "100/minute"), GIVE_UP)).reason

    with HostileServer(answer) as server:
        url = f"redis://127.0.0.1:{server.port}?timeout_ms={PATIENT_MS}"
        assert asyncio.run(check(url)) == "fail_closed"
        broken = False
        with Limiter(url, on_store_error="closed") as limiter:
            assert limiter.check("key", "100/minute").reason == "ok"
            before = server.connections
            broken = True
            assert limiter.check("key", "100/minute").reason == "fail_closed"
            broken = False
            assert limiter.check("key", "100/minute").reason == "ok"
            assert server.connections == before + 1, "a connection with an invalid reply is not reused"


def mutated(random: random.Random, reply: bytes) -> bytes:
    """A reply with something wrong in it (or not: some changes are harmless)."""
    data = bytearray(reply)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = random.randrange(256)
        elif kind == 1:
            del data[at : at + random.randint(1, 20)]
        elif kind == 2:
            data[at:at] = random.randbytes(random.randint(1, 20))
        elif kind == 3:
            data[at:at] = random.choice((b"\r\n", b"*3\r\n", b"$-1\r\n", b":5\r\n", b"-ERR x\r\n", reply))
        elif kind == 4:
            data[: data.find(b"\r\n")] = b"%c%d" % (random.choice(b"$*:+-%~"), random.randint(-2, 2**40))
        else:
            values = random.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7))
            data[at : at + 8] = values
        if not data:
            break
    return bytes(data) or b"\r\n"


@pytest.mark.parametrize("seed", range(4))
def test_mutated_replies(seed: int, decide: DecideFunction) -> None:
    """Any reply leads to a plausible decision, or a StoreError."""
    rolls = random.Random(seed)
    idempotency = IdempotencyRecord("name", bytes(16), b"note")
    batch = (ONE, CHAIN, [Request(Op.TAKE, [Member("a", LIMIT, 1)], idempotency)])[seed % 3]
    found = struct.pack(">I", 2**32 - 1) if seed % 3 == 2 else b""
    members = sum(len(request.members) for request in batch)
    reply = bulk(struct.pack(">q", NOW) + found + record() * members)
    sent = b""
    with HostileServer(lambda _: [sent]) as server:
        for _ in range(60):
            sent = mutated(rolls, reply)
            answer = decide(opened(server.port), batch)
            if isinstance(answer, StoreError):
                continue
            for request, outcomes in zip(batch, answer, strict=True):
                assert request.record is not None or len(outcomes) == len(request.members)
                assert all(plausible(outcome) for outcome in outcomes), sent


def plausible(outcome: Outcome) -> bool:
    decision = outcome.decision
    waits = decision.retry_after is None or 0 <= decision.retry_after < 2**34
    return waits and 0 <= decision.remaining <= decision.limit and 0 <= decision.reset_after < 2**34


def node(port: int) -> bytes:
    return b"*2\r\n" + bulk(b"127.0.0.1") + b":%d\r\n" % port


def slots(*ranges: bytes) -> bytes:
    return b"*%d\r\n" % len(ranges) + b"".join(ranges)


def span(first: int, last: int, port: int = 1) -> bytes:
    return b"*3\r\n:%d\r\n:%d\r\n%b" % (first, last, node(port))


MAPS = {
    "a range beyond all slots": slots(span(0, 2**62)),
    "a range from below": slots(span(-(2**62), 5)),
    "a range backwards": slots(span(9, 5)),
    "all slots many times": slots(*[span(0, 16_383)] * 10_000),
    "a million nodes": slots(b"*1000002\r\n:0\r\n:16383\r\n" + node(1) * 1_000_000),
    "a thousand and one masters": slots(*[span(slot, slot, slot + 1) for slot in range(1_001)]),
    "a port that is none": slots(span(0, 16_383, 70_000)),
    "a host that is none": slots(b"*3\r\n:0\r\n:16383\r\n*2\r\n" + bulk(b"a b\r\n") + b":1\r\n"),
    "no master": slots(b"*2\r\n:0\r\n:16383\r\n"),
    "a master that is text": slots(b"*3\r\n:0\r\n:16383\r\n" + bulk(b"127.0.0.1:1")),
    "a text": bulk(b"slots"),
    "nothing": b"*0\r\n",
    "no array": b"*-1\r\n",
}


@pytest.mark.parametrize("name", MAPS)
def test_hostile_cluster_map(name: str, decide: DecideFunction) -> None:
    with HostileServer(lambda _: [MAPS[name], b""]) as server:
        answer = decide(opened(server.port, "redis+cluster"), ONE)
    assert isinstance(answer, StoreError)


def test_redirections_in_a_circle_end(decide: DecideFunction) -> None:
    """After a few attempts, and without a connection to every address they name."""
    counter = iter(range(10**9))

    def answer(received: bytes) -> Iterable[bytes]:
        if b"SLOTS" in received:
            return [slots(span(0, 16_383, server.port)), b""]
        askings = received.count(b"ASKING")
        kind = b"-MOVED" if next(counter) % 2 else b"-ASK"
        slot = redis_slot()
        return [b"+OK\r\n" * askings + b"%b %d 127.0.0.1:%d\r\n" % (kind, slot, server.port), b""]

    with HostileServer(answer) as server:
        store = opened(server.port, "redis+cluster")
        topology = store._topology
        slot_of = topology.slots[topology.tag(b"key")]  # type: ignore[attr-defined]

        def redis_slot() -> int:
            return int(slot_of)

        assert isinstance(decide(store, ONE), StoreError)
    assert next(counter) < 20


@pytest.mark.parametrize(
    "error", ["MOVED x y", "MOVED", "MOVED 99999 127.0.0.1:1", "MOVED 5 :", "ASK 1 h:99999", "ASK -1 :1"]
)
def test_redirection_to_nowhere(error: str, decide: DecideFunction) -> None:
    def answer(received: bytes) -> Iterable[bytes]:
        if b"SLOTS" in received:
            return [slots(span(0, 16_383, server.port)), b""]
        return [b"-%b\r\n" % error.encode(), b""]

    with HostileServer(answer) as server:
        assert isinstance(decide(opened(server.port, "redis+cluster"), ONE), StoreError)


SENTINELS = {
    "nothing": b"*0\r\n",
    "one word": b"*1\r\n" + bulk(b"127.0.0.1"),
    "numbers": b"*2\r\n:1\r\n:2\r\n",
    "arrays": b"*2\r\n*0\r\n*0\r\n",
    "a port that is none": b"*2\r\n" + bulk(b"127.0.0.1") + bulk(b"99999"),
    "a host that is none": b"*2\r\n" + bulk(b"\xff\r\n") + bulk(b"1"),
    "many": b"*1000000\r\n" + b":1\r\n" * 1_000_000,
}


@pytest.mark.parametrize("name", SENTINELS)
def test_hostile_sentinel(name: str, decide: DecideFunction) -> None:
    with HostileServer(lambda _: [SENTINELS[name], b""]) as server:
        assert isinstance(decide(opened(server.port, "redis+sentinel", "/mymaster"), ONE), StoreError)


@pytest.mark.parametrize("role", [b"*0\r\n", b"*1\r\n*0\r\n", b":1\r\n", b"*3000000\r\n", b"*1\r\n$-1\r\n"])
def test_hostile_master(role: bytes, decide: DecideFunction) -> None:
    def answer(received: bytes) -> Iterable[bytes]:
        named = b"*2\r\n" + bulk(b"127.0.0.1") + bulk(b"%d" % server.port)
        return [role if b"ROLE" in received else named, b""]

    with HostileServer(answer) as server:
        assert isinstance(decide(opened(server.port, "redis+sentinel", "/mymaster"), ONE), StoreError)
