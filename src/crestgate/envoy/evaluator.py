# mypyc: compile
"""Decides RateLimitRequests by the current descriptors, for any protocol."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import Decision
from crestgate.envoy.descriptors import DESCRIPTORS, ENTRIES, MAX_RESET, check_size, read_request
from crestgate.envoy.plain_request import read_plain
from crestgate.envoy.request import GIVES_BACK, SHADOW, RateLimitCheck
from crestgate.errors import InvalidRequestError
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.pending_check import PendingCheck, try_decide
from crestgate.protobuf.field_counts import check_counts
from crestgate.protobuf.messages import RateLimitRequest
from crestgate.runtime.tasks import run_to_completion
from crestgate.stores.port import Member, Op, Outcome

if TYPE_CHECKING:
    from crestgate.envoy.matcher import Domains
    from crestgate.envoy.reloader import Descriptors

__all__ = ["DescriptorEvaluator", "RateLimitVerdict"]

MAX_CACHED: Final = 4096
"""Requests that are cached by their bytes: proxies repeat most of them."""
MAX_CACHED_BYTES: Final = 1024
"""Maximum size of a cached request."""
MAX_CACHED_MEMBERS: Final = 8
"""Maximum descriptors and counters of a cached request: each takes as much memory as a small request."""
MAX_SHAPES: Final = 256
"""Combinations of limits and hits for which a prepared request is cached, whatever its keys."""
MAX_VALUE_LABELS: Final = 500
"""Labels with values of requests in them (`detailed_metric`, `value_to_metric`). Above it, limits are counted under
their own label: otherwise a flood of values would evict all other labels from the metrics, which are bounded."""
MAX_LOGGED_DOMAINS: Final = 20
"""Unknown domains that are logged, each once."""
MAX_DOMAIN: Final = 100
"""Characters of a domain in the log."""

RateLimitVerdict = tuple[list[Decision], bool]
"""The decision of each member, and whether the request is over its limit."""

_read: Final[Any] = RateLimitRequest.FromString
_log = logging.getLogger("crestgate.envoy")


@final
class DescriptorEvaluator:
    """Reads and decides the RateLimitRequests of one worker."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        descriptors: Descriptors,
        charge_beyond: bool | None = None,
        max_debt: int = 100,
    ) -> None:
        """`charge_beyond` is for limits that do not say whether hits beyond them are charged, `max_debt` how far: in
        percent of the limit."""
        self.limiter = limiter
        self.charge_beyond = charge_beyond
        self.max_debt = max_debt
        self.descriptors = descriptors
        self.backend = limiter.backend
        self.pressure = limiter.backend.pressure
        self.failure = limiter.backend.failure
        self.fail_closed = self.failure.policy == "closed"
        self.fail_local = self.failure.policy == "local"
        self._domains: Domains | None = None
        self.cache: dict[bytes, RateLimitCheck] = BoundedCache(MAX_CACHED)
        """Prepared requests by their bytes, for the current domains."""
        self.shapes: dict[tuple[int, ...], RateLimitCheck] = BoundedCache(MAX_SHAPES)
        """Prepared requests by their hits and the identities of the limits that they match."""
        self.value_labels: set[str] = set()
        self._unknown_domains: set[str] = set()

    def read_bytes(self, data: bytes) -> RateLimitCheck:
        """An encoded RateLimitRequest, prepared or cached."""
        domains = self.descriptors.current
        if domains is not self._domains:
            self._use(domains)
        check = self.cache.get(data)
        if check is not None:
            return check
        check_counts(data, DESCRIPTORS, ENTRIES)
        if len(data) > MAX_CACHED_BYTES:
            return self.read(_read(data))
        check = self._read_small(domains, data)
        if len(check.members) <= MAX_CACHED_MEMBERS:
            self.cache[data] = check
        return check

    def _read_small(self, domains: Domains, data: bytes) -> RateLimitCheck:
        """A request that is not cached. Most differ from others in the values of their entries only, so in their
        keys: all else is known from the last one that matched the same limits."""
        plain = read_plain(data)
        if plain is None or len(plain.descriptors) > MAX_CACHED_MEMBERS or not domains.knows(plain.domain):
            return self.read(_read(data))
        keys: list[str] = []
        matched: list[int] = [plain.hits]
        for entries in plain.descriptors:
            match = domains.match(plain.domain, entries)
            if match is None:
                matched.append(0)
                continue
            limit = match.limit
            if match.label != limit.label:
                return self.read(_read(data))
            matched.append(id(limit))
            if limit.algorithm is not None:
                keys.append(match.key)
        shape = tuple(matched)
        known = self.shapes.get(shape)
        if known is not None and (len(keys) == 1 or len(set(keys)) == len(keys)):
            return self._complete(known.with_keys(keys)) if keys else known
        check = self.read(_read(data))
        # No other domains came into force meanwhile, no limit is replaced, and no counter has two.
        if domains is self._domains and check.message is None and len(check.members) == len(keys):
            self.shapes[shape] = check
        return check

    def _complete(self, check: RateLimitCheck) -> RateLimitCheck:
        if check.single:
            check.request = check.pending = PendingCheck(self.pressure, Op.TAKE, check.members)
        return check

    def read(self, message: Any) -> RateLimitCheck:
        """A RateLimitRequest, prepared."""
        domains = self.descriptors.current
        if domains is not self._domains:
            self._use(domains)
        check = read_request(domains, message, self.charge_beyond)
        if not domains.knows(message.domain):
            self._log_unknown_domain(message.domain)
        self._complete(check)
        for index, label in enumerate(check.labels):
            own = check.members[index].algorithm.label
            if label == own or label in self.value_labels:
                continue
            if len(self.value_labels) < MAX_VALUE_LABELS:
                self.value_labels.add(label)
            else:
                check.labels[index] = own
        return check

    def _use(self, domains: Domains) -> None:
        """Other domains are in force from now on."""
        self._domains = domains
        self.cache.clear()
        self.shapes.clear()
        if domains.leased is not None:
            self.backend.leases(domains.leased)

    def prepare_reset(self, domain: str, descriptors: Sequence[Any]) -> PendingCheck:
        """The reset of the counters of descriptors, which have `entries` with `key` and `value` each."""
        domains = self.descriptors.current
        if not domains.knows(domain):
            raise InvalidRequestError("domain", f"there is no domain {domain!r} among the Envoy limits")
        check_size(descriptors, MAX_RESET)
        members: dict[tuple[str, str], Member] = {}
        for descriptor in descriptors:
            match = domains.match(domain, [(entry.key or "", entry.value or "") for entry in descriptor.entries])
            algorithm = None if match is None else match.limit.algorithm
            if match is not None and algorithm is not None:
                members[match.key, algorithm.name] = Member(match.key, algorithm, 0)
        return self.limiter.prepare_counters(Op.RESET, list(members.values()))

    def try_decide(self, check: RateLimitCheck) -> RateLimitVerdict | None:
        """The verdict, if a local store responds without waiting; else None, and nothing was done."""
        pending = check.pending
        if pending is not None:
            taken = try_decide(self.backend, [pending])
            return None if taken is None else (taken, not taken[0].allowed)
        if check.settles:
            return None
        outcomes: Sequence[Outcome] = ()
        if check.request is not None:
            replies = self.backend.try_apply([check.request])
            if replies is None:
                return None
            outcomes = replies[0]
            if check.beyond[0] and not outcomes[0].decision.allowed:
                return None  # it is the only one, and nothing was taken: `decide` charges it
        if self.fail_local and (check.quotas or True in check.beyond):
            outcomes = self._apply_locally(check, outcomes)
        decisions = check.decisions(outcomes, self.fail_closed)
        return self._with_pressure(check, decisions), check.is_over(decisions)

    async def decide(self, check: RateLimitCheck) -> RateLimitVerdict:
        """The verdict. All limits are decided in one step; give-backs and debts follow in a second one, which is
        completed even if the caller is cancelled."""
        limiter = self.limiter
        outcomes: Sequence[Outcome] = ()
        if check.request is not None:
            outcomes = (await limiter.apply([check.request]))[0]
        if self.fail_local and (check.quotas or check.settles or True in check.beyond):
            outcomes = self._apply_locally(check, outcomes)
        decisions = check.decisions(outcomes, self.fail_closed)
        over = check.is_over(decisions)
        denied = over and check.is_over(decisions, reports=False)
        if True in check.beyond and not denied:
            await self._charge_debts(check, outcomes, decisions)
        if check.settles:
            request, indexes = check.give_back(outcomes, denied)
            if request is not None:
                _settle(decisions, indexes, (await run_to_completion(limiter.apply([request])))[0])
            if self.fail_local:
                request, indexes = check.give_back(outcomes, denied, "fallback")
                if request is not None:
                    _settle(decisions, indexes, self.failure.decide_locally(request))
        return self._with_pressure(check, decisions), over

    async def _charge_debts(
        self, check: RateLimitCheck, outcomes: Sequence[Outcome], decisions: list[Decision]
    ) -> None:
        """Charge what did not fit. The decisions stay denials, with the numbers after the charge."""
        request, indexes = check.debts(outcomes, self.max_debt)
        if request is not None:
            _deny(decisions, indexes, (await run_to_completion(self.limiter.apply([request])))[0])
        request, indexes = check.debts(outcomes, self.max_debt, local=True)
        if request is not None:
            _deny(decisions, indexes, self.failure.decide_locally(request))

    def _apply_locally(self, check: RateLimitCheck, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """The outcomes, with those of quotas and give-backs that the store did not decide from the local fallback."""
        request, indexes = check.undecided(outcomes)
        if request is None:
            return outcomes
        replies = dict(zip(indexes, self.failure.decide_locally(request), strict=True))
        return [replies.get(index, outcome) for index, outcome in enumerate(outcomes)]

    def _with_pressure(self, check: RateLimitCheck, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions with their pressure states. Shadow limits have none, as shadow rules."""
        pressure = self.pressure
        takes = check.request is not None and check.request.op is Op.TAKE
        annotated: list[Decision] = []
        for index, decision in enumerate(decisions):
            kind = check.kinds[index]
            key = check.members[index].key
            if kind == SHADOW:
                annotated.append(decision)
            elif takes and kind != GIVES_BACK:
                annotated.append(pressure.record(key, decision))
            else:
                annotated.append(pressure.annotate(key, decision))
        return annotated

    def _log_unknown_domain(self, domain: str) -> None:
        """Log it: a proxy that sends a wrong domain is silently not limited."""
        if domain not in self._unknown_domains and len(self._unknown_domains) < MAX_LOGGED_DOMAINS:
            self._unknown_domains.add(domain)
            _log.warning("unknown Envoy domain %s: no file of envoy.config has it", repr(domain[:MAX_DOMAIN]))


def _settle(decisions: list[Decision], indexes: Sequence[int], outcomes: Sequence[Outcome]) -> None:
    """Replace decisions by the state of their counters after a give-back. Without outcomes they stay."""
    for index, outcome in zip(indexes, outcomes, strict=False):
        decisions[index] = outcome.decision


def _deny(decisions: list[Decision], indexes: Sequence[int], outcomes: Sequence[Outcome]) -> None:
    """Update denials by the state of their counters after a charge. When the same hits would fit is not known here;
    they do after the full reset."""
    for index, outcome in zip(indexes, outcomes, strict=False):
        after, before = outcome.decision, decisions[index]
        decisions[index] = Decision(
            before.algorithm, False, after.remaining, after.reset_us, after.reset_us, before.detail
        )
