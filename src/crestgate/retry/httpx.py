"""httpx transports that retry and pace requests.

    client = httpx.Client(transport=RetryTransport())
    client = httpx.Client(transport=RetryTransport(transport=PacedTransport(outbound)))

Each wraps another transport: wrap the pacing one in the retrying one, so that every attempt is paced. A client with a
custom transport ignores its own `verify`, `http2`, `proxy` and `limits`: write
`RetryTransport(transport=httpx.HTTPTransport(http2=True))`.

A transport is below redirects and authentication: each of those requests has its own attempts. A response that is
retried is closed before the wait, which frees its connection; the final response is returned unread. The wait is a
plain sleep, so cancelling the task ends it.
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
"""Connections that failed, or broke before there was a response. Read timeouts are not retried: the caller has set how
long to wait for a response."""


class PacingTimeoutError(httpx.TimeoutException):
    """The request was not sent: pacing would have delayed it beyond the timeout."""


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
    """Sends a request until its response is final, or `retry` gives up. `clock` replaces time, for tests."""

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
    """Delays requests to keep a limit; `PacingTimeoutError` when the delay would exceed the timeout."""

    def __init__(self, outbound: Outbound, *, transport: httpx.BaseTransport | None = None) -> None:
        if not isinstance(outbound, Outbound):  # the coroutine of an async one would never be awaited
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
        if not isinstance(outbound, AsyncOutbound):  # a sync one would block the event loop
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
    """Whether the body is in memory, or is a form whose files can be rewound.

    A generator or an open file is consumed while it is sent.
    """
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return True
    fields = getattr(stream, "fields", None)  # of a multipart form, which httpx rewinds itself
    return isinstance(fields, list) and all(_is_rereadable(getattr(field, "file", b"")) for field in fields)


def _is_rereadable(file: object) -> bool:
    if isinstance(file, str | bytes):
        return True
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable())
