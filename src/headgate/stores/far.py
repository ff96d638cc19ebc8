"""Limits that only a store knows, and what holds their place until it has told of them.

A Headgate service has plans and rules of its own. A request that names a plan of the service, or a whole context that
its rules are to be matched against, has a stand-in for a member: an algorithm of the one limit below, which nobody else
has. The store puts the counters that were really asked in its place (`Request.members`) when it brings the outcomes, so
that whoever settles or gives back later does it where it was charged. Where the store brought nothing the stand-in
stays, and stands for no limit at all: whatever answers then must not tell numbers of it.
"""

from __future__ import annotations

from headgate.core.algorithms import Algorithm, build
from headgate.core.limit import Limit
from headgate.errors import ConfigError, StoreError
from headgate.stores.port import PartlyAnswered

__all__ = ["Mistaken", "is_context", "known_far", "mistake_in", "stand_in"]

CONTEXT = "context"
"""The name of a stand-in for all rules that apply to a request; the member's key is the context, as JSON."""

_FAR = Limit(2**31 - 1, 1)
_context = build(_FAR, CONTEXT)


def stand_in(plan: str | None) -> Algorithm:
    """What stands for the limits of a plan, or (None) of all rules that apply."""
    return _context if plan is None else build(_FAR, plan)


def known_far(algorithm: Algorithm) -> bool:
    """Whether this stands for limits that only the store knows."""
    return algorithm.limit is _FAR


def is_context(algorithm: Algorithm) -> bool:
    return algorithm is _context


class Mistaken(StoreError):  # noqa: N818 - says what it is
    """What a store says of one request that it will never decide, because there is a mistake in it: `error`, for
    whoever made it. No failure policy covers that up, and those who shared its batch hear nothing of it."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self.error = error


def mistake_in(error: StoreError) -> ConfigError | None:
    """The mistake of a caller's own that its answer tells of, if it does."""
    if isinstance(error, PartlyAnswered):
        for reply in error.replies:
            for item in reply:
                if isinstance(item, Mistaken):
                    return item.error
    return error.error if isinstance(error, Mistaken) else None
