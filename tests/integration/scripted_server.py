"""A little HTTP server on loopback that answers as it is told, and the clients that call it: for tests of retrying."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from threading import Thread
from typing import Any, ClassVar, NamedTuple, Protocol

import httpx
import requests

from crestgate import AsyncLimiter, Limiter
from crestgate.retry import AsyncOutbound, Outbound, Retry
from crestgate.retry.httpx import AsyncPacedTransport, AsyncRetryTransport, PacedTransport, RetryTransport
from crestgate.retry.requests import PacedAdapter, RetryAdapter
from crestgate.testing import FakeClock

NO_WAIT = 30.0
"""Seconds after which a client of these tests gives up on the server: only a mistake takes that long."""


class Got(NamedTuple):
    method: str
    path: str
    body: bytes


@dataclass
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    more: Callable[[], Iterator[bytes]] | None = None
    """What follows the body, in chunks, as it comes."""


BREAK = Answer(0)
"""The connection ends without an answer."""


class Server:
    """Answers one request after the other from `answers`, and then with 200. `got` is what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.got: list[Got] = []
        self.url = ""

    def answer(self, got: Got) -> Answer:
        self.got.append(got)
        return self.answers.pop(0) if self.answers else Answer(body=b"done")


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = NO_WAIT

        def handle_any(self) -> None:
            answer = server.answer(Got(self.command, self.path, self._body()))
            if answer.status == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.more is None:
                self.send_header("Content-Length", str(len(answer.body)))
            else:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.command == "HEAD":
                return
            if answer.more is None:
                self.wfile.write(answer.body)
                return
            try:
                for chunk in filter(None, chain([answer.body], answer.more())):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client has had enough
                self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


class Told(NamedTuple):
    """What a caller was told in the end."""

    status: int
    body: bytes


class Caller(Protocol):
    """One of the HTTP clients. `limits` paces it inside of the retries."""

    no_turn: ClassVar[type[Exception]]
    broken: ClassVar[type[Exception]]

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None: ...
    def call(self, method: str, url: str, **options: Any) -> Told: ...
    def close(self) -> None: ...


class ByHttpx:
    no_turn: ClassVar[type[Exception]] = httpx.TimeoutException
    broken: ClassVar[type[Exception]] = httpx.TransportError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        # One connection, and no patience for another: an answer that is not closed shows at once.
        inner: httpx.BaseTransport = httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
        if limits is not None:
            outbound = Outbound(Limiter("memory://", clock=clock), limits, timeout=timeout, clock=clock)
            inner = PacedTransport(outbound, transport=inner)
        patience = httpx.Timeout(NO_WAIT, pool=1.0)
        self.client = httpx.Client(
            transport=RetryTransport(retry, transport=inner, clock=clock), timeout=patience, follow_redirects=True
        )

    def call(self, method: str, url: str, **options: Any) -> Told:
        response = self.client.request(method, url, **options)
        return Told(response.status_code, response.content)

    def close(self) -> None:
        self.client.close()


class ByAsyncHttpx:
    no_turn: ClassVar[type[Exception]] = httpx.TimeoutException
    broken: ClassVar[type[Exception]] = httpx.TransportError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        inner: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
        self.limiter = AsyncLimiter("memory://", clock=clock)
        if limits is not None:
            outbound = AsyncOutbound(self.limiter, limits, timeout=timeout, clock=clock)
            inner = AsyncPacedTransport(outbound, transport=inner)
        patience = httpx.Timeout(NO_WAIT, pool=1.0)
        self.client = httpx.AsyncClient(
            transport=AsyncRetryTransport(retry, transport=inner, clock=clock), timeout=patience, follow_redirects=True
        )
        self.runner = asyncio.Runner()

    def call(self, method: str, url: str, **options: Any) -> Told:
        response = self.runner.run(self.client.request(method, url, **options))
        return Told(response.status_code, response.content)

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


class ByRequests:
    no_turn: ClassVar[type[Exception]] = requests.exceptions.Timeout
    broken: ClassVar[type[Exception]] = requests.exceptions.ConnectionError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        inner: requests.adapters.BaseAdapter = requests.adapters.HTTPAdapter()
        if limits is not None:
            outbound = Outbound(Limiter("memory://", clock=clock), limits, timeout=timeout, clock=clock)
            inner = PacedAdapter(outbound, adapter=inner)
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", RetryAdapter(retry, adapter=inner, clock=clock))

    def call(self, method: str, url: str, **options: Any) -> Told:
        if "content" in options:
            options["data"] = options.pop("content")
        response = self.session.request(method, url, timeout=NO_WAIT, **options)
        return Told(response.status_code, response.content)

    def close(self) -> None:
        self.session.close()


CALLERS: tuple[type[Caller], ...] = (ByHttpx, ByAsyncHttpx, ByRequests)
