"""Every exception that Crestgate raises.

    CrestgateError
    ├── ConfigError             a limit, plan, URL or option that cannot be used (also a ValueError)
    │   ├── ValidationError     an invalid rule or configuration; `problems` lists every error
    │   └── ReadOnlyError       rules in files cannot be written through the API; edit the files
    ├── StoreError              the store or rule database failed: unreachable, too slow, or holding foreign data
    │   └── StoreClosedError    used after close: a bug in the program, so no failure policy applies
    ├── InvalidRequestError     a field of a request is invalid; `field` says which
    ├── NotFoundError           there is no rule, plan or client of this name
    ├── ConflictError           it exists already, or another rule has its slot
    ├── StaleVersionError       it was changed since it was read
    ├── ReservationError        a reservation cannot be settled, extended or made
    │   ├── UnknownReservationError     there is none of this id, or it was forgotten (also a LookupError)
    │   ├── ReservationClosedError      it was settled or released before; the first counts (also a RuntimeError)
    │   └── TooManyReservationsError    this caller has too many open ones
    ├── LeaseLostError          the lease expired and another holder took the lock; nothing was written
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
    "ReservationClosedError",
    "ReservationError",
    "StaleVersionError",
    "StoreClosedError",
    "StoreError",
    "TooManyReservationsError",
    "UnknownReservationError",
    "ValidationError",
]


class CrestgateError(Exception):
    """Base class of Crestgate's exceptions."""


class ConfigError(CrestgateError, ValueError):
    """Invalid code or configuration; the message says what to write instead."""

    def __init__(self, *args: object, field: str = "") -> None:
        super().__init__(*args)
        self.field = field
        """The field or argument, if the error is about a single one."""

    @classmethod
    def of(cls, field: str, reason: str) -> ConfigError:
        """An error about one field: the message is its name and the reason."""
        return ConfigError(f"{field} {reason}", field=field)

    @property
    def reason(self) -> str:
        """The message without the name of the field."""
        return str(self).removeprefix(f"{self.field} ")


class Problem(NamedTuple):
    """One configuration error: location, message, remedy."""

    field: str
    """Its path, such as `rules[3].limit`; empty for the whole document."""
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """As one line: `crestgate.yaml:12: rules[3].limit: must be a whole number, not 'many'`."""
        location = "" if self.file is None else self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (location, self.field, self.message) if part)


class ValidationError(ConfigError):
    """An invalid rule or configuration, with all of its errors, so that they can be fixed in one go."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class ReadOnlyError(ConfigError):
    """These rules are in files, which cannot be written through the API. Nothing was changed."""


class InvalidRequestError(CrestgateError):
    """A field of a request is invalid. Nothing was decided or changed."""

    def __init__(self, field: str, message: str) -> None:
        """`field` is a path such as `checks[3].cost`; empty for the whole request. `message` has the remedy."""
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
    """It exists already, or another equally specific rule has its slot. Nothing was changed."""


class StaleVersionError(CrestgateError):
    """It is no longer the version that the writer has read. Nothing was changed."""


class StoreError(CrestgateError):
    """The store failed: unreachable, too slow, or holding data that is not Crestgate's."""


class StoreClosedError(StoreError):
    """The store was used after it was closed. Raised even with `on_store_error="open"`: no request is let in."""


class ReservationError(CrestgateError):
    """A reservation cannot be made, settled or extended. Nothing was changed."""


class UnknownReservationError(ReservationError, LookupError):
    """There is no reservation of this id: it never was, belongs to another caller, or was settled a while ago."""


class ReservationClosedError(ReservationError, RuntimeError):
    """The reservation was settled or released before, or has ended. What was done first counts."""


class TooManyReservationsError(ReservationError):
    """The caller has as many open reservations as one may have: settle or release some."""


class LeaseLostError(CrestgateError):
    """A guarded write after the lease expired and another holder took the lock. Nothing was written."""


class RateLimitExceeded(CrestgateError):  # noqa: N818 - the name is part of the public contract
    """A guarded call was denied. `decision` says by which limit and when to retry."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        wait = self.decision.retry_after
        advice = "this cost can never pass" if wait is None else f"retry after {wait:.6g} s"
        return f"rate limit {self.decision.name!r} exceeded ({self.decision.reason}): {advice}"


def install_hint(extra: str) -> str:
    """How to install an extra: from a clone, while there is no release on PyPI."""
    return f"pip install '.[{extra}]' in a clone of Crestgate"


E = TypeVar("E", ValueError, TypeError)


def input_error(kind: type[E], field: str, reason: str) -> E:
    """A ValueError or TypeError about an argument, with the argument's name for `field_of`."""
    error = kind(f"{field} {reason}")
    error.__dict__.update(field=field, reason=reason)
    return error


def field_of(error: Exception) -> tuple[str, str]:
    """The field of an error, empty if it has none, and the reason."""
    return getattr(error, "field", ""), getattr(error, "reason", str(error))
