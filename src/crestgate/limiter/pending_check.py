# mypyc: compile
"""A check between its preparation and its decision.

It is the request that the store decides, and `finish` makes a decision of its outcomes, whatever the check was prepared
from: a key under a chain, a request under rules, or counters that a caller names one by one. `combine_parts` is the one
place that combines the decisions of limits and of shadow limits; replays of recorded outcomes use it, too.

Two others combine decisions that are already finished, without shadows: service/checks/envoy.py those of descriptors,
which are also reported one by one, and integrations/request_state.py those of several layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from crestgate.core.algorithms import build
from crestgate.core.bounds import MAX_COST
from crestgate.core.decision import NORMAL, Decision, Detail, combine
from crestgate.core.limit import Limit
from crestgate.errors import StoreError
from crestgate.limiter.backend import Backend, PressureMonitor
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, Request, SingleTake

__all__ = ["PendingCheck", "combine_parts", "finish_checks", "no_rule", "requests_of", "try_decide"]

_UNLIMITED = build(Limit(MAX_COST, 1), "no_rule", "")


@final
class PendingCheck(Request):
    """A store request, with what turns its outcomes into a decision.

    `dimensions` are the rule dimensions of the members, `key` is that of a chain, `order` lists for each limit of a
    chain its member, and `server_side` says that only the store knows the limits. `on_shadows` is given the decisions
    of shadow limits. `holds`: it takes slots of in-flight limits, which whoever sends it must release.
    """

    __slots__ = ("applies", "dimensions", "holds", "key", "on_shadows", "order", "pressure", "server_side")

    def __init__(
        self,
        pressure: PressureMonitor,
        op: Op,
        members: Sequence[Member],
        dimensions: Sequence[str] | None = None,
        key: str | None = None,
        order: tuple[int, ...] | None = None,
        server_side: bool = False,
        on_shadows: Callable[[list[Decision]], None] | None = None,
        holds: bool = False,
    ) -> None:
        # As Request's constructor does, without that call: every check has one.
        self.op = op
        self.members = members
        self.record = None
        self.group = None
        self.applies = bool(members)
        """False when no rule applies: then there is nothing to send."""
        self.pressure = pressure
        self.dimensions = dimensions
        self.key = key
        self.order = order
        self.server_side = server_side
        self.on_shadows = on_shadows
        self.holds = holds

    def finish(self, outcomes: Sequence[Outcome]) -> Decision:
        """The decision that the outcomes add up to. Counters that were reset are under no pressure any more."""
        members = self.members  # a store that knows the limits has put its counters there
        if not self.applies:
            return no_rule()
        pressure = self.pressure
        takes = self.op is Op.TAKE
        if len(outcomes) != len(members):
            raise ValueError(f"{len(members)} counters have {len(outcomes)} outcomes")
        parts: list[Decision] = []
        shadows: list[Decision] = []
        allowed = True
        for i in range(len(members)):
            member = members[i]
            decision = outcomes[i].decision
            if not member.binds:
                shadows.append(decision)
                continue
            allowed = allowed and decision.allowed
            if not takes:
                decision = pressure.annotate(member.key, decision)
            elif pressure.states or not decision.allowed or decision.remaining * 5 < decision.algorithm.capacity:
                decision = pressure.record(member.key, decision)
            parts.append(decision)
        if self.op is Op.RESET:
            self.forget()
        order = self.order
        if self.server_side:  # a limit that the store did not report is none, and a plan may have several
            parts = [part for part in parts if part.parts] or parts[:1]
        elif order is not None:
            parts = [parts[i] for i in order]
        if len(parts) == 1 and not shadows:
            return parts[0]
        if shadows and takes and self.on_shadows is not None:
            self.on_shadows(shadows)
        return combine_parts(parts, shadows, allowed)

    def subject(self, decision: Decision) -> tuple[str, str]:
        """The dimension and the key of the counter that decided; `none` where nothing limits."""
        dimensions = self.dimensions
        members = self.members
        for i in range(len(members)):
            if members[i].algorithm is decision.algorithm:
                return "key" if dimensions is None else dimensions[i], members[i].key
        return ("none", "") if self.key is None else ("key", self.key)

    def counters(self, dimension: str) -> list[tuple[str, str]]:
        """The name and the key of each counter of the rules of a dimension, without shadow rules."""
        dimensions = self.dimensions
        counters: list[tuple[str, str]] = []
        if dimensions is not None:
            for i in range(len(dimensions)):
                member = self.members[i]
                if member.binds and dimensions[i] == dimension:
                    counters.append((member.algorithm.name, member.key))
        return counters

    def forget(self) -> None:
        """The counters were reset: they are under no pressure."""
        self.pressure.forget(self.members)


def combine_parts(parts: Sequence[Decision], shadows: Sequence[Decision], allowed: bool) -> Decision:
    """The decision of limits and shadow limits together; `no_rule` if no limit binds."""
    decision = combine(tuple(parts), allowed) if parts else no_rule()
    return decision.with_shadows(tuple(shadows)) if shadows else decision


def requests_of(checks: Sequence[PendingCheck]) -> list[Request]:
    """The store requests of those checks that have one."""
    return [check for check in checks if check.applies]


def finish_checks(checks: Sequence[PendingCheck], replies: BatchOutcomes) -> list[Decision]:
    """Decisions of checks, from the replies to `requests_of(checks)`."""
    decisions: list[Decision] = []
    position = 0
    for check in checks:
        if not check.applies:
            decisions.append(check.finish([]))
        else:
            decisions.append(check.finish(replies[position]))
            position += 1
    return decisions


def try_decide(backend: Backend, checks: Sequence[PendingCheck]) -> list[Decision] | None:
    """Decisions that are there without waiting for a store; None when they are not, and nothing was done."""
    local = backend.local
    decisions = backend.local_decisions
    if local is None and (decisions is None or not decisions.knows_any()):
        return None
    takes = _takes(checks) if decisions is None else None
    if takes is not None and local is not None:
        try:
            taken = local.take_many(takes)
        except StoreError:
            return None
        if taken is not None:
            pressure = backend.pressure
            return [pressure.record(takes[i][1], taken[i]) for i in range(len(takes))]
    requests = requests_of(checks)
    replies = backend.try_apply(requests) if requests else []
    return None if replies is None else finish_checks(checks, replies)


def _takes(checks: Sequence[PendingCheck]) -> list[SingleTake] | None:
    """The checks as plain takes of one counter each; None if one of them is anything else."""
    takes: list[SingleTake] = []
    for check in checks:
        members = check.members
        if len(members) != 1 or check.op is not Op.TAKE or check.order is not None:
            return None
        member = members[0]
        if not member.binds or member.peeks:
            return None
        takes.append((member.algorithm, member.key, member.cost))
    return takes


def no_rule() -> Decision:
    """Nothing limits this request. Its numbers are the highest there are, and it has no parts."""
    return Decision(_UNLIMITED, True, MAX_COST, 0, 0, Detail("no_rule", None, NORMAL, ()))
