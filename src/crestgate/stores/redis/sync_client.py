# mypyc: compile
"""Redis client of threads: plain sockets, each used by one thread at a time.

redis-py is not used here: it takes longer per call than the script does, and cannot hold one deadline for connecting,
sending and every part of a reply.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, final

from crestgate.errors import StoreError
from crestgate.runtime.fork_safety import Renewal
from crestgate.runtime.sockets import connect
from crestgate.stores.breaker import Breaker
from crestgate.stores.redis.protocol import (
    NO_TIME,
    SHORT_REPLY_BYTES,
    Call,
    CallFailure,
    CallResult,
    Exchange,
    ServerAddress,
)
from crestgate.stores.redis.reply import ProtocolError, ReplyReader
from crestgate.stores.redis.settings import RedisSettings

__all__ = ["ALIVE_SECONDS", "MAX_SERVERS", "SyncClient", "describe_connection_error"]

T = TypeVar("T")
ALIVE_SECONDS = 0.01
"""Seconds after its last use for which a connection is assumed to be alive: no server restarts faster."""
MAX_EXTENSION = 0.25
"""Seconds that a call may wait after its deadline, for time in which its thread was not scheduled."""
MAX_SERVERS = 1024
"""Servers with pooled connections: the addresses that a cluster names in turn must not use up all descriptors."""
_TIMEVAL = struct.Struct("@ll")
_KERNEL_TIMEOUTS = hasattr(socket, "MSG_DONTWAIT")
"""Whether the kernel's timeouts can be used: not on Windows, where they have another form."""


def describe_connection_error(error: Exception, seconds: float | None = None) -> str:
    """The reason of a failed connection, for messages."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time" if seconds is None else f"it did not answer within {seconds * 1000:.0f} ms"
    if isinstance(error, ConnectionRefusedError):
        return "it refuses connections; is it running?"
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection could be made ({getattr(error, 'verify_message', '') or error.reason or error})"
    return str(error) or type(error).__name__


@final
class SyncConnection:
    """One socket after its handshake. Close it after any exception."""

    def __init__(self, address: ServerAddress, settings: RedisSettings, deadline: float) -> None:
        self.reader = ReplyReader()
        self.own_timeouts = settings.tls is not None or not _KERNEL_TIMEOUTS
        self.kernel_timeout = 0.0
        self.used_at = 0.0
        self.extended = False
        """Whether the last replies were waited for beyond the deadline."""
        self.socket = open_socket(address, deadline)
        try:
            if settings.tls is not None:
                self.socket.settimeout(time_left(deadline))
                self.socket = settings.tls.wrap_socket(self.socket, server_hostname=address.host)
            else:
                self.socket.settimeout(None)
            handshake = settings.handshake(address)
            if handshake:
                self.send(b"".join(handshake), deadline)
                for reply in self.receive(len(handshake), SHORT_REPLY_BYTES, 0, deadline):
                    if isinstance(reply, Exception):
                        raise StoreError(str(reply))
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes, deadline: float) -> None:
        self.set_timeout(time_left(deadline))
        try:
            self.socket.sendall(data)
        except BlockingIOError:
            raise TimeoutError from None

    def set_timeout(self, seconds: float) -> None:
        """Limit the next socket operation.

        A plain socket blocks, and the kernel ends the wait: that is one system call for each operation where Python's
        own timeout needs three. The kernel's timeout is set again only if it differs by a twentieth.
        """
        if self.own_timeouts:
            self.socket.settimeout(seconds)
        elif not seconds * 0.95 <= self.kernel_timeout <= seconds * 1.05:
            self.kernel_timeout = seconds
            value = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000) or 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def receive(
        self,
        replies: int,
        max_bytes: int,
        max_elements: int,
        deadline: float,
        lost: float = 0.0,
        may_extend: bool = True,
    ) -> list[object]:
        """The replies, by the deadline. `lost` are seconds before it in which this thread was not scheduled.

        A thread that wakes after the deadline was not scheduled in time either. It looks once more for a reply that
        has come meanwhile, and waits for the seconds that were lost, once; unless it may not, because it has already
        waited so for another server.
        """
        reader = self.reader
        self.extended = False
        while True:
            try:
                remaining_seconds = deadline - time.monotonic()
                if remaining_seconds > 0:
                    self.set_timeout(remaining_seconds)
                    data = self.socket.recv(65536)
                elif self.own_timeouts:  # past the deadline, only what has been received already
                    self.socket.settimeout(0.0)
                    data = self.socket.recv(65536)
                else:
                    data = self.socket.recv(65536, socket.MSG_DONTWAIT)
            except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
                if self.extended or not may_extend:
                    raise TimeoutError from None
                self.extended = True
                now = time.monotonic()
                deadline = now + min(max(now - deadline, 0.0) + lost, MAX_EXTENSION)
                continue
            if not data:
                raise EOFError
            if reader.feed(data, replies, max_bytes, max_elements):
                return reader.replies

    def alive(self) -> bool:
        """Whether the server has neither closed it nor sent anything unsolicited. Not checked if it was just used."""
        if time.monotonic() - self.used_at < ALIVE_SECONDS:
            return True
        try:
            if self.own_timeouts:
                self.socket.settimeout(0.0)
                self.socket.recv(1)
            else:
                self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self.socket.close()


def open_socket(address: ServerAddress, deadline: float) -> socket.socket:
    remaining_seconds = time_left(deadline)
    if address.path is None:
        return connect(address.host, address.port, deadline)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(remaining_seconds)
        opened.connect(address.path)
    except OSError:
        opened.close()
        raise
    return opened


def time_left(deadline: float) -> float:
    remaining_seconds = deadline - time.monotonic()
    if remaining_seconds <= 0:
        raise TimeoutError
    return remaining_seconds


@final
class SyncClient:
    """Connection pools by server; breakers are shared with the event loops of this process."""

    def __init__(
        self,
        settings: RedisSettings,
        pool_size: int,
        breaker_of: Callable[[ServerAddress], Breaker],
        patience: float = 0.0,
    ) -> None:
        self.settings = settings
        self.pool_size = pool_size
        self.patience = patience
        """Seconds that a server must have had to answer, or that it did not says nothing about it."""
        self.breaker_of = breaker_of
        self.idle: dict[ServerAddress, list[SyncConnection]] = {}
        self.closed = False
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: the connections are the parent's."""
        self.idle = {}

    def run(self, exchange: Exchange[T], deadline: float) -> T:
        """Run an exchange to its end."""
        try:
            calls = next(exchange)
            while True:
                calls = exchange.send(self.call_all(calls, deadline))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a reply that is not valid
            raise StoreError(f"cannot parse the Redis reply: {error!r}") from None

    def call(self, call: Call, deadline: float) -> CallResult:
        """One call to one server."""
        started = time.monotonic()
        deadline = started + (deadline - started) * call.share
        breaker = self.breaker_of(call.address)
        sent = self.send(call, breaker, deadline, started)
        return sent if isinstance(sent, CallFailure) else self.receive(call, breaker, sent, deadline, started)

    def call_all(self, calls: Sequence[Call], deadline: float) -> list[CallResult]:
        """Send to all, then receive from all: the servers work concurrently."""
        if len(calls) == 1:
            return [self.call(calls[0], deadline)]
        started = time.monotonic()
        breakers = [self.breaker_of(call.address) for call in calls]
        sent: list[SyncConnection | CallFailure] = []
        lost: list[float] = []
        for call, breaker in zip(calls, breakers, strict=True):
            before = time.monotonic()
            sent.append(self.send(call, breaker, deadline, started))
            lost.append(time.monotonic() - before)
        results: list[CallResult] = []
        may_extend = True
        for call, breaker, one, seconds in zip(calls, breakers, sent, lost, strict=True):
            if isinstance(one, CallFailure):
                results.append(one)
                continue
            # The wait for one server is no lost time of the next, which could answer meanwhile.
            elsewhere = time.monotonic() - started - seconds
            results.append(self.receive(call, breaker, one, deadline, started, elsewhere, may_extend))
            may_extend = may_extend and not one.extended
        return results

    def send(self, call: Call, breaker: Breaker, deadline: float, started: float) -> SyncConnection | CallFailure:
        if deadline <= started:
            return CallFailure(NO_TIME, False)
        if breaker.failures and not breaker.admits(started):
            return CallFailure(breaker.refusal(), False)
        try:
            connection = self.connection(call.address, deadline)
        except StoreError as error:  # the server answered, and refused the handshake
            breaker.succeeded()
            return CallFailure(str(error), False)
        except (OSError, EOFError, UnicodeError, ProtocolError) as error:  # UnicodeError: not a valid host name
            return self.fail(call, breaker, error, deadline, started, False)
        try:
            connection.send(call.commands, deadline)
        except OSError as error:
            connection.close()
            return self.fail(call, breaker, error, deadline, started, True)
        return connection

    def receive(
        self,
        call: Call,
        breaker: Breaker,
        connection: SyncConnection,
        deadline: float,
        started: float,
        elsewhere: float = 0.0,
        may_extend: bool = True,
    ) -> CallResult:
        """The replies to a call. `elsewhere` are the seconds since `started` that other servers took."""
        now = time.monotonic()
        waited = deadline > now  # or another server has used up the time
        lost = 0.0
        if connection.used_at and waited:  # to send over an open connection takes no time
            lost = max(now - started - elsewhere, 0.0)
        try:
            replies = connection.receive(call.replies, call.max_bytes, call.max_elements, deadline, lost, may_extend)
        except (OSError, EOFError, ProtocolError) as error:
            connection.close()
            if waited:
                return self.fail(call, breaker, error, deadline, started, True)
            return CallFailure(describe_connection_error(error, deadline - started), True)
        except BaseException:
            connection.close()
            raise
        if breaker.failures:
            breaker.succeeded()
        connection.used_at = started
        self.release(call.address, connection)
        return replies

    def fail(
        self, call: Call, breaker: Breaker, error: Exception, deadline: float, started: float, sent: bool
    ) -> CallFailure:
        reason = describe_connection_error(error, deadline - started)
        if not isinstance(error, TimeoutError):
            breaker.failed(time.monotonic(), reason)
        elif deadline - started >= self.patience * call.share:
            breaker.failed(time.monotonic(), reason, started)
        return CallFailure(reason, sent)

    def connection(self, address: ServerAddress, deadline: float) -> SyncConnection:
        """An idle connection that is alive, or a new one."""
        idle = self.idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.alive():
                return connection
            connection.close()
        return SyncConnection(address, self.settings, deadline)

    def release(self, address: ServerAddress, connection: SyncConnection) -> None:
        idle = self.idle.get(address)
        if idle is None:
            if len(self.idle) >= MAX_SERVERS:
                self.close_idle()
            idle = self.idle.setdefault(address, [])
        if len(idle) < self.pool_size and not self.closed:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        self.closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the next calls open new ones."""
        idle, self.idle = self.idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()
