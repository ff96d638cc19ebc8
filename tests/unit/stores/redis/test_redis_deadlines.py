"""A server that hangs: no call waits beyond its deadline, and replies of other servers count."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from crestgate.stores.breaker import Breaker
from crestgate.stores.redis.async_client import AsyncClient
from crestgate.stores.redis.protocol import Call, CallFailure, CallResult, Exchange, ServerAddress, pack
from crestgate.stores.redis.settings import RedisSettings
from crestgate.stores.redis.sync_client import SyncClient, SyncConnection
from stalls import Stalls

PING = pack(("PING",))


@pytest.fixture
def hung() -> Iterator[ServerAddress]:
    """A server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield ServerAddress("127.0.0.1", listener.getsockname()[1])


@pytest.fixture
def prompt() -> Iterator[ServerAddress]:
    """A server that answers every command immediately."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client:
            while client.recv(65536):
                client.sendall(b"+PONG\r\n")

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield ServerAddress("127.0.0.1", listener.getsockname()[1])
    listener.close()


class Breakers(dict[ServerAddress, Breaker]):
    def __missing__(self, address: ServerAddress) -> Breaker:
        return self.setdefault(address, Breaker())


def test_received_reply_counts_after_another_server_used_up_the_time(
    hung: ServerAddress, prompt: ServerAddress
) -> None:
    breakers = Breakers()
    servers = SyncClient(RedisSettings(), 4, breakers.__getitem__)
    for _ in range(3):
        calls = [Call(hung, PING, 1), Call(prompt, PING, 1)]
        silent, answered = servers.call_all(calls, time.monotonic() + 0.1)
        assert isinstance(silent, CallFailure)
        assert answered == [b"PONG"]
    assert breakers[hung].state(time.monotonic()) == "open"
    assert breakers[prompt].state(time.monotonic()) == "closed"
    servers.close()


class LateSocket(socket.socket):
    """Ends its waits late, as one of a thread that is not scheduled in time."""

    SECONDS = 0.05

    def recv(self, size: int, flags: int = 0) -> bytes:
        try:
            return super().recv(size, flags)
        except BlockingIOError:
            if not flags:
                time.sleep(self.SECONDS)
            raise


def idle_connection(servers: SyncClient, address: ServerAddress) -> SyncConnection:
    """A connection that has been used before."""
    connection = SyncConnection(address, RedisSettings(), time.monotonic() + 10)
    connection.used_at = time.monotonic()
    servers.release(address, connection)
    return connection


def test_slow_server_leaves_another_no_more_time(hung: ServerAddress, stalls: Stalls) -> None:
    """The time in which one server is waited for is no time in which this thread did not run."""
    servers = SyncClient(RedisSettings(), 4, Breakers().__getitem__)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        slow = ServerAddress("127.0.0.1", listener.getsockname()[1])
        for address in (slow, hung):
            idle_connection(servers, address)
        peer = listener.accept()[0]
        answer = threading.Timer(0.4, peer.sendall, [b"+PONG\r\n"])
        answer.start()
        started = time.monotonic()
        late, silent = servers.call_all([Call(slow, PING, 1), Call(hung, PING, 1)], started + 0.5)
        seconds = stalls.without(started, time.monotonic())
        answer.join()
        peer.close()
    assert late == [b"PONG"]
    assert isinstance(silent, CallFailure)
    assert seconds < 0.65, "the second server had 0.25 s more"
    servers.close()


def test_lost_time_is_added_once_for_all_servers(stalls: Stalls) -> None:
    """It was added for each, and each time as much as all before had added."""
    servers = SyncClient(RedisSettings(), 4, Breakers().__getitem__)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    addresses = [ServerAddress("127.0.0.1", listener.getsockname()[1]) for listener in listeners]
    for address in addresses:
        connection = idle_connection(servers, address)
        connection.socket = LateSocket(fileno=connection.socket.detach())
    started = time.monotonic()
    results = servers.call_all([Call(address, PING, 1) for address in addresses], started + 0.1)
    seconds = stalls.without(started, time.monotonic())
    assert all(isinstance(result, CallFailure) for result in results)
    assert seconds < 0.7, "the last of them had 0.25 s more than the one before"
    servers.close()
    for listener in listeners:
        listener.close()


def test_connection_cancelled_before_it_started_has_a_result(prompt: ServerAddress) -> None:
    """A delayed event loop gets the first reply and the timeout in the same iteration."""

    def exchange() -> Exchange[list[CallResult]]:
        yield [Call(prompt, PING, 1)]
        time.sleep(0.2)  # blocks the loop
        return (yield [Call(ServerAddress(prompt.host, prompt.port, sentinel=True), PING, 1)])  # another connection

    async def scenario() -> list[CallResult]:
        breakers = Breakers()
        servers = AsyncClient(asyncio.get_running_loop(), RedisSettings(), 4, breakers.__getitem__)
        finished: asyncio.Future[list[CallResult]] = asyncio.get_running_loop().create_future()
        servers.run(exchange(), time.monotonic() + 0.1, finished.set_result)  # type: ignore[arg-type]
        answers = await asyncio.wait_for(finished, 5)
        servers.close()
        return answers

    (answer,) = asyncio.run(scenario())
    assert isinstance(answer, CallFailure)
    assert not answer.sent


def test_host_with_several_addresses_has_one_deadline(monkeypatch: pytest.MonkeyPatch, stalls: Stalls) -> None:
    swallowing = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))] * 5

    class Slow(socket.socket):
        def connect(self, address: object) -> None:
            time.sleep(self.gettimeout() or 0)
            raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: swallowing)
    monkeypatch.setattr(socket, "socket", Slow)
    servers = SyncClient(RedisSettings(), 4, Breakers().__getitem__)
    started = time.monotonic()
    answer = servers.call(Call(ServerAddress("several", 6379), PING, 1), started + 0.2)
    assert isinstance(answer, CallFailure)
    assert stalls.without(started, time.monotonic()) < 0.6


def test_short_time_is_not_the_servers_fault(hung: ServerAddress) -> None:
    breakers = Breakers()
    servers = SyncClient(RedisSettings(), 4, breakers.__getitem__, patience=0.05)
    for _ in range(5):
        assert isinstance(servers.call(Call(hung, PING, 1), time.monotonic() + 0.01), CallFailure)
    assert breakers[hung].failures == 0
    assert isinstance(servers.call(Call(hung, PING, 1), time.monotonic() + 0.06), CallFailure)
    assert breakers[hung].failures == 1
    servers.close()


def test_thread_that_wakes_late_looks_once_more(prompt: ServerAddress) -> None:
    """The kernel ends the wait, the reply comes, and only then is the thread scheduled."""
    connection = SyncConnection(prompt, RedisSettings(), time.monotonic() + 10)
    original = connection.socket

    class Late(socket.socket):
        waits = 1

        def recv(self, *arguments: int) -> bytes:
            if Late.waits:
                Late.waits -= 1
                raise BlockingIOError
            return super().recv(*arguments)

    connection.socket = Late(fileno=original.detach())
    connection.send(PING, time.monotonic() + 10)
    assert connection.receive(1, 100, 0, time.monotonic() + 5, lost=0.25) == [b"PONG"]
    connection.close()


def test_reply_that_a_loop_has_not_read_yet_is_not_late(prompt: ServerAddress) -> None:
    async def scenario() -> tuple[CallResult, int]:
        loop = asyncio.get_running_loop()
        breakers = Breakers()
        servers = AsyncClient(loop, RedisSettings(), 4, breakers.__getitem__)
        connected: asyncio.Future[object] = loop.create_future()

        def ping() -> Exchange[None]:
            yield [Call(prompt, PING, 1)]

        servers.run(ping(), time.monotonic() + 10, connected.set_result)
        await asyncio.wait_for(connected, 10)
        connection = servers.pools[prompt].idle[-1]
        result: asyncio.Future[CallResult] = loop.create_future()
        assert servers.try_send(prompt, PING, 100, time.monotonic() + 10, result.set_result)
        while not connection.readable():
            time.sleep(0.001)
        connection.deadline = 0.0
        connection.time_out()  # some loops call timers before they read
        answer = await asyncio.wait_for(result, 10)
        servers.close()
        return answer, breakers[prompt].failures

    assert asyncio.run(scenario()) == ([b"PONG"], 0)


@pytest.fixture
def held() -> Iterator[tuple[ServerAddress, threading.Event]]:
    """A server that answers the first two commands immediately, and the others after the event."""
    listener = socket.create_server(("127.0.0.1", 0))
    release = threading.Event()

    def serve() -> None:
        with listener.accept()[0] as client:
            number = 0
            while client.recv(65536):
                number += 1
                if number > 2:
                    release.wait()
                client.sendall(b"+PONG\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield ServerAddress("127.0.0.1", listener.getsockname()[1]), release
    release.set()
    listener.close()


async def pinged(address: ServerAddress, seconds: float) -> tuple[AsyncClient, list[CallResult]]:
    """A client whose connection has made a call with so much time, and has its timer still. `on_result` of the next
    call is `results.append`."""
    loop = asyncio.get_running_loop()
    servers = AsyncClient(loop, RedisSettings(), 4, Breakers().__getitem__)
    connected: asyncio.Future[object] = loop.create_future()

    def ping() -> Exchange[None]:
        yield [Call(address, PING, 1)]

    servers.run(ping(), time.monotonic() + 10, connected.set_result)
    await asyncio.wait_for(connected, 10)
    answered: asyncio.Future[CallResult] = loop.create_future()
    assert servers.try_send(address, PING, 100, time.monotonic() + seconds, answered.set_result)
    assert await asyncio.wait_for(answered, 10) == [b"PONG"]
    return servers, []


def test_timer_of_an_earlier_call_does_not_end_a_later_one(held: tuple[ServerAddress, threading.Event]) -> None:
    address, release = held

    async def scenario() -> list[CallResult]:
        servers, results = await pinged(address, 30)
        connection = servers.pools[address].idle[-1]
        assert servers.try_send(address, PING, 100, time.monotonic() + 60, results.append)
        before = connection.timer
        assert before is not None
        connection.time_out()
        assert not results
        assert connection.timer is not before, "it has a timer again"
        release.set()
        while not results:
            await asyncio.sleep(0)
        servers.close()
        return results

    assert asyncio.run(scenario()) == [[b"PONG"]]


def test_call_with_an_earlier_deadline_has_a_timer_of_its_own(held: tuple[ServerAddress, threading.Event]) -> None:
    address, _ = held

    async def scenario() -> list[CallResult]:
        servers, results = await pinged(address, 3600)
        assert servers.try_send(address, PING, 100, time.monotonic() + 0.05, results.append)
        while not results:
            await asyncio.sleep(0)
        servers.close()
        return results

    (result,) = asyncio.run(scenario())
    assert isinstance(result, CallFailure)


def test_blocked_loop_leaves_a_call_its_time(hung: ServerAddress) -> None:
    """The deadline passes while the loop does not run: the call gets as much time again, and then it has failed."""

    async def scenario() -> tuple[float, CallResult]:
        loop = asyncio.get_running_loop()
        servers = AsyncClient(loop, RedisSettings(), 4, Breakers().__getitem__)
        servers.lag.start()
        finished: asyncio.Future[CallResult] = loop.create_future()

        def ping() -> Exchange[CallResult]:
            (result,) = yield [Call(hung, PING, 1)]
            return result

        servers.run(ping(), time.monotonic() + 0.2, finished.set_result)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        time.sleep(0.3)
        unblocked = time.monotonic()
        result = await asyncio.wait_for(finished, 10)
        servers.close()
        return time.monotonic() - unblocked, result

    waited, result = asyncio.run(scenario())
    assert isinstance(result, CallFailure)
    assert waited > 0.1
