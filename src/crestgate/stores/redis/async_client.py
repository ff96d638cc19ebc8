# mypyc: compile
"""Redis client of an event loop: callbacks from the socket to the waiting batch, without tasks in between.

A connection carries one call at a time, so that a server that hangs delays no other call: at its deadline the
connection is dropped, and with it only its own call. A loop that did not run for a while (loop_lag.py) leaves its calls
as much time more, and reads a reply that has arrived before it calls it late.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast, final

from crestgate.errors import StoreError
from crestgate.runtime.loop_lag import lag_of
from crestgate.runtime.name_lookup import resolve_async
from crestgate.stores.breaker import Breaker
from crestgate.stores.redis.async_connection import LOOK_SECONDS, AsyncConnection, AsyncPool, OnResult
from crestgate.stores.redis.protocol import (
    NO_TIME,
    SHORT_REPLY_BYTES,
    Call,
    CallFailure,
    CallResult,
    Exchange,
    ServerAddress,
)
from crestgate.stores.redis.settings import RedisSettings
from crestgate.stores.redis.sync_client import ALIVE_SECONDS, MAX_SERVERS, describe_connection_error

__all__ = ["AsyncClient"]

T = TypeVar("T")


@final
class AsyncClient:
    """Connection pools by server for one event loop; breakers are shared with the threads of this process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: RedisSettings,
        pool_size: int,
        breaker_of: Callable[[ServerAddress], Breaker],
        patience: float = 0.0,
    ) -> None:
        self.patience = patience
        """Seconds that a server must have had to answer, or that it did not says nothing about it."""
        self.loop = loop
        self.settings = settings
        self.pool_size = pool_size
        self.breaker_of = breaker_of
        self.lag = lag_of(loop)
        self.pools: dict[ServerAddress, AsyncPool] = {}
        self.connecting: set[asyncio.Task[None]] = set()
        self.closed = False

    def run(self, exchange: Exchange[T], deadline: float, done: Callable[[T | StoreError], None]) -> None:
        """Run an exchange; `done` is called once, by the deadline."""
        _RunningExchange(self, exchange, deadline, done).advance(None)

    def try_send(
        self, address: ServerAddress, command: bytes, max_bytes: int, deadline: float, on_result: OnResult
    ) -> bool:
        """Send one command over an idle connection: the common case, without an exchange. False, and nothing is sent,
        if there is none, or if the server failed last time."""
        pool = self.pools.get(address)
        if pool is None or not pool.idle:
            return False
        connection = pool.idle[-1]
        now = time.monotonic()
        if (
            connection.lost
            or connection.breaker is None
            or connection.breaker.failures
            or (now - connection.released_at >= ALIVE_SECONDS and not connection.alive())
        ):
            return False
        pool.idle.pop()
        connection.replies, connection.max_bytes, connection.max_elements = 1, max_bytes, 0
        connection.on_result = on_result
        connection.sent_at, connection.lag_at_send, connection.looked = now, self.lag.unscheduled, False
        connection.time_limit = max(deadline - now, 0.0)
        connection.start_timer(self.loop, now, deadline)
        assert connection.transport is not None
        connection.transport.write(command)
        return True

    def take(self, address: ServerAddress) -> AsyncConnection | None:
        """An idle connection that is alive, if there is one."""
        pool = self.pools.get(address)
        while pool is not None and pool.idle:
            connection = pool.idle.pop()
            if connection.alive():
                return connection
            connection.drop()
        return None

    def pool(self, address: ServerAddress) -> AsyncPool:
        pool = self.pools.get(address)
        if pool is None:
            if len(self.pools) >= MAX_SERVERS:
                self.close_pools()
            pool = self.pools[address] = AsyncPool(self.pool_size)
            pool.closed = self.closed
        return pool

    async def open_socket(self, address: ServerAddress, deadline: float) -> socket.socket:
        """A socket to the first address of a host that accepts; each has its share of the time."""
        problem: OSError = OSError("the name has no address")
        addresses = await resolve_async(address.host, address.port, deadline)
        for number, (family, kind, protocol, _, target) in enumerate(addresses):
            others = len(addresses) - number - 1
            share = max((deadline - time.monotonic()) / (others + 1), 0.001)
            try:
                opened = socket.socket(family, kind, protocol)
            except OSError as error:  # an address family that this machine does not support
                problem = error
                continue
            try:
                opened.setblocking(False)
                connecting = self.loop.sock_connect(opened, target)
                await (asyncio.wait_for(connecting, share) if others else connecting)  # the exchange ends the last one
            except OSError as error:
                opened.close()
                problem = error
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise problem

    async def open(self, address: ServerAddress, deadline: float) -> AsyncConnection:
        """A new connection after its handshake. OSError, EOFError or StoreError if that fails."""
        create_protocol = cast("Callable[[], asyncio.Protocol]", partial(AsyncConnection, self.lag))
        if address.path is not None:
            _, protocol = await self.loop.create_unix_connection(create_protocol, address.path)
        else:
            tls = self.settings.tls
            name = address.host if tls is not None else None
            opened = await self.open_socket(address, deadline)
            try:
                _, protocol = await self.loop.create_connection(
                    create_protocol, sock=opened, ssl=tls, server_hostname=name
                )
            except BaseException:
                opened.close()
                raise
        connection = cast(AsyncConnection, protocol)
        handshake = self.settings.handshake(address)
        if handshake:
            finished: asyncio.Future[CallResult] = self.loop.create_future()

            def on_result(result: CallResult) -> None:
                if not finished.done():
                    finished.set_result(result)

            try:
                connection.send(b"".join(handshake), len(handshake), SHORT_REPLY_BYTES, 0, on_result)
                result = await finished
            except BaseException:
                connection.drop()
                raise
            if isinstance(result, CallFailure):
                raise ConnectionError(result.reason)
            for reply in result:
                if isinstance(reply, Exception):
                    connection.drop()
                    raise StoreError(str(reply))
        connection.pool = self.pool(address)
        return connection

    def close(self) -> None:
        self.closed = True
        for task in self.connecting:
            task.cancel()
        self.close_pools()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the next calls open new ones."""
        for pool in self.pools.values():
            pool.close_idle()

    def close_pools(self) -> None:
        for pool in self.pools.values():
            pool.closed = True  # for the connections in use
            pool.close_idle()
        self.pools.clear()


@final
class _RunningExchange(Generic[T]):
    """One exchange on the loop."""

    def __init__(
        self, client: AsyncClient, exchange: Exchange[T], deadline: float, done: Callable[[T | StoreError], None]
    ) -> None:
        self.client = client
        self.exchange = exchange
        self.done = done
        self.started = time.monotonic()
        self.deadline = deadline
        self.calls: list[Call] = []
        self.results: list[CallResult | None] = []
        self.missing = 0
        self.sending: dict[int, AsyncConnection] = {}
        self.opening: dict[int, asyncio.Task[None]] = {}
        self.expired = False
        self.looked = False
        self.round = 0
        self.lag_at_start = client.lag.unscheduled
        self.patient = deadline - self.started >= client.patience
        self.timer = client.loop.call_later(max(deadline - self.started, 0.0), self.expire)

    def advance(self, results: list[CallResult] | None) -> None:
        """Resume the exchange and send its calls, until there is a result to wait for."""
        while True:
            try:
                self.calls = next(self.exchange) if results is None else self.exchange.send(results)
            except StopIteration as finished:
                self.finish(finished.value)
                return
            except StoreError as error:
                self.finish(error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller must get it
                self.finish(StoreError(f"cannot parse the Redis reply: {error!r}"))
                return
            self.round += 1
            self.results = [None] * len(self.calls)
            self.missing = 1 + len(self.calls)  # one more while they are being sent
            for number, call in enumerate(self.calls):
                self.start(number, call)
            self.missing -= 1
            if self.missing:
                return
            results = [result for result in self.results if result is not None]

    def start(self, number: int, call: Call) -> None:
        """Send a call over an idle connection, or open one for it."""
        if self.expired:
            self.set_result(number, CallFailure(NO_TIME, False))
            return
        breaker = self.client.breaker_of(call.address)
        if not breaker.admits(time.monotonic()):
            self.set_result(number, CallFailure(breaker.refusal(), False))
            return
        if call.share < 1.0:
            remaining_seconds = max(self.deadline - time.monotonic(), 0.0)
            self.client.loop.call_later(remaining_seconds * call.share, self.expire_call, self.round, number)
        connection = self.client.take(call.address)
        if connection is not None:
            self.send(number, call, connection, breaker)
            return
        task = self.client.loop.create_task(self.open_and_send(self.round, number, call))
        task.add_done_callback(partial(self.opened, self.round, number, call))
        self.opening[number] = task
        self.client.connecting.add(task)
        task.add_done_callback(self.client.connecting.discard)

    def opened(self, round_number: int, number: int, call: Call, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never runs: its call needs a result all the same."""
        if task.cancelled() and round_number == self.round and self.results[number] is None:
            reason = describe_connection_error(TimeoutError(), self.deadline - self.started)
            if self.patient:
                self.client.breaker_of(call.address).failed(time.monotonic(), reason, self.started)
            self.set_result(number, CallFailure(reason, False))

    async def open_and_send(self, round_number: int, number: int, call: Call) -> None:
        breaker = self.client.breaker_of(call.address)
        try:
            connection = await self.client.open(call.address, self.deadline)
        except StoreError as error:  # the server answered, and refused the handshake
            breaker.succeeded()
            self.set_result(number, CallFailure(str(error), False))
        except Exception as error:  # noqa: BLE001 - whatever it is, the call needs a result
            started = self.started if isinstance(error, TimeoutError) else None
            breaker.failed(time.monotonic(), describe_connection_error(error), started)
            self.set_result(number, CallFailure(describe_connection_error(error), False))
        else:
            if self.expired or round_number != self.round:
                connection.breaker = breaker
                self.client.pool(call.address).add(connection)
            else:
                self.send(number, call, connection, breaker)

    def send(self, number: int, call: Call, connection: AsyncConnection, breaker: Breaker) -> None:
        self.sending[number] = connection
        connection.breaker = breaker
        on_result = partial(self.set_result, number)
        connection.send(call.commands, call.replies, call.max_bytes, call.max_elements, on_result)

    def set_result(self, number: int, result: CallResult) -> None:
        self.sending.pop(number, None)
        if self.results[number] is None:
            self.results[number] = result
            self.missing -= 1
            if self.missing == 0:
                self.advance([result for result in self.results if result is not None])

    def expire_call(self, round_number: int, number: int) -> None:
        """One server has used up its share of the time."""
        if round_number != self.round or self.results[number] is not None:
            return
        connection = self.sending.get(number)
        if connection is not None:
            seconds = connection.more_time()
            if seconds:
                self.client.loop.call_later(seconds, self.expire_call, round_number, number)
            else:
                connection.fail(describe_connection_error(TimeoutError()), timed_out=True, patient=self.patient)
        elif number in self.opening:
            self.opening[number].cancel()

    def expire(self) -> None:
        """The deadline: calls without a result have failed, and their connections are dropped."""
        seconds = self.more_time()
        if seconds:
            self.timer = self.client.loop.call_later(seconds, self.expire)
            return
        self.expired = True
        reason = describe_connection_error(TimeoutError(), self.deadline - self.started)
        for connection in tuple(self.sending.values()):
            connection.fail(reason, timed_out=True, patient=self.patient)
        for task in tuple(self.opening.values()):
            task.cancel()

    def more_time(self) -> float:
        """As of a connection."""
        lag = self.client.lag
        lag.now()
        missed = lag.unscheduled - self.lag_at_start
        if missed > 0.0:
            self.lag_at_start = lag.unscheduled
            return missed
        if not self.looked and any(not one.lost and one.readable() for one in self.sending.values()):
            self.looked = True
            return LOOK_SECONDS
        return 0.0

    def finish(self, result: Any) -> None:
        self.timer.cancel()
        self.done(result)
