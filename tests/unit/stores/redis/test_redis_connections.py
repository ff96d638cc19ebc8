"""Connections to Redis: credentials, TLS, unix sockets, databases, event loops, forks and closing."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, StoreError, register_algorithm
from crestgate.core.algorithms.custom import Numbers, Verdict
from crestgate.errors import StoreClosedError, TooManyReservationsError
from crestgate.limiter import stored_reservations
from crestgate.stores.port import BatchOutcomes, Member, Op, Request
from crestgate.stores.redis import RedisStore
from crestgate.testing import AsyncStoreAdapter
from servers.machine import until
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from unit.stores.redis.store_requests import ALGORITHMS, apply, limit, peek, store_at, take

STORES_PAGE = Path(__file__).parents[4] / "docs" / "stores-redis.md"
SECRET = "s3cr:t/%@#?"  # with characters that are special in a URL
WRITTEN = "s3cr%3At%2F%25%40%23%3F"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with a password, a user, and a unix socket."""
    with RedisServer(password=SECRET, unix=True) as server:
        server.cli("ACL", "SETUSER", "app@shop", "on", f">{SECRET}", "~*", "+@all", "-flushall")
        yield server


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RedisServer]:
    with RedisServer(tls=True) as server:
        yield server


def decides(url: str) -> None:
    """Sync and async clients decide, and share their counters."""
    prefix = uuid4()
    store = store_at(url, prefix=prefix)
    store.connect()
    assert take(store, limit("2/year")).allowed
    on_loop = AsyncStoreAdapter(store_at(url, prefix=prefix))
    assert take(on_loop, limit("2/year")).allowed
    assert not take(store, limit("2/year")).allowed
    assert not take(on_loop, limit("2/year")).allowed
    store.close()
    on_loop.close()


def test_password(guarded: RedisServer) -> None:
    decides(f"redis://:{WRITTEN}@127.0.0.1:{guarded.port}/0")


def test_user_and_password(guarded: RedisServer) -> None:
    decides(f"redis://app%40shop:{WRITTEN}@127.0.0.1:{guarded.port}")


def test_documented_acl_suffices(guarded: RedisServer) -> None:
    (line,) = re.findall(r"ACL SETUSER limiter .*", STORES_PAGE.read_text())
    guarded.cli(*line.replace(">password", f">{SECRET}").split())
    for make in (store_at, on_loop_at):
        guarded.cli("SCRIPT", "FLUSH")
        store: RedisStore | AsyncStoreAdapter = make(f"redis://limiter:{WRITTEN}@127.0.0.1:{guarded.port}")
        for algorithm in ALGORITHMS:
            ours = limit(f"100/hour using {algorithm}", str(uuid4()))
            taken = apply(store, Op.TAKE, Member("key", ours, 5))[0]
            apply(store, Op.CHARGE, Member("key", ours, 1))
            apply(store, Op.GIVE_BACK, Member("key", ours, 5, True, taken.tick, 2))
            take(store, ours)
            take(store, limit("50/minute using gcra", ours.name))
            assert peek(store, ours).remaining in (95, 94)
            apply(store, Op.RESET, Member("key", ours, 0))
            assert peek(store, ours).remaining == 100
        store.close()


def test_documented_acl_suffices_for_reservations(guarded: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"ACL SETUSER limiter .*", STORES_PAGE.read_text())
    (more,) = re.findall(r"\| `(~\{cg\}:reservation.*?)` \|", STORES_PAGE.read_text())
    guarded.cli(*line.replace(">password", f">{SECRET}").split(), *more.split())
    with Limiter(f"redis://limiter:{WRITTEN}@127.0.0.1:{guarded.port}") as limiter:
        limits = {"2 concurrent": 1, "100/hour using fixed_window": 5}
        reservation = limiter.reserve("acl", limits)
        reservation.extend(30)
        reservation.settle({"100/hour using fixed_window": 3})
        limiter.reserve("acl", limits, on_expiry="release").release()
        limiter.sweep_reservations()
        assert limiter.peek("acl", "2 concurrent").remaining == 2
        limiter.reserve("acl", limits)
        monkeypatch.setattr(stored_reservations, "MAX_OPEN_OF_LIBRARY", 1)
        with pytest.raises(TooManyReservationsError):
            limiter.reserve("acl", limits)
    guarded.cli("ACL", "DELUSER", "limiter")


def on_loop_at(url: str) -> AsyncStoreAdapter:
    return AsyncStoreAdapter(store_at(url))


def test_unix_socket(guarded: RedisServer) -> None:
    decides(f"redis+unix://:{WRITTEN}@{guarded.socket}")
    decides(f"valkey+unix://app%40shop:{WRITTEN}@{guarded.socket}?db=3")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls(encrypted: RedisServer, host: str) -> None:
    decides(f"rediss://{host}:{encrypted.port}/1?ssl_ca_certs={encrypted.certificate}")
    decides(f"valkeys://{host}:{encrypted.port}?ssl_cert_reqs=none")


def test_large_batches_over_tls(encrypted: RedisServer) -> None:
    url = f"rediss://localhost:{encrypted.port}?ssl_ca_certs={encrypted.certificate}"
    for store in (store_at(url, prefix=uuid4()), AsyncStoreAdapter(store_at(url, prefix=uuid4()))):
        batch = [Request(Op.TAKE, [Member("k" * 1000 + str(i), limit("5/year"), 1)]) for i in range(2000)]
        assert all(outcome.decision.allowed for (outcome,) in store.apply(batch))
        assert {outcome.decision.remaining for (outcome,) in store.apply(batch)} == {3}
        store.close()


def test_databases_are_separate(server: RedisServer, client: redis.Redis) -> None:
    host = f"redis://127.0.0.1:{server.port}"
    for number, target in enumerate((f"{host}/0", f"{host}/1", f"{host}/15", f"valkey://127.0.0.1:{server.port}/2")):
        store = store_at(target)
        assert take(store, limit("1/year")).allowed, number
        assert not take(store, limit("1/year")).allowed
        assert not take(AsyncStoreAdapter(store_at(target)), limit("1/year")).allowed
        store.close()


# -- pools, loops and forks -------------------------------------------------------------------------------------------


def connections(client: redis.Redis) -> int:
    """The connections other than our own."""
    return len(client.client_list(_type="normal")) - 1


@pytest.mark.parametrize("size", [1, 2, 8])
def test_pool_size_bounds_idle_connections_of_threads(server: RedisServer, client: redis.Redis, size: int) -> None:
    store = store_at(server.url, pool_size=size)
    together = threading.Barrier(8)

    def check(number: int) -> bool:
        together.wait()
        return all(take(store, limit("100000/year")).allowed for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(8)))
    until("the others are closed", lambda: connections(client) <= size, patience=5)
    store.close()
    until("all are closed", lambda: connections(client) == 0, patience=5)


@pytest.mark.parametrize("size", [1, 3])
def test_pool_size_bounds_idle_connections_of_a_loop(server: RedisServer, client: redis.Redis, size: int) -> None:
    store = AsyncStoreAdapter(store_at(server.url, pool_size=size))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: take(store, limit("100000/year")).allowed, range(400)))
    until("the others are closed", lambda: connections(client) <= size, patience=5)
    store.close()
    until("all are closed", lambda: connections(client) == 0, patience=5)


def test_event_loops_and_threads_share_a_store(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    admitted: list[int] = []

    def loop() -> None:
        async def load() -> None:
            limiter = AsyncLimiter(store)
            decisions = await asyncio.gather(*(limiter.check("key", "500/year") for _ in range(400)))
            admitted.append(sum(decision.allowed for decision in decisions))

        asyncio.run(load())

    def plain() -> None:
        limiter = Limiter(store)
        admitted.append(sum(limiter.check("key", "500/year").allowed for _ in range(200)))

    threads = [threading.Thread(target=target) for target in (loop, loop, plain, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 500
    store.close()


def test_closed_loops_leave_no_connections(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)

    async def check() -> bool:
        decided: asyncio.Future[BatchOutcomes | StoreError] = asyncio.get_running_loop().create_future()
        batch = [Request(Op.TAKE, [Member("key", limit("100/year"), 1)])]
        store.begin(batch, time.monotonic() + 10, decided.set_result)
        return isinstance(await decided, list)

    assert all(asyncio.run(check()) for _ in range(20))
    gc.collect()
    assert connections(client) <= 2
    assert len(store._async_clients) <= 1
    store.close()


def test_forked_child_opens_its_own_connections(server: RedisServer, client: redis.Redis) -> None:
    limiter = Limiter(f"{server.url}?timeout_ms=10000")
    for _ in range(100):
        assert limiter.check("key", "1000/year").allowed
    mine = connections(client)
    child = os.fork()
    if child == 0:
        try:
            good = all(limiter.check("key", "1000/year").allowed for _ in range(200))
            good = good and connections(redis.Redis.from_url(server.url)) > mine
            good = good and all(asyncio.run(tasks(server.url)))
        finally:
            os._exit(0 if good else 1)
    for _ in range(200):
        assert limiter.check("key", "1000/year").reason == "ok"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter.peek("key", "1000/year").remaining == 1000 - 100 - 200 - 200
    limiter.close()


async def tasks(url: str) -> list[bool]:
    async with AsyncLimiter(f"{url}?timeout_ms=10000") as limiter:
        return [(await limiter.check("other", "1000/year")).allowed for _ in range(50)]


# -- closing, and refused limiters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["server", "redis_cluster", "redis_sentinels"])
def test_closed_store_raises(target: str, request: pytest.FixtureRequest) -> None:
    running: RedisServer | RedisCluster | RedisSentinels = request.getfixturevalue(target)
    for make in (store_at, on_loop_at):
        store: RedisStore | AsyncStoreAdapter = make(running.url)
        take(store, limit("5/year"), str(uuid4()))
        store.close()
        store.close()
        with pytest.raises(StoreClosedError):
            peek(store, limit("5/year"))
    with pytest.raises(StoreClosedError):
        store_at_closed(running.url).connect()
    limiter = Limiter(running.url)
    limiter.close()
    with pytest.raises(StoreClosedError):
        limiter.check("key", "5/year")


def store_at_closed(url: str) -> RedisStore:
    store = store_at(url)
    store.close()
    return store


def test_custom_algorithm_is_rejected_when_the_limiter_is_built(server: RedisServer) -> None:
    name = f"own_{uuid4().hex}"

    def step(ours: Limit, state: Numbers | None, now: int, cost: int) -> tuple[Numbers | None, Verdict]:
        return None, Verdict(True, ours.count, 0, 0)

    register_algorithm(name, step)
    plans = {"gold": Limit(5, 60, algorithm=name)}
    for make in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigError, match=f"RedisStore does not support algorithm '{name}'"):
            make(server.url, plans=plans)
    with Limiter(server.url) as limiter, pytest.raises(ConfigError, match=name):
        limiter.bind(Limit(5, 60, algorithm=name))
