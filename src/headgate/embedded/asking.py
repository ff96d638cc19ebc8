"""One request under rules, without the I/O: what to ask the store, and what decision its outcomes add up to.

All rules that win are one request to the store, with members of different keys: those that bind all or nothing, and
shadow rules beside them. `Asking` is the same for threads and event loops; the limiters add only the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import SupportsIndex

from headgate.core.algorithms import build
from headgate.core.decision import NORMAL, Decision, Detail, combine
from headgate.core.limit import Limit
from headgate.engine.bound import MAX_COST, Bound, Engine, check_input, whole_cost
from headgate.engine.failure import FailurePolicy
from headgate.engine.reservation import charged, returning
from headgate.rules.catalog import Catalog
from headgate.rules.context import Asked, RequestContext
from headgate.rules.entry import Entry
from headgate.rules.path import shortened
from headgate.rules.rule import Rule
from headgate.rules.ruleset import Chosen, checked_text
from headgate.rules.views.clients import SeenClients
from headgate.stores.forking import fork_safe_lock
from headgate.stores.port import LocalStore, Member, Op, Outcome, PartlyAnswered, Replies, Request, Take

__all__ = [
    "Asking",
    "CatalogPlans",
    "Holding",
    "Prepared",
    "PreparedChain",
    "PreparedMembers",
    "Simple",
    "Taken",
    "decided_at_once",
    "decisions_of",
    "said",
]

Taken = tuple[Decision, str, str]
"""A decision, and the dimension and key of the counter that decided."""

_UNLIMITED = build(Limit(MAX_COST, 1), "no_rule", "")


class Asking:
    """Turns request contexts into requests to a store, by the rules of a catalog as they are at that moment."""

    def __init__(self, catalog: Catalog, engine: Engine) -> None:
        self.catalog = catalog
        self.seen = SeenClients()
        self.shadow_denials: dict[str, int] = {}
        self._engine = engine
        self._supports: set[str] = set()
        self._lock = fork_safe_lock()
        catalog.accept_only(self._supported)

    def prepare(self, op: Op, context: Asked, cost: SupportsIndex) -> Prepared:
        """What is to be asked. Bad input is a ValueError, and nothing is touched."""
        if not isinstance(context, RequestContext) and not hasattr(context, "api_key"):
            raise TypeError(f"rules are matched against a RequestContext, not {type(context).__name__}")
        whole = cost if isinstance(cost, int) else whole_cost(cost)
        if not 0 <= whole <= MAX_COST:
            check_input("-", whole)  # says what is wrong
        now_us = self._engine.store.clock.ticks()
        rules = self.catalog.current
        chosen = rules.resolve(context, now_us)
        if op is Op.TAKE and context.client is not None and not rules.knows_client(context.client, now_us):
            self.seen.see(context.client, now_us)
        return Prepared(self, op, chosen, whole)

    def simple(self, contexts: Sequence[Asked], costs: Sequence[int], now_us: int) -> Simple | None:
        """Several requests, each under the one rule that applies to it; None where that cannot be: other numbers of
        rules, or shadow rules."""
        rules = self.catalog.current
        takes: list[Take] = []
        entries: list[Entry] = []
        for i in range(len(contexts)):  # and not `zip`, which would cost as much as what is done here
            cost = costs[i]
            if not 0 <= cost <= MAX_COST:
                check_input("-", cost)
            chosen = rules.resolve(contexts[i], now_us)
            if len(chosen) != 1:
                return None
            key, entry = chosen[0]
            if entry.shadow:
                return None
            takes.append((entry.algorithm, key, cost))
            entries.append(entry)
        return Simple(contexts, takes, entries)

    def take_simple(self, store: LocalStore, simple: Simple) -> list[Taken] | None:
        """Check them, without waiting. None, and nothing is done, where that cannot be: the store is busy."""
        takes, entries, contexts = simple.takes, simple.entries, simple.contexts
        decisions = store.take_many(takes)
        if decisions is None:
            return None
        rules = self.catalog.current
        now_us = 0
        taken: list[Taken] = []
        for i in range(len(takes)):
            key = takes[i][1]
            taken.append((self._engine.note(key, decisions[i]), entries[i].dimension, key))
            client = contexts[i].client
            if client is not None:
                now_us = now_us or store.clock.ticks()
                if not rules.knows_client(client, now_us):
                    self.seen.see(client, now_us)
        return taken

    def finish(self, op: Op, chosen: Sequence[Chosen], outcomes: Sequence[Outcome]) -> Decision:
        """The decision that the outcomes add up to."""
        engine = self._engine
        parts: list[Decision] = []
        shadows: list[Decision] = []
        allowed = True
        for (key, entry), outcome in zip(chosen, outcomes, strict=True):
            decision = outcome.decision
            if entry.shadow:
                shadows.append(decision)
                continue
            allowed = allowed and decision.allowed
            parts.append(engine.note(key, decision) if op is Op.TAKE else engine.standing(key, decision))
        decision = combine(tuple(parts), allowed) if parts else no_rule()
        if not shadows:
            return decision
        if op is Op.TAKE:
            self._count(shadows)
        return decision.beside(tuple(shadows))

    def forgotten(self, chosen: Sequence[Chosen]) -> None:
        """These counters were reset: they are under no pressure."""
        with self._engine.pressure_lock:
            for key, entry in chosen:
                self._engine.pressure.forget(key, entry.counter)

    def _count(self, shadows: Sequence[Decision]) -> None:
        for shadow in shadows:
            if not shadow.allowed:
                with self._lock:
                    if shadow.name not in self.shadow_denials:  # only of rules that are there still, so it is bounded
                        known = self.catalog.current.rules
                        self.shadow_denials = {name: n for name, n in self.shadow_denials.items() if name in known}
                    self.shadow_denials[shadow.name] = self.shadow_denials.get(shadow.name, 0) + 1

    def _supported(self, rule: Rule) -> None:
        """Refuse an algorithm that the store has no twin for; each is asked about once."""
        if rule.algorithm not in self._supports:
            self._engine.check_support(build(rule.compiled(), rule.counter))
            self._supports.add(rule.algorithm)


class Simple:
    """Requests under one rule each, ready to be taken."""

    def __init__(self, contexts: Sequence[Asked], takes: Sequence[Take], entries: Sequence[Entry]) -> None:
        self.contexts = contexts
        self.takes = takes
        self.entries = entries


class Prepared:
    """A request under rules, ready to be asked. `request` is None when no rule applies."""

    def __init__(self, asking: Asking, op: Op, chosen: list[Chosen], cost: int) -> None:
        self._asking = asking
        self._op = op
        self._chosen = chosen
        self.request: Request | None = None
        if chosen:
            self.request = Request(
                op,
                [
                    Member(key, entry.algorithm, cost, not entry.shadow, 0, 0, entry.rule.on_store_error)
                    for key, entry in chosen
                ],
            )

    def decision(self, outcomes: Sequence[Outcome]) -> Decision:
        return self._asking.finish(self._op, self._chosen, outcomes)

    def forgotten(self) -> None:
        self._asking.forgotten(self._chosen)

    def counters(self, dimension: str) -> list[tuple[str, str]]:
        """The name and the key of the counters of all rules of a dimension that bind."""
        found: list[tuple[str, str]] = []
        for key, entry in self._chosen:
            if entry.dimension == dimension and not entry.shadow:
                found.append((entry.counter, key))
        return found

    def subject(self, decision: Decision) -> tuple[str, str]:
        """The dimension and the key of the limit that decided; `none` where nothing limits."""
        algorithm = decision._algorithm
        for key, entry in self._chosen:
            if entry.algorithm is algorithm:
                return entry.dimension, key
        return "none", ""


class PreparedMembers(Prepared):
    """Counters that are asked for one by one, or, behind a stand-in, told by the store (see stores/far.py)."""

    def __init__(self, engine: Engine, op: Op, members: Sequence[Member]) -> None:
        self._engine = engine
        self._op = op
        self.asked = Request(op, members)
        self.request = self.asked

    def decision(self, outcomes: Sequence[Outcome]) -> Decision:
        engine = self._engine
        parts: list[Decision] = []
        shadows: list[Decision] = []
        allowed = True
        for member, outcome in zip(self.asked.members, outcomes, strict=True):
            decision = outcome.decision
            if not member.binds:
                shadows.append(decision)
                continue
            allowed = allowed and decision._allowed
            noted = engine.note(member.key, decision) if self._op is Op.TAKE else engine.standing(member.key, decision)
            parts.append(noted)
        decision = combine(tuple(parts), allowed) if parts else no_rule()
        return decision.beside(tuple(shadows)) if shadows else decision

    def counters(self, dimension: str) -> list[tuple[str, str]]:
        return []  # those of rules are the store's, which has told of them

    def forgotten(self) -> None:
        engine = self._engine
        with engine.pressure_lock:
            for member in self.asked.members:
                engine.pressure.forget(member.key, member.algorithm.name)

    def subject(self, decision: Decision) -> tuple[str, str]:
        for member in self.asked.members:
            if member.algorithm is decision._algorithm:
                return "key", member.key
        return "none", ""


class PreparedChain:
    """A key under a chain of plans, ready to be asked: the same methods as `Prepared`."""

    def __init__(self, bound: Bound, op: Op, key: str, cost: SupportsIndex) -> None:
        whole = whole_cost(cost)
        check_input(key, whole)
        self._bound = bound
        self._op = op
        self._key = key
        self.request: Request | None = bound.request(op, key, whole)

    def decision(self, outcomes: Sequence[Outcome]) -> Decision:
        return self._bound.finish(self._op, self._key, outcomes)

    def forgotten(self) -> None:
        self._bound.forgotten(self._key)

    def subject(self, decision: Decision) -> tuple[str, str]:
        return "key", self._key


class Holding:
    """What a prepared request has taken, as long as it may still be given back: whether it counts is known later."""

    def __init__(self, prepared: Prepared | PreparedChain, outcomes: Sequence[Outcome]) -> None:
        self.decision = prepared.decision(outcomes)
        self._request = prepared.request
        self._outcomes = outcomes

    def returning(self) -> Request | None:
        """The request that gives everything back; None when nothing was charged."""
        request = self._request
        if request is None or not request.members or not charged(request, self._outcomes):
            return None
        return returning(request, self._outcomes)

    def returned(self, engine: Engine, outcomes: Sequence[Outcome]) -> Decision:
        """How the counters stand after that, by its outcomes. Those of shadow rules are not told of."""
        request = self.returning()
        if request is None or not outcomes:
            return self.decision
        shadows = [shadow._algorithm for shadow in self.decision.shadows]
        parts = [
            engine.standing(member.key, outcome.decision)
            for member, outcome in zip(request.members, outcomes, strict=True)
            if outcome.decision._algorithm not in shadows
        ]
        return combine(tuple(parts), True) if parts else self.decision


def decided_at_once(
    store: LocalStore, prepared: Sequence[Prepared | PreparedChain], failure: FailurePolicy
) -> list[Decision] | None:
    """Decide what was prepared, if this store can without waiting; None when it cannot, and nothing was done then."""
    requests: list[Request] = []
    for one in prepared:
        request = one.request
        if request is not None:
            requests.append(request)
    replies: Replies | None
    try:
        replies = store.apply_within(requests, 0.0) if requests else []
    except PartlyAnswered as error:  # the others were decided, and must not be asked about again
        replies = failure.answer(error, requests).replies
    return None if replies is None else decisions_of(prepared, replies)


def decisions_of(prepared: Sequence[Prepared | PreparedChain], replies: Replies) -> list[Decision]:
    """What the replies add up to; where nothing was asked, because no rule applies, there is none."""
    decisions: list[Decision] = []
    place = 0
    for one in prepared:
        if one.request is None:
            decisions.append(one.decision([]))
        else:
            decisions.append(one.decision(replies[place]))
            place += 1
    return decisions


class CatalogPlans(Mapping[str, tuple[str, ...]]):
    """The plans of a catalog as they are at each moment."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._catalog.current.plans[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog.current.plans)

    def __len__(self) -> int:
        return len(self._catalog.current.plans)


def said(context: Asked) -> dict[str, str]:
    """What is known of a request, by name. Bad input is a ValueError."""
    if not isinstance(context, RequestContext) and not hasattr(context, "api_key"):
        raise TypeError(f"rules are matched against a RequestContext, not {type(context).__name__}")
    told = {
        "ip": context.ip,
        "user": context.user,
        "api_key": context.api_key,
        "client": context.client,
        "path": None if context.path is None else shortened(checked_text("path", context.path)),
        "method": context.method,
        "tier": context.tier,
        "key": context.key,
    }
    return {name: checked_text(name, value) for name, value in told.items() if value is not None}


def no_rule() -> Decision:
    """Nothing limits this request. Its numbers are the highest there are, and it has no parts."""
    return Decision(_UNLIMITED, True, MAX_COST, 0, 0, Detail("no_rule", None, NORMAL, ()))
