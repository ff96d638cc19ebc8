"""An HTTP server on loopback with scripted responses, and the HTTP clients that call it: for tests of retries."""

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

CLIENT_TIMEOUT = 30.0
"""Seconds after which a client gives up on the server: only a bug takes that long."""


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    body: bytes


@dataclass
class ScriptedResponse:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunks: Callable[[], Iterator[bytes]] | None = None
    """Chunks that follow the body, streamed."""


DISCONNECT = ScriptedResponse(0)
"""The connection is closed without a response."""


class Server:
    """Sends `responses` one after the other, then 200. `requests` are the requests received so far."""

    def __init__(self, *responses: ScriptedResponse) -> None:
        self.responses = list(responses)
        self.requests: list[ReceivedRequest] = []
        self.url = ""

    def respond(self, request: ReceivedRequest) -> ScriptedResponse:
        self.requests.append(request)
        return self.responses.pop(0) if self.responses else ScriptedResponse(body=b"done")


@contextmanager
def serve(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = CLIENT_TIMEOUT

        def handle_any(self) -> None:
            response = server.respond(ReceivedRequest(self.command, self.path, self._body()))
            if response.status == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response_only(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            if response.chunks is None:
                self.send_header("Content-Length", str(len(response.body)))
            else:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.command == "HEAD":
                return
            if response.chunks is None:
                self.wfile.write(response.body)
                return
            try:
                for chunk in filter(None, chain([response.body], response.chunks())):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client has closed the connection
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
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        http_server.daemon_threads = True
        server.url = f"http://127.0.0.1:{http_server.server_address[1]}"
        thread = Thread(target=http_server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            http_server.shutdown()
            thread.join()


class ClientResponse(NamedTuple):
    """The final response that a client gets."""

    status: int
    body: bytes


class HttpClient(Protocol):
    """One of the HTTP clients. `limits` paces each attempt."""

    timeout_error: ClassVar[type[Exception]]
    transport_error: ClassVar[type[Exception]]

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None: ...
    def call(self, method: str, url: str, **options: Any) -> ClientResponse: ...
    def close(self) -> None: ...


class HttpxClient:
    timeout_error: ClassVar[type[Exception]] = httpx.TimeoutException
    transport_error: ClassVar[type[Exception]] = httpx.TransportError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        # One connection and a short pool timeout: a response that is not closed fails the next call.
        inner: httpx.BaseTransport = httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
        if limits is not None:
            outbound = Outbound(Limiter("memory://", clock=clock), limits, timeout=timeout, clock=clock)
            inner = PacedTransport(outbound, transport=inner)
        timeouts = httpx.Timeout(CLIENT_TIMEOUT, pool=1.0)
        self.client = httpx.Client(
            transport=RetryTransport(retry, transport=inner, clock=clock), timeout=timeouts, follow_redirects=True
        )

    def call(self, method: str, url: str, **options: Any) -> ClientResponse:
        response = self.client.request(method, url, **options)
        return ClientResponse(response.status_code, response.content)

    def close(self) -> None:
        self.client.close()


class AsyncHttpxClient:
    timeout_error: ClassVar[type[Exception]] = httpx.TimeoutException
    transport_error: ClassVar[type[Exception]] = httpx.TransportError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        inner: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
        self.limiter = AsyncLimiter("memory://", clock=clock)
        if limits is not None:
            outbound = AsyncOutbound(self.limiter, limits, timeout=timeout, clock=clock)
            inner = AsyncPacedTransport(outbound, transport=inner)
        timeouts = httpx.Timeout(CLIENT_TIMEOUT, pool=1.0)
        self.client = httpx.AsyncClient(
            transport=AsyncRetryTransport(retry, transport=inner, clock=clock), timeout=timeouts, follow_redirects=True
        )
        self.runner = asyncio.Runner()

    def call(self, method: str, url: str, **options: Any) -> ClientResponse:
        response = self.runner.run(self.client.request(method, url, **options))
        return ClientResponse(response.status_code, response.content)

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


class RequestsClient:
    timeout_error: ClassVar[type[Exception]] = requests.exceptions.Timeout
    transport_error: ClassVar[type[Exception]] = requests.exceptions.ConnectionError

    def __init__(self, retry: Retry, clock: FakeClock, limits: str | None = None, timeout: float = 60.0) -> None:
        inner: requests.adapters.BaseAdapter = requests.adapters.HTTPAdapter()
        if limits is not None:
            outbound = Outbound(Limiter("memory://", clock=clock), limits, timeout=timeout, clock=clock)
            inner = PacedAdapter(outbound, adapter=inner)
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", RetryAdapter(retry, adapter=inner, clock=clock))

    def call(self, method: str, url: str, **options: Any) -> ClientResponse:
        if "content" in options:
            options["data"] = options.pop("content")
        response = self.session.request(method, url, timeout=CLIENT_TIMEOUT, **options)
        return ClientResponse(response.status_code, response.content)

    def close(self) -> None:
        self.session.close()


CLIENTS: tuple[type[HttpClient], ...] = (HttpxClient, AsyncHttpxClient, RequestsClient)
