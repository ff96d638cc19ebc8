# mypyc: compile
"""The store request of a RateLimitRequest, without I/O: its counters, their costs, and the evaluation of outcomes.

All limits that the descriptors of one request match are one store request, all or nothing. Three kinds of limits need
more than that:

Looks       (hits of 0) take nothing, and deny when nothing is left. Where all descriptors look, it is a PEEK of what
            the next request would take. Beside others a look is a member of cost 0, which the store always admits; if
            its outcome says that nothing is left, what the others took is given back. So the most frequent result,
            allowed, takes one call, and no order of calls lets more through than there is; another request may
            meanwhile be denied by what is given back a moment later.
Quotas      deny when all of them do. A single one is a limit like others. Several do not bind in the store, and where
            all of them deny, what the others took is given back as above.
Give-backs  (negative hits) need the tick that the store is at, which a member of cost 0 returns; they follow when the
            request is allowed, and no counter gets back more than was used of it. A log of single requests cannot tell
            which of them is meant, so its limits refuse negative hits.
Reports     (hits that are charged beyond the limit) do not bind in the store. What does not fit is charged in a second
            step, as a debt: a proxy has already passed what it reports, so refusing to count it would make it free.
            The response is OVER_LIMIT all the same. If one of the others denies, it was no report but a request,
            which is refused, and nothing is charged.

If the store is unavailable, its failure policy decides binding limits, and lets others pass. But quotas deny under
`closed` (`decisions`); and under `local` they and give-backs are counted by the local fallback (`undecided`), which
also gets give-backs, as the store does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import MAX_COST
from crestgate.core.decision import NORMAL, Decision, Detail
from crestgate.errors import InvalidRequestError
from crestgate.limiter.failure_policy import RETRY_CLOSED_US
from crestgate.limiter.pending_check import PendingCheck
from crestgate.stores.port import Member, Op, Outcome, Request

if TYPE_CHECKING:
    from crestgate.envoy.matcher import DescriptorLimit, Match

__all__ = ["BINDS", "GIVES_BACK", "QUOTA", "SHADOW", "RateLimitCheck"]

BINDS: Final = 0
"""A limit that denies the request when it is over."""
QUOTA: Final = 1
"""A limit that denies the request only if all quotas are over."""
SHADOW: Final = 2
"""A limit that never denies the request."""
GIVES_BACK: Final = 3
"""A limit that gets hits back."""
CLOSED: Final = Detail("fail_closed", None, NORMAL, None)


@final
class RateLimitCheck:
    """A prepared RateLimitRequest, immutable. It is used again when the same request is repeated, and parts of it for
    requests that match the same limits."""

    __slots__ = (
        "amounts",
        "beyond",
        "checks",
        "denies",
        "encoded_limits",
        "indexes",
        "is_peek",
        "kinds",
        "labels",
        "limits",
        "members",
        "message",
        "pending",
        "quotas",
        "request",
        "settles",
        "single",
    )

    def __init__(self) -> None:
        # For each descriptor:
        self.indexes: list[int] = []
        """The index of its member; -1 without a limit."""
        self.encoded_limits: list[bytes] = []
        """Its current_limit, encoded; without a limit its whole status."""
        self.denies: list[bool] = []
        """Whether its status may be OVER_LIMIT: not that of a shadow, nor of what gives back."""
        self.limits: list[DescriptorLimit | None] = []
        # For each member:
        self.members: list[Member] = []
        self.kinds: list[int] = []
        self.is_peek: list[bool] = []
        self.amounts: list[int] = []
        """Hits to give back."""
        self.beyond: list[bool] = []
        """Whether its hits are charged also where they do not fit."""
        self.labels: list[str] = []
        self.quotas = 0
        self.checks = 1
        """Its count against the ceiling of checks: one for each counter, at least one."""
        self.request: Request | None = None
        """None without limits."""
        self.pending: PendingCheck | None = None
        """The same check for the limiter, if it is `single`."""
        self.single = False
        """Whether it is the simplest check: one binding member, whose cost can fit."""
        self.settles = False
        """Whether something may have to be given back or charged in a second step."""
        self.message: Any = None
        """The RateLimitRequest, if dynamic metadata may need it."""

    def add_unlimited(self, status: bytes) -> None:
        """Add a descriptor without a limit."""
        self.indexes.append(-1)
        self.encoded_limits.append(status)
        self.denies.append(False)
        self.limits.append(None)

    def add(self, match: Match, algorithm: Algorithm, hits: int, kind: int) -> None:
        """Add a counter; negative hits are given back."""
        self.members.append(Member(match.key, algorithm, max(hits, 0)))
        self.kinds.append(GIVES_BACK if hits < 0 else kind)
        self.is_peek.append(hits == 0)
        self.amounts.append(max(-hits, 0))
        self.beyond.append(False)
        self.labels.append(match.label)

    def merge(self, index: int, algorithm: Algorithm, hits: int, kind: int, at: str) -> None:
        """Add a descriptor with the counter of another one: it is charged once, with all hits. Of two limits,
        which an override in the request may cause, the lower one decides."""
        member = self.members[index]
        if (hits < 0 and member.cost) or (hits > 0 and self.amounts[index]):
            raise InvalidRequestError(
                f"{at}.is_negative_hits", "the same counter is charged and given back: send two requests"
            )
        if member.cost + hits > MAX_COST or self.amounts[index] - hits > MAX_COST:
            raise InvalidRequestError(f"{at}.hits_addend", f"the hits of this counter add up to more than {MAX_COST}")
        if algorithm.capacity < member.algorithm.capacity:
            member.algorithm = algorithm
        if hits < 0:
            self.amounts[index] -= hits
            self.kinds[index] = GIVES_BACK
        else:
            member.cost += hits
            self.kinds[index] = min(self.kinds[index], kind) if self.kinds[index] != GIVES_BACK else GIVES_BACK
        self.is_peek[index] = self.is_peek[index] and hits == 0

    def complete(self) -> None:
        """Build the store request, when all members are known."""
        members, kinds = self.members, self.kinds
        if not members:
            return
        self.checks = len(members)
        quotas = kinds.count(QUOTA)
        if quotas == 1:
            kinds[kinds.index(QUOTA)] = BINDS
        else:
            self.quotas = quotas
        settles = quotas > 1
        for index, kind in enumerate(kinds):
            members[index].binds = kind == BINDS and not self.beyond[index]
            if kind == GIVES_BACK or (kind != SHADOW and self.is_peek[index]):
                settles = True
            if self.beyond[index] and len(members) > 1:  # alone, what does not fit has changed nothing: see try_decide
                settles = True
        if all(self.is_peek):
            for member in members:
                member.cost = 1
            self.request = Request(Op.PEEK, members)
            return
        self.settles = settles
        self.request = Request(Op.TAKE, members)
        first = members[0]
        self.single = len(members) == 1 and members[0].binds and first.cost <= first.algorithm.ceiling

    def with_keys(self, keys: Sequence[str]) -> RateLimitCheck:
        """The same check of other counters, one for each member. All that does not depend on their keys is shared."""
        check = RateLimitCheck()
        check.indexes = self.indexes
        check.encoded_limits = self.encoded_limits
        check.denies = self.denies
        check.limits = self.limits
        for index, member in enumerate(self.members):
            check.members.append(Member(keys[index], member.algorithm, member.cost, member.binds))
        check.kinds = self.kinds
        check.is_peek = self.is_peek
        check.amounts = self.amounts
        check.beyond = self.beyond
        check.labels = self.labels
        check.quotas = self.quotas
        check.checks = self.checks
        check.single = self.single
        check.settles = self.settles
        if self.request is not None:
            check.request = Request(self.request.op, check.members)
        return check

    def undecided(self, outcomes: Sequence[Outcome]) -> tuple[Request | None, list[int]]:
        """A request for the members that the store did not decide, and that pass since they do not bind; and their
        indexes. Nothing is taken if another limit denies."""
        indexes = [index for index, outcome in enumerate(outcomes) if outcome.decision.reason == "fail_open"]
        if not indexes or self.request is None:
            return None, []
        members = self.members
        denied = any(members[index].binds and not one.decision.allowed for index, one in enumerate(outcomes))
        return Request(Op.PEEK if denied else self.request.op, [members[index] for index in indexes]), indexes

    def decisions(self, outcomes: Sequence[Outcome], fail_closed: bool) -> list[Decision]:
        """The decision of each member. `fail_closed` if undecided checks are denied: the failure policy itself lets
        quotas and reports pass, since they do not bind."""
        decisions: list[Decision] = []
        takes = self.request is not None and self.request.op is Op.TAKE
        for index, outcome in enumerate(outcomes):
            decision = outcome.decision
            if takes and self.is_peek[index] and decision.allowed and not decision.remaining:
                # When the next hit would fit is not known here; it does after the full reset.
                decision = Decision(decision.algorithm, False, 0, decision.reset_us, decision.reset_us, decision.detail)
            elif fail_closed and decision.reason == "fail_open" and (self.kinds[index] == QUOTA or self.beyond[index]):
                decision = Decision(decision.algorithm, False, 0, RETRY_CLOSED_US, RETRY_CLOSED_US, CLOSED)
            decisions.append(decision)
        return decisions

    def is_over(self, decisions: Sequence[Decision], reports: bool = True) -> bool:
        """Whether the request is denied; without `reports`, by a limit that does not charge beyond itself."""
        left = self.quotas
        for index, decision in enumerate(decisions):
            if not decision.allowed and (reports or not self.beyond[index]):
                kind = self.kinds[index]
                if kind == BINDS:
                    return True
                if kind == QUOTA:
                    left -= 1
        return self.quotas > 0 and left == 0

    def give_back(
        self, outcomes: Sequence[Outcome], over: bool, reason: str = "ok"
    ) -> tuple[Request | None, list[int]]:
        """A give-back request: all that was taken for a request that is denied in the end, or its negative hits. And
        the indexes of its members: those that were decided for this reason, `ok` by the store, `fallback` by the
        local fallback. Of all others nothing was taken."""
        members = self.members
        back: list[Member] = []
        indexes: list[int] = []
        for index, outcome in enumerate(outcomes):
            member = members[index]
            if over and member.binds and not outcome.decision.allowed:
                return None, []  # the store has denied it, and nothing was taken
            amount = member.cost if over else self.amounts[index]
            if amount and outcome.decision.allowed and outcome.decision.reason == reason:
                back.append(Member(member.key, member.algorithm, amount, True, outcome.tick, amount))
                indexes.append(index)
        return (Request(Op.GIVE_BACK, back) if back else None), indexes

    def debts(self, outcomes: Sequence[Outcome], share: int, local: bool = False) -> tuple[Request | None, list[int]]:
        """A request that charges the reports that did not fit, up to a debt of `share` percent of the limit; and the
        indexes of its members. `local` if it is for those that the local fallback has decided."""
        members = self.members
        charged: list[Member] = []
        indexes: list[int] = []
        for index, outcome in enumerate(outcomes):
            decision, member = outcome.decision, members[index]
            if self.beyond[index] and not decision.allowed and (decision.reason == "fallback") == local:
                capacity = member.algorithm.capacity
                amount = min(max(capacity * share // 100, 1), MAX_COST) if share < 100 else 0
                charged.append(Member(member.key, member.algorithm, member.cost, True, 0, amount))
                indexes.append(index)
        return (Request(Op.CHARGE, charged) if charged else None), indexes

    def parts(self, decisions: Sequence[Decision], over: bool) -> list[Decision]:
        """The decisions that are combined and reported: not those of shadows. A request that was denied by its quotas
        passes as soon as one of them admits, so of these it is the one with the shortest wait."""
        kinds = self.kinds
        parts: list[Decision] = []
        soonest: Decision | None = None
        bound = False
        for index, decision in enumerate(decisions):
            kind = kinds[index]
            if over and kind == QUOTA:
                if soonest is None or _sooner(decision, soonest):
                    soonest = decision
            elif kind != SHADOW:
                parts.append(decision)
                bound = bound or not decision.allowed
        if soonest is not None and not bound:
            parts.append(soonest)
        return parts


def _sooner(decision: Decision, other: Decision) -> bool:
    wait, shortest = decision.wait_us, other.wait_us
    return wait is not None and (shortest is None or wait < shortest)
