"""The checks: each asks the limiter in one call, counts what came of it, and answers. Over HTTP it reads its body
first; gRPC comes in by the methods that take what was read (see rpc/limiter.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.core.masking import without_client
from headgate.embedded.asking import Prepared, PreparedChain, Simple, Taken
from headgate.service.asgi import BadRequest, Call, Headers, Reply
from headgate.service.auditing import audited
from headgate.service.auth.guard import CheckCeiling, Guard
from headgate.service.data.answers import answer_of, encode
from headgate.service.data.bodies import (
    cost_of,
    plain_context,
    prepare,
    prepare_verify,
    read_batch,
    read_check,
    read_verify,
)
from headgate.service.data.large_batches import answer_slices, decide_slices, encode_slices, prepare_slices
from headgate.service.data.operations import Operations, caller_of, is_plain, refuse_repeats
from headgate.service.data.repeats import once_of, refuse_different_keys, replayed
from headgate.service.data.shapes import Answer, BatchBody, CheckBody, ContextBody
from headgate.service.data.slices import LOCAL_SLICE, MAX_AT_ONCE_BYTES, weigh, work_of
from headgate.service.finishing import to_the_end
from headgate.service.observe.tracing import Tracer, describe
from headgate.service.parts import Parts
from headgate.stores.port import Member, Once, Op

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["DataPlane"]

POLL_SECONDS = 0.01
"""How often a repeat looks whether the first one has been decided."""
MOST_MEMBERS = 10_000
"""Counters that the checks of one call may look at, together."""
STATES = {state: [(b"x-ratelimit-state", state.encode())] for state in ("warning", "throttled")}
EXCEEDED = "Rate limit exceeded"
UNCOUNTED = ("fail_open", "fallback")
"""Reasons of decisions that the store did not make."""


class DataPlane:
    """What answers checks in one worker."""

    def __init__(self, parts: Parts, ceiling: CheckCeiling, tracer: Tracer | None, guard: Guard) -> None:
        self.parts = parts
        self.limiter = parts.limiter
        self.tally = parts.tally
        self.ceiling = ceiling
        self.tracer = tracer
        self.clock = parts.limiter.clock
        self.remaining = parts.settings.metrics.tokens_remaining
        self.states: Mapping[str, Headers] = STATES if parts.settings.headers.x_ratelimit else {}
        self.quick = tracer is None and parts.limiter.answers_at_once
        """Whether checks can do without waiting, and without being traced."""
        self.operations = Operations(self, guard, MOST_MEMBERS)

    def check_at_once(self, call: Call, body: bytes) -> Reply | None:
        """`check`, where nothing has to be waited for: the usual case, without a coroutine."""
        if not self.is_quick(call):
            return None
        started = perf_counter()
        asked = read_check(body)
        answers = self.take_at_once(call, [asked], False)
        if answers is None:
            return None
        answer = answers[0]
        self.tally.timed(perf_counter() - started)
        return Reply(200, encode(answer), self.states.get(answer.state, ()))

    def batch_at_once(self, call: Call, body: bytes) -> Reply | None:
        """`batch`, in the same way."""
        if len(body) > MAX_AT_ONCE_BYTES or not self.is_quick(call):
            return None
        started = perf_counter()
        asked = read_batch(body)
        if not is_plain(asked):
            return self.operations.at_once(call, asked)
        checks = asked.checks
        answers = self.take_at_once(call, checks, True)
        if answers is None:
            return None
        self.tally.batch(len(checks))
        self.tally.timed(perf_counter() - started)
        return Reply(200, encode({"decisions": answers}))

    def is_quick(self, call: Call) -> bool:
        """Whether a call can do without waiting, as far as its headers tell: a repeat is looked up the usual way."""
        return self.quick and not (b"idempotency-key" in call.fields or b"x-idempotency-key" in call.fields)

    def take_at_once(self, call: Call, checks: Sequence[CheckBody], several: bool) -> list[Answer] | None:
        """The answers to checks, from a store that is free; None where it has to be waited for. `several` says that
        they are a batch, so messages name the one that they mean."""
        weight = weigh(checks)
        self.afford(weight)
        now_us = self.clock.ticks()
        self.tally.at(now_us)
        prepared: list[Prepared | PreparedChain] = []
        try:
            taken = self._taken(checks, several)
            members = 0 if taken is not None else self.prepare(checks, 0, 0, several, prepared)
        except BadRequest:
            self.refund(weight)
            raise
        if taken is not None:
            answers: list[Answer] = []
            self.answer_taken(call, checks, taken, now_us, answers)
            return answers
        if len(prepared) > 1:
            members = sum([work_of(one.request) for one in prepared])
        decisions = self.limiter.decide_at_once(prepared) if members <= 4 * LOCAL_SLICE else None
        if decisions is None:
            self.ceiling.give_back(weight)  # they are counted when they are answered
            return None
        return self.answers(call, checks, prepared, decisions, now_us)

    def _taken(self, checks: Sequence[CheckBody], several: bool) -> list[Taken] | None:
        """The decisions on the simplest checks, under one rule each; None for all others."""
        contexts: list[ContextBody] = []
        costs: list[int] = []
        if not self._contexts(checks, 0, several, contexts, costs):
            return None
        try:
            return self.limiter.take_at_once(contexts, costs)
        except (ValueError, TypeError):
            return None  # to prepare them says what is wrong, and where

    def simple(self, checks: Sequence[CheckBody], first: int) -> Simple | None:
        """Some checks of a batch, under one rule each, ready to be taken; None for all others. `first` is the place of
        the first one in its batch."""
        contexts: list[ContextBody] = []
        costs: list[int] = []
        if not self._contexts(checks, first, True, contexts, costs):
            return None
        try:
            return self.limiter.simple(contexts, costs)
        except (ValueError, TypeError):
            return None  # as above

    def _contexts(
        self,
        checks: Sequence[CheckBody],
        first: int,
        several: bool,
        contexts: list[ContextBody],
        costs: list[int],
    ) -> bool:
        """Add what checks under rules are about, and their costs; False if one is under plans."""
        for asked in checks:
            if asked.plans is not None:
                return False
            context = plain_context(asked, f"checks[{first + len(costs)}]" if several else "")
            assert context is not None
            contexts.append(context)
            costs.append(cost_of(asked))
        return True

    async def check(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/check`: one decision, always 200."""
        started = perf_counter()
        answer = await self.take(call, read_check(body))
        self.tally.timed(perf_counter() - started)
        return Reply(200, encode(answer), self.states.get(answer.state, ()))

    async def batch(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/check/batch`: independent decisions, in one call of the store."""
        started = perf_counter()
        asked = read_batch(body)
        if not is_plain(asked):
            refuse_repeats(call)
            return await self.operations.in_time(call, asked)
        answers = await self.take_batch(call, asked)
        self.tally.batch(len(asked.checks))
        self.tally.timed(perf_counter() - started)
        return Reply(200, await encode_slices(answers))

    async def quota(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/quota`: what a check would be answered, and nothing is consumed."""
        answer = await self.peek(read_check(body))
        return Reply(200, encode(answer), self.states.get(answer.state, ()))

    async def take(self, call: Call, asked: CheckBody) -> Answer:
        """The answer to one check; to a repeat the one that the first got."""
        (answer,) = await self._decide(call, "check", asked, [asked], self._prepared([asked], False))
        return answer

    async def take_batch(self, call: Call, asked: BatchBody) -> list[Answer]:
        """The answers to a batch of plain checks, likewise; a large one is decided in slices."""
        if b"idempotency-key" in call.fields or b"x-idempotency-key" in call.fields:
            # What is decided once is decided in one step, so such a batch may not be as large: see `once_of`.
            return await self._decide(call, "batch", asked, asked.checks, await prepare_slices(self, asked.checks))
        return await decide_slices(self, call, asked.checks)

    async def peek(self, asked: CheckBody) -> Answer:
        """What a check would be answered now."""
        self.afford(1)
        now_us = self.clock.ticks()
        decisions = await self.limiter.decide([prepare(self.limiter, Op.PEEK, asked)])
        assert decisions is not None
        return answer_of(decisions[0], now_us)

    async def forget(self, call: Call, prepared: Prepared | PreparedChain) -> Sequence[Member]:
        """Forget counters, with entries in the audit log before and after; the counters. A caller that goes in between
        changes nothing."""
        members = [] if prepared.request is None else prepared.request.members
        assert call.visit is not None
        editor = self.parts.editor(call.visit.actor)
        subjects = [member.key for member in members]
        await to_the_end(audited(editor, "reset", subjects, self.limiter.reset_prepared(prepared)))
        return members

    async def verify(self, call: Call, body: bytes) -> Reply:
        """`POST /ratelimiter/verify-api-limit`: a check in the words of the client family."""
        asked = read_verify(body)
        self.tally.seen_client(asked.clientId, self.clock.ticks())
        decision = await self.ask(call, "verify", prepare_verify(self.limiter, asked))
        if decision.allowed:
            return Reply(200, encode({"status": "SUCCESS", "message": "Request allowed"}))
        return Reply(429, encode({"status": "FAILURE", "message": EXCEEDED}), _retry(decision))

    async def ask(self, call: Call, name: str, prepared: Prepared, secret: str | None = None) -> Decision:
        """One decision for whoever asks in other words than a check's: counted, timed and traced as one.

        `secret` is the API key that names the client, if it does. Rules and counters go by it, and nobody is shown it.
        """
        self.afford(1)
        started = perf_counter()
        with self.span(call, name) as span:
            decisions = await self.limiter.decide([prepared])
            assert decisions is not None
            decision = decisions[0]
            if span is not None:
                describe(span, decision)
        self.tally.at(self.clock.ticks())
        self.count(call, prepared, decision, secret)
        self.tally.timed(perf_counter() - started)
        return decision

    def _prepared(self, checks: Sequence[CheckBody], several: bool) -> list[Prepared | PreparedChain]:
        """What is to be asked about each check: one, or those of a batch."""
        prepared: list[Prepared | PreparedChain] = []
        self.prepare(checks, 0, 0, several, prepared)
        return prepared

    def prepare(
        self,
        checks: Sequence[CheckBody],
        first: int,
        members: int,
        several: bool,
        prepared: list[Prepared | PreparedChain],
    ) -> int:
        """Add what is to be asked about each of these checks, the first of which has this place in its batch. `members`
        is how many counters those before have; returns how many there are then."""
        for place, asked in enumerate(checks):
            one = prepare(self.limiter, Op.TAKE, asked, f"checks[{first + place}]" if several else "")
            prepared.append(one)
            members += 0 if one.request is None else len(one.request.members)
            if members > MOST_MEMBERS:
                raise BadRequest(
                    413,
                    f"the first {first + place + 1:,} checks have more than {MOST_MEMBERS:,} limits: "
                    "send fewer in one batch",
                )
        return members

    async def _decide(
        self,
        call: Call,
        name: str,
        body: CheckBody | BatchBody,
        checks: Sequence[CheckBody],
        prepared: Sequence[Prepared | PreparedChain],
    ) -> list[Answer]:
        """The answers to checks, each for itself, in one call of the store."""
        weight = weigh(checks)
        self.afford(weight)
        now_us = self.clock.ticks()
        self.tally.at(now_us)
        key = call.fields.get(b"idempotency-key", call.fields.get(b"x-idempotency-key"))
        try:
            once = None if key is None else self._once(call, name, key, body, prepared)
        except BadRequest:
            self.refund(weight)
            raise
        with self.span(call, name) as span:
            decisions = await self._asked(prepared, once)
            if span is not None and decisions is not None and name == "check":
                describe(span, decisions[0])
        if decisions is None:
            assert once is not None
            assert once.kept is not None
            self.tally.replayed()
            return replayed(once, once.kept)
        if once is not None:
            self.tally.cached("idempotency", False)
        if len(checks) == 1:
            return self.answers(call, checks, prepared, decisions, now_us)
        return await answer_slices(self, call, checks, prepared, decisions, now_us)

    def answer_taken(
        self, call: Call, checks: Sequence[CheckBody], taken: Sequence[Taken], now_us: int, answers: list[Answer]
    ) -> None:
        """Count what was decided about the simplest checks, and say it."""
        for i in range(len(checks)):
            decision, dimension, key = taken[i]
            self._counted(call, decision, dimension, key)
            if dimension == "client" and decision._allowed:
                self.tally.used(decision._algorithm.name, key, now_us)
            self.note(checks[i], now_us)
            answers.append(answer_of(decision, now_us))

    def answers(
        self,
        call: Call,
        checks: Sequence[CheckBody],
        prepared: Sequence[Prepared | PreparedChain],
        decisions: Sequence[Decision],
        now_us: int,
    ) -> list[Answer]:
        """Count decisions, and say them. `now_us` is from before they were made: what is counted from it ends at whole
        seconds, and would else be told as the second after."""
        answers: list[Answer] = []
        for asked, one, decision in zip(checks, prepared, decisions, strict=True):
            self.count(call, one, decision)
            self.note(asked, now_us)
            answers.append(answer_of(decision, now_us))
        return answers

    def _once(
        self,
        call: Call,
        name: str,
        key: bytes,
        body: CheckBody | BatchBody,
        prepared: Sequence[Prepared | PreparedChain],
    ) -> Once:
        refuse_different_keys(call.scope["headers"])
        return once_of(key, caller_of(call), name, body, prepared)

    async def _asked(self, prepared: Sequence[Prepared | PreparedChain], once: Once | None) -> list[Decision] | None:
        """The decisions; None for a repeat, whose first answer `once` has then. A repeat of what is still being decided
        waits for it."""
        decisions = await self.limiter.decide(prepared, once)
        if decisions is not None or once is None or not once.pending:
            return decisions
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limiter.patience
        while once.pending:
            if loop.time() >= deadline:
                raise BadRequest(409, "the first request with this idempotency key is not decided yet: try again soon")
            await asyncio.sleep(POLL_SECONDS)
            once.pending = False
            decisions = await self.limiter.decide(prepared, once)
        return decisions

    def span(self, call: Call, name: str) -> AbstractContextManager[Span | None]:
        if self.tracer is None:
            return nullcontext()
        return self.tracer.span(f"headgate.{name}", call.scope["headers"])

    def afford(self, checks: int) -> None:
        """Refuse what is beyond what this node answers in a second."""
        over = self.ceiling.admit(checks)
        if over is not None:
            raise BadRequest(over.status, over.detail, over.headers)

    def refund(self, checks: int) -> None:
        """Give back what a refused request was charged: it counts as one check."""
        if checks > 1:
            self.ceiling.give_back(checks - 1)

    def note(self, asked: CheckBody, now_us: int) -> None:
        """Whom a check named, for those who look at keys and clients; and how far its sender's clock is off."""
        if asked.key is not None:
            self.tally.seen_key(asked.key, now_us)
        elif asked.context is not None:
            if asked.context.client is not None:
                self.tally.seen_client(asked.context.client, now_us)
        elif asked.dimension is not None and asked.identifier is not None:
            dimension = asked.dimension.lower()
            if dimension == "client":
                self.tally.seen_client(asked.identifier, now_us)
            elif dimension == "key":
                self.tally.seen_key(asked.identifier, now_us)
        if asked.timestamp is not None:
            self.tally.skewed(asked.timestamp - now_us / 1_000_000)

    def count(
        self, call: Call, prepared: Prepared | PreparedChain, decision: Decision, secret: str | None = None
    ) -> None:
        dimension, subject = prepared.subject(decision)
        if secret is not None:
            subject = without_client(subject, secret)
        self._counted(call, decision, dimension, subject)
        detail = decision._detail
        if decision._allowed and isinstance(prepared, Prepared) and (detail is None or detail.reason not in UNCOUNTED):
            for name, key in prepared.counters("client"):
                self.tally.used(name, key, self.clock.ticks())
        if detail is None:
            return
        if detail.reason == "fail_open":
            self.tally.failed_open()
        for shadow in detail.shadows:
            if not shadow.allowed:
                self.tally.shadowed(shadow.name, prepared.subject(shadow)[0])

    def _counted(self, call: Call, decision: Decision, dimension: str, subject: str) -> None:
        call.subject, call.allowed = subject, decision._allowed
        name = decision._algorithm.label
        self.tally.decided(name, dimension, subject, decision._allowed)
        if self.remaining and subject:
            self.tally.left(name, subject, decision._remaining, self.clock.ticks())


def _retry(decision: Decision) -> Headers:
    wait = decision.retry_after
    return () if wait is None else [(b"retry-after", b"%d" % -(-wait // 1))]
