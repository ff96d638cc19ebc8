# mypyc: compile
"""Turns requests into checks, by the current rules of a catalog.

All rules that apply to a request are one store request, with a member for each: binding rules are all or nothing,
and shadow rules are decided independently. `RemoteRuleEvaluator` is for stores with rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, SupportsIndex

from crestgate.core.algorithms import build
from crestgate.core.bounds import MAX_COST, check_input, whole_cost
from crestgate.core.context import ContextFields, RequestContext
from crestgate.core.decision import Decision
from crestgate.core.plans import Plan
from crestgate.limiter.backend import Backend
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.catalog import Catalog
from crestgate.rules.compat.clients import SeenClients
from crestgate.rules.matching.paths import shorten_path
from crestgate.rules.rule import Rule
from crestgate.rules.subjects import attribute_subjects, check_text
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.port import Member, Op
from crestgate.stores.remote_store import RemoteStore

__all__ = ["CatalogPlans", "RemoteRuleEvaluator", "RuleEvaluator", "context_fields"]


class RuleEvaluator:
    """Matches requests against the rules of a catalog, and counts what its shadow rules would deny."""

    def __init__(self, catalog: Catalog, backend: Backend) -> None:
        self.catalog: Catalog | None = catalog
        self.seen_clients = SeenClients()
        self.shadow_denials: dict[str, int] = {}
        """By rule_id, in this process."""
        self._rules: Final = catalog
        self._backend: Final = backend
        self._pressure: Final = backend.pressure
        self._supported: set[tuple[str, str | None, bool]] = set()
        self._lock = fork_safe_lock()
        catalog.accept_only(self._check_support)

    def prepare(
        self, op: Op, context: ContextFields, cost: SupportsIndex, now_us: int = 0, hold: bool = False
    ) -> PendingCheck:
        """The check of a request. Bad input is a ValueError. `now_us` is the store's time, if the caller knows it. With
        `hold` it takes slots of in-flight limits, which the caller releases; otherwise it only looks at them."""
        if not isinstance(context, RequestContext) and not hasattr(context, "api_key"):
            raise TypeError(f"rules are matched against a RequestContext, not {type(context).__name__}")
        whole = cost if isinstance(cost, int) else whole_cost(cost)
        if not 0 <= whole <= MAX_COST:
            check_input("-", whole)  # raises
        if not now_us:
            now_us = self._backend.store.clock.ticks()
        rules = self._rules.current
        chosen = rules.resolve(context, now_us)
        if op is Op.TAKE and context.client is not None and not rules.knows_client(context.client, now_us):
            self.seen_clients.record(context.client, now_us)
        members: list[Member] = []
        dimensions: Sequence[str] = ()
        shadows = False
        holds = False
        for key, rule in chosen:
            shadows = shadows or rule.shadow
            algorithm = rule.algorithm
            holds = holds or algorithm.holds
            peeks = algorithm.holds and not hold
            members.append(Member(key, algorithm, whole, not rule.shadow, 0, 0, rule.on_store_error, None, peeks))
            dimensions = rule.dimensions if not dimensions else [*dimensions, rule.dimension]
        on_shadows = self._count_shadows if shadows else None
        return PendingCheck(self._pressure, op, members, dimensions, None, None, False, on_shadows, hold and holds)

    @property
    def uses_routes(self) -> bool:
        """Whether a request's route is part of the key whose policy applies to it."""
        return "route" in self._rules.current.defaults.policy_key

    def policy_key(self, context: ContextFields, route: str) -> str | None:
        """The key whose policy applies to a request for this route template; None where routes are not part of it."""
        key = self._rules.current.keys(context, route).get("key") if self.uses_routes else None
        return None if key is None else key.removeprefix("key:")

    def _count_shadows(self, shadows: Sequence[Decision]) -> None:
        for shadow in shadows:
            if not shadow.allowed:
                with self._lock:
                    if shadow.name not in self.shadow_denials:  # drop deleted rules, so that it is bounded
                        rules = self._rules.current.rules
                        self.shadow_denials = {name: n for name, n in self.shadow_denials.items() if name in rules}
                    self.shadow_denials[shadow.name] = self.shadow_denials.get(shadow.name, 0) + 1

    def _check_support(self, rule: Rule) -> None:
        """Refuse a rule whose store does not exist or does not support its algorithm; each combination is checked once.
        From the first rule with a lease on, the backend is ready for leases."""
        if (rule.algorithm, rule.store, rule.lease) not in self._supported:
            self._backend.check_store(rule.store, rule.rule_id)
            algorithm = build(rule.compiled(), rule.counter)
            algorithm.store = rule.store
            self._backend.check_support(algorithm)
            self._supported.add((rule.algorithm, rule.store, rule.lease))


class RemoteRuleEvaluator:
    """For a store with rules of its own, such as a Crestgate service: it matches the request itself."""

    def __init__(self, store: RemoteStore, backend: Backend) -> None:
        self.catalog: Catalog | None = None
        self.shadow_denials: dict[str, int] = {}
        self.uses_routes = False
        self._store = store
        self._backend = backend

    def prepare(
        self, op: Op, context: ContextFields, cost: SupportsIndex, now_us: int = 0, hold: bool = False
    ) -> PendingCheck:
        """The check of a request. Bad input is a ValueError. Its rules are the service's, which takes no slots."""
        member = self._store.rules_for(context_fields(context))
        assert member is not None
        member.cost = whole_cost(cost)
        check_input("-", member.cost)
        return PendingCheck(self._backend.pressure, op, [member])

    def policy_key(self, context: ContextFields, route: str) -> str | None:
        return None


class CatalogPlans(Mapping[str, Plan]):
    """The limits of the current plans of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getitem__(self, name: str) -> Plan:
        return self._catalog.current.plans[name].resolved

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog.current.plans)

    def __len__(self) -> int:
        return len(self._catalog.current.plans)


def context_fields(context: ContextFields) -> dict[str, Any]:
    """The known fields of a request, by name. Bad input is a ValueError."""
    if not isinstance(context, RequestContext) and not hasattr(context, "api_key"):
        raise TypeError(f"rules are matched against a RequestContext, not {type(context).__name__}")
    fields = {
        "ip": context.ip,
        "user": context.user,
        "api_key": context.api_key,
        "client": context.client,
        "path": None if context.path is None else shorten_path(check_text("path", context.path)),
        "method": context.method,
        "tier": context.tier,
        "key": context.key,
    }
    found: dict[str, Any] = {name: check_text(name, value) for name, value in fields.items() if value is not None}
    attributes = context.attributes
    if attributes is not None:
        attribute_subjects(attributes, None)  # raises
        found["attributes"] = dict(attributes)
    return found
