"""A plan of a file or a repository: named limits, in their canonical notation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from crestgate.core.limit import Limit
from crestgate.core.plans import Plan

__all__ = ["StoredPlan"]


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The limits of a plan. ConfigError, of the field `lease`, if one of them cannot be leased."""

    limits: tuple[str, ...]
    lease: bool = False
    """Whether processes decide from slices of the limits that they charge in advance."""
    resolved: Plan = field(init=False, compare=False, repr=False)
    """What a limiter compiles."""

    def __post_init__(self) -> None:
        resolved: Plan = self.limits
        if self.lease:
            resolved = tuple([replace(Limit.parse(text), lease=True) for text in self.limits])
        object.__setattr__(self, "resolved", resolved)
