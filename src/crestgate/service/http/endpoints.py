# mypyc: compile
"""HTTP endpoints of checks. Each parses its body once, and returns a response, or a Deferred with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from crestgate.core.decision import Decision
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.explain import ExplainService
from crestgate.service.checks.forms import (
    prepare_check,
    prepare_verify,
    read_batch,
    read_check,
    read_reset,
    read_verify,
)
from crestgate.service.checks.operations import Operations, is_plain
from crestgate.service.checks.responses import encode, encode_batch
from crestgate.service.checks.schemas import ContextBody, DecisionBody
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext, Headers
from crestgate.service.http.asgi import HttpResponse
from crestgate.service.http.envoy_json import encode_response, read_rate_limit
from crestgate.stores.port import Op

__all__ = ["CheckEndpoints", "Later"]

Later = Deferred[HttpResponse]
STATE_HEADERS: Final = {state: [(b"x-ratelimit-state", state.encode())] for state in ("warning", "throttled")}


@final
class CheckEndpoints:
    """The endpoints of one worker."""

    def __init__(self, checks: CheckService, operations: Operations, envoy: EnvoyService) -> None:
        self.checks = checks
        self.operations = operations
        self.envoy = envoy
        self.explanations = ExplainService(checks)
        x_ratelimit = checks.dependencies.settings.headers.x_ratelimit
        self.state_headers: Mapping[str, Headers] = STATE_HEADERS if x_ratelimit else {}

    def check(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        """`POST /api/v1/check`: one decision, always 200."""
        answers = self.checks.check(call, [read_check(body)], False)
        return self._check(answers) if isinstance(answers, list) else answers.then(self._check)

    def _check(self, answers: list[DecisionBody]) -> HttpResponse:
        return self._respond(answers[0])

    def _respond(self, answer: DecisionBody) -> HttpResponse:
        shown: Headers = () if answer.headers is False else self.state_headers.get(answer.state, ())
        return HttpResponse(200, encode(answer), shown)

    def batch(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        """`POST /api/v1/check/batch`: independent decisions, in one call of the store."""
        batch = read_batch(body)
        if not is_plain(batch):
            encoded = self.operations.run(call, batch, len(body))
            return ok(encoded) if isinstance(encoded, bytes) else encoded.then(ok)
        answers = self.checks.check(call, batch.checks, True, len(body))
        if isinstance(answers, list):
            return HttpResponse(200, encode({"decisions": answers}))
        return answers.then_await(_encode_batch)

    def quota(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        """`POST /api/v1/quota`: what a check would be answered; consumes nothing."""
        answer = self.checks.peek(read_check(body))
        return self._respond(answer) if isinstance(answer, DecisionBody) else answer.then(self._respond)

    async def explain(self, call: CallContext, body: bytes) -> HttpResponse:
        """`POST /api/v1/explain`: the same, with every rule that was considered; consumes nothing."""
        return ok(encode(await self.explanations.explain(read_check(body))))

    def verify(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        """`POST /ratelimiter/verify-api-limit`: a check of a client and an API."""
        checks = self.checks
        verify = read_verify(body)
        now_us = checks.clock.ticks()
        checks.metrics.clients.record(verify.clientId, now_us)
        pending = prepare_verify(checks.limiter, verify)
        if checks.traffic is not None:
            context = ContextBody(client=verify.clientId, path=verify.apiName, method=verify.methodName)
            checks.traffic.record(context, 1, now_us)
        decision = checks.decide(call, "verify", pending)
        return _verified(decision) if isinstance(decision, Decision) else decision.then(_verified)

    async def reset(self, call: CallContext, body: bytes) -> HttpResponse:
        """`POST /api/v1/reset`: forget the counters that a check would use, or those of Envoy descriptors. It is in the
        audit log."""
        reset = read_reset(body)
        if reset.domain is None or reset.descriptors is None:
            pending = prepare_check(self.checks.limiter, Op.RESET, reset)
        else:
            pending = self.envoy.prepare_reset(reset.domain, reset.descriptors)
        members = await self.checks.reset(call, pending)
        return HttpResponse(200, encode({"reset": [{"key": m.key, "rule": m.algorithm.label} for m in members]}))

    def rate_limit(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        """`POST /json`: what ShouldRateLimit would answer, 429 when it is OVER_LIMIT."""
        message = self.envoy.decide(call, read_rate_limit(body))
        return encode_response(message) if isinstance(message, bytes) else message.then(encode_response)


def ok(body: bytes) -> HttpResponse:
    return HttpResponse(200, body)


async def _encode_batch(answers: list[DecisionBody]) -> HttpResponse:
    return HttpResponse(200, await encode_batch(answers))


def _verified(decision: Decision) -> HttpResponse:
    if decision.allowed:
        return HttpResponse(200, encode({"status": "SUCCESS", "message": "Request allowed"}))
    wait = decision.retry_after
    headers = () if wait is None else [(b"retry-after", b"%d" % -(-wait // 1))]
    return HttpResponse(429, encode({"status": "FAILURE", "message": "Rate limit exceeded"}), headers)
