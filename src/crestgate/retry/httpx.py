"""Transports for httpx that send again what was refused, and that wait their turn.

    client = httpx.Client(transport=RetryTransport())
    client = httpx.Client(transport=RetryTransport(transport=PacedTransport(outbound)))

Each goes around another transport: one that retries around one that paces, so that every attempt waits its turn. A
client that is given a transport leaves `verify`, `http2`, `proxy` and `limits` to it: write
`RetryTransport(transport=httpx.HTTPTransport(http2=True))`.

A transport is below redirects and authentication: each request of those has attempts of its own. A response that is
not the last word is closed before the wait, so no connection is kept meanwhile; the last one is handed on as it is,
unread. Waiting is a plain sleep, so a task that is cancelled meanwhile ends there.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final, Self

from crestgate.errors import ConfigError
from crestgate.retry.attempts import Attempts, check_retry, machine_clock
from crestgate.retry.outbound import AsyncOutbound, Outbound
from crestgate.retry.policy import Retry
from crestgate.runtime.clock import Clock

try:
    import httpx
except ImportError as error:
    raise ImportError(f"crestgate.retry.httpx needs the package {error.name!r}: pip install httpx") from error

__all__ = ["AsyncPacedTransport", "AsyncRetryTransport", "PacedTransport", "PacingTimeoutError", "RetryTransport"]

CONNECTION_ERRORS: Final = (httpx.ConnectTimeout, httpx.NetworkError, httpx.RemoteProtocolError)
"""Connections that were not made, or broke before there was a response. A server that is slow to respond is not among
them: whoever sets a timeout has said how long to wait."""


class PacingTimeoutError(httpx.TimeoutException):
    """The request was not sent: its turn did not come in time."""


class _WrappedTransport(httpx.BaseTransport):
    """A transport around another one, which it opens and closes."""

    def __init__(self, transport: httpx.BaseTransport | None) -> None:
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(kind, error, trace)

    def close(self) -> None:
        self._transport.close()


class RetryTransport(_WrappedTransport):
    """Sends a request until its response is the last word, or `retry` gives up. `clock` replaces time, for tests."""

    def __init__(
        self, retry: Retry | None = None, *, transport: httpx.BaseTransport | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(transport)
        self._retry = check_retry(retry, "transport")
        self._clock = clock

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        clock = self._clock or machine_clock()
        attempts = Attempts(self._retry, request.method, is_repeatable(request), clock)
        while True:
            try:
                response = self._transport.handle_request(request)
            except CONNECTION_ERRORS:
                wait = attempts.after_error()
                if wait is None:
                    raise
            else:
                wait = attempts.after_response(response.status_code, response.headers)
                if wait is None:
                    return response
                response.close()
            time.sleep(clock.wait(wait))


class PacedTransport(_WrappedTransport):
    """Sends a request when it is its turn; `PacingTimeoutError` when that does not come in time."""

    def __init__(self, outbound: Outbound, *, transport: httpx.BaseTransport | None = None) -> None:
        if not isinstance(outbound, Outbound):  # an async one would be asked to wait, and nobody would wait for it
            raise ConfigError(f"PacedTransport needs an Outbound, not {outbound!r}: use AsyncPacedTransport for async")
        super().__init__(transport)
        self._outbound = outbound

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        try:
            self._outbound.wait(url)
        except TimeoutError as error:
            raise PacingTimeoutError(str(error), request=request) from error
        response = self._transport.handle_request(request)
        self._outbound.learn(url, response.status_code, response.headers)
        return response


class _AsyncWrappedTransport(httpx.AsyncBaseTransport):
    """A transport around another one, which it opens and closes."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        await self._transport.aclose()


class AsyncRetryTransport(_AsyncWrappedTransport):
    """The same as `RetryTransport`, for an `httpx.AsyncClient` on asyncio."""

    def __init__(
        self,
        retry: Retry | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(transport)
        self._retry = check_retry(retry, "transport")
        self._clock = clock

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        clock = self._clock or machine_clock()
        attempts = Attempts(self._retry, request.method, is_repeatable(request), clock)
        while True:
            try:
                response = await self._transport.handle_async_request(request)
            except CONNECTION_ERRORS:
                wait = attempts.after_error()
                if wait is None:
                    raise
            else:
                wait = attempts.after_response(response.status_code, response.headers)
                if wait is None:
                    return response
                await response.aclose()
            await asyncio.sleep(clock.wait(wait))


class AsyncPacedTransport(_AsyncWrappedTransport):
    """The same as `PacedTransport`, for an `httpx.AsyncClient` on asyncio."""

    def __init__(self, outbound: AsyncOutbound, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        if not isinstance(outbound, AsyncOutbound):  # another would hold up the event loop
            raise ConfigError(f"AsyncPacedTransport needs an AsyncOutbound, not {outbound!r}")
        super().__init__(transport)
        self._outbound = outbound

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        try:
            await self._outbound.wait(url)
        except TimeoutError as error:
            raise PacingTimeoutError(str(error), request=request) from error
        response = await self._transport.handle_async_request(request)
        self._outbound.learn(url, response.status_code, response.headers)
        return response


def is_repeatable(request: httpx.Request) -> bool:
    """Whether the body is there as bytes, or is a form whose files can be read from their beginning once more.

    What is read while it is sent, a generator or an open file, is gone afterwards.
    """
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return True
    fields = getattr(stream, "fields", None)  # of a multipart form, which httpx rewinds by itself
    return isinstance(fields, list) and all(_is_rereadable(getattr(field, "file", b"")) for field in fields)


def _is_rereadable(file: object) -> bool:
    if isinstance(file, str | bytes):
        return True
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable())
