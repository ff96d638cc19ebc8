# mypyc: compile
"""One socket of an event loop, and the idle ones of a server: see async_client.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast, final

from crestgate.runtime.loop_lag import LoopLag
from crestgate.runtime.poll import POLLIN, create_poll
from crestgate.stores.breaker import Breaker
from crestgate.stores.redis.protocol import CallFailure, CallResult
from crestgate.stores.redis.reply import NOT_REDIS, ProtocolError, ReplyReader
from crestgate.stores.redis.sync_client import ALIVE_SECONDS, describe_connection_error

__all__ = ["LOOK_SECONDS", "AsyncConnection", "AsyncPool", "OnResult"]

LOOK_SECONDS = 0.001
"""Seconds until a reply that has arrived is read: in the next iteration of the loop."""
NO_DEADLINE = float("inf")
"""Of a call whose exchange has a timer."""
OnResult = Callable[[CallResult], None]


@final
class AsyncConnection:
    """One socket of an event loop. `on_result` is called once for each call, with its replies or its failure.

    It is an `asyncio.Protocol` by its methods; a compiled class cannot inherit from that one.
    """

    def __init__(self, lag: LoopLag) -> None:
        self.reader = ReplyReader()
        self.lag = lag
        self.lag_at_send = self.sent_at = 0.0
        self.looked = False
        self.transport: asyncio.Transport | None = None
        self.on_result: OnResult | None = None
        self.replies = self.max_bytes = self.max_elements = 0
        self.pool: AsyncPool | None = None  # none until the handshake is done
        self.breaker: Breaker | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0
        self.deadline = NO_DEADLINE
        self.time_limit = 0.0
        self.released_at = 0.0
        self.lost = False
        self.reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # other loops have transport classes of their own

    def send(self, commands: bytes, replies: int, max_bytes: int, max_elements: int, on_result: OnResult) -> None:
        if self.lost:  # since it was opened
            if self.breaker is not None:
                self.breaker.failed(time.monotonic(), self.reason)
            on_result(CallFailure(self.reason, False))
            return
        self.replies, self.max_bytes, self.max_elements = replies, max_bytes, max_elements
        self.on_result = on_result
        self.deadline = NO_DEADLINE
        self.sent_at, self.lag_at_send, self.looked = time.monotonic(), self.lag.unscheduled, False
        assert self.transport is not None
        self.transport.write(commands)

    def data_received(self, data: bytes) -> None:
        on_result = self.on_result
        if on_result is None:  # unsolicited: what comes next could be taken for a reply
            self.fail(NOT_REDIS)
            return
        reader = self.reader
        try:
            complete = reader.feed(data, self.replies, self.max_bytes, self.max_elements)
        except ProtocolError as error:
            self.fail(describe_connection_error(error))
            return
        if complete:
            self.on_result = None
            if self.breaker is not None and self.breaker.failures:
                self.breaker.succeeded()
            pool = self.pool
            if pool is not None:  # AsyncPool.add, inlined
                if len(pool.idle) < pool.size and not pool.closed and not self.lost:
                    self.released_at = time.monotonic()
                    pool.idle.append(self)
                else:
                    self.drop()
            on_result(reader.replies)

    def eof_received(self) -> bool:
        """The server has closed its side: the transport closes this one."""
        return False

    def pause_writing(self) -> None:
        """There is one call at a time, so nothing more is written."""

    def resume_writing(self) -> None:
        """As above."""

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(describe_connection_error(error if isinstance(error, OSError) else EOFError()))

    def start_timer(self, loop: asyncio.AbstractEventLoop, now: float, deadline: float) -> None:
        """The timer of the last call is not cancelled when its reply comes, but put off when it fires: most calls end
        long before their deadline, and a timer for each of them would cost more than the rest of it."""
        self.deadline = deadline
        if self.timer is not None:
            if self.timer_at <= deadline:
                return
            self.timer.cancel()
        self.timer_at = deadline
        self.timer = loop.call_later(max(deadline - now, 0.0), self.time_out)

    def time_out(self) -> None:
        """Perhaps the deadline of a call that has one."""
        self.timer = None
        if self.on_result is None or self.deadline == NO_DEADLINE:
            return
        seconds = self.deadline - time.monotonic()
        if seconds <= 0.0:
            seconds = self.more_time()
        if seconds > 0.0:
            self.timer_at = time.monotonic() + seconds
            self.timer = self.lag.call_later(seconds, self.time_out)
        else:
            self.fail(describe_connection_error(TimeoutError(), self.time_limit), timed_out=True)

    def more_time(self) -> float:
        """The seconds that a call may still take at its deadline, because the loop did not run, or the reply is there
        and was not read yet."""
        lag = self.lag
        lag.now()
        missed = lag.unscheduled - self.lag_at_send
        if missed > 0.0:
            self.lag_at_send = lag.unscheduled
            return missed
        if not self.looked and not self.lost and self.readable():
            self.looked = True
            return LOOK_SECONDS
        return 0.0

    def fail(self, reason: str, timed_out: bool = False, patient: bool = True) -> None:
        if not self.lost:
            self.reason = reason
        self.drop()
        on_result, self.on_result = self.on_result, None
        if on_result is not None:
            if self.breaker is not None and patient:
                self.breaker.failed(time.monotonic(), reason, self.sent_at if timed_out else None)
            on_result(CallFailure(reason, True))

    def drop(self) -> None:
        self.lost = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.transport is not None:
            self.transport.abort()

    def alive(self) -> bool:
        """Whether the server has not closed it. A loop that was blocked does not know yet: so ask the socket."""
        if self.lost or self.transport is None:
            return False
        if time.monotonic() - self.released_at < ALIVE_SECONDS:
            return True
        return not self.readable()

    def readable(self) -> bool:
        assert self.transport is not None
        poll = create_poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), POLLIN)
        return bool(poll.poll(0))


@final
class AsyncPool:
    """The idle connections of one server."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.idle: list[AsyncConnection] = []
        self.closed = False

    def add(self, connection: AsyncConnection) -> None:
        if len(self.idle) < self.size and not self.closed and not connection.lost:
            connection.released_at = time.monotonic()
            self.idle.append(connection)
        else:
            connection.drop()

    def close_idle(self) -> None:
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.drop()
