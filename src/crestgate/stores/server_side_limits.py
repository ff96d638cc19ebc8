"""Placeholders for limits that only the server knows, such as the plans and rules of a Crestgate service.

A request that names a plan of the service, or a context to match against its rules, has a placeholder as a member: an
algorithm of the one limit below. With the outcomes the store replaces it by the counters that were really charged
(`Request.members`), so that a later give-back reaches them. Without outcomes the placeholder stays, and is no limit at
all: its numbers must not be shown.
"""

from __future__ import annotations

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError, StoreError
from crestgate.stores.port import PartialStoreError

__all__ = ["RejectedRequestError", "is_context", "is_server_side", "placeholder", "rejection_in"]

CONTEXT = "context"
"""Name of the placeholder for all rules that match a request; the member's key is the context, as JSON."""

_SERVER_SIDE = Limit(2**31 - 1, 1)
_context = build(_SERVER_SIDE, CONTEXT)


def placeholder(plan: str | None) -> Algorithm:
    """The placeholder for the limits of a plan, or (None) of all matching rules."""
    return _context if plan is None else build(_SERVER_SIDE, plan)


def is_server_side(algorithm: Algorithm) -> bool:
    """Whether this is a placeholder."""
    return algorithm.limit is _SERVER_SIDE


def is_context(algorithm: Algorithm) -> bool:
    return algorithm is _context


class RejectedRequestError(StoreError):
    """The server rejected one request as invalid: `error` is for its caller. No failure policy applies, and the other
    requests of its batch are not affected."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self.error = error


def rejection_in(error: StoreError) -> ConfigError | None:
    """The ConfigError of a request that the server rejected, if that is the reason."""
    if isinstance(error, PartialStoreError):
        for items in error.outcomes:
            for item in items:
                if isinstance(item, RejectedRequestError):
                    return item.error
    return error.error if isinstance(error, RejectedRequestError) else None
