"""Batches that do more than check: other operations, counters by name, and answers in exact whole numbers.

It is what Headgate's own library sends, many callers' requests in one call: so a mistake in one of them, or a store
that could not be asked for some, is an answer of its own where the answers are `exact`, and the others are decided all
the same. Without that it is one refusal for the whole batch, before anything is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from headgate.embedded.asking import Prepared, PreparedChain
from headgate.errors import HeadgateError, StoreError
from headgate.http.problem import problem, problem_of
from headgate.service.asgi import BadRequest, Call, Reply
from headgate.service.auditing import note_outcome, note_request
from headgate.service.auth.guard import Guard, Refusal
from headgate.service.data.answers import answer_of, encode
from headgate.service.data.bodies import MOST_COUNTERS, wrong
from headgate.service.data.inline import Proof, op_of, prepare_item
from headgate.service.data.shapes import Answer, BatchBody, CheckBody, Counter, Counters, Mistake
from headgate.service.data.slices import (
    LOCAL_SLICE,
    MEMBER_SLICE,
    PREPARE_SLICE,
    REMOTE_SLICE,
    decisions_of,
    groups,
    next_turn,
    slice_end,
    weigh,
    work_of,
)
from headgate.service.data.tokens import Tokens
from headgate.service.finishing import to_the_end
from headgate.stores.port import Member, Once, Op, Outcome, PartlyAnswered, Replies, Request

if TYPE_CHECKING:
    from headgate.service.data.plane import DataPlane

__all__ = ["Operations", "caller_of", "is_plain", "refuse_repeats"]

SETTLED: Final = bytes(16)
"""What the record of a take that was settled says was asked: there is nothing to compare."""

FAILED_CHECK: Final = 4
"""What it costs to say what is wrong with a check, in counters that are prepared: a limit that cannot be read takes
longer than one that can."""

DECIDES = 0
SETTLES = 1
FORGETS = 2
_KINDS = {Op.TAKE: DECIDES, Op.PEEK: DECIDES, Op.CHARGE: SETTLES, Op.GIVE_BACK: SETTLES, Op.RESET: FORGETS}


def is_plain(body: BatchBody) -> bool:
    """Whether a batch has nothing but checks in it, and is to be answered as usual."""
    return not body.exact and all(check.op is None and check.counters is None for check in body.checks)


class Item:
    """One check of a batch on its way: what is asked for it, what came of it, or why nothing did."""

    def __init__(self, check: CheckBody, at: str, proof: Proof) -> None:
        self.check = check
        self.at = at
        self.op = Op.TAKE
        self.prepared: Prepared | PreparedChain | None = None
        self.request: Request | None = None
        """None where there is nothing to ask: no rule applies, or there is a mistake."""
        self.outcomes: Sequence[Outcome] = ()
        self.places: Sequence[int] = ()
        """For each member which of the counters that the check names it is of."""
        self.proof = proof
        self.audited = False
        """Whether it is done in the name of somebody with scope `write`, and is in the audit log."""
        self.problem: BadRequest | None = None

    @property
    def members(self) -> int:
        return 0 if self.request is None else len(self.request.members)

    @property
    def subjects(self) -> list[str]:
        return [] if self.request is None else [member.key for member in self.request.members]


class Operations:
    """What answers such batches in one worker."""

    def __init__(self, plane: DataPlane, guard: Guard, most_members: int) -> None:
        self.plane = plane
        self.guard = guard
        self.limiter = plane.limiter
        self.most_members = most_members
        self.tokens = Tokens(plane.parts.token_key)
        self.slice = MEMBER_SLICE if plane.limiter.answers_at_once else REMOTE_SLICE

    def at_once(self, call: Call, body: BatchBody) -> Reply | None:
        """The answer, from a store that is free; None where something has to be waited for, or takes long."""
        local = self.limiter._engine.local
        if local is None or len(body.checks) > LOCAL_SLICE:
            return None
        for check in body.checks:
            if check.op not in (None, "take", "peek"):
                return None  # it is settled once, or is in the audit log
        weight = weigh(body.checks)
        if weight > LOCAL_SLICE:
            return None
        started = perf_counter()
        items: list[Item] = []
        self.prepare(call, body, items, 0, 4 * LOCAL_SLICE)
        if len(items) < len(body.checks) or sum([work_of(item.request) for item in items]) > 4 * LOCAL_SLICE:
            return None  # many rules or limits of plans apply, or logs that may be long
        asked = [item for item in items if item.request is not None]
        self.plane.afford(weight)
        try:
            requests = [item.request for item in asked if item.request is not None]
            replies = local.apply_within(requests, 0.0) if requests else []
        except PartlyAnswered as error:  # the others were decided, and must not be asked about again
            replies = self.limiter._engine.failure.answer(error, requests).replies
        except StoreError:
            replies = None
        if replies is None:
            self.plane.ceiling.give_back(weight)
            return None
        for item, reply in zip(asked, replies, strict=True):
            item.outcomes = reply
        return self.reply(len(items), decisions_of([self.answers(call, body, items)]), started)

    async def in_time(self, call: Call, body: BatchBody) -> Reply:
        """The same, in time: in slices, between which others are answered."""
        started = perf_counter()
        weight = weigh(body.checks)
        self.plane.afford(weight)
        items: list[Item] = []
        try:
            await self.prepare_all(call, body, items)
        except BadRequest:
            self.plane.refund(weight)
            raise
        with self.plane.span(call, "batch"):
            if any(item.audited for item in items):
                await to_the_end(self.ask_audited(call, items, body.exact))
            else:
                await self.ask_all(items, body.exact, True)
        pieces: list[bytes] = []
        for start, end in groups([item.request for item in items], MEMBER_SLICE):
            if start:
                await next_turn()
            pieces.append(self.answers(call, body, items[start:end]))
        return self.reply(len(items), decisions_of(pieces), started)

    async def prepare_all(self, call: Call, body: BatchBody, items: list[Item]) -> None:
        """Prepare all checks, and see which of them need the scope `write`."""
        members = self.prepare(call, body, items, 0, PREPARE_SLICE)
        while len(items) < len(body.checks):
            await next_turn()
            members = self.prepare(call, body, items, members, PREPARE_SLICE)
        permitted = 0
        for item in items:
            if item.request is not None and (item.op is Op.RESET or item.proof.missing is not None):
                if permitted and permitted % PREPARE_SLICE == 0:
                    await next_turn()
                self.permit(call, item, body.exact)
                permitted += 1

    def prepare(self, call: Call, body: BatchBody, items: list[Item], members: int, size: int) -> int:
        """Prepare the next checks, of about so many counters; how many counters all of them have so far. What a check
        with a mistake names is looked at, too, and counts against `size`."""
        checks = body.checks
        caller = caller_of(call)
        may_write = has_write(call)
        now = self.plane.clock.ticks() // 1_000_000
        done = 0
        last = slice_end(checks, len(items), LOCAL_SLICE)
        unneeded = Proof(self.tokens, caller, now, may_write)
        while len(items) < len(checks) and done < size and len(items) < last:
            check = checks[len(items)]
            settles = check.op in ("give_back", "charge")
            proof = Proof(self.tokens, caller, now, may_write) if settles else unneeded
            item = Item(check, f"checks[{len(items)}]", proof)
            items.append(item)
            try:
                item.op = op_of(check, item.at)
                item.prepared, item.places = prepare_item(self.limiter, item.op, check, item.at, item.proof)
            except BadRequest as error:
                if not body.exact:
                    raise
                item.problem = error.with_traceback(None)  # whose frames refer to the item: a reference cycle
                done += FAILED_CHECK
                if check.counters is not None:
                    done += min(len(check.counters), MOST_COUNTERS)
                continue
            item.request = item.prepared.request
            members += item.members
            done += item.members
            if members > self.most_members:
                raise BadRequest(
                    413,
                    f"the first {len(items):,} checks have more than {self.most_members:,} limits: "
                    "send fewer in one batch",
                )
            if item.request is not None and item.proof.take is not None and item.proof.missing is None:
                # Whoever gives back twice would be given what somebody else took.
                since_us = item.proof.issued * 1_000_000 if item.op is Op.GIVE_BACK else None
                once = Once(f"settled:{item.proof.take}", SETTLED, b"", since_us)
                item.request = Request(item.op, item.request.members, once)
        return members

    def permit(self, call: Call, item: Item, exact: bool) -> None:
        """Let only those forget counters, or settle what they did not take, who may call /api/v1/reset."""
        visit = call.visit
        admitted = self.guard.admit(
            "write", call.scope["headers"], None if visit is None else visit.address, write=True
        )
        if not isinstance(admitted, Refusal):
            item.audited = True
            return
        missing = "" if item.proof.missing is None else f"{item.check.op} {item.proof.missing}; "
        detail = f"{item.at}: {missing}{admitted.detail}"
        if not exact:
            raise BadRequest(admitted.status, detail, admitted.headers)
        item.problem = BadRequest(admitted.status, detail, admitted.headers)
        item.request = None

    async def ask_audited(self, call: Call, items: Sequence[Item], exact: bool) -> None:
        """Ask for all items, with entries in the audit log before and after for those that need it."""
        assert call.visit is not None
        editor = self.plane.parts.editor(call.visit.actor)
        audited = [item for item in items if item.audited]
        for item in audited:
            await note_request(editor, item.check.op or "take", item.subjects)
        try:
            await self.ask_all(items, exact, False)
        finally:
            for item in audited:
                done = item.problem is None and len(item.outcomes) == item.members
                await note_outcome(editor, item.check.op or "take", item.subjects, done)

    async def ask_all(self, items: Sequence[Item], exact: bool, together: bool) -> None:
        """Ask the store for all items, in their order; those of several kinds `together` if they are little work."""
        runs = _runs(items)
        if together and sum([work_of(item.request) for item in items]) <= self.slice:
            if len(runs) == 1:
                await self.ask(runs[0], exact)
            else:  # they leave in this order, and together
                await asyncio.gather(*[self.ask(run, exact) for run in runs])
            return
        for run in runs:
            for start, end in groups([item.request for item in run], self.slice):
                await self.ask(run[start:end], exact)
                await next_turn()

    async def ask(self, run: Sequence[Item], exact: bool) -> None:
        """Ask the store for items of one kind: how a store that fails is answered depends on it."""
        requests = [item.request for item in run if item.request is not None]
        try:
            replies: Replies = await self.limiter._apply(requests)
        except HeadgateError as error:
            if not exact:
                raise
            status, detail, more = problem_of(error)
            for item in run:
                item.problem = BadRequest(status, detail, **more)
            return
        for item, reply in zip(run, replies, strict=True):
            item.outcomes = reply
            request = item.request
            if request is None or len(reply) == len(request.members):
                continue
            once = request.once
            status, detail = 503, "the store could not be asked, so nothing was settled"
            if once is not None and once.dropped:
                status = 409
                detail = (
                    f"{item.at}: it is no longer known whether what was taken is settled: the store has dropped "
                    "records since then. Give back sooner, or give the store more room (max_keys)"
                )
            elif once is not None and (once.kept is not None or once.pending):
                status, detail = 409, f"{item.at}: what was taken is settled already: a token counts once"
            if not exact:
                raise BadRequest(status, detail)
            item.problem = BadRequest(status, detail)

    def answers(self, call: Call, body: BatchBody, items: Sequence[Item]) -> bytes:
        """Count what was decided, and say it, as a list in JSON."""
        plane = self.plane
        now_us = plane.clock.ticks()
        plane.tally.at(now_us)
        caller = caller_of(call)
        answers: list[Answer | Counters | Mistake] = []
        for item in items:
            if item.problem is not None:
                told = item.problem
                answers.append(Mistake(problem(told.status, told.detail, **told.more)))
                continue
            one = item.prepared
            assert one is not None
            decision = one.decision(item.outcomes)
            if item.op is Op.TAKE:
                plane.count(call, one, decision)
                plane.note(item.check, now_us)
            elif item.op is Op.RESET:
                one.forgotten()
            answers.append(self.exact(item, caller, now_us) if body.exact else answer_of(decision, now_us))
        return encode(answers)

    def reply(self, checks: int, body: bytes, started: float) -> Reply:
        tally = self.plane.tally
        tally.batch(checks)
        tally.timed(perf_counter() - started)
        return Reply(200, body)

    def exact(self, item: Item, caller: str, now_us: int) -> Counters:
        """What came of an item, in whole numbers, with tokens for what was charged."""
        if item.request is None:
            return Counters([])
        counters: list[Counter] = []
        named, places = item.check.counters, item.places
        members, outcomes = item.request.members, item.outcomes
        take = ""
        if item.op is Op.TAKE:
            for place, member in enumerate(members):
                if member.binds and not outcomes[place].decision._allowed:
                    break
            else:
                take = self.tokens.next_take()
        for place, member in enumerate(members):
            outcome = outcomes[place]
            decision = outcome.decision
            reason = decision.reason
            told = Counter(
                decision._allowed, decision._remaining, decision._wait, decision._reset, reason, outcome.tick
            )
            if take and reason == "ok" and member.cost:
                told.token = self.tokens.issue(
                    take, now_us // 1_000_000, caller, member.key, member.algorithm, member.cost, outcome.tick
                )
            if named is not None:
                told.at = places[place]
            if named is None or named[places[place]].plan is not None:
                _describe(told, member)
            counters.append(told)
        return Counters(counters)


def caller_of(call: Call) -> str:
    """Who calls, for what belongs to a caller alone: the id of its key, or nothing where none is needed."""
    caller = call.visit.caller if call.visit is not None else None
    return "" if caller is None else caller.key_id


def has_write(call: Call) -> bool:
    """Whether the caller's key has the scope write."""
    caller = call.visit.caller if call.visit is not None else None
    return caller is not None and caller.scope == "write"


def refuse_repeats(call: Call) -> None:
    """What is kept for a repeat is the usual answer to a check, and nothing else."""
    if b"idempotency-key" in call.fields or b"x-idempotency-key" in call.fields:
        raise wrong("Idempotency-Key", "goes with checks alone: leave out op, counters and exact, or the header")


def _runs(items: Sequence[Item]) -> list[list[Item]]:
    """The items that are to be asked, in their order; each run is of one kind."""
    runs: list[list[Item]] = []
    last = -1
    for item in items:
        if item.request is None:
            continue
        kind = _KINDS[item.op]
        if kind != last:
            runs.append([])
            last = kind
        runs[-1].append(item)
    return runs


def _describe(told: Counter, member: Member) -> None:
    algorithm = member.algorithm
    told.key = member.key
    told.name = algorithm.name
    told.label = algorithm.label
    told.limit = str(algorithm.limit)
    told.binds = member.binds
