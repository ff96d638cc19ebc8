"""Name lookups end by their deadline, share threads, and fall back on the last good addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from crestgate.runtime import name_lookup
from crestgate.runtime.name_lookup import MAX_LOOKUPS, Addresses, NameLookupError, is_numeric, resolve, resolve_async
from crestgate.runtime.sockets import connect
from crestgate.stores.breaker import Breaker
from crestgate.stores.redis.async_client import AsyncClient
from crestgate.stores.redis.protocol import Call, CallFailure, CallResult, Exchange, ServerAddress, pack
from crestgate.stores.redis.settings import RedisSettings
from crestgate.stores.redis.sync_client import SyncClient
from crestgate.stores.remote.http_connection import ConnectionPool, RequestError, ServiceAddress
from crestgate.stores.sql.mysql import MysqlDriver
from crestgate.stores.sql.postgres import PostgresDriver
from crestgate.stores.sql.session import DatabaseAddress, DatabaseConnectionError, Driver

PATIENCE = 10.0
Resolve = Callable[[str, int, float], Addresses]


class Resolver:
    """The system's resolver, which can be made to hang."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.addresses = ["127.0.0.1"]

    def getaddrinfo(self, host: str, port: int, *_: object, **__: object) -> Addresses:
        self.asked.append(host)
        assert self.answers.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    monkeypatch.setattr(name_lookup, "lookups", name_lookup.NameLookups())
    yield resolver
    resolver.answers.set()


def resolve_on_a_loop(host: str, port: int, deadline: float) -> Addresses:
    return asyncio.run(resolve_async(host, port, deadline))


both = pytest.mark.parametrize("look_up", [resolve, resolve_on_a_loop])


def soon(seconds: float = PATIENCE) -> float:
    return time.monotonic() + seconds


@both
def test_name_is_looked_up(resolver: Resolver, look_up: Resolve) -> None:
    assert [address[4] for address in look_up("cache", 6379, soon())] == [("127.0.0.1", 6379)]


@both
def test_numeric_address_needs_no_thread(resolver: Resolver, look_up: Resolve) -> None:
    before = threading.active_count()
    look_up("127.0.0.1", 1, 0.0)
    assert threading.active_count() == before


def test_numeric_addresses() -> None:
    assert all(is_numeric(host) for host in ("127.0.0.1", "::1", "fe80::1%eth0"))
    assert not any(is_numeric(host) for host in ("localhost", "cache.example", "1", "", "a\0b"))


@both
def test_hanging_lookup_ends_by_the_deadline(resolver: Resolver, look_up: Resolve) -> None:
    resolver.answers.clear()
    with pytest.raises(NameLookupError, match="the lookup of the name 'cache' took too long"):
        look_up("cache", 6379, soon(0.05))


@both
def test_last_good_addresses_replace_a_hanging_lookup(resolver: Resolver, look_up: Resolve) -> None:
    look_up("cache", 6379, soon())
    resolver.answers.clear()
    assert [address[4] for address in look_up("cache", 6379, soon(0.2))] == [("127.0.0.1", 6379)]


@both
def test_last_good_addresses_replace_a_failed_lookup(resolver: Resolver, look_up: Resolve) -> None:
    look_up("cache", 6379, soon())
    resolver.error = socket.gaierror(socket.EAI_AGAIN, "try again")
    assert [address[4] for address in look_up("cache", 6379, soon())] == [("127.0.0.1", 6379)]


@both
def test_unknown_name_is_an_error(resolver: Resolver, look_up: Resolve) -> None:
    look_up("cache", 6379, soon())
    resolver.error = socket.gaierror(socket.EAI_NONAME, "unknown")
    with pytest.raises(socket.gaierror):
        look_up("cache", 6379, soon())


@both
def test_changed_addresses_are_used(resolver: Resolver, look_up: Resolve) -> None:
    look_up("cache", 6379, soon())
    resolver.addresses = ["127.0.0.2"]
    assert [address[4][0] for address in look_up("cache", 6379, soon())] == ["127.0.0.2"]


@both
def test_one_lookup_for_all_that_need_the_name(resolver: Resolver, look_up: Resolve) -> None:
    resolver.answers.clear()
    for _ in range(3):
        with pytest.raises(NameLookupError):
            look_up("cache", 6379, soon(0.01))
    assert resolver.asked == ["cache"]


@both
def test_lookups_in_progress_are_bounded(resolver: Resolver, look_up: Resolve) -> None:
    look_up("known", 6379, soon())
    resolver.answers.clear()
    for number in range(MAX_LOOKUPS):
        with pytest.raises(NameLookupError, match="too long"):
            look_up(f"host{number}", 6379, soon(0.001))
    with pytest.raises(NameLookupError, match="was not looked up: 8 lookups"):
        look_up("another", 6379, soon())
    assert look_up("known", 6379, soon())
    assert len(resolver.asked) == 1 + MAX_LOOKUPS


@both
def test_lookup_without_a_thread_fails_alone(
    resolver: Resolver, look_up: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(name_lookup, "Thread", NoThread)
        with pytest.raises(NameLookupError, match="no thread to look up the name 'cache'"):
            look_up("cache", 6379, soon())
    assert look_up("cache", 6379, soon())
    with monkeypatch.context() as patch:
        patch.setattr(name_lookup, "Thread", NoThread)
        assert look_up("cache", 6379, soon())  # the addresses from before


def test_forked_child_looks_up_by_itself(resolver: Resolver) -> None:
    resolver.answers.clear()
    with pytest.raises(NameLookupError):
        resolve("cache", 6379, soon(0.01))
    child = os.fork()
    if child == 0:
        resolver.answers.set()
        os._exit(0 if resolve("cache", 6379, soon()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- what connects ----------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def breaker_of(_: ServerAddress) -> Breaker:
    return Breaker()


def test_threads_connect_while_a_lookup_hangs(resolver: Resolver, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    connect("cache", port, soon()).close()
    resolver.answers.clear()
    connect("cache", port, soon(2.0)).close()


def test_redis_of_threads_fails_by_the_deadline(resolver: Resolver) -> None:
    resolver.answers.clear()
    servers = SyncClient(RedisSettings(), 4, breaker_of)
    result = servers.call(Call(ServerAddress("cache", 6379), pack(("PING",)), 1), soon(0.05))
    assert result == CallFailure("the lookup of the name 'cache' took too long", False)


def test_redis_of_a_loop_uses_the_bounded_lookups(resolver: Resolver) -> None:
    resolver.answers.clear()

    def ping() -> Exchange[CallResult]:
        (result,) = yield [Call(ServerAddress("cache", 6379), pack(("PING",)), 1)]
        return result

    async def scenario() -> CallResult:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[CallResult] = loop.create_future()
        servers = AsyncClient(loop, RedisSettings(), 4, breaker_of)
        servers.run(ping(), soon(0.05), finished.set_result)  # type: ignore[arg-type]
        return await asyncio.wait_for(finished, PATIENCE)

    result = asyncio.run(scenario())  # closing the loop would wait for a lookup of its own threads
    assert isinstance(result, CallFailure)
    assert not result.sent


def test_redis_of_a_loop_connects_by_name(resolver: Resolver, listener: socket.socket) -> None:
    resolver.addresses = ["127.0.0.9", "127.0.0.1"]  # nothing listens at the first
    address = ServerAddress("cache", listener.getsockname()[1])

    async def scenario() -> bool:
        servers = AsyncClient(asyncio.get_running_loop(), RedisSettings(), 4, breaker_of)
        connection = await servers.open(address, soon())
        connection.drop()
        return True

    assert asyncio.run(scenario())


def test_service_fails_by_the_deadline(resolver: Resolver) -> None:
    resolver.answers.clear()
    pool = ConnectionPool(ServiceAddress("gate", 8080), 1)
    with pytest.raises(RequestError, match="the lookup of the name 'gate' took too long"):
        pool.post("/", b"", soon(0.05), 100)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_databases_fail_by_the_deadline(resolver: Resolver, kind: str) -> None:
    resolver.answers.clear()
    address = DatabaseAddress("db", 5432, "user", None, "limits", {})
    driver: Driver = MysqlDriver("MariaDB", address) if kind == "mysql" else PostgresDriver(address, 0.1)
    with pytest.raises(DatabaseConnectionError, match="the lookup of the name 'db' took too long"):
        driver.open(soon(0.05))


def test_postgres_is_given_numeric_addresses(resolver: Resolver) -> None:
    resolver.addresses = ["127.0.0.9", "127.0.0.1"]
    text = PostgresDriver(DatabaseAddress("db", 5432, "user", None, "limits", {}), 0.1).conninfo(soon())
    assert "host=db,db" in text
    assert "hostaddr=127.0.0.9,127.0.0.1" in text
