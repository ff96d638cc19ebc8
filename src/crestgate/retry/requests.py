"""requests adapters that retry and pace requests.

    session.mount("https://", RetryAdapter())
    session.mount("https://", RetryAdapter(adapter=PacedAdapter(outbound)))

Each wraps another adapter: wrap the pacing one in the retrying one, so that every attempt is paced. An adapter is below
redirects: each of those requests has its own attempts. A response that is retried is closed before the wait; the final
response is returned as it is, unread with `stream=True`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from crestgate.errors import ConfigError
from crestgate.retry.attempts import Attempts, check_retry, machine_clock
from crestgate.retry.outbound import Outbound
from crestgate.retry.policy import Retry
from crestgate.runtime.clock import Clock

try:
    from requests import PreparedRequest, Response
    from requests.adapters import BaseAdapter, HTTPAdapter
    from requests.exceptions import ConnectionError as RequestsConnectionError
    from requests.exceptions import ProxyError, SSLError, Timeout
    from requests.utils import rewind_body
except ImportError as error:
    raise ImportError(f"crestgate.retry.requests needs the package {error.name!r}: pip install requests") from error

__all__ = ["PacedAdapter", "PacingTimeoutError", "RetryAdapter"]

PERMANENT_ERRORS: Final = (ProxyError, SSLError)
"""Connection errors that a second attempt would not change."""


class PacingTimeoutError(Timeout):
    """The request was not sent: pacing would have delayed it beyond the timeout."""


class _WrappedTransport(BaseAdapter):
    """An adapter around another one, which it closes."""

    def __init__(self, adapter: BaseAdapter | None) -> None:
        super().__init__()
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def close(self) -> None:
        self._adapter.close()


class RetryAdapter(_WrappedTransport):
    """Sends a request until its response is final, or `retry` gives up. `clock` replaces time, for tests."""

    def __init__(
        self, retry: Retry | None = None, *, adapter: BaseAdapter | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(adapter)
        self._retry = check_retry(retry, "adapter")
        self._clock = clock

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        clock = self._clock or machine_clock()
        attempts = Attempts(self._retry, request.method or "", is_repeatable(request), clock)
        while True:
            try:
                response = self._adapter.send(request, stream, timeout, verify, cert, proxies)
            except RequestsConnectionError as error:
                wait = None if isinstance(error, PERMANENT_ERRORS) else attempts.after_error()
                if wait is None:
                    raise
            else:
                wait = attempts.after_response(response.status_code, response.headers)
                if wait is None:
                    return response
                response.close()
            time.sleep(clock.wait(wait))
            if not _is_in_memory(request.body):
                rewind_body(request)


class PacedAdapter(_WrappedTransport):
    """Delays requests to keep a limit; `PacingTimeoutError` when the delay would exceed the timeout."""

    def __init__(self, outbound: Outbound, *, adapter: BaseAdapter | None = None) -> None:
        if not isinstance(outbound, Outbound):  # the coroutine of an async one would never be awaited
            raise ConfigError(f"PacedAdapter needs an Outbound, not {outbound!r}")
        super().__init__(adapter)
        self._outbound = outbound

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        url = request.url or ""
        try:
            self._outbound.wait(url)
        except TimeoutError as error:
            raise PacingTimeoutError(str(error), request=request) from error
        response = self._adapter.send(request, stream, timeout, verify, cert, proxies)
        self._outbound.learn(url, response.status_code, response.headers)
        return response


def is_repeatable(request: PreparedRequest) -> bool:
    """Whether the body is in memory, or is a file that can be rewound to where it started."""
    if _is_in_memory(request.body):
        return True
    seekable = getattr(request.body, "seekable", None)
    return isinstance(getattr(request, "_body_position", None), int) and callable(seekable) and bool(seekable())


def _is_in_memory(body: object) -> bool:
    return body is None or isinstance(body, str | bytes | bytearray)
