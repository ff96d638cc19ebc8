"""Every error Crestgate raises, in one place, so that callers know what to catch.

    CrestgateError
    ├── ConfigError             a limit, plan, URL or option that cannot be used (also a ValueError)
    │   ├── ValidationError     a rule or a configuration with mistakes in it; `problems` has all of them
    │   └── ReadOnlyError       rules in files are edited there, not written to
    ├── StoreError              the store, or the rule database, could not answer: away, too slow, or not ours
    │   └── StoreClosedError    it was closed: a mistake in the program, which no failure policy covers up
    ├── InvalidRequestError     a field of a request cannot be used; `field` says which
    ├── NotFoundError           there is no rule, plan or client of this name
    ├── ConflictError           it exists already, or another rule has its slot
    ├── StaleVersionError       it was changed by somebody else since it was read
    ├── LeaseLostError          a lock was taken by another before its holder wrote; nothing was written
    └── RateLimitExceeded       a guarded call was denied; carries the decision

A denial by `check` is a value (`Decision.allowed` is False), never an exception: `RateLimitExceeded` is raised
only where there is no value to return, by the decorator and by `reserve`. Bad input (an empty key, a negative
cost) is a plain `ValueError`; waiting too long in `acquire` is the built-in `TimeoutError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from crestgate.core.decision import Decision

__all__ = [
    "ConfigError",
    "ConflictError",
    "CrestgateError",
    "InvalidRequestError",
    "LeaseLostError",
    "NotFoundError",
    "Problem",
    "RateLimitExceeded",
    "ReadOnlyError",
    "StaleVersionError",
    "StoreClosedError",
    "StoreError",
    "ValidationError",
]


class CrestgateError(Exception):
    """The root of Crestgate's own errors."""


class ConfigError(CrestgateError, ValueError):
    """Something written by a developer or operator cannot be used; the message says what to write instead."""

    def __init__(self, *args: object, field: str = "") -> None:
        super().__init__(*args)
        self.field = field
        """The field or argument that is meant, where it is one."""

    @classmethod
    def of(cls, field: str, reason: str) -> ConfigError:
        """The error of one field, whose message is its name and the reason."""
        return ConfigError(f"{field} {reason}", field=field)

    @property
    def reason(self) -> str:
        """The message without the name of the field."""
        return str(self).removeprefix(f"{self.field} ")


class Problem(NamedTuple):
    """One mistake in what somebody wrote: where it is, what is wrong, and what to write instead."""

    field: str
    """Its path, such as `rules[3].limit`; empty for the whole."""
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """As one line: `crestgate.yaml:12: rules[3].limit: must be a whole number, not 'many'`."""
        location = "" if self.file is None else self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (location, self.field, self.message) if part)


class ValidationError(ConfigError):
    """What was written has mistakes: all of them, so that they can be mended in one go."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class ReadOnlyError(ConfigError):
    """These rules are in files, which people edit, and cannot be written to. Nothing was changed."""


class InvalidRequestError(CrestgateError):
    """A field of a request cannot be used. Nothing was decided or changed."""

    def __init__(self, field: str, message: str) -> None:
        """`field` is the path to it, such as `checks[3].cost`; empty for the whole. `message` has the remedy."""
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def inside(self, path: str) -> InvalidRequestError:
        """The same error in an object at this path of the request."""
        return InvalidRequestError(f"{path}.{self.field}" if self.field else path, self.message)


class NotFoundError(CrestgateError):
    """There is no such rule, plan or client. Nothing was changed."""


class ConflictError(CrestgateError):
    """It exists already, or another rule that is just as specific has its slot. Nothing was changed."""


class StaleVersionError(CrestgateError):
    """It was changed since the version that the writer had read. Nothing was changed."""


class StoreError(CrestgateError):
    """The store could not decide: unreachable, too slow, or holding something that is not ours."""


class StoreClosedError(StoreError):
    """The store was used after it was closed. Raised whatever `on_store_error` says: nobody is to be let in by it."""


class LeaseLostError(CrestgateError):
    """A lock's holder came to write after its lease, when another had taken the lock. Nothing was written."""


class RateLimitExceeded(CrestgateError):  # noqa: N818 - the name is part of the public contract
    """A guarded call was denied. `decision` says by which limit and when to come back."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        wait = self.decision.retry_after
        advice = "this cost can never pass" if wait is None else f"retry after {wait:.6g} s"
        return f"rate limit {self.decision.name!r} exceeded ({self.decision.reason}): {advice}"


def install_hint(extra: str) -> str:
    """How to install an extra, while there is no release on PyPI: from a clone."""
    return f"pip install '.[{extra}]' in a clone of Crestgate"


E = TypeVar("E", ValueError, TypeError)


def input_error(kind: type[E], field: str, reason: str) -> E:
    """A plain ValueError or TypeError about an argument, which carries the name of the argument for `field_of`."""
    error = kind(f"{field} {reason}")
    error.__dict__.update(field=field, reason=reason)
    return error


def field_of(error: Exception) -> tuple[str, str]:
    """The field that an error is about, empty if it names none, and the reason."""
    return getattr(error, "field", ""), getattr(error, "reason", str(error))
