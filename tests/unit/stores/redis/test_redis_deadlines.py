"""One server that hangs: nobody waits for ever because of it, and the others' answers count."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headgate.stores.breaker import Breaker
from headgate.stores.redis.blocking import BlockingServers
from headgate.stores.redis.nonblocking import LoopServers
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.talk import Address, Answer, Call, Lost, Talk, pack

PING = pack(("PING",))


@pytest.fixture
def hung() -> Iterator[Address]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address("127.0.0.1", listener.getsockname()[1])


@pytest.fixture
def prompt() -> Iterator[Address]:
    """A server that answers every command at once."""
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
    yield Address("127.0.0.1", listener.getsockname()[1])
    listener.close()


class Breakers(dict[Address, Breaker]):
    def __missing__(self, address: Address) -> Breaker:
        return self.setdefault(address, Breaker())


def test_an_answer_that_is_there_counts_when_another_server_used_up_the_time(hung: Address, prompt: Address) -> None:
    breakers = Breakers()
    servers = BlockingServers(Settings(), 4, breakers.__getitem__)
    for _ in range(3):
        calls = [Call(hung, PING, 1), Call(prompt, PING, 1)]
        silent, heard = servers.exchange(calls, time.monotonic() + 0.1)
        assert isinstance(silent, Lost)
        assert heard == [b"PONG"]
    assert breakers[hung].state(time.monotonic()) == "open"
    assert breakers[prompt].state(time.monotonic()) == "closed"
    servers.close()


def test_a_connection_given_up_before_it_was_begun_is_heard_of(prompt: Address) -> None:
    """A loop that was held up finds the first answer and the end of the time in the same turn."""

    def talk() -> Talk[list[Answer]]:
        yield [Call(prompt, PING, 1)]
        time.sleep(0.2)  # whatever holds up the loop
        return (yield [Call(Address(prompt.host, prompt.port, sentinel=True), PING, 1)])  # another connection

    async def scenario() -> list[Answer]:
        breakers = Breakers()
        servers = LoopServers(asyncio.get_running_loop(), Settings(), 4, breakers.__getitem__)
        told: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        servers.run(talk(), time.monotonic() + 0.1, told.set_result)  # type: ignore[arg-type]
        answers = await asyncio.wait_for(told, 5)
        servers.close()
        return answers

    (answer,) = asyncio.run(scenario())
    assert isinstance(answer, Lost)
    assert not answer.sent


def test_a_name_with_several_addresses_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    swallowing = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))] * 5

    class Slow(socket.socket):
        def connect(self, address: object) -> None:
            time.sleep(self.gettimeout() or 0)
            raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: swallowing)
    monkeypatch.setattr(socket, "socket", Slow)
    servers = BlockingServers(Settings(), 4, Breakers().__getitem__)
    started = time.monotonic()
    answer = servers.ask(Call(Address("several", 6379), PING, 1), started + 0.2)
    assert isinstance(answer, Lost)
    assert time.monotonic() - started < 0.6
