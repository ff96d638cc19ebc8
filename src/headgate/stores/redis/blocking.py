"""Talking to Redis from threads: plain sockets, each used by one thread at a time.

redis-py is not used on this path: it adds more to a call than the script takes, and would be hard to hold to one
deadline for connecting, sending and every piece of a reply.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, final

from headgate.errors import StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.forking import Renewal
from headgate.stores.reaching import reached
from headgate.stores.redis.reply import ProtocolError, ReplyReader
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.talk import NO_TIME, SHORT_REPLY_BYTES, Address, Answer, Call, Lost, Talk

__all__ = ["JUST_NOW", "MAX_SERVERS", "BlockingServers", "problem_of"]

T = TypeVar("T")
JUST_NOW = 0.01
"""Seconds after its last use for which a connection is taken to live: no server restarts faster."""
MAX_SERVERS = 1024
"""Servers whose connections are kept: those that a cluster names in turn must not use up all descriptors."""
_TIMEVAL = struct.Struct("@ll")


def problem_of(error: Exception, seconds: float | None = None) -> str:
    """What went wrong with a connection, in words."""
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
class Connection:
    """One socket, greeted. Whatever raises leaves it unusable: close it then."""

    def __init__(self, address: Address, settings: Settings, deadline: float) -> None:
        self.reader = ReplyReader()
        self.tls = settings.tls is not None
        self.patience = 0.0
        self.used_at = 0.0
        self.socket = connected(address, deadline)
        try:
            if settings.tls is not None:
                self.socket.settimeout(time_left(deadline))
                self.socket = settings.tls.wrap_socket(self.socket, server_hostname=address.host)
            else:
                self.socket.settimeout(None)
            greeting = settings.greeting(address)
            if greeting:
                self.send(b"".join(greeting), deadline)
                for answer in self.receive(len(greeting), SHORT_REPLY_BYTES, 0, deadline):
                    if isinstance(answer, Exception):
                        raise StoreError(str(answer))
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes, deadline: float) -> None:
        self.within(deadline)
        try:
            self.socket.sendall(data)
        except BlockingIOError:
            raise TimeoutError from None

    def within(self, deadline: float) -> None:
        """Let the next operation take no longer than until the deadline.

        A plain socket blocks, and the kernel ends the wait: that is one system call for each operation where a
        timeout of Python's would be three. The kernel is told anew only when what it knows is off by a twentieth.
        """
        left = time_left(deadline)
        if self.tls:
            self.socket.settimeout(left)
        elif not left * 0.95 <= self.patience <= left * 1.05:
            self.patience = left
            value = _TIMEVAL.pack(int(left), int(left % 1 * 1_000_000) or 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def receive(self, answers: int, max_bytes: int, max_elements: int, deadline: float) -> list[object]:
        reader = self.reader
        reader.expect(answers, max_bytes, max_elements)
        while True:
            try:
                if deadline > time.monotonic():
                    self.within(deadline)
                    data = self.socket.recv(65536)
                elif self.tls:  # the time is over, but what is there already can be had
                    self.socket.settimeout(0.0)
                    data = self.socket.recv(65536)
                else:
                    data = self.socket.recv(65536, socket.MSG_DONTWAIT)
            except (BlockingIOError, ssl.SSLWantReadError):
                raise TimeoutError from None
            if not data:
                raise EOFError
            if reader.feed(data):
                return reader.replies

    def alive(self) -> bool:
        """Whether the other side has neither hung up nor said anything unasked. (Not asked if just now it had not.)"""
        if time.monotonic() - self.used_at < JUST_NOW:
            return True
        try:
            if self.tls:
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


def connected(address: Address, deadline: float) -> socket.socket:
    left = time_left(deadline)
    if address.path is None:
        return reached(address.host, address.port, deadline)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(left)
        made.connect(address.path)
    except OSError:
        made.close()
        raise
    return made


def time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@final
class BlockingServers:
    """Connections by server, kept for the next call; `breakers` are shared with the event loops of this process."""

    def __init__(self, settings: Settings, pool_size: int, breaker_of: Callable[[Address], Breaker]) -> None:
        self.settings = settings
        self.pool_size = pool_size
        self.breaker_of = breaker_of
        self.idle: dict[Address, list[Connection]] = {}
        self.closed = False
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: the connections are the parent's."""
        self.idle = {}

    def run(self, talk: Talk[T], deadline: float) -> T:
        """Carry on a conversation to its end."""
        try:
            calls = next(talk)
            while True:
                calls = talk.send(self.exchange(calls, deadline))
        except StopIteration as over:
            result: T = over.value
            return result
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - an answer that is none of ours
            raise StoreError(f"what Redis answered cannot be read: {error!r}") from None

    def ask(self, call: Call, deadline: float) -> Answer:
        """One call to one server."""
        started = time.monotonic()
        deadline = started + (deadline - started) * call.share
        sent = self.send(call, deadline, started)
        return sent if isinstance(sent, Lost) else self.receive(call, sent, deadline, started)

    def exchange(self, calls: Sequence[Call], deadline: float) -> list[Answer]:
        """Send to all, then hear all: servers work at the same time."""
        if len(calls) == 1:
            return [self.ask(calls[0], deadline)]
        started = time.monotonic()
        open_calls = [self.send(call, deadline, started) for call in calls]
        return [
            sent if isinstance(sent, Lost) else self.receive(call, sent, deadline, started)
            for call, sent in zip(calls, open_calls, strict=True)
        ]

    def send(self, call: Call, deadline: float, started: float) -> Connection | Lost:
        if deadline <= started:
            return Lost(NO_TIME, False)
        breaker = self.breaker_of(call.address)
        if not breaker.admits(started):
            return Lost(breaker.refusal(), False)
        try:
            connection = self.connection(call.address, deadline)
        except StoreError as error:  # it answered, and does not want us
            breaker.succeeded()
            return Lost(str(error), False)
        except (OSError, EOFError, UnicodeError, ProtocolError) as error:  # Unicode: a name no host has
            return self.lost(breaker, problem_of(error, deadline - started), False)
        try:
            connection.send(call.commands, deadline)
        except OSError as error:
            connection.close()
            return self.lost(breaker, problem_of(error, deadline - started), True)
        return connection

    def receive(self, call: Call, connection: Connection, deadline: float, started: float) -> Answer:
        breaker = self.breaker_of(call.address)
        waited = deadline > time.monotonic()  # or another server has used up the time
        try:
            answers = connection.receive(call.answers, call.max_bytes, call.max_elements, deadline)
        except (OSError, EOFError, ProtocolError) as error:
            connection.close()
            problem = problem_of(error, deadline - started)
            return self.lost(breaker, problem, True) if waited else Lost(problem, True)
        except BaseException:
            connection.close()
            raise
        breaker.succeeded()
        connection.used_at = started
        self.keep(call.address, connection)
        return answers

    def lost(self, breaker: Breaker, problem: str, sent: bool) -> Lost:
        breaker.failed(time.monotonic(), problem)
        return Lost(problem, sent)

    def connection(self, address: Address, deadline: float) -> Connection:
        """An idle connection that still lives, or a new one."""
        idle = self.idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was quicker
                break
            if connection.alive():
                return connection
            connection.close()
        return Connection(address, self.settings, deadline)

    def keep(self, address: Address, connection: Connection) -> None:
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
