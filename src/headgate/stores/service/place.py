"""Connections to one service: HTTP/1.1 that is kept open, by a deadline for all of it together.

The standard library reads the answers. It would give every piece of one the whole time; here connecting, sending and
receiving share what is left of it.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from queue import Empty, LifoQueue
from typing import Any, NamedTuple, cast, final

from headgate.stores.forking import renew_after_fork
from headgate.stores.reaching import reached

__all__ = ["Answered", "Broken", "Connections", "Place"]

MAX_HEAD_BYTES = 64 * 1024
"""Of a response besides its body: status line and headers, and how chunks are marked."""
TOO_LONG = "its answer is longer than any answer to this request"
MOST_RESTED = 60.0
"""Seconds: a service closes what it has not heard of for 75, and would do so just when it is used again."""


class Broken(Exception):  # noqa: N818 - says what it is
    """No answer. `sent` says whether the request may have arrived; `busy` that the service is not to blame."""

    def __init__(self, problem: str, *, sent: bool = False, busy: bool = False) -> None:
        super().__init__(problem)
        self.sent = sent
        self.busy = busy


class Answered(NamedTuple):
    """A whole answer, whatever it says."""

    status: int
    body: bytes


@final
class Place:
    """Where a service is, and the key that it is sent."""

    def __init__(self, host: str, port: int, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.key = key
        self.tls = tls
        shown = f"[{host}]" if ":" in host else host
        self.title = f"Headgate at {shown}:{port}"
        lines = [f"Host: {shown}:{port}", "User-Agent: headgate", "Accept: application/json"]
        lines += ["Content-Type: application/json", *([] if key is None else [f"Authorization: Bearer {key}"])]
        self.head = "\r\n".join([*lines, ""]).encode("ascii")

    def open(self, deadline: float) -> socket.socket:
        sock = reached(self.host, self.port, deadline)
        if self.tls is None:
            return sock
        try:
            sock.settimeout(_left(deadline))
            return self.tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


@final
class Connection:
    """One socket, and what is read from it by a deadline."""

    def __init__(self, place: Place, deadline: float) -> None:
        try:
            self.sock = place.open(deadline)
        except OSError as error:
            raise Broken(_said(error)) from None
        self.place = place
        self.rested_at = 0.0

    def ask(self, path: str, body: bytes, deadline: float, max_bytes: int) -> tuple[Answered, bool]:
        """The answer to a POST, of so many bytes at most, and whether the connection can be used again. Broken when
        there is none."""
        head = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), self.place.head, len(body))
        try:
            self.sock.settimeout(_left(deadline))
            self.sock.sendall(head + body)
            reader = _Reader(self.sock, deadline, max_bytes + MAX_HEAD_BYTES)
            response = HTTPResponse(cast(socket.socket, reader), method="POST")
            response.begin()
            told = response.read(max_bytes)
            whole = response.isclosed() or not response.read(1)
            stays = whole and not response.will_close
            response.close()
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a chunk of a negative length
            raise Broken(_said(error), sent=True) from None
        if not whole:
            raise Broken(TOO_LONG, sent=True)
        return Answered(response.status, told), stays

    def is_fresh(self) -> bool:
        """Whether nothing has come since the last answer: a service that has gone, or closes, says so by that."""
        if time.monotonic() - self.rested_at > MOST_RESTED:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self.sock.close()


@final
class _Reader:
    """A socket as the standard library's response wants it: what `makefile` returns keeps the deadline."""

    def __init__(self, sock: socket.socket, deadline: float, max_bytes: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._max_bytes = max_bytes

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Bytes(self._sock, self._deadline, self._max_bytes), 64 * 1024)


@final
class _Bytes(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float, max_bytes: int) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        self._bytes_left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._deadline))
        received = self._sock.recv_into(buffer)
        self._bytes_left -= received
        if self._bytes_left < 0:
            raise OSError(TOO_LONG)
        return received


@final
class Connections:
    """At most `size` connections that all threads of a process share; the one used last is used first."""

    def __init__(self, place: Place, size: int, now: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self.size = size
        self.closed = False
        self._now = now
        self._places: LifoQueue[Connection | None] = LifoQueue()
        self._known: set[Connection] = set()
        self._fill()
        renew_after_fork(self)

    def ask(self, path: str, body: bytes, deadline: float, max_bytes: int) -> Answered:
        """The answer to one POST, which is sent once. Broken when there is none by the deadline, or a longer one."""
        left = deadline - self._now()
        try:
            connection = self._places.get(timeout=left) if left > 0 else self._places.get_nowait()
        except Empty:
            raise Broken("all connections are busy", busy=True) from None
        rests: Connection | None = None
        try:
            if connection is None or not connection.is_fresh():
                self._drop(connection)
                connection = Connection(self.place, deadline)
                self._known.add(connection)
            answered, stays = connection.ask(path, body, deadline, max_bytes)
            if stays and not self.closed:
                connection.rested_at = self._now()
                rests = connection
            return answered
        finally:
            if rests is None:
                self._drop(connection)
            self._places.put(rests)

    def close(self) -> None:
        """Close those that rest; those at work are closed when they are done."""
        self.closed = True
        places = 0
        try:
            while True:
                self._drop(self._places.get_nowait())
                places += 1
        except Empty:
            for _ in range(places):
                self._places.put(None)

    def renew(self) -> None:
        """In a forked child: the connections are the parent's, which goes on using them."""
        for connection in self._known:
            connection.close()  # this side of the fork alone: nothing is sent
        self._known = set()
        self._places = LifoQueue()
        self._fill()

    def _fill(self) -> None:
        for _ in range(self.size):
            self._places.put(None)

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            self._known.discard(connection)
            connection.close()


def _left(deadline: float) -> float:
    """Seconds until the deadline; TimeoutError past it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _said(error: Exception) -> str:
    """What went wrong, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): name who has signed it with ssl_ca"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error}): headgates:// speaks TLS, headgate:// does not"
    if isinstance(error, RemoteDisconnected | IncompleteRead):
        return "it closed the connection before its answer was there"
    if isinstance(error, HTTPException | ValueError):
        return f"what it says is not HTTP ({type(error).__name__}): is this the address of a Headgate service?"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
