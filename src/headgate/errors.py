"""Every error Headgate raises, in one place, so that callers know what to catch.

    HeadgateError
    ├── ConfigError         a limit, plan, URL or option that cannot be used (also a ValueError)
    ├── StoreError          the store could not answer: away, too slow, or not ours
    │   └── StoreClosed     it was closed: a mistake in the program, which no failure policy covers up
    ├── LeaseLost           a lock was taken by another before its holder wrote; nothing was written
    └── RateLimitExceeded   a guarded call was denied; carries the decision

A denial by `check` is a value (`Decision.allowed` is False), never an exception: `RateLimitExceeded` is raised
only where there is no value to return, by the decorator and by `reserve`. Bad input (an empty key, a negative
cost) is a plain `ValueError`; waiting too long in `acquire` is the built-in `TimeoutError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.core.decision import Decision

__all__ = ["ConfigError", "HeadgateError", "LeaseLost", "RateLimitExceeded", "StoreClosed", "StoreError"]


class HeadgateError(Exception):
    """The root of Headgate's own errors."""


class ConfigError(HeadgateError, ValueError):
    """Something written by a developer or operator cannot be used; the message says what to write instead."""


class StoreError(HeadgateError):
    """The store could not decide: unreachable, too slow, or holding something that is not ours."""


class StoreClosed(StoreError):  # noqa: N818 - says what it is
    """The store was used after it was closed. Raised whatever `on_store_error` says: nobody is to be let in by it."""


class LeaseLost(HeadgateError):  # noqa: N818 - says what it is
    """A lock's holder came to write after its lease, when another had taken the lock. Nothing was written."""


class RateLimitExceeded(HeadgateError):  # noqa: N818 - the name is part of the public contract
    """A guarded call was denied. `decision` says by which limit and when to come back."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        wait = self.decision.retry_after
        advice = "this cost can never pass" if wait is None else f"retry after {wait:.6g} s"
        return f"rate limit {self.decision.name!r} exceeded ({self.decision.reason}): {advice}"
