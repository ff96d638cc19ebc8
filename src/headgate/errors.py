"""Every error Headgate raises, in one place, so that callers know what to catch.

    HeadgateError
    ├── ConfigError         a limit, plan, URL or option that cannot be used (also a ValueError)
    │   ├── Invalid         a rule or a configuration with mistakes in it; `problems` has all of them
    │   └── ReadOnly        rules in files are edited there, not written to
    ├── StoreError          the store, or what keeps the rules, could not answer: away, too slow, or not ours
    │   └── StoreClosed     it was closed: a mistake in the program, which no failure policy covers up
    ├── NotFound            there is no rule, plan or client of this name
    ├── Conflict            it exists already, or another rule has its place
    ├── Stale               it was changed by somebody else since it was read
    ├── LeaseLost           a lock was taken by another before its holder wrote; nothing was written
    └── RateLimitExceeded   a guarded call was denied; carries the decision

A denial by `check` is a value (`Decision.allowed` is False), never an exception: `RateLimitExceeded` is raised
only where there is no value to return, by the decorator and by `reserve`. Bad input (an empty key, a negative
cost) is a plain `ValueError`; waiting too long in `acquire` is the built-in `TimeoutError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headgate.core.decision import Decision

__all__ = [
    "ConfigError",
    "Conflict",
    "HeadgateError",
    "Invalid",
    "LeaseLost",
    "NotFound",
    "Problem",
    "RateLimitExceeded",
    "ReadOnly",
    "Stale",
    "StoreClosed",
    "StoreError",
]


class HeadgateError(Exception):
    """The root of Headgate's own errors."""


class ConfigError(HeadgateError, ValueError):
    """Something written by a developer or operator cannot be used; the message says what to write instead."""


class Problem(NamedTuple):
    """One mistake in what somebody wrote: where it is, what is wrong, and what to write instead."""

    field: str
    """The way to it, such as `rules[3].limit`; empty for the whole."""
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """As one line: `headgate.yaml:12: rules[3].limit: must be a whole number, not 'many'`."""
        place = "" if self.file is None else self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


class Invalid(ConfigError):  # noqa: N818 - says what it is
    """What was written has mistakes: all of them, so that they can be mended in one go."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class ReadOnly(ConfigError):  # noqa: N818 - says what it is
    """These rules are in files, which people edit, and cannot be written to. Nothing was changed."""


class NotFound(HeadgateError):  # noqa: N818 - says what it is
    """There is no such rule, plan or client. Nothing was changed."""


class Conflict(HeadgateError):  # noqa: N818 - says what it is
    """It exists already, or another rule that is just as specific has its slot. Nothing was changed."""


class Stale(HeadgateError):  # noqa: N818 - says what it is
    """It was changed since the version that the writer had read. Nothing was changed."""


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
