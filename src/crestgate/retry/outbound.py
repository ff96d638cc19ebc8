"""`Outbound`: calls to somebody else's API, no faster than it allows. `AsyncOutbound` is its twin for asyncio.

A call waits its turn at a limiter, first come first served, so as many processes as share the limiter's store keep one
limit together. And it waits for as long as the API has asked for: what one response says holds back every further call
of this process under the same key, which is the host unless said otherwise (see cooldowns.py).

The hold comes before the turn. In a hold nobody uses up the limit, so those who waited do not all go at its end, but
one after the other as the limit allows. A request that was
given a turn just before a hold began waits for its end, too.

`_wait_steps` holds the logic and does no I/O: it yields what to wait for, and a sync and an async driver wait.
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
from crestgate.limiter.base_limiter import MAX_TIMEOUT
from crestgate.limiter.limiter import Limiter
from crestgate.retry.attempts import machine_clock
from crestgate.retry.cooldowns import Cooldowns
from crestgate.retry.wait_hints import Headers
from crestgate.runtime.clock import Clock

__all__ = ["AsyncOutbound", "Outbound", "host_of"]

KeyOfUrl = Callable[[str], str]
DEFAULT_TIMEOUT: Final = 60.0
_PORTS: Final = {"http": 80, "https": 443}


class _Sleep(NamedTuple):
    """Let so many seconds pass."""

    seconds: float


class _Turn(NamedTuple):
    """Take a turn at the limiter, within so many seconds."""

    key: str
    timeout: float | None


_WaitSteps = Iterator["_Sleep | _Turn"]


class _Pacer:
    """What both twins are made of: keys, holds and the way to wait."""

    def __init__(self, key: str | KeyOfUrl, timeout: float | None, clock: Clock | None) -> None:
        if not (isinstance(key, str) and key) and not callable(key):
            raise ConfigError(f"key must be a name, or a callable that makes one of a URL, not {key!r}")
        if timeout is not None and not _is_timeout(timeout):
            raise ConfigError(f"timeout must be seconds, 0 or more, or None, not {timeout!r}")
        self._key = key
        self._timeout = timeout
        self._clock = clock or machine_clock()
        self._cooldowns = Cooldowns(self._clock)

    def key_of(self, url: str) -> str:
        """What a call to this URL is counted and held under."""
        return self._key if isinstance(self._key, str) else self._key(url)

    def learn(self, url: str, status: int, headers: Headers) -> None:
        """Take note of a response: if it asks for a wait, all further calls under its key are held back."""
        self._cooldowns.learn(self.key_of(url), status, headers)

    def _wait_steps(self, url: str) -> _WaitSteps:
        key = self.key_of(url)
        started = self._clock.ticks()

        def left() -> float | None:
            if self._timeout is None:
                return None
            return self._timeout - (self._clock.ticks() - started) / 1_000_000

        def held() -> _WaitSteps:
            while seconds := self._cooldowns.left(key):  # it may be prolonged meanwhile
                spare = left()
                if spare is not None and seconds > spare:
                    raise self._timeout_error(key, f"it asked to be left alone for {math.ceil(seconds)} s")
                yield _Sleep(seconds)

        yield from held()
        spare = left()
        yield _Turn(key, None if spare is None else max(spare, 0.0))
        yield from held()

    def _timeout_error(self, key: str, why: object) -> TimeoutError:
        within = "" if self._timeout is None else f" within {self._timeout:g} s"
        return TimeoutError(f"no turn for {key!r}{within}: {why}")


class Outbound(_Pacer):
    """Paces calls from threads and plain functions. Give one to every client that calls the same API.

    >>> outbound = Outbound(Limiter("memory://"), "10/second")
    >>> outbound.wait("https://api.example.com/orders")
    >>> outbound.learn("https://api.example.com/orders", 429, {"retry-after": "17"})

    `limits` are a limiter's: inline, a plan, or several. `timeout` is how long a call may wait, hold and turn together.
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
        limiter.bind(limits)  # a mistake in them is told now, not at the first call
        self._limiter = limiter
        self._limits = limits

    def wait(self, url: str) -> None:
        """Return when it is time to call; TimeoutError as soon as it is known that this will be too late."""
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
        """Return when it is time to call; TimeoutError as soon as it is known that this will be too late."""
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
    """The host of a URL, with its port if that is not the usual one; never a user or a password.

    >>> host_of("https://me:secret@API.example.com/orders"), host_of("http://[::1]:8080/")
    ('api.example.com', '[::1]:8080')
    """
    parts = urlsplit(url)
    host = parts.hostname or "-"
    if ":" in host:
        host = f"[{host}]"
    return host if parts.port in (None, _PORTS.get(parts.scheme)) else f"{host}:{parts.port}"
