"""`Retry`: whether to retry a request, and when. It neither waits nor sends.

If the server says when to retry, the wait is at least that, plus up to `jitter` of it, so that clients rejected
together do not retry together. Otherwise the wait is a random part of a time that doubles with every attempt, starting
at `backoff` seconds: "full jitter".

A wait longer than `max_wait`, or past the `deadline`, is not started: the caller gets the response immediately.

A 429 means that the request was not executed, so every method is retried. After a 503, another status or a broken
connection this is unknown, so only idempotent methods are retried.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from crestgate.errors import ConfigError

__all__ = ["IDEMPOTENT", "Retry"]

IDEMPOTENT: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
"""The idempotent methods (RFC 9110, section 9.2.2)."""
MAX_ATTEMPTS: Final = 1000
_MAX_DOUBLINGS: Final = 60


@dataclass(frozen=True, slots=True)
class Retry:
    """When to retry a request that was rejected or got no response.

    >>> retry = Retry(attempts=3, max_wait=10)
    >>> retry.wait(attempt=1, suggested=2.0, elapsed=0.0, chance=0.0)
    2.0
    >>> retry.wait(attempt=1, suggested=11.0, elapsed=0.0, chance=0.0) is None
    True
    """

    attempts: int = 4
    """Maximum number of attempts, including the first."""
    max_wait: float = 60.0
    """Maximum seconds of one wait."""
    deadline: float | None = None
    """Seconds after the first attempt within which the last one must start; None for no deadline."""
    statuses: Collection[int] = (429, 503)
    """The statuses that are retried."""
    methods: Collection[str] = IDEMPOTENT
    """The methods that are retried after anything but a 429, which is retried for every method."""
    backoff: float = 0.5
    """Upper bound in seconds of the first random wait, if the server names none; it doubles with every attempt."""
    jitter: float = 0.1
    """Largest fraction of a server's wait that is added to it."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"attempts must be a whole number, 1 or more, not {self.attempts!r}")
        if self.attempts > MAX_ATTEMPTS:
            raise ConfigError(f"attempts must be {MAX_ATTEMPTS} or fewer, not {self.attempts!r}")
        for name in ("max_wait", "backoff", "jitter"):
            _check_number(name, getattr(self, name))
        if self.deadline is not None:
            _check_number("deadline", self.deadline)
        if isinstance(self.methods, str) or not all(isinstance(method, str) for method in self.methods):
            raise ConfigError(f"methods must be a collection, such as ('GET', 'POST'), not {self.methods!r}")
        if isinstance(self.statuses, str | int) or not all(_is_status(status) for status in self.statuses):
            raise ConfigError(f"statuses must be a collection of 400 to 599, such as (429, 503), not {self.statuses!r}")
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))
        object.__setattr__(self, "statuses", frozenset(self.statuses))

    def repeats(self, method: str, status: int | None) -> bool:
        """Whether a response with this status is retried; None is a connection that broke before there was one."""
        if status is not None and status not in self.statuses:
            return False
        return status == HTTPStatus.TOO_MANY_REQUESTS or method.upper() in self.methods

    def wait(self, attempt: int, suggested: float | None, elapsed: float, chance: float) -> float | None:
        """Seconds to wait before the next attempt; None to give up.

        `attempt` is the number of attempts so far, the first of which was `elapsed` seconds ago; `suggested` is the
        server's wait, if it named one; `chance` is a random number from 0 to 1.
        """
        if attempt >= self.attempts:
            return None
        remaining_seconds = math.inf if self.deadline is None else self.deadline - elapsed
        longest = min(self.max_wait, remaining_seconds)
        if suggested is not None:
            return None if suggested > longest else min(suggested * (1 + self.jitter * chance), longest)
        if remaining_seconds < 0:
            return None
        return min(self.backoff * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), longest) * chance


def _is_status(status: object) -> bool:
    return isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")
