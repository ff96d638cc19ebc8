# mypyc: compile
"""Envoy's ShouldRateLimit, over gRPC and HTTP: limits on descriptors, decided and counted as other checks.

A RateLimitRequest counts as many checks against the node's ceiling as it has counters. In metrics it is one, of the
limit that decided: the one that denied, else the one with least remaining.

Without `envoy.config` or `envoy.xds` every request is refused (412, FAILED_PRECONDITION): a proxy that gets OK from a
service whose operator forgot one setting would let everything through, and nobody would notice. So it is before the
first configuration of a control plane (503, UNAVAILABLE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, final

from crestgate.core.decision import Decision, combine
from crestgate.envoy.dynamic_metadata import metadata_field
from crestgate.envoy.evaluator import DescriptorEvaluator, RateLimitVerdict
from crestgate.envoy.request import GIVES_BACK, SHADOW, RateLimitCheck
from crestgate.envoy.response import encode_response
from crestgate.http.headers import rate_limit_headers
from crestgate.limiter.pending_check import PendingCheck
from crestgate.service.auth.keys import includes
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.slices import LOCAL_SLICE, next_turn
from crestgate.service.context import CallContext, Headers
from crestgate.service.errors import ApiError
from crestgate.service.observability.tracing import describe

if TYPE_CHECKING:
    from crestgate.envoy.reloader import Descriptors

__all__ = ["NOT_CONFIGURED", "EnvoyService"]

DIMENSION: Final = "descriptor"
NOT_CONFIGURED: Final = "no Envoy limits are configured: set envoy.config to a file or directory of them"
NOT_RECEIVED: Final = "no configuration was received yet from the control plane of envoy.xds"


@final
class EnvoyService:
    """Answers proxies in one worker."""

    def __init__(self, checks: CheckService, descriptors: Descriptors | None) -> None:
        settings = checks.dependencies.settings
        self.checks = checks
        self.metrics = checks.metrics
        self.style = replace(settings.headers, x_ratelimit=settings.envoy.x_ratelimit)
        self.allows_negative_hits = settings.envoy.negative_hits
        self.evaluator: DescriptorEvaluator | None = None
        """None where no limits on descriptors are configured."""
        if descriptors is not None:
            envoy = settings.envoy
            self.evaluator = DescriptorEvaluator(checks.limiter, descriptors, envoy.charge_beyond_limit, envoy.max_debt)

    def should_rate_limit(self, call: CallContext, data: bytes) -> bytes | Deferred[bytes]:
        """The encoded RateLimitResponse to an encoded RateLimitRequest."""
        if self.evaluator is None:
            raise ApiError(412, NOT_CONFIGURED)
        return self._decide(call, self.evaluator, self.evaluator.read_bytes(data))

    def decide(self, call: CallContext, message: Any) -> bytes | Deferred[bytes]:
        """The encoded RateLimitResponse to a RateLimitRequest."""
        if self.evaluator is None:
            raise ApiError(412, NOT_CONFIGURED)
        return self._decide(call, self.evaluator, self.evaluator.read(message))

    def prepare_reset(self, domain: str, descriptors: Sequence[Any]) -> PendingCheck:
        """The reset of the counters of descriptors, for CheckService."""
        if self.evaluator is None:
            raise ApiError(412, NOT_CONFIGURED)
        return self.evaluator.prepare_reset(domain, descriptors)

    def _decide(
        self, call: CallContext, evaluator: DescriptorEvaluator, check: RateLimitCheck
    ) -> bytes | Deferred[bytes]:
        checks = self.checks
        if check.settles:
            self._permit(call, check)
        elif check.request is None and evaluator.descriptors.waiting:
            raise ApiError(503, NOT_RECEIVED)
        refusal = checks.ceiling.admit(check.checks)
        if refusal is not None:
            raise ApiError(refusal.status, refusal.detail, refusal.headers)
        if checks.tracer is None and len(check.indexes) <= LOCAL_SLICE:
            now_us = checks.clock.ticks()
            verdict = evaluator.try_decide(check)
            if verdict is not None:
                return self._respond(call, check, verdict, now_us)
        return Deferred(partial(self._decide_later, call, evaluator, check), partial(checks.refund, check.checks))

    async def _decide_later(self, call: CallContext, evaluator: DescriptorEvaluator, check: RateLimitCheck) -> bytes:
        """The limits are decided in one step; with many, what comes before and after is done in other turns of the
        event loop."""
        large = len(check.indexes) > LOCAL_SLICE
        if large:
            await next_turn()
        now_us = self.checks.clock.ticks()
        with self.checks.span(call, "envoy") as span:
            verdict = await evaluator.decide(check)
            if large:
                await next_turn()
            decisions, over = verdict
            if span is not None and decisions:
                describe(span, combine(tuple(decisions), not over))
        return self._respond(call, check, verdict, now_us)

    def _permit(self, call: CallContext, check: RateLimitCheck) -> None:
        """Refuse to give back to callers who may only check: nothing in this protocol proves that they took it."""
        if self.allows_negative_hits or GIVES_BACK not in check.kinds:
            return
        if call.caller is None or not includes(call.caller.scope, "write"):
            raise ApiError(
                403,
                "is_negative_hits gives back what others may have taken: it needs a key with the scope write, or "
                "envoy.negative_hits in the configuration",
            )

    def _respond(self, call: CallContext, check: RateLimitCheck, verdict: RateLimitVerdict, now_us: int) -> bytes:
        """Count a verdict, and encode the response."""
        decisions, over = verdict
        metrics = self.metrics
        metrics.set_time(now_us)
        headers: Headers = ()
        if check.single:
            decision = decisions[0]
            self._count(call, check, 0, decision, now_us)
            headers = rate_limit_headers(decision, self.style, now_us)
        else:
            combined = self._count_all(call, check, decisions, over, now_us)
            if combined is not None:
                headers = rate_limit_headers(combined, self.style, now_us)
        response = encode_response(check, decisions, over, headers)
        if check.message is not None:
            response += metadata_field(check, decisions)
        metrics.durations.observe(perf_counter() - call.started)
        return response

    def _count_all(
        self, call: CallContext, check: RateLimitCheck, decisions: Sequence[Decision], over: bool, now_us: int
    ) -> Decision | None:
        """Count the decisions of several limits; what they add up to, None where nothing limits."""
        for index, decision in enumerate(decisions):
            if check.kinds[index] == SHADOW and not decision.allowed:
                self.metrics.count_shadowed(check.labels[index], DIMENSION)
        parts = check.parts(decisions, over)
        if not parts:
            call.allowed = True
            self.metrics.count_decision("", "none", "", True)
            return None
        combined = combine(tuple(parts), not over)
        for index, one in enumerate(decisions):
            # Two members may have the same limit, under different keys: so the numbers are compared, too.
            if one.algorithm is combined.algorithm and one.remaining == combined.remaining:
                self._count(call, check, index, combined, now_us)
                break
        return combined

    def _count(self, call: CallContext, check: RateLimitCheck, index: int, decision: Decision, now_us: int) -> None:
        label, key = check.labels[index], check.members[index].key
        allowed = decision.allowed
        call.subject, call.allowed = key, allowed
        self.metrics.count_decision(label, DIMENSION, key, allowed)
        if self.checks.reports_remaining:
            self.metrics.set_remaining(label, key, decision.remaining, now_us)
        if decision.detail is not None and decision.detail.reason == "fail_open":
            self.metrics.count_fail_open()
