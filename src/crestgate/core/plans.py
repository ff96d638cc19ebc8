"""Compiles limits as callers write them: notation, `Limit` objects, plan names, and chains of these.

Each limit of a chain has a counter of its own. Its name is the plan's name (with its position when the plan has several
limits), else the limit's own name, else its canonical notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from typing import Final, TypeAlias

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.bounded_cache import add_bounded
from crestgate.core.limit import Limit
from crestgate.core.redaction import may_contain_secret
from crestgate.errors import ConfigError

__all__ = ["INLINE_PREFIX", "Limits", "Plan", "Plans", "Resolver", "reusable"]

Plan: TypeAlias = "str | Limit | Sequence[str | Limit]"
"""The value of a plan: a limit, in notation or as an object, or several of them."""

Plans: TypeAlias = "Mapping[str, Plan] | Callable[[str], Plan | None]"
"""Plans by name: any mapping, or a callable that returns None for a name it does not know."""

Limits: TypeAlias = "str | Limit | Iterable[str | Limit]"
"""What a check is made against: notation, a limit, a plan's name, or a chain of these."""

MAX_CACHED = 4096
INLINE_PREFIX: Final = "inline|"
"""Prefix of the counters of inline limits, which callers of a service send. No rule or plan has a name with this
prefix: an inline limit never reaches their counters."""
RESERVED_PREFIXES: Final = ("rule|", "shadow|", INLINE_PREFIX)

LimitFields: TypeAlias = "tuple[int, int, int | None, str, str | None, str | None, str | None, bool]"
"""What a limit compiles from: count, period in microseconds, burst, algorithm, name, calendar unit and zone, lease."""


def reusable(limits: Limits) -> Limits:
    """Limits that can be resolved more than once: an iterator is exhausted after the first time."""
    if isinstance(limits, str | bytes | Limit | Mapping) or not isinstance(limits, Iterable):
        return limits
    return tuple(limits)


class Resolver:
    """Compiles limits, with a bounded cache: callers may invent limits."""

    def __init__(self, plans: Plans | None) -> None:
        if plans is not None and not isinstance(plans, Mapping) and not callable(plans):
            raise ConfigError(f"plans must be a mapping of names to limits, or a callable, not {plans!r}")
        self._plans = plans
        self._find_plan = plans.get if isinstance(plans, Mapping) else plans
        """Of each check by a plan's name: to ask what kind of object `plans` is would cost it a third more."""
        self._plans_compiled: dict[str, tuple[Plan, tuple[Algorithm, ...]]] = {}
        self.cache: dict[str | LimitFields, tuple[Algorithm, ...]] = {}
        self._limits: dict[object, tuple[Algorithm, ...]] = {}
        """By the `identity` of a Limit."""
        self.plan_of: Callable[[str], Algorithm | None] = _unknown
        """For plans that are not known here: the stand-in for one that the store may know."""
        self.no_plans_hint: str | None = None
        """How to add a plan where there are none, for callers that are not Python code."""
        if isinstance(plans, Mapping):
            for name in plans:
                if self.plan(name) is None:  # an invalid plan is an error now, not at the first request
                    raise ConfigError(f"plan {name!r} must be a limit or a list of limits, not None")

    def compiled(self) -> list[Algorithm]:
        """The limits of all plans compiled so far."""
        return [algorithm for _, chain in self._plans_compiled.values() for algorithm in chain]

    def chain(self, limits: Limits) -> tuple[Algorithm, ...]:
        """The compiled limits that a caller's `limits` stand for, in order."""
        if type(limits) is str or isinstance(limits, str | Limit):  # to make the union would cost each check
            return self.one(limits)
        if not isinstance(limits, Iterable) or isinstance(limits, bytes | Mapping):
            raise ConfigError(f"limits are written as '100/minute', a Limit, a plan's name or a list, not {limits!r}")
        chain: tuple[Algorithm, ...] = ()
        for item in limits:
            if not isinstance(item, str | Limit):
                raise ConfigError(f"a chain lists notations, Limits and plan names, not {item!r}")
            chain += self.one(item)
        if not chain:
            raise ConfigError("a chain needs at least one limit, and this one is empty")
        return chain

    def one(self, item: str | Limit) -> tuple[Algorithm, ...]:
        """The compiled limits of one item of a chain."""
        if isinstance(item, Limit):
            known = self._limits.get(item.identity)
            return known if known is not None else self._compile_limit(item)
        if self._plans is not None:
            plan = self.plan(item)
            if plan is not None:
                return plan
        compiled = self.cache.get(item)
        if compiled is None:
            start = item.lstrip()[:1]
            stand_in = self.plan_of(item) if start and not start.isdigit() else None  # a limit starts with its count
            if stand_in is not None:
                return add_bounded(self.cache, item, (stand_in,), MAX_CACHED)
            chain = tuple(algorithm for limit in self._parse(item) for algorithm in self.one(limit))
            compiled = add_bounded(self.cache, item, chain, MAX_CACHED)
        return compiled

    def plan(self, name: str) -> tuple[Algorithm, ...] | None:
        """The compiled limits of a plan as it is now; None when there is none of this name."""
        find = self._find_plan
        plan = None if find is None else find(name)
        if plan is None:
            return None
        known = self._plans_compiled.get(name)
        if known is None or (known[0] is not plan and not _is_same(known[0], plan)):
            known = add_bounded(self._plans_compiled, name, (plan, self._compile_plan(name, plan)), MAX_CACHED)
        return known[1]

    def _compile_plan(self, name: str, plan: Plan) -> tuple[Algorithm, ...]:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a plan's name must be text of at least one character, not {name!r}")
        if re.search(r"#[0-9]+$", name):
            raise ConfigError(
                f"a plan's name may not end like {name!r}, since '#2' is how a plan's second counter is named: "
                "call it something else"
            )
        if name.startswith(RESERVED_PREFIXES):
            raise ConfigError(
                f"a plan's name may not begin like {name!r}, since the counters of rules, and of limits that callers "
                "of a service write out, are named so: call it something else"
            )
        items = _items(plan)
        if not isinstance(items, Sequence) or not items:
            raise ConfigError(f"plan {name!r} must be a limit or a list of limits, not {plan!r}")
        limits: list[Limit] = []
        for item in items:
            if not isinstance(item, str | Limit):
                raise ConfigError(f"plan {name!r} must be a limit or a list of limits, not {plan!r}")
            try:
                limits.extend([item] if isinstance(item, Limit) else Limit.parse_chain(item))
            except ConfigError as error:
                raise ConfigError(f"plan {name!r}: {error}") from None
        # The first has the plan's own name, so that its counter stays when limits are added to the plan.
        names = (name if position == 1 else f"{name}#{position}" for position in count(1))
        return tuple(build(limit, counter) for limit, counter in zip(limits, names, strict=False))

    def _compile_limit(self, limit: Limit) -> tuple[Algorithm, ...]:
        """The first use of this object; an equal one with the same name has the same algorithm."""
        fields = (
            *(limit.count, limit.period_us, limit.burst, limit.algorithm, limit.name),
            *(limit.unit, limit.zone, limit.lease),
        )
        compiled = self.cache.get(fields)
        if compiled is None:
            compiled = add_bounded(self.cache, fields, (build(limit, limit.name or str(limit)),), MAX_CACHED)
        return add_bounded(self._limits, limit.identity, compiled, MAX_CACHED)

    def _parse(self, text: str) -> tuple[Limit, ...]:
        try:
            return Limit.parse_chain(text)
        except ConfigError as error:
            if text[:1].isdigit() or any(c in text for c in "/;,") or may_contain_secret(text):
                raise
            if self._plans is None and (not text or any(c.isspace() for c in text)):
                raise  # several words: a limit with a typo
            names = list(self._plans) if isinstance(self._plans, Mapping) else []
            close = get_close_matches(text, names, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            known = f"; the plans are {', '.join(sorted(names))}" if names else ""
            if not self._plans and self.no_plans_hint is not None:
                raise ConfigError(f"there is no plan {text!r}: {self.no_plans_hint}") from error
            if not self._plans:
                known = f"; no plans are given: write a limit such as '100/minute', or plans={{{text!r}: '100/minute'}}"
            raise ConfigError(f"there is no plan {text!r}: {hint}it is not a limit either{known}") from error


def _is_same(known: Plan, plan: Plan) -> bool:
    """Whether two values of a plan compile to the same: equal limits may differ in their leases."""
    return known == plan and [*map(_leases, _items(known))] == [*map(_leases, _items(plan))]


def _items(plan: Plan) -> Sequence[str | Limit]:
    return [plan] if isinstance(plan, str | Limit) else plan


def _leases(item: str | Limit) -> bool:
    return isinstance(item, Limit) and item.lease


def _unknown(_: str) -> None:
    return None
