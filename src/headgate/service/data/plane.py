"""The checks over HTTP: each reads its body, asks the limiter in one call, counts what came of it, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

from headgate.core.decision import Decision
from headgate.embedded.asking import Prepared, PreparedChain
from headgate.errors import ConfigError
from headgate.service.asgi import BadRequest, Call, Headers, Reply
from headgate.service.auth.guard import CheckCeiling
from headgate.service.data.answers import Answer, answer_of, encode
from headgate.service.data.bodies import (
    BatchBody,
    CheckBody,
    prepare,
    prepare_verify,
    read_batch,
    read_check,
    read_verify,
    refused,
)
from headgate.service.data.repeats import once_of, replayed
from headgate.service.observe.tracing import Tracer
from headgate.service.parts import Parts
from headgate.stores.port import Once, Op

__all__ = ["DataPlane"]

POLL_SECONDS = 0.01
"""How often a repeat looks whether the first one has been decided."""
STATES = {state: [(b"x-ratelimit-state", state.encode())] for state in ("warning", "throttled")}
EXCEEDED = "Rate limit exceeded"


class DataPlane:
    """What answers checks in one worker."""

    def __init__(self, parts: Parts, ceiling: CheckCeiling, tracer: Tracer | None) -> None:
        self.parts = parts
        self.limiter = parts.limiter
        self.tally = parts.tally
        self.ceiling = ceiling
        self.tracer = tracer
        self.clock = parts.limiter.clock
        self.patience = parts.limiter.patience

    async def check(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/check`: one decision, always 200."""
        started = perf_counter()
        asked = read_check(body)
        self._afford(1)
        (answer,) = await self._decide(call, "check", asked, [asked])
        self.tally.timed(perf_counter() - started)
        return Reply(200, encode(answer), STATES.get(answer.state, ()))

    async def batch(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/check/batch`: independent decisions, in one call of the store."""
        started = perf_counter()
        asked = read_batch(body)
        self._afford(len(asked.checks))
        self.tally.batch(len(asked.checks))
        answers = await self._decide(call, "batch", asked, asked.checks)
        self.tally.timed(perf_counter() - started)
        return Reply(200, encode({"decisions": answers}))

    async def quota(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/quota`: what a check would be answered, and nothing is consumed."""
        asked = read_check(body)
        self._afford(1)
        prepared = self._prepare(Op.PEEK, asked)
        decisions = await self.limiter.decide([prepared])
        assert decisions is not None
        answer = answer_of(decisions[0], self.clock.ticks())
        return Reply(200, encode(answer), STATES.get(answer.state, ()))

    async def reset(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/reset`: forget the counters that a check would look at. It is in the audit log."""
        asked = read_check(body)
        prepared = self._prepare(Op.RESET, asked)
        if prepared.request is None:
            return Reply(200, encode({"reset": []}))
        await self.limiter.reset_prepared(prepared)
        counters = [{"key": m.key, "rule": m.algorithm.label} for m in prepared.request.members]
        assert call.visit is not None
        editor = self.parts.editor(call.visit.actor)
        for subject in dict.fromkeys(str(counter["key"]) for counter in counters):
            await asyncio.to_thread(editor.note_reset, subject)
        return Reply(200, encode({"reset": counters}))

    async def verify(self, call: Call, body: bytes) -> Reply:
        """`POST /ratelimiter/verify-api-limit`: a check in the words of the client family."""
        started = perf_counter()
        asked = read_verify(body)
        self._afford(1)
        prepared = prepare_verify(self.limiter, asked)
        self.tally.seen_client(asked.clientId, self.clock.ticks())
        decision = await self._ask("verify", prepared)
        self.tally.timed(perf_counter() - started)
        if decision.allowed:
            return Reply(200, encode({"status": "SUCCESS", "message": "Request allowed"}))
        return Reply(429, encode({"status": "FAILURE", "message": EXCEEDED}), _retry(decision))

    async def ask(self, name: str, prepared: Prepared) -> Decision:
        """One decision for whoever asks in other words than a check's: counted, timed and traced as one."""
        self._afford(1)
        started = perf_counter()
        decision = await self._ask(name, prepared)
        self.tally.timed(perf_counter() - started)
        return decision

    async def _ask(self, name: str, prepared: Prepared) -> Decision:
        decisions = await self.limiter.decide([prepared])
        assert decisions is not None
        self._count(prepared, decisions[0])
        return decisions[0]

    def _afford(self, checks: int) -> None:
        """Refuse what is beyond what this node answers in a second."""
        over = self.ceiling.admit(checks)
        if over is not None:
            raise BadRequest(over.status, over.detail, over.headers)

    def _prepare(self, op: Op, asked: CheckBody, at: str = "") -> Prepared | PreparedChain:
        try:
            return prepare(self.limiter, op, asked, at)
        except ConfigError as error:
            raise refused(error) from None

    async def _decide(
        self, call: Call, name: str, body: CheckBody | BatchBody, checks: Sequence[CheckBody]
    ) -> list[Answer]:
        single = isinstance(body, CheckBody)
        prepared = [self._prepare(Op.TAKE, c, "" if single else f"checks[{i}]") for i, c in enumerate(checks)]
        now_us = self.clock.ticks()
        for asked in checks:
            if asked.timestamp is not None:
                self.tally.skewed(asked.timestamp - now_us / 1_000_000)
        key = call.fields.get(b"idempotency-key") or call.fields.get(b"x-idempotency-key")
        once = None
        if key is not None:
            caller = call.visit.caller if call.visit is not None else None
            once = once_of(key, "" if caller is None else caller.key_id, name, body, prepared)
        decisions = await self.limiter.decide(prepared, once)
        if decisions is None:
            assert once is not None
            decisions = await self._repeat(prepared, once)
        if decisions is None:
            assert once is not None
            assert once.kept is not None
            self.tally.replayed()
            return replayed(once, once.kept)
        now_us = self.clock.ticks()
        answers = []
        for asked, one, decision in zip(checks, prepared, decisions, strict=True):
            self._count(one, decision)
            if asked.key is not None:
                self.tally.seen_key(asked.key, now_us)
            elif asked.context is not None and asked.context.client is not None:
                self.tally.seen_client(asked.context.client, now_us)
            answers.append(answer_of(decision, now_us))
        return answers

    async def _repeat(self, prepared: Sequence[Prepared | PreparedChain], once: Once) -> list[Decision] | None:
        """Wait for the first one, if it is still being decided: its decisions if it gave up, None once it is kept."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        while once.pending:
            if loop.time() >= deadline:
                raise BadRequest(409, "the first request with this idempotency key is not decided yet: try again soon")
            await asyncio.sleep(POLL_SECONDS)
            once.pending = False
            decisions = await self.limiter.decide(prepared, once)
            if decisions is not None:
                return decisions
        return None

    def _count(self, prepared: Prepared | PreparedChain, decision: Decision) -> None:
        dimension, subject = prepared.subject(decision)
        tally = self.tally
        tally.decided(decision.name, dimension, subject, decision.allowed)
        detail = decision._detail
        if detail is None:
            return
        if detail.reason == "fail_open":
            tally.failed_open()
        for shadow in detail.shadows:
            if not shadow.allowed:
                tally.shadowed(shadow.name, prepared.subject(shadow)[0])


def _retry(decision: Decision) -> Headers:
    wait = decision.retry_after
    return () if wait is None else [(b"retry-after", b"%d" % -(-wait // 1))]
