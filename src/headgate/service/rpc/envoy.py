"""`envoy.service.ratelimit.v3.RateLimitService`: Envoy asks whether a request may pass, by descriptors of it.

A request is answered at once where its store can: no coroutine, one lookup of what was asked (the same bytes ask the
same, and few proxies think of new ones for every request), one call of the store, one answer put together from bytes.
For stores across a network, or one that is busy, the same steps are made in time.

Without `envoy.config` every call is refused, with FAILED_PRECONDITION: a proxy that is told OK by a service whose
operator forgot one setting would let everything through, and nobody would notice.

For the node's ceiling a request is as many checks as it has counters. In metrics it is one, and counted for the limit
that decided: the one that denied, else the one with least left. Errors are gRPC errors, and code UNKNOWN is never sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, final

from headgate.core.decision import Decision, combine
from headgate.embedded.asking import PreparedMembers
from headgate.errors import StoreError
from headgate.http.headers import rate_limit_headers
from headgate.service.asgi import BadRequest, Call, Headers
from headgate.service.auth.keys import includes
from headgate.service.data.bodies import wrong
from headgate.service.data.plane import DataPlane
from headgate.service.data.slices import LOCAL_SLICE, MAX_AT_ONCE_BYTES, next_turn
from headgate.service.finishing import to_the_end
from headgate.service.observe.tracing import describe
from headgate.service.rpc.asked import BACK, SHADOW, Asked
from headgate.service.rpc.descriptors import DESCRIPTORS, ENTRIES, MOST_RESET, check_size, read_request
from headgate.service.rpc.dynamic_metadata import metadata_field
from headgate.service.rpc.field_counts import check_counts
from headgate.service.rpc.messages import RateLimitRequest
from headgate.service.rpc.statuses import OK, OVER_LIMIT, headers_field, status
from headgate.stores.port import LocalStore, Member, Op, Outcome, Request

if TYPE_CHECKING:
    from headgate.envoy.following import Descriptors
    from headgate.envoy.limits import Domains

__all__ = ["NOT_CONFIGURED", "Envoy"]

DIMENSION: Final = "descriptor"
NOT_CONFIGURED: Final = "no Envoy limits are configured: set envoy.config to a file or directory of them"
MOST_REMEMBERED: Final = 4096
LONGEST_REMEMBERED: Final = 1024
"""Bytes of a request whose meaning is kept at hand."""
MOST_MEMBERS: Final = 8
"""And its counters: each takes as much memory as a small request."""
MOST_TELLING: Final = 500
"""Labels with values of requests in them (`detailed_metric`, `value_to_metric`). Beyond it limits are counted under
their own: a flood of values would else push those of all others out of the metrics, which are bounded."""
LONGEST_TOLD: Final = 100
"""Characters."""
MOST_STRANGE: Final = 20
"""Domains that no file has, and that the log tells of, each once."""

_read: Final[Any] = RateLimitRequest.FromString
_log = logging.getLogger("headgate.grpc")


@final
class Envoy:
    """Answers proxies in one worker."""

    def __init__(self, plane: DataPlane, descriptors: Descriptors | None) -> None:
        self.plane = plane
        self.limiter = plane.limiter
        self.engine = plane.limiter._engine
        self.tally = plane.tally
        self.clock = plane.clock
        settings = plane.parts.settings
        self.style = replace(settings.headers, x_ratelimit=settings.envoy.x_ratelimit)
        self.descriptors = descriptors
        self.closed = self.engine.failure.policy == "closed"
        self.local = self.engine.failure.policy == "local"
        self.negative_hits = plane.parts.settings.envoy.negative_hits
        self.domains: Domains | None = None
        self.known: dict[bytes, Asked] = {}
        """What requests ask of these domains, by their bytes."""
        self.telling: set[str] = set()
        self.strange: set[str] = set()

    def at_once(self, call: Call, message: bytes) -> bytes | None:
        """`in_time`, where nothing has to be waited for: the usual case, without a coroutine."""
        plane = self.plane
        local = self.engine.local
        if local is None or not plane.quick or len(message) > MAX_AT_ONCE_BYTES:
            return None
        started = perf_counter()
        asked = self.asked(message)
        if asked.settles:
            self.permit(call, asked)
            if local.waits:
                return None  # what is given back may have to be waited for
        plane.afford(asked.checks)
        now_us = self.clock.ticks()
        try:
            if asked.single:
                member = asked.members[0]
                if not local.waits:
                    taken = local.take(member.algorithm, member.key, member.cost)
                    return self.answer_single(call, asked, taken, now_us, started)
                several = local.take_many([(member.algorithm, member.key, member.cost)])
                if several is not None:
                    return self.answer_single(call, asked, several[0], now_us, started)
            outcomes: Sequence[Outcome] = ()
            if asked.request is not None:
                replies = local.apply_within([asked.request], 0.0)
                if replies is None:
                    plane.ceiling.give_back(asked.checks)  # it is counted when it is answered
                    return None
                outcomes = replies[0]
            decisions = asked.seen(outcomes, self.closed)
            over = asked.over(decisions)
            if asked.settles:
                second, places = asked.second(outcomes, over)
                if second is not None:
                    settle(decisions, places, self.given_back(local, second))
            return self.answer(call, asked, self.noted(asked, decisions), over, now_us, started)
        except StoreError:
            plane.ceiling.give_back(asked.checks)
            return None  # whoever waits for it asks again, and has a policy for it

    def given_back(self, local: LocalStore, second: Request) -> Sequence[Outcome]:
        """What came of the second step. If it fails it is lost, as any settlement: the first must not be made twice."""
        try:
            return local.apply([second])[0]
        except StoreError as error:
            self.engine.failure.note(error)
            return ()

    async def in_time(self, call: Call, message: bytes) -> bytes:
        """`ShouldRateLimit`: whether all limits that the descriptors meet have room for the request."""
        started = perf_counter()
        return await self.decide(call, self.asked(message), started)

    async def decide(self, call: Call, asked: Asked, started: float) -> bytes:
        """The answer to what is asked. Its limits are decided in one step, since they are all or nothing; what comes
        before and after is done in other turns of the loop where there are many."""
        if asked.settles:
            self.permit(call, asked)
        self.plane.afford(asked.checks)
        many = len(asked.places) > LOCAL_SLICE
        if many:
            await next_turn()
        now_us = self.clock.ticks()
        limiter = self.limiter
        with self.plane.span(call, "envoy") as span:
            request = asked.request
            outcomes: Sequence[Outcome] = () if request is None else (await limiter._apply([request]))[0]
            if self.local and (asked.quotas or asked.settles):
                outcomes = self.stood_in(asked, outcomes)
            decisions = asked.seen(outcomes, self.closed)
            over = asked.over(decisions)
            if asked.settles:
                second, places = asked.second(outcomes, over)
                if second is not None:
                    settle(decisions, places, (await to_the_end(limiter._apply([second])))[0])
                if self.local:
                    second, places = asked.second(outcomes, over, "fallback")
                    if second is not None:
                        settle(decisions, places, self.engine.failure.locally(second))
            if many:
                await next_turn()
            decisions = self.noted(asked, decisions)
            if span is not None and decisions:
                describe(span, combine(tuple(decisions), not over))
        return self.answer(call, asked, decisions, over, now_us, started)

    def permit(self, call: Call, asked: Asked) -> None:
        """Refuse to give back to those who may only check: nothing in this protocol shows that they took it."""
        if self.negative_hits or BACK not in asked.kinds:
            return
        caller = None if call.visit is None else call.visit.caller
        if caller is None or not includes(caller.scope, "write"):
            raise BadRequest(
                403,
                "is_negative_hits gives back what others may have taken: it needs a key with the scope write, or "
                "envoy.negative_hits in the configuration",
            )

    def stood_in(self, asked: Asked, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """The outcomes, with those of quotas and give-backs that the store did not decide from what stands in."""
        missed, places = asked.unmet(outcomes)
        if missed is None:
            return outcomes
        replies = dict(zip(places, self.engine.failure.locally(missed), strict=True))
        return [replies.get(place, outcome) for place, outcome in enumerate(outcomes)]

    def asked(self, message: bytes) -> Asked:
        """What a request asks, by its bytes: read now, or known."""
        domains = self.current()
        if domains is not self.domains:
            self.domains = domains
            self.known.clear()
        asked = self.known.get(message)
        if asked is not None:
            return asked
        check_counts(message, DESCRIPTORS, ENTRIES)
        asked = self.read(domains, _read(message))
        if len(message) <= LONGEST_REMEMBERED and len(asked.members) <= MOST_MEMBERS:
            if len(self.known) >= MOST_REMEMBERED:  # what is still asked is soon here again
                self.known.clear()
            self.known[message] = asked
        return asked

    def read(self, domains: Domains, message: Any) -> Asked:
        """What a RateLimitRequest asks, under labels of which there are so many and no more."""
        asked = read_request(domains, message)
        if not domains.knows(message.domain):
            self.wonder(message.domain)
        for place, label in enumerate(asked.labels):
            own = asked.members[place].algorithm.label
            if label == own or label in self.telling:
                continue
            if len(self.telling) < MOST_TELLING:
                self.telling.add(label)
            else:
                asked.labels[place] = own
        return asked

    def wonder(self, domain: str) -> None:
        """A proxy that asks for the wrong domain is not limited, and nobody would notice: the log says so, once."""
        if domain not in self.strange and len(self.strange) < MOST_STRANGE:
            self.strange.add(domain)
            _log.warning("no file of envoy.config has the domain %s, which is asked for", repr(domain[:LONGEST_TOLD]))

    def current(self) -> Domains:
        """The limits as they are now."""
        if self.descriptors is None:
            raise BadRequest(412, NOT_CONFIGURED)
        return self.descriptors.current

    def noted(self, asked: Asked, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions with their states of pressure. Shadows have none, as those of rules."""
        engine = self.engine
        takes = asked.request is not None and asked.request.op is Op.TAKE
        noted: list[Decision] = []
        for place, decision in enumerate(decisions):
            kind = asked.kinds[place]
            key = asked.members[place].key
            if kind == SHADOW:
                noted.append(decision)
            elif takes and kind != BACK:
                noted.append(engine.note(key, decision))
            else:
                noted.append(engine.standing(key, decision))
        return noted

    def answer_single(self, call: Call, asked: Asked, taken: Decision, now_us: int, started: float) -> bytes:
        """Count what the only limit of a request has decided, and say it."""
        member = asked.members[0]
        decision = self.engine.note(member.key, taken)
        self.tally.at(now_us)
        self.count(call, asked.labels[0], member.key, decision, now_us)
        headers = rate_limit_headers(decision, self.style, now_us)
        return self.said(asked, [decision], not decision._allowed, headers, started)

    def answer(
        self, call: Call, asked: Asked, decisions: Sequence[Decision], over: bool, now_us: int, started: float
    ) -> bytes:
        """Count what all the limits of a request have decided, and say it."""
        tally = self.tally
        tally.at(now_us)
        for place, decision in enumerate(decisions):
            if asked.kinds[place] == SHADOW and not decision._allowed:
                tally.shadowed(asked.labels[place], DIMENSION)
        parts = asked.deciding(decisions, over)
        if not parts:
            call.allowed = True
            tally.decided("", "none", "", True)
            return self.said(asked, decisions, False, (), started)
        decision = combine(tuple(parts), not over)
        for place, one in enumerate(decisions):
            # Two members may have the same limit, under different keys: it is told by its numbers, too.
            if one._algorithm is decision._algorithm and one._remaining == decision._remaining:
                self.count(call, asked.labels[place], asked.members[place].key, decision, now_us)
                break
        return self.said(asked, decisions, over, rate_limit_headers(decision, self.style, now_us), started)

    def count(self, call: Call, label: str, key: str, decision: Decision, now_us: int) -> None:
        """As of every check: which limit has decided, about whom."""
        allowed = decision._allowed
        call.subject, call.allowed = key, allowed
        tally = self.tally
        tally.decided(label, DIMENSION, key, allowed)
        if self.plane.remaining:
            tally.left(label, key, decision._remaining, now_us)
        if decision._detail is not None and decision._detail.reason == "fail_open":
            tally.failed_open()

    def said(self, asked: Asked, decisions: Sequence[Decision], over: bool, headers: Headers, started: float) -> bytes:
        """The answer, in bytes."""
        said = OVER_LIMIT if over else OK
        places, heads, denies = asked.places, asked.heads, asked.denies
        for i in range(len(places)):
            place = places[i]
            if place < 0:
                said += heads[i]
            else:
                one = decisions[place]
                said += status(heads[i], one, denies[i] and not one._allowed)
        said += headers_field(headers)
        if asked.message is not None:
            said += metadata_field(asked, decisions)
        self.tally.timed(perf_counter() - started)
        return said

    async def reset(self, call: Call, domain: str, descriptors: Sequence[Any]) -> Sequence[Member]:
        """Forget the counters of these descriptors, which have `entries` with `key` and `value` each; which counters
        they were. It is in the audit log."""
        domains = self.current()
        if not domains.knows(domain):
            raise wrong("domain", f"there is no domain {domain!r} among the Envoy limits")
        check_size(descriptors, MOST_RESET)
        members: dict[tuple[str, str], Member] = {}
        for descriptor in descriptors:
            match = domains.match(domain, [(entry.key or "", entry.value or "") for entry in descriptor.entries])
            algorithm = None if match is None else match.limit.algorithm
            if match is not None and algorithm is not None:
                members[match.key, algorithm.name] = Member(match.key, algorithm, 0)
        return await self.plane.forget(call, PreparedMembers(self.engine, Op.RESET, list(members.values())))


def settle(decisions: list[Decision], places: Sequence[int], outcomes: Sequence[Outcome]) -> None:
    """Something was given back: how these counters stand after that. Where the store did not answer, they stand as
    they did."""
    for place, outcome in zip(places, outcomes, strict=False):
        decisions[place] = outcome.decision
