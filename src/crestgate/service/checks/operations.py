# mypyc: compile
"""Batches that do more than check: other operations, inline counters, and answers in exact whole numbers.

Crestgate's own library sends them, many callers' requests in one call. So where the answers are `exact`, an invalid
check, or one that the store could not decide, has an error of its own, and the others are decided all the same, except
those that are `together` with an invalid one. Without `exact` it is one error for the whole batch, before anything is
decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, final

from crestgate.errors import CrestgateError, InvalidRequestError
from crestgate.http.problem import problem, problem_of
from crestgate.limiter.pending_check import PendingCheck
from crestgate.runtime.tasks import run_to_completion
from crestgate.service.auth.guard import Guard, Refusal
from crestgate.service.checks.counter_audit import audit_outcome, note_request
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.forms import MAX_COUNTERS
from crestgate.service.checks.idempotency import idempotency_key
from crestgate.service.checks.inline_counters import SettlementAuthorization, op_of, prepare_counters
from crestgate.service.checks.responses import answer_of, encode, join_decisions
from crestgate.service.checks.schemas import BatchBody, CheckBody, Counter, Counters, DecisionBody, Failure
from crestgate.service.checks.service import MAX_MEMBERS, CheckService
from crestgate.service.checks.slices import (
    LOCAL_SLICE,
    MAX_SYNC_BYTES,
    MAX_SYNC_WORK,
    MEMBER_SLICE,
    PREPARE_SLICE,
    groups,
    next_turn,
    slice_end,
    weigh,
    work_of,
)
from crestgate.service.checks.tokens import Tokens
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError, invalid_request
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, Request

__all__ = ["Operation", "Operations", "describe_counter", "is_plain"]

EMPTY_FINGERPRINT: Final = bytes(16)
"""The fingerprint of the record of a take that was settled: there is nothing to compare."""
ERROR_WORK: Final = 4
"""The work of preparing an invalid check, in counters: an invalid limit takes longer to parse than a valid one."""
SYNC_OPS: Final = (None, "take", "peek")
"""Operations that need neither an idempotency record nor an audit entry."""
KINDS: Final = {Op.TAKE: 0, Op.PEEK: 0, Op.CHARGE: 1, Op.GIVE_BACK: 1, Op.RESET: 2}
"""Operations of one kind go to the store together: the failure policy depends on it."""


def is_plain(body: BatchBody) -> bool:
    """Whether a batch consists of plain checks, for CheckService."""
    return (
        not body.exact
        and body.together is None
        and all(check.op is None and check.counters is None for check in body.checks)
    )


@final
class Operation:
    """One check of a batch: its store request, its outcomes or its error."""

    def __init__(self, check: CheckBody, at: str, proof: SettlementAuthorization) -> None:
        self.check = check
        self.at = at
        """The path to it, for errors."""
        self.op = Op.TAKE
        self.pending: PendingCheck | None = None
        self.request: Request | None = None
        """None where there is nothing to decide: no rule applies, or the check is invalid."""
        self.outcomes: Sequence[Outcome] = ()
        self.indexes: Sequence[int] = ()
        """For each member the index of the inline counter that it is of."""
        self.proof = proof
        self.audited = False
        """Whether it needs the scope `write`, and is in the audit log."""
        self.error: ApiError | None = None

    @property
    def members(self) -> Sequence[Member]:
        return () if self.request is None else self.request.members


@final
class Operations:
    """Runs such batches in one worker."""

    def __init__(self, checks: CheckService, guard: Guard) -> None:
        self.checks = checks
        self.guard = guard
        self.limiter = checks.limiter
        self.tokens = Tokens(checks.dependencies.token_key)
        self.slice = checks.slice

    def run(self, call: CallContext, body: BatchBody, size: int) -> bytes | Deferred[bytes]:
        """The JSON of the response; `size` is that of the request's body."""
        if idempotency_key(call.fields) is not None:
            raise InvalidRequestError(
                "Idempotency-Key", "is only valid with checks: leave out op, counters and exact, or the header"
            )
        _check_ranges(body)
        weight = weigh(body.checks)
        self.checks.admit(weight)
        operations: list[Operation] = []
        if (
            self.checks.is_fast
            and size <= MAX_SYNC_BYTES
            and weight <= LOCAL_SLICE
            and all(check.op in SYNC_OPS for check in body.checks)
        ):
            self._prepare(call, body, operations, MAX_SYNC_WORK, weight)
            if len(operations) == len(body.checks) and _work(operations) <= MAX_SYNC_WORK:
                _reject_together(body, operations)
                ready = [one for one in operations if one.request is not None]
                requests = [one.request for one in ready if one.request is not None]
                replies = self.limiter.try_apply(requests) if requests else []
                if replies is not None:
                    for one, reply in zip(ready, replies, strict=True):
                        one.outcomes = reply
                    encoded = self._encode(call, body, operations)
                    self.checks.observe(call, len(operations), True)
                    return join_decisions([encoded])
        return Deferred(partial(self._run_slices, call, body, operations, weight), partial(self.checks.refund, weight))

    async def _run_slices(self, call: CallContext, body: BatchBody, operations: list[Operation], weight: int) -> bytes:
        """Run a batch in slices, between which others are served. Some operations may be prepared already."""
        while len(operations) < len(body.checks):
            await next_turn()
            self._prepare(call, body, operations, PREPARE_SLICE, weight)
        permitted = 0
        for one in operations:
            if one.request is not None and (one.op is Op.RESET or one.proof.missing is not None):
                if permitted and permitted % PREPARE_SLICE == 0:
                    await next_turn()
                self._permit(call, one, body.exact, weight)
                permitted += 1
        _reject_together(body, operations)
        with self.checks.span(call, "batch"):
            if any(one.audited for one in operations):
                await run_to_completion(self._apply_audited(call, operations, body.exact))
            else:
                await self._apply_all(operations, body.exact, True)
        slices: list[bytes] = []
        for start, end in groups([one.request for one in operations], MEMBER_SLICE):
            if start:
                await next_turn()
            slices.append(self._encode(call, body, operations[start:end]))
        self.checks.observe(call, len(operations), True)
        return join_decisions(slices)

    def _prepare(self, call: CallContext, body: BatchBody, operations: list[Operation], size: int, weight: int) -> None:
        try:
            self.prepare(call, body, operations, size)
        except (ApiError, InvalidRequestError):
            self.checks.refund(weight)
            raise

    def prepare(self, call: CallContext, body: BatchBody, operations: list[Operation], size: int) -> None:
        """Prepare the next checks of a batch, of about so many counters. Invalid checks count, too."""
        checks = body.checks
        now = self.checks.clock.ticks() // 1_000_000
        members = sum([len(one.members) for one in operations])
        done = 0
        last = slice_end(checks, len(operations), LOCAL_SLICE)
        unneeded = SettlementAuthorization(self.tokens, call.key_id, now, call.may_write)
        while len(operations) < len(checks) and done < size and len(operations) < last:
            check = checks[len(operations)]
            settles = check.op in ("give_back", "charge")
            proof = SettlementAuthorization(self.tokens, call.key_id, now, call.may_write) if settles else unneeded
            one = Operation(check, f"checks[{len(operations)}]", proof)
            operations.append(one)
            try:
                one.op = op_of(check)
                one.pending, one.indexes = prepare_counters(self.limiter, one.op, check, one.proof)
            except InvalidRequestError as error:
                if not body.exact:
                    raise error.inside(one.at) from None
                one.error = invalid_request(error.inside(one.at))
                done += ERROR_WORK
                if check.counters is not None:
                    done += min(len(check.counters), MAX_COUNTERS)
                continue
            one.request = one.pending if one.pending.applies else None
            members += len(one.members)
            done += len(one.members)
            if members > MAX_MEMBERS:
                raise ApiError(
                    413,
                    f"the first {len(operations):,} checks have more than {MAX_MEMBERS:,} limits: "
                    "send fewer in one batch",
                )
            if one.request is not None and one.proof.take is not None and one.proof.missing is None:
                # Whoever gives back twice would be given what somebody else took.
                since_us = one.proof.issued * 1_000_000 if one.op is Op.GIVE_BACK else None
                record = IdempotencyRecord(f"settled:{one.proof.take}", EMPTY_FINGERPRINT, b"", since_us)
                one.request = Request(one.op, one.request.members, record)

    def _permit(self, call: CallContext, one: Operation, exact: bool, weight: int) -> None:
        """Let only callers who may call /api/v1/reset reset counters, or settle what they did not take."""
        admitted = self.guard.admit("write", call.scope["headers"], call.address, write=True)
        if not isinstance(admitted, Refusal):
            one.audited = True
            return
        missing = "" if one.proof.missing is None else f"{one.check.op} {one.proof.missing}; "
        detail = f"{one.at}: {missing}{admitted.detail}"
        if not exact:
            self.checks.refund(weight)
            raise ApiError(admitted.status, detail, admitted.headers)
        one.error = ApiError(admitted.status, detail, admitted.headers)
        one.request = None

    async def _apply_audited(self, call: CallContext, operations: Sequence[Operation], exact: bool) -> None:
        """Apply all operations, with audit entries before and after for those that need it."""
        editor = self.checks.dependencies.editor(call.actor)
        audited = [one for one in operations if one.audited]
        for one in audited:
            await note_request(editor, one.check.op or "take", [member.key for member in one.members])
        try:
            await self._apply_all(operations, exact, False)
        finally:
            for one in audited:
                done = one.error is None and len(one.outcomes) == len(one.members)
                await audit_outcome(editor, one.check.op or "take", [member.key for member in one.members], done)

    async def _apply_all(self, operations: Sequence[Operation], exact: bool, concurrent: bool) -> None:
        """Apply all operations in their order; runs of several kinds concurrently if they are little work."""
        runs = _runs(operations)
        if concurrent and _work(operations) <= self.slice:
            if len(runs) == 1:
                await self._apply(runs[0], exact)
            else:  # they are sent in this order, and together
                await asyncio.gather(*[self._apply(run, exact) for run in runs])
            return
        for run in runs:
            for start, end in groups([one.request for one in run], self.slice):
                await self._apply(run[start:end], exact)
                await next_turn()

    async def _apply(self, run: Sequence[Operation], exact: bool) -> None:
        """Apply operations of one kind."""
        requests = [one.request for one in run if one.request is not None]
        try:
            replies: BatchOutcomes = await self.limiter.apply(requests)
        except CrestgateError as error:
            if not exact:
                raise
            status, detail, members = problem_of(error)
            for one in run:
                one.error = ApiError(status, detail, **members)
            return
        for one, reply in zip(run, replies, strict=True):
            one.outcomes = reply
            if len(reply) < len(one.members):
                if not exact:
                    raise _not_settled(one)
                one.error = _not_settled(one)

    def _encode(self, call: CallContext, body: BatchBody, operations: Sequence[Operation]) -> bytes:
        """Count what was decided, and encode it as a list in JSON."""
        checks = self.checks
        now_us = checks.clock.ticks()
        checks.metrics.set_time(now_us)
        answers: list[DecisionBody | Counters | Failure] = []
        for one in operations:
            error = one.error
            if error is not None:
                answers.append(Failure(problem(error.status, error.detail, **error.members)))
                continue
            pending = one.pending
            assert pending is not None
            decision = pending.finish(one.outcomes)
            if one.op is Op.TAKE:
                checks.count(call, pending, decision)
                checks.record_names(one.check, now_us)
            elif one.op is Op.RESET:
                pending.forget()
            answers.append(self._counters(one, call.key_id, now_us) if body.exact else answer_of(decision, now_us))
        return encode(answers)

    def _counters(self, one: Operation, caller: str, now_us: int) -> Counters:
        """The outcomes of an operation in whole numbers, with tokens for what was charged."""
        counters: list[Counter] = []
        listed, indexes = one.check.counters, one.indexes
        members, outcomes = one.members, one.outcomes
        take = ""
        if one.op is Op.TAKE and members:
            for index, member in enumerate(members):
                if member.binds and not outcomes[index].decision.allowed:
                    break
            else:
                take = self.tokens.next_take()
        for index, member in enumerate(members):
            outcome = outcomes[index]
            decision = outcome.decision
            reason = decision.reason
            counter = Counter(
                decision.allowed, decision.remaining, decision.wait_us, decision.reset_us, reason, outcome.tick
            )
            if take and reason == "ok" and member.cost:
                counter.token = self.tokens.issue(
                    take, now_us // 1_000_000, caller, member.key, member.algorithm, member.cost, outcome.tick
                )
            if listed is not None:
                counter.at = indexes[index]
            if listed is None or listed[indexes[index]].plan is not None:
                describe_counter(counter, member)
            counters.append(counter)
        return Counters(counters)


def _work(operations: Sequence[Operation]) -> int:
    return sum([work_of(one.request) for one in operations])


def _check_ranges(body: BatchBody) -> None:
    """InvalidRequestError unless the ranges of `together` are of this batch, ascending, and apart from each other."""
    if body.together is None:
        return
    if not body.exact:
        raise InvalidRequestError("together", "is only valid with exact")
    end = 0
    for index, (first, behind) in enumerate(body.together):
        if not end <= first < behind <= len(body.checks):
            raise InvalidRequestError(
                f"together[{index}]",
                f"must be a range of checks behind the one before it, within 0 and {len(body.checks)}, "
                f"not [{first}, {behind}]",
            )
        end = behind


def _reject_together(body: BatchBody, operations: Sequence[Operation]) -> None:
    """Before anything is decided: an invalid check rejects those that are together with it."""
    for first, behind in body.together or ():
        invalid = next((one.error for one in operations[first:behind] if one.error is not None), None)
        if invalid is not None:
            for one in operations[first:behind]:
                one.error = invalid
                one.request = None


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations with a request, in their order; each run is of one kind."""
    runs: list[list[Operation]] = []
    last = -1
    for one in operations:
        if one.request is None:
            continue
        kind = KINDS[one.op]
        if kind != last:
            runs.append([])
            last = kind
        runs[-1].append(one)
    return runs


def _not_settled(one: Operation) -> ApiError:
    """Why an operation has no outcomes."""
    record = None if one.request is None else one.request.record
    if record is not None and record.dropped:
        return ApiError(
            409,
            f"{one.at}: cannot determine whether this charge was already settled: its record may have been evicted; "
            "settle sooner, or increase max_keys of the store",
        )
    if record is not None and (record.replay is not None or record.pending):
        return ApiError(409, f"{one.at}: this charge was already settled; a token can be used only once")
    return ApiError(503, "the store failed, so nothing was settled")


def describe_counter(counter: Counter, member: Member) -> None:
    algorithm = member.algorithm
    counter.key = member.key
    counter.name = algorithm.name
    counter.label = algorithm.label
    counter.limit = str(algorithm.limit)
    counter.binds = member.binds
    if not algorithm.in_headers:
        counter.headers = False
