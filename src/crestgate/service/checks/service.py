# mypyc: compile
"""Checks, whatever protocol they come by: prepare, let the store decide, finish.

Each method returns its result if the store answers at once (it is on this machine and not busy), and else a Deferred
with the same result. A request is prepared and finished by the same code either way; the protocols await it (see
http/router.py and grpc/services/method.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from crestgate.core.decision import Decision
from crestgate.core.dimensions import DIMENSION_SPELLINGS, parse_dimension
from crestgate.core.redaction import redact_client
from crestgate.errors import InvalidRequestError
from crestgate.limiter.pending_check import PendingCheck, try_decide
from crestgate.runtime.tasks import run_to_completion
from crestgate.service.auth.guard import CheckCeiling
from crestgate.service.checks.counter_audit import run_audited
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.forms import prepare_check
from crestgate.service.checks.idempotency import build_record, idempotency_key, replay
from crestgate.service.checks.responses import answer_of
from crestgate.service.checks.schemas import CheckBody, DecisionBody
from crestgate.service.checks.slices import (
    LOCAL_SLICE,
    MAX_SYNC_BYTES,
    MAX_SYNC_WORK,
    MEMBER_SLICE,
    REMOTE_SLICE,
    groups,
    next_turn,
    slice_end,
    weigh,
    work_of,
)
from crestgate.service.context import CallContext
from crestgate.service.dependencies import Dependencies
from crestgate.service.errors import ApiError
from crestgate.service.observability.labels import CLIENT_KEY
from crestgate.service.observability.tracing import Tracer, describe
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["CheckService"]

POLL_SECONDS: Final = 0.01
"""Between two looks whether the first request with an idempotency key is decided."""
MAX_MEMBERS: Final = 10_000
"""Counters of all checks of one request."""
UNCOUNTED: Final = ("fail_open", "fallback")
"""Reasons of decisions that the store did not make."""


@final
class CheckService:
    """Decides the checks of one worker."""

    def __init__(self, dependencies: Dependencies, ceiling: CheckCeiling, tracer: Tracer | None) -> None:
        self.dependencies = dependencies
        self.limiter = dependencies.limiter
        self.backend = dependencies.limiter.backend
        self.metrics = dependencies.metrics
        self.clock = dependencies.limiter.clock
        self.ceiling = ceiling
        self.tracer = tracer
        self.reports_remaining = dependencies.settings.metrics.tokens_remaining
        self.traffic = dependencies.traffic
        self.is_fast = tracer is None and dependencies.limiter.is_local
        """Whether most results are there at once."""
        self.slice = MEMBER_SLICE if dependencies.limiter.is_local else REMOTE_SLICE

    def check(
        self, call: CallContext, checks: Sequence[CheckBody], batch: bool, size: int = 0
    ) -> list[DecisionBody] | Deferred[list[DecisionBody]]:
        """Decide checks, each for itself. Errors name the check if they are a `batch`; `size` is that of its body."""
        weight = 1 if not batch and checks[0].plans is None else weigh(checks)
        refusal = self.ceiling.admit(weight)
        if refusal is not None:
            raise ApiError(refusal.status, refusal.detail, refusal.headers)
        if size > MAX_SYNC_BYTES:
            return Deferred(partial(self._check_slices, call, checks, weight), partial(self.refund, weight))
        pending: list[PendingCheck] = []
        now_us = self.clock.ticks()
        members = self._prepare(checks, 0, batch, pending, weight, now_us)
        fields = call.fields
        if self.tracer is None and b"idempotency-key" not in fields and b"x-idempotency-key" not in fields:
            work = _total_work(pending) if batch else members
            if work <= MAX_SYNC_WORK:
                decisions = try_decide(self.backend, pending)
                if decisions is not None:
                    answers = self.finish(call, checks, pending, decisions, now_us)
                    if batch:
                        self.metrics.observe_batch(len(checks))
                    self.metrics.durations.observe(perf_counter() - call.started)
                    return answers
        return Deferred(partial(self._check_later, call, checks, pending, batch, weight), partial(self.refund, weight))

    def peek(self, check: CheckBody) -> DecisionBody | Deferred[DecisionBody]:
        """What `check` would answer now; consumes nothing."""
        self.admit(1)
        now_us = self.clock.ticks()
        pending = [prepare_check(self.limiter, Op.PEEK, check)]
        decisions = try_decide(self.backend, pending)
        if decisions is not None:
            return answer_of(decisions[0], now_us)
        return Deferred(partial(self._peek, pending, now_us))

    async def _peek(self, pending: Sequence[PendingCheck], now_us: int) -> DecisionBody:
        return answer_of((await self.limiter.decide(pending))[0], now_us)

    def decide(
        self, call: CallContext, name: str, pending: PendingCheck, secret: str | None = None
    ) -> Decision | Deferred[Decision]:
        """One decision for endpoints with other responses than an DecisionBody.

        `secret` is the API key that names the client, if it does. Rules and counters go by it; metrics and logs show
        a digest.
        """
        self.admit(1)
        if self.tracer is None and secret is None:
            decisions = try_decide(self.backend, [pending])
            if decisions is not None:
                return self._count_one(call, pending, decisions[0], None)
        return Deferred(partial(self._decide_one, call, name, pending, secret))

    async def _decide_one(self, call: CallContext, name: str, pending: PendingCheck, secret: str | None) -> Decision:
        before = CLIENT_KEY.set(secret)
        try:
            with self.span(call, name) as span:
                decision = (await self.limiter.decide([pending]))[0]
                if span is not None:
                    describe(span, decision)
            return self._count_one(call, pending, decision, secret)
        finally:
            CLIENT_KEY.reset(before)

    def _count_one(self, call: CallContext, pending: PendingCheck, decision: Decision, secret: str | None) -> Decision:
        self.metrics.set_time(self.clock.ticks())
        self.count(call, pending, decision, secret)
        self.metrics.durations.observe(perf_counter() - call.started)
        return decision

    async def reset(self, call: CallContext, pending: PendingCheck) -> Sequence[Member]:
        """Forget counters, with audit entries before and after; the counters. It is done to its end when the caller
        goes meanwhile."""
        members = pending.members
        editor = self.dependencies.editor(call.actor)
        subjects = [member.key for member in members]
        await run_to_completion(run_audited(editor, "reset", subjects, self._reset(pending)))
        return members

    async def _reset(self, pending: PendingCheck) -> None:
        """In slices: thousands of rules may apply to one subject. A reset can be repeated, so a part is no harm."""
        members = pending.members
        for start in range(0, len(members), MEMBER_SLICE):
            if start:
                await next_turn()
            await self.limiter.apply([Request(Op.RESET, members[start : start + MEMBER_SLICE])])
        pending.forget()

    def _prepare(
        self,
        checks: Sequence[CheckBody],
        members: int,
        batch: bool,
        pending: list[PendingCheck],
        weight: int,
        now_us: int,
    ) -> int:
        """Prepare the next checks of a request. `members` is how many counters `pending` has; returns how many it has
        then."""
        limiter = self.limiter
        try:
            for check in checks:
                one = prepare_check(limiter, Op.TAKE, check, now_us)
                pending.append(one)
                members += len(one.members)
                if members > MAX_MEMBERS:
                    raise ApiError(
                        413,
                        f"the first {len(pending):,} checks have more than {MAX_MEMBERS:,} limits: "
                        "send fewer in one batch",
                    )
        except ApiError:
            self.refund(weight)
            raise
        except InvalidRequestError as error:
            self.refund(weight)
            if not batch:
                raise
            raise error.inside(f"checks[{len(pending)}]") from None
        return members

    async def _check_slices(self, call: CallContext, checks: Sequence[CheckBody], weight: int) -> list[DecisionBody]:
        """Prepare and decide a large batch. All of it is prepared first: an error in one check refuses the batch, and
        then nothing may have been counted."""
        pending: list[PendingCheck] = []
        members = first = 0
        while first < len(checks):
            await next_turn()
            end = slice_end(checks, first, LOCAL_SLICE if self.limiter.is_local else REMOTE_SLICE)
            members = self._prepare(checks[first:end], members, True, pending, weight, self.clock.ticks())
            first = end
        return await self._check_later(call, checks, pending, True, weight)

    async def _check_later(
        self,
        call: CallContext,
        checks: Sequence[CheckBody],
        pending: Sequence[PendingCheck],
        batch: bool,
        weight: int,
    ) -> list[DecisionBody]:
        """Decide prepared checks in slices, or in one step if they have an idempotency key."""
        answers: list[DecisionBody] = []
        key = idempotency_key(call.fields)
        with self.span(call, "batch" if batch else "check") as span:
            if key is not None:
                answers = await self._decide_once(call, checks, pending, batch, weight, key, span)
            else:
                for start, end in groups(pending, self.slice):
                    if start or len(pending) > MEMBER_SLICE:
                        await next_turn()
                    now_us = self.clock.ticks()
                    decisions = await self.limiter.decide(pending[start:end])
                    if span is not None and not batch:
                        describe(span, decisions[0])
                    answers += self.finish(call, checks[start:end], pending[start:end], decisions, now_us)
        self.observe(call, len(checks), batch)
        return answers

    async def _decide_once(
        self,
        call: CallContext,
        checks: Sequence[CheckBody],
        pending: Sequence[PendingCheck],
        batch: bool,
        weight: int,
        key: bytes,
        span: Span | None,
    ) -> list[DecisionBody]:
        """Decide checks that carry an idempotency key, or replay the first answers."""
        now_us = self.clock.ticks()
        try:
            record = build_record(key, call, checks, batch, pending, now_us)
        except (ApiError, InvalidRequestError):
            self.refund(weight)
            raise
        decisions = await self._decisions_once(pending, record)
        if decisions is None:
            assert record.replay is not None
            self.metrics.count_replay()
            return replay(record, record.replay)
        self.metrics.count_cache_lookup("idempotency", False)
        if span is not None and not batch:
            describe(span, decisions[0])
        answers: list[DecisionBody] = []
        for start, end in groups(pending, MEMBER_SLICE):
            if start:
                await next_turn()
            answers += self.finish(call, checks[start:end], pending[start:end], decisions[start:end], now_us)
        return answers

    async def _decisions_once(
        self, pending: Sequence[PendingCheck], record: IdempotencyRecord
    ) -> list[Decision] | None:
        """The decisions; None for a repeat, whose first answers `record` has then. A repeat of what is still being
        decided waits for it."""
        decisions = await self.limiter.decide_once(pending, record)
        if decisions is not None or not record.pending:
            return decisions
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limiter.store_timeout
        while record.pending:
            if loop.time() >= deadline:
                raise ApiError(409, "the first request with this idempotency key is not decided yet: try again soon")
            await asyncio.sleep(POLL_SECONDS)
            record.pending = False
            decisions = await self.limiter.decide_once(pending, record)
        return decisions

    def finish(
        self,
        call: CallContext,
        checks: Sequence[CheckBody],
        pending: Sequence[PendingCheck],
        decisions: Sequence[Decision],
        now_us: int,
    ) -> list[DecisionBody]:
        """Count decisions, and build their answers. `now_us` is from before they were made: what is counted from it
        ends at whole seconds, and would else be reported a second late."""
        self.metrics.set_time(now_us)
        traffic = self.traffic
        answers: list[DecisionBody] = []
        for i in range(len(checks)):
            self.count(call, pending[i], decisions[i])
            self.record_names(checks[i], now_us)
            if traffic is not None:
                traffic.record_check(checks[i], now_us)
            answers.append(answer_of(decisions[i], now_us))
        return answers

    def count(self, call: CallContext, pending: PendingCheck, decision: Decision, secret: str | None = None) -> None:
        """Count a decision in the metrics, and note it for the request log."""
        dimension, subject = pending.subject(decision)
        if secret is not None:
            subject = redact_client(subject, secret)
        metrics = self.metrics
        allowed = decision.allowed
        call.subject, call.allowed = subject, allowed
        rule = decision.algorithm.label
        metrics.count_decision(rule, dimension, subject, allowed)
        if self.reports_remaining and subject:
            metrics.set_remaining(rule, subject, decision.remaining, self.clock.ticks())
        detail = decision.detail
        dimensions = pending.dimensions
        if (
            allowed
            and dimensions is not None
            and "client" in dimensions
            and (detail is None or detail.reason not in UNCOUNTED)
        ):
            for name, key in pending.counters("client"):
                metrics.record_use(name, key, self.clock.ticks())
        if detail is None:
            return
        if detail.reason == "fail_open":
            metrics.count_fail_open()
        for shadow in detail.shadows:
            if not shadow.allowed:
                metrics.count_shadowed(shadow.name, pending.subject(shadow)[0])

    def record_names(self, check: CheckBody, now_us: int) -> None:
        """Note the key or client that a check names, for the admin lists; and the clock skew of its sender."""
        if check.key is not None:
            self.metrics.keys.record(check.key, now_us)
        elif check.context is not None:
            if check.context.client is not None:
                self.metrics.clients.record(check.context.client, now_us)
        elif check.dimension is not None and check.identifier is not None:
            dimension = DIMENSION_SPELLINGS.get(check.dimension) or parse_dimension(check.dimension)
            if dimension == "client":
                self.metrics.clients.record(check.identifier, now_us)
            elif dimension == "key":
                self.metrics.keys.record(check.identifier, now_us)
        if check.timestamp is not None:
            self.metrics.observe_clock_skew(check.timestamp - now_us / 1_000_000)

    def observe(self, call: CallContext, checks: int, batch: bool) -> None:
        if batch:
            self.metrics.observe_batch(checks)
        self.metrics.durations.observe(perf_counter() - call.started)

    def span(self, call: CallContext, name: str) -> AbstractContextManager[Span | None]:
        if self.tracer is None:
            return nullcontext()
        return self.tracer.span(f"crestgate.{name}", call.scope["headers"])

    def admit(self, checks: int) -> None:
        """ApiError for more checks than this node answers in a second."""
        refusal = self.ceiling.admit(checks)
        if refusal is not None:
            raise ApiError(refusal.status, refusal.detail, refusal.headers)

    def refund(self, checks: int) -> None:
        """Refund a request that is invalid, or was reset before it was decided: it counts as one check."""
        if checks > 1:
            self.ceiling.refund(checks - 1)


def _total_work(pending: Sequence[PendingCheck]) -> int:
    work = 0
    for one in pending:
        work += work_of(one)
    return work
