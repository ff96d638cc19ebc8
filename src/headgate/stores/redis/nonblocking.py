"""Talking to Redis on an event loop: callbacks from the socket to the waiting batch, without tasks in between.

Each connection carries one call at a time, so that one that hangs holds up nobody else: when its time is over it is
dropped, and with it only its own call.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast, final

from headgate.errors import StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.redis.blocking import JUST_NOW, MAX_SERVERS, problem_of
from headgate.stores.redis.reply import NOT_REDIS, ProtocolError, ReplyReader
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.talk import NO_TIME, SHORT_REPLY_BYTES, Address, Answer, Call, Lost, Talk

__all__ = ["LoopServers"]

T = TypeVar("T")


@final
class LoopConnection(asyncio.Protocol):
    """One socket of an event loop. `heard` is called when all answers to a call are there, or never will be."""

    def __init__(self) -> None:
        self.reader = ReplyReader()
        self.transport: asyncio.Transport | None = None
        self.heard: Callable[[Answer], None] | None = None
        self.kept_at = 0.0
        self.lost = False
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # other loops have transports of their own kind

    def ask(
        self, commands: bytes, answers: int, max_bytes: int, max_elements: int, heard: Callable[[Answer], None]
    ) -> None:
        if self.lost:  # since it was made
            heard(Lost(self.problem, False))
            return
        self.reader.expect(answers, max_bytes, max_elements)
        self.heard = heard
        assert self.transport is not None
        self.transport.write(commands)

    def data_received(self, data: bytes) -> None:
        heard = self.heard
        if heard is None:  # nobody asked: what comes next could be taken for an answer
            self.fail(NOT_REDIS)
            return
        reader = self.reader
        try:
            complete = reader.feed(data)
        except ProtocolError as error:
            self.fail(problem_of(error))
            return
        if complete:
            self.heard = None
            heard(reader.replies)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(problem_of(error if isinstance(error, OSError) else EOFError()))

    def fail(self, problem: str) -> None:
        if not self.lost:
            self.problem = problem
        self.drop()
        heard, self.heard = self.heard, None
        if heard is not None:
            heard(Lost(problem, True))

    def drop(self) -> None:
        self.lost = True
        if self.transport is not None:
            self.transport.abort()

    def alive(self) -> bool:
        """Whether the other side has not hung up. A loop that was held up has not heard of it: so ask the socket."""
        if self.lost or self.transport is None:
            return False
        if time.monotonic() - self.kept_at < JUST_NOW:
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)


@final
class LoopServers:
    """Connections by server for one event loop; `breakers` are shared with the threads of this process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        pool_size: int,
        breaker_of: Callable[[Address], Breaker],
    ) -> None:
        self.loop = loop
        self.settings = settings
        self.pool_size = pool_size
        self.breaker_of = breaker_of
        self.idle: dict[Address, list[LoopConnection]] = {}
        self.connecting: set[asyncio.Task[None]] = set()
        self.closed = False

    def run(self, talk: Talk[T], deadline: float, done: Callable[[T | StoreError], None]) -> None:
        """Carry on a conversation; `done` is called once, when it is over or its time is."""
        _Conversation(self, talk, deadline, done).go_on(None)

    def take(self, address: Address) -> LoopConnection | None:
        """An idle connection, if one lives."""
        idle = self.idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.alive():
                return connection
            connection.drop()
        return None

    def keep(self, address: Address, connection: LoopConnection) -> None:
        if len(self.idle) >= MAX_SERVERS and address not in self.idle:
            self.close_idle()
        idle = self.idle.setdefault(address, [])
        if len(idle) < self.pool_size and not self.closed and not connection.lost:
            connection.kept_at = time.monotonic()
            idle.append(connection)
        else:
            connection.drop()

    async def open(self, address: Address) -> LoopConnection:
        """A new connection, greeted. OSError, EOFError or StoreError when that cannot be had."""
        if address.path is not None:
            _, connection = await self.loop.create_unix_connection(LoopConnection, address.path)
        else:
            tls = self.settings.tls
            name = address.host if tls is not None else None
            _, connection = await self.loop.create_connection(
                LoopConnection, address.host, address.port, ssl=tls, server_hostname=name
            )
        greeting = self.settings.greeting(address)
        if greeting:
            answered: asyncio.Future[Answer] = self.loop.create_future()

            def heard(answer: Answer) -> None:
                if not answered.done():
                    answered.set_result(answer)

            try:
                connection.ask(b"".join(greeting), len(greeting), SHORT_REPLY_BYTES, 0, heard)
                answer = await answered
            except BaseException:
                connection.drop()
                raise
            if isinstance(answer, Lost):
                raise ConnectionError(answer.problem)
            for reply in answer:
                if isinstance(reply, Exception):
                    connection.drop()
                    raise StoreError(str(reply))
        return connection

    def close(self) -> None:
        self.closed = True
        for task in self.connecting:
            task.cancel()
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the next calls open new ones."""
        idle, self.idle = self.idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.drop()


@final
class _Conversation(Generic[T]):
    """One talk under way on the loop."""

    def __init__(
        self, servers: LoopServers, talk: Talk[T], deadline: float, done: Callable[[T | StoreError], None]
    ) -> None:
        self.servers = servers
        self.talk = talk
        self.done = done
        self.started = time.monotonic()
        self.deadline = deadline
        self.calls: list[Call] = []
        self.answers: list[Answer | None] = []
        self.missing = 0
        self.using: dict[int, LoopConnection] = {}
        self.opening: dict[int, asyncio.Task[None]] = {}
        self.late = False
        self.round = 0
        self.timer = servers.loop.call_later(max(deadline - self.started, 0.0), self.time_is_up)

    def go_on(self, answers: list[Answer] | None) -> None:
        """Hear what the talk says next and pass it on, until there is something to wait for."""
        while True:
            try:
                self.calls = next(self.talk) if answers is None else self.talk.send(answers)
            except StopIteration as over:
                self.end(over.value)
                return
            except StoreError as error:
                self.end(error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
                self.end(StoreError(f"what Redis answered cannot be read: {error!r}"))
                return
            self.round += 1
            self.answers = [None] * len(self.calls)
            self.missing = 1 + len(self.calls)  # one more while they are being sent
            for number, call in enumerate(self.calls):
                self.send(number, call)
            self.missing -= 1
            if self.missing:
                return
            answers = self.all_answers()

    def send(self, number: int, call: Call) -> None:
        if self.late:
            self.heard(number, Lost(NO_TIME, False))
            return
        breaker = self.servers.breaker_of(call.address)
        if not breaker.admits(time.monotonic()):
            self.heard(number, Lost(breaker.refusal(), False))
            return
        if call.share < 1.0:
            left = max(self.deadline - time.monotonic(), 0.0)
            self.servers.loop.call_later(left * call.share, self.too_slow, self.round, number)
        connection = self.servers.take(call.address)
        if connection is not None:
            self.ask(number, call, connection)
            return
        task = self.servers.loop.create_task(self.open(self.round, number, call))
        task.add_done_callback(partial(self.opened, self.round, number, call))
        self.opening[number] = task
        self.servers.connecting.add(task)
        task.add_done_callback(self.servers.connecting.discard)

    def opened(self, asked_in: int, number: int, call: Call, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never runs: whoever waits must hear of it all the same."""
        if task.cancelled() and asked_in == self.round and self.answers[number] is None:
            problem = problem_of(TimeoutError(), self.deadline - self.started)
            self.servers.breaker_of(call.address).failed(time.monotonic(), problem)
            self.heard(number, Lost(problem, False))

    async def open(self, asked_in: int, number: int, call: Call) -> None:
        breaker = self.servers.breaker_of(call.address)
        try:
            connection = await self.servers.open(call.address)
        except StoreError as error:  # it answered, and does not want us
            breaker.succeeded()
            self.heard(number, Lost(str(error), False))
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            breaker.failed(time.monotonic(), problem_of(error))
            self.heard(number, Lost(problem_of(error), False))
        else:
            if self.late or asked_in != self.round:
                self.servers.keep(call.address, connection)
            else:
                self.ask(number, call, connection)

    def ask(self, number: int, call: Call, connection: LoopConnection) -> None:
        self.using[number] = connection

        def heard(answer: Answer) -> None:
            self.using.pop(number, None)
            breaker = self.servers.breaker_of(call.address)
            if isinstance(answer, Lost):
                breaker.failed(time.monotonic(), answer.problem)
            else:
                breaker.succeeded()
                self.servers.keep(call.address, connection)
            self.heard(number, answer)

        connection.ask(call.commands, call.answers, call.max_bytes, call.max_elements, heard)

    def heard(self, number: int, answer: Answer) -> None:
        if self.answers[number] is None:
            self.answers[number] = answer
            self.missing -= 1
            if self.missing == 0:
                self.go_on(self.all_answers())

    def all_answers(self) -> list[Answer]:
        return [answer for answer in self.answers if answer is not None]

    def too_slow(self, asked_in: int, number: int) -> None:
        """One server has used up its share of the time."""
        if asked_in != self.round or self.answers[number] is not None:
            return
        if number in self.using:
            self.using[number].fail(problem_of(TimeoutError()))
        elif number in self.opening:
            self.opening[number].cancel()

    def time_is_up(self) -> None:
        """Whatever is still missing is lost, and so is its connection."""
        self.late = True
        problem = problem_of(TimeoutError(), self.deadline - self.started)
        for connection in tuple(self.using.values()):
            connection.fail(problem)
        for task in tuple(self.opening.values()):
            task.cancel()

    def end(self, result: Any) -> None:
        self.timer.cancel()
        self.done(result)
