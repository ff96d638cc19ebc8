"""Pool of HTTP/1.1 keep-alive connections to one service, with one deadline per request.

The standard library parses the responses. Its timeouts apply to each read; here connecting, sending and receiving share
the time until the deadline.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from queue import Empty, LifoQueue
from typing import Any, NamedTuple, cast, final

from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.runtime.poll import POLLIN, create_poll
from crestgate.runtime.sockets import connect

__all__ = ["ConnectionPool", "RequestError", "ServiceAddress", "ServiceResponse"]

MAX_HEAD_BYTES = 64 * 1024
"""Of a response without its body: status line, headers and chunk framing."""
TOO_LONG = "its answer is longer than any answer to this request"
MAX_IDLE_SECONDS = 60.0
"""A service closes connections that are idle for 75 seconds, perhaps just when one is used again."""


class RequestError(Exception):
    """No response. `sent`: the request may have arrived. `busy`: no connection was free, which is not a failure.
    `timed_out`: there was none by the deadline."""

    def __init__(self, reason: str, *, sent: bool = False, busy: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.busy = busy
        self.timed_out = timed_out


class ServiceResponse(NamedTuple):
    """A complete response of any status."""

    status: int
    body: bytes


@final
class ServiceAddress:
    """Address and API key of a service."""

    def __init__(self, host: str, port: int, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.key = key
        self.tls = tls
        shown = f"[{host}]" if ":" in host else host
        self.title = f"Crestgate at {shown}:{port}"
        lines = [f"Host: {shown}:{port}", "User-Agent: crestgate", "Accept: application/json"]
        lines += ["Content-Type: application/json", *([] if key is None else [f"Authorization: Bearer {key}"])]
        self.head = "\r\n".join([*lines, ""]).encode("ascii")

    def open(self, deadline: float) -> socket.socket:
        sock = connect(self.host, self.port, deadline)
        if self.tls is None:
            return sock
        try:
            sock.settimeout(_left(deadline))
            return self.tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


@final
class ServiceConnection:
    """One keep-alive connection."""

    def __init__(self, address: ServiceAddress, deadline: float) -> None:
        try:
            self.sock = address.open(deadline)
        except OSError as error:
            raise RequestError(_describe(error), timed_out=isinstance(error, TimeoutError)) from None
        self.address = address
        self.idle_since = 0.0

    def post(self, path: str, body: bytes, deadline: float, max_bytes: int) -> tuple[ServiceResponse, bool]:
        """The response to a POST, and whether the connection stays open. RequestError if there is none, or a longer
        one."""
        head = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), self.address.head, len(body))
        try:
            self.sock.settimeout(_left(deadline))
            self.sock.sendall(head + body)
            reader = _Reader(self.sock, deadline, max_bytes + MAX_HEAD_BYTES)
            response = HTTPResponse(cast(socket.socket, reader), method="POST")
            response.begin()
            content = response.read(max_bytes)
            complete = response.isclosed() or not response.read(1)
            stays_open = complete and not response.will_close
            response.close()
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a chunk of a negative length
            raise RequestError(_describe(error), sent=True, timed_out=isinstance(error, TimeoutError)) from None
        if not complete:
            raise RequestError(TOO_LONG, sent=True)
        return ServiceResponse(response.status, content), stays_open

    def is_fresh(self) -> bool:
        """Whether nothing was received since the last response: data or EOF mean that the service closes it."""
        if time.monotonic() - self.idle_since > MAX_IDLE_SECONDS:
            return False
        poll = create_poll()
        poll.register(self.sock.fileno(), POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self.sock.close()


@final
class _Reader:
    """The socket for `HTTPResponse`, whose file keeps the deadline."""

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
        # Past the deadline only what has been received: it came while this thread was not scheduled.
        self._sock.settimeout(max(self._deadline - time.monotonic(), 0.0))
        try:
            received = self._sock.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            raise TimeoutError from None
        self._bytes_left -= received
        if self._bytes_left < 0:
            raise OSError(TOO_LONG)
        return received


@final
class ConnectionPool:
    """At most `size` connections, shared by all threads of a process; the last used first."""

    def __init__(self, address: ServiceAddress, size: int, now: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self.size = size
        self.closed = False
        self._now = now
        self._free: LifoQueue[ServiceConnection | None] = LifoQueue()
        self._known: set[ServiceConnection] = set()
        self._fill()
        renew_after_fork(self)

    def post(self, path: str, body: bytes, deadline: float, max_bytes: int) -> ServiceResponse:
        """The response to one POST, which is sent at most once. RequestError if there is none by the deadline."""
        remaining_seconds = deadline - self._now()
        try:
            connection = self._free.get(timeout=remaining_seconds) if remaining_seconds > 0 else self._free.get_nowait()
        except Empty:
            raise RequestError("all connections are busy", busy=True) from None
        reusable: ServiceConnection | None = None
        try:
            if connection is None or not connection.is_fresh():
                self._drop(connection)
                connection = ServiceConnection(self.address, deadline)
                self._known.add(connection)
            response, stays_open = connection.post(path, body, deadline, max_bytes)
            if stays_open and not self.closed:
                connection.idle_since = self._now()
                reusable = connection
            return response
        finally:
            if reusable is None:
                self._drop(connection)
            self._free.put(reusable)

    def close(self) -> None:
        """Close idle connections; those in use are closed after their response."""
        self.closed = True
        count = 0
        try:
            while True:
                self._drop(self._free.get_nowait())
                count += 1
        except Empty:
            for _ in range(count):
                self._free.put(None)

    def renew(self) -> None:
        """In a forked child: the connections are the parent's."""
        for connection in self._known:
            connection.close()  # only the child's descriptor: nothing is sent
        self._known = set()
        self._free = LifoQueue()
        self._fill()

    def _fill(self) -> None:
        for _ in range(self.size):
            self._free.put(None)

    def _drop(self, connection: ServiceConnection | None) -> None:
        if connection is not None:
            self._known.discard(connection)
            connection.close()


def _left(deadline: float) -> float:
    """Seconds until the deadline; TimeoutError past it."""
    remaining_seconds = deadline - time.monotonic()
    if remaining_seconds <= 0:
        raise TimeoutError
    return remaining_seconds


def _describe(error: Exception) -> str:
    """The reason of a failed request, for messages."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): name who has signed it with ssl_ca"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error}): crestgates:// speaks TLS, crestgate:// does not"
    if isinstance(error, RemoteDisconnected | IncompleteRead):
        return "it closed the connection before its answer was there"
    if isinstance(error, HTTPException | ValueError):
        return f"what it says is not HTTP ({type(error).__name__}): is this the address of a Crestgate service?"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
