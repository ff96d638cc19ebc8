"""`Retry`: whether to send a request once more, and when. It decides; it neither waits nor sends.

A server that says when to come back is believed: nobody comes back earlier, and a little later (`jitter`), so that
those who were refused together do not come back together. Where it says nothing, the wait is a random part of a time
that doubles with every attempt, from `backoff` seconds on: "full jitter".

A wait that would be too long is not begun. Who waits for longer than `max_wait`, or past the `deadline`, only to be
told the same again, is better served with the response there is, at once.

What may be sent twice: 429 says that the request was not carried out, so every method is repeated. A 503, other
statuses, and a connection that broke leave that open, so only the methods are repeated that may be carried out twice.
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
"""The methods that mean the same when they are carried out twice (RFC 9110, section 9.2.2)."""
MAX_ATTEMPTS: Final = 1000
_MAX_DOUBLINGS: Final = 60


@dataclass(frozen=True, slots=True)
class Retry:
    """When to send again what was refused or got no response.

    >>> retry = Retry(attempts=3, max_wait=10)
    >>> retry.wait(attempt=1, suggested=2.0, elapsed=0.0, chance=0.0)
    2.0
    >>> retry.wait(attempt=1, suggested=11.0, elapsed=0.0, chance=0.0) is None
    True
    """

    attempts: int = 4
    """How often a request is sent at most, the first time included."""
    max_wait: float = 60.0
    """Seconds of one wait."""
    deadline: float | None = None
    """Seconds from the first sending within which the last one must begin; None for no such bound."""
    statuses: Collection[int] = (429, 503)
    """The responses that are not taken for the last word."""
    methods: Collection[str] = IDEMPOTENT
    """The methods that are repeated after anything but a 429, which is repeated for every method."""
    backoff: float = 0.5
    """Seconds that the first wait is a random part of where the server says nothing; then twice as many, and so on."""
    jitter: float = 0.1
    """The part of a wait that the server named which is added at most."""

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
            raise ConfigError(f"methods must be several, such as ('GET', 'POST'), not {self.methods!r}")
        if isinstance(self.statuses, str | int) or not all(_is_status(status) for status in self.statuses):
            raise ConfigError(f"statuses must be several of 400 to 599, such as (429, 503), not {self.statuses!r}")
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))
        object.__setattr__(self, "statuses", frozenset(self.statuses))

    def repeats(self, method: str, status: int | None) -> bool:
        """Whether such a response is not the last word; None is a connection that broke before there was one."""
        if status is not None and status not in self.statuses:
            return False
        return status == HTTPStatus.TOO_MANY_REQUESTS or method.upper() in self.methods

    def wait(self, attempt: int, suggested: float | None, elapsed: float, chance: float) -> float | None:
        """The seconds to wait before the next sending; None to give up.

        `attempt` sendings have been made, the first `elapsed` seconds ago; the last was `suggested` to wait so long, or
        nothing; `chance` is a random number from 0 to 1.
        """
        if attempt >= self.attempts:
            return None
        left = math.inf if self.deadline is None else self.deadline - elapsed
        longest = min(self.max_wait, left)
        if suggested is not None:
            return None if suggested > longest else min(suggested * (1 + self.jitter * chance), longest)
        if left < 0:
            return None
        return min(self.backoff * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), longest) * chance


def _is_status(status: object) -> bool:
    return isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")
