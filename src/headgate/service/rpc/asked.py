"""What a request of Envoy's asks of the store, without the I/O: which counters, how much of each, and what came of it.

All that the descriptors of one request meet is one request to the store, all or nothing. Three kinds of limits do not
fit into that by themselves:

Looks       (hits of 0) take nothing, and deny when nothing is left. Where all descriptors look, it is a PEEK of what
            the next request would take. Beside others a look is a member of cost 0, which the store always admits; if
            its outcome says that nothing is left, what the others took is given back. So the usual answer, yes, takes
            one call, and no order of calls lets more through than there is; another request may meanwhile be denied
            by what is given back a moment later.
Quotas      deny when all of them do. A single one is a limit like others. Several do not bind in the store, and where
            all of them deny, what the others took is given back as above.
Give-backs  (negative hits) need the tick that the store is at, which a member of cost 0 tells; they follow when the
            request is allowed, and no counter gets back more than was used of it. A log of single requests cannot tell
            which of them is meant, so its limits refuse negative hits.

Where the store does not answer, its failure policy does, which looks at limits that bind and lets others pass. But
quotas deny under `closed` (`seen`); and under `local` they and give-backs are counted by what stands in (`unmet`), to
which is given back as to the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.decision import NORMAL, Decision, Detail
from headgate.engine.bound import MAX_COST
from headgate.engine.failure import RETRY_CLOSED_US
from headgate.service.data.bodies import wrong
from headgate.stores.port import Member, Op, Outcome, Request

if TYPE_CHECKING:
    from headgate.envoy.limits import DescriptorLimit, Match

__all__ = ["BACK", "BINDS", "QUOTA", "SHADOW", "Asked"]

BINDS: Final = 0
"""A limit that denies the request when it is over."""
QUOTA: Final = 1
"""One of several that deny it when all of them are over."""
SHADOW: Final = 2
"""One that never denies it."""
BACK: Final = 3
"""Something is given back to this one."""
CLOSED: Final = Detail("fail_closed", None, NORMAL, None)


@final
class Asked:
    """One request, ready to be asked as often as it comes: it never changes."""

    __slots__ = (
        "amounts",
        "checks",
        "denies",
        "heads",
        "kinds",
        "labels",
        "limits",
        "looks",
        "members",
        "message",
        "places",
        "quotas",
        "request",
        "settles",
        "single",
    )

    def __init__(self) -> None:
        # For each descriptor:
        self.places: list[int] = []
        """Which of the members its status is of; -1 where there is nothing to count."""
        self.heads: list[bytes] = []
        """Its current_limit, encoded; of one that counts nothing its whole status."""
        self.denies: list[bool] = []
        """Whether its status may say OVER_LIMIT: not of a shadow, and not of what gives back."""
        self.limits: list[DescriptorLimit | None] = []
        # For each member:
        self.members: list[Member] = []
        self.kinds: list[int] = []
        self.looks: list[bool] = []
        self.amounts: list[int] = []
        """What is to be given back."""
        self.labels: list[str] = []
        self.quotas = 0
        self.checks = 1
        """What it counts for where the checks of a node are counted: a counter each, and one at least."""
        self.request: Request | None = None
        """None when there is nothing to ask."""
        self.single = False
        """Whether it is the simplest there is: one member that binds, and may fit."""
        self.settles = False
        """Whether something may have to be given back in a second step."""
        self.message: Any = None
        """What was asked, where dynamic metadata may have to tell of it."""

    def free(self, status: bytes) -> None:
        """One more descriptor, for which nothing is counted."""
        self.places.append(-1)
        self.heads.append(status)
        self.denies.append(False)
        self.limits.append(None)

    def add(self, match: Match, algorithm: Algorithm, hits: int, kind: int) -> None:
        """One more counter; with negative hits if they are given back."""
        self.members.append(Member(match.key, algorithm, max(hits, 0)))
        self.kinds.append(BACK if hits < 0 else kind)
        self.looks.append(hits == 0)
        self.amounts.append(max(-hits, 0))
        self.labels.append(match.label)

    def join(self, place: int, algorithm: Algorithm, hits: int, kind: int, at: str) -> None:
        """One more descriptor of a counter that another one has: it is charged once, with all hits. Where two limits
        meet there, as one that the request brings along may, the lower one decides."""
        member = self.members[place]
        if (hits < 0 and member.cost) or (hits > 0 and self.amounts[place]):
            raise wrong(f"{at}.is_negative_hits", "the same counter is charged and given back: send two requests")
        if member.cost + hits > MAX_COST or self.amounts[place] - hits > MAX_COST:
            raise wrong(f"{at}.hits_addend", f"the hits of this counter add up to more than {MAX_COST}")
        if algorithm.capacity < member.algorithm.capacity:
            member.algorithm = algorithm
        if hits < 0:
            self.amounts[place] -= hits
            self.kinds[place] = BACK
        else:
            member.cost += hits
            self.kinds[place] = min(self.kinds[place], kind) if self.kinds[place] != BACK else BACK
        self.looks[place] = self.looks[place] and hits == 0

    def complete(self) -> None:
        """All members are known: how they are asked."""
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
        for place, kind in enumerate(kinds):
            members[place].binds = kind == BINDS
            if kind == BACK or (kind != SHADOW and self.looks[place]):
                settles = True
        if all(self.looks):
            for member in members:
                member.cost = 1
            self.request = Request(Op.PEEK, members)
            return
        self.settles = settles
        self.request = Request(Op.TAKE, members)
        first = members[0]
        self.single = len(members) == 1 and kinds[0] == BINDS and first.cost <= first.algorithm.ceiling

    def unmet(self, outcomes: Sequence[Outcome]) -> tuple[Request | None, list[int]]:
        """What the store did not decide, and was let pass since it does not bind by itself; and which members that is.
        Nothing is taken where another limit denies."""
        places = [place for place, outcome in enumerate(outcomes) if outcome.decision.reason == "fail_open"]
        if not places or self.request is None:
            return None, []
        members = self.members
        denied = any(members[place].binds and not one.decision._allowed for place, one in enumerate(outcomes))
        return Request(Op.PEEK if denied else self.request.op, [members[place] for place in places]), places

    def seen(self, outcomes: Sequence[Outcome], closed: bool) -> list[Decision]:
        """What each member says, that of a look included. `closed` if what a store cannot decide is denied: to the
        failure policy a quota is one that holds up nothing."""
        decisions: list[Decision] = []
        takes = self.request is not None and self.request.op is Op.TAKE
        for place, outcome in enumerate(outcomes):
            decision = outcome.decision
            if takes and self.looks[place] and decision._allowed and not decision._remaining:
                # When the next one would fit is not known here; when all of it is there again, it does.
                decision = Decision(decision._algorithm, False, 0, decision._reset, decision._reset, decision._detail)
            elif closed and self.kinds[place] == QUOTA and decision.reason == "fail_open":
                decision = Decision(decision._algorithm, False, 0, RETRY_CLOSED_US, RETRY_CLOSED_US, CLOSED)
            decisions.append(decision)
        return decisions

    def over(self, decisions: Sequence[Decision]) -> bool:
        """Whether the request is denied."""
        left = self.quotas
        for place, decision in enumerate(decisions):
            if not decision._allowed:
                kind = self.kinds[place]
                if kind == BINDS:
                    return True
                if kind == QUOTA:
                    left -= 1
        return self.quotas > 0 and left == 0

    def second(self, outcomes: Sequence[Outcome], over: bool, reason: str = "ok") -> tuple[Request | None, list[int]]:
        """What is to be given back: all that was taken for a request that is denied after all, or what it asks to be.
        And which members that is for: those that were decided for this reason, `ok` by the store, `fallback` by what
        stands in for it. Of all others nothing was taken."""
        members = self.members
        back: list[Member] = []
        places: list[int] = []
        for place, outcome in enumerate(outcomes):
            member = members[place]
            if over and member.binds and not outcome.decision._allowed:
                return None, []  # the store has denied it, and nothing was taken
            amount = member.cost if over else self.amounts[place]
            if amount and outcome.decision._allowed and outcome.decision.reason == reason:
                back.append(Member(member.key, member.algorithm, amount, True, outcome.tick, amount))
                places.append(place)
        return (Request(Op.GIVE_BACK, back) if back else None), places

    def deciding(self, decisions: Sequence[Decision], over: bool) -> list[Decision]:
        """The limits whose numbers are told, and one of which decides: not the shadows. A request that was denied by
        its quotas passes as soon as one of them admits, so of these it is the one with the shortest wait."""
        kinds = self.kinds
        parts: list[Decision] = []
        soonest: Decision | None = None
        bound = False
        for place, decision in enumerate(decisions):
            kind = kinds[place]
            if over and kind == QUOTA:
                if soonest is None or _sooner(decision, soonest):
                    soonest = decision
            elif kind != SHADOW:
                parts.append(decision)
                bound = bound or not decision._allowed
        if soonest is not None and not bound:
            parts.append(soonest)
        return parts


def _sooner(decision: Decision, other: Decision) -> bool:
    wait, least = decision._wait, other._wait
    return wait is not None and (least is None or wait < least)
