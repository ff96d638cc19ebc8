"""`Outbound` and `AsyncOutbound`: pace calls to a remote API.

A call acquires a limiter, first come first served, so all processes that share the limiter's store keep one limit. It
also waits for cooldowns: a response that asks for a wait delays all further calls of this process under the same key,
which is the host by default (see cooldowns.py).

The cooldown comes before the limiter. Calls that wait for a cooldown do not use up the limit, so after it they start
one by one at the rate of the limit, not all together. A call that passed the limiter just before a cooldown started
waits for its end, too.

`_wait_steps` has the logic and does no I/O: it yields what to wait for, and the sync and async classes wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from crestgate.core.plans import Limits
from crestgate.errors import ConfigError
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.limiter_core import MAX_TIMEOUT
from crestgate.retry.attempts import machine_clock
from crestgate.retry.cooldowns import Cooldowns
from crestgate.retry.wait_hints import ResponseHeaders
from crestgate.runtime.clock import Clock

__all__ = ["AsyncOutbound", "Outbound", "host_of"]

KeyOfUrl = Callable[[str], str]
DEFAULT_TIMEOUT: Final = 60.0
_PORTS: Final = {"http": 80, "https": 443}


class _Sleep(NamedTuple):
    """Sleep for this long."""

    seconds: float


class _Acquire(NamedTuple):
    """Acquire the limiter within `timeout` seconds."""

    key: str
    timeout: float | None


_WaitSteps = Iterator["_Sleep | _Acquire"]


class _Pacer:
    """Shared by Outbound and AsyncOutbound: keys, cooldowns, wait steps."""

    def __init__(self, key: str | KeyOfUrl, timeout: float | None, clock: Clock | None) -> None:
        if not (isinstance(key, str) and key) and not callable(key):
            raise ConfigError(f"key must be a name, or a callable that returns one for a URL, not {key!r}")
        if timeout is not None and not _is_timeout(timeout):
            raise ConfigError(f"timeout must be seconds, 0 or more, or None, not {timeout!r}")
        self._key = key
        self._timeout = timeout
        self._clock = clock or machine_clock()
        self._cooldowns = Cooldowns(self._clock)

    def key_of(self, url: str) -> str:
        """The key for limits and cooldowns of calls to this URL."""
        return self._key if isinstance(self._key, str) else self._key(url)

    def learn(self, url: str, status: int, headers: ResponseHeaders) -> None:
        """Record a response: if it asks for a wait, all further calls under its key wait."""
        self._cooldowns.learn(self.key_of(url), status, headers)

    def _wait_steps(self, url: str) -> _WaitSteps:
        key = self.key_of(url)
        started = self._clock.ticks()

        def left() -> float | None:
            if self._timeout is None:
                return None
            return self._timeout - (self._clock.ticks() - started) / 1_000_000

        def cooldown() -> _WaitSteps:
            while seconds := self._cooldowns.left(key):  # it may be extended meanwhile
                spare = left()
                if spare is not None and seconds > spare:
                    raise self._timeout_error(key, f"cooldown for {math.ceil(seconds)} s")
                yield _Sleep(seconds)

        yield from cooldown()
        spare = left()
        yield _Acquire(key, None if spare is None else max(spare, 0.0))
        yield from cooldown()

    def _timeout_error(self, key: str, reason: object) -> TimeoutError:
        within = "" if self._timeout is None else f" within {self._timeout:g} s"
        return TimeoutError(f"call to {key!r} not allowed{within}: {reason}")


class Outbound(_Pacer):
    """Paces calls from synchronous code. Share one between all clients of the same API.

    >>> outbound = Outbound(Limiter("memory://"), "10/second")
    >>> outbound.wait("https://api.example.com/orders")
    >>> outbound.learn("https://api.example.com/orders", 429, {"retry-after": "17"})

    `limits` are a limiter's: inline, a plan, or several. `timeout` bounds the total wait: cooldown and limiter.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Limits,
        *,
        key: str | KeyOfUrl | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigError(f"Outbound needs a Limiter, not {limiter!r}: with an AsyncLimiter use AsyncOutbound")
        super().__init__(host_of if key is None else key, timeout, clock)
        limiter.bind(limits)  # invalid limits fail now, not at the first call
        self._limiter = limiter
        self._limits = limits

    def wait(self, url: str) -> None:
        """Return when the call may start; TimeoutError as soon as it is certain that this would be too late."""
        for command in self._wait_steps(url):
            if isinstance(command, _Sleep):
                time.sleep(self._clock.wait(command.seconds))
                continue
            try:
                self._limiter.acquire(command.key, self._limits, timeout=command.timeout)
            except TimeoutError as error:
                raise self._timeout_error(command.key, error) from error


class AsyncOutbound(_Pacer):
    """The same for asyncio, with an `AsyncLimiter`: `await outbound.wait(url)`."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        limits: Limits,
        *,
        key: str | KeyOfUrl | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(limiter, AsyncLimiter):
            raise ConfigError(f"AsyncOutbound needs an AsyncLimiter, not {limiter!r}: with a Limiter use Outbound")
        super().__init__(host_of if key is None else key, timeout, clock)
        limiter.bind(limits)
        self._limiter = limiter
        self._limits = limits

    async def wait(self, url: str) -> None:
        """Return when the call may start; TimeoutError as soon as it is certain that this would be too late."""
        for command in self._wait_steps(url):
            if isinstance(command, _Sleep):
                await asyncio.sleep(self._clock.wait(command.seconds))
                continue
            try:
                await self._limiter.acquire(command.key, self._limits, timeout=command.timeout)
            except TimeoutError as error:
                raise self._timeout_error(command.key, error) from error


def _is_timeout(timeout: object) -> bool:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return False
    return 0 <= timeout <= MAX_TIMEOUT


def host_of(url: str) -> str:
    """The host of a URL, with its port if that is not the default; never a user or a password.

    >>> host_of("https://me:secret@API.example.com/orders"), host_of("http://[::1]:8080/")
    ('api.example.com', '[::1]:8080')
    """
    parts = urlsplit(url)
    host = parts.hostname or "-"
    if ":" in host:
        host = f"[{host}]"
    return host if parts.port in (None, _PORTS.get(parts.scheme)) else f"{host}:{parts.port}"
