"""Batches that do more than check: other operations, counters by name, and answers in exact whole numbers.

It is what Headgate's own library sends, many callers' requests in one call: so a mistake in one of them, or a store
that could not be asked for some, is an answer of its own where the answers are `exact`, and the others are decided all
the same. Without that it is one refusal for the whole batch, before anything is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from headgate.embedded.asking import Prepared, PreparedChain
from headgate.engine.failure import answerable
from headgate.errors import HeadgateError, StoreError
from headgate.http.problem import problem, problem_of
from headgate.service.asgi import BadRequest, Call, Reply
from headgate.service.auth.guard import Guard, Refusal
from headgate.service.data.answers import answer_of, encode
from headgate.service.data.bodies import wrong
from headgate.service.data.inline import op_of, prepare_item
from headgate.service.data.shapes import Answer, BatchBody, CheckBody, Counter, Counters, Mistake
from headgate.stores.port import Member, Op, Outcome, PartlyAnswered, Replies, Request

if TYPE_CHECKING:
    from headgate.service.data.plane import DataPlane

__all__ = ["Operations", "is_plain", "refuse_repeats"]

DECIDES = 0
SETTLES = 1
FORGETS = 2
_KINDS = {Op.TAKE: DECIDES, Op.PEEK: DECIDES, Op.CHARGE: SETTLES, Op.GIVE_BACK: SETTLES, Op.RESET: FORGETS}


def is_plain(body: BatchBody) -> bool:
    """Whether a batch has nothing but checks in it, and is to be answered as usual."""
    return not body.exact and all(check.op is None and check.counters is None for check in body.checks)


class Item:
    """One check of a batch on its way: what is asked for it, what came of it, or why nothing did."""

    def __init__(self, check: CheckBody, at: str) -> None:
        self.check = check
        self.at = at
        self.op = Op.TAKE
        self.prepared: Prepared | PreparedChain | None = None
        self.request: Request | None = None
        """None where there is nothing to ask: no rule applies, or there is a mistake."""
        self.outcomes: Sequence[Outcome] = ()
        self.places: Sequence[int] = ()
        """For each member which of the counters that the check names it is of."""
        self.problem: BadRequest | None = None


class Operations:
    """What answers such batches in one worker."""

    def __init__(self, plane: DataPlane, guard: Guard, most_members: int) -> None:
        self.plane = plane
        self.guard = guard
        self.limiter = plane.limiter
        self.most_members = most_members

    def at_once(self, call: Call, body: BatchBody) -> Reply | None:
        """The answer, from a store that is free; None where something has to be waited for."""
        local = self.limiter._engine.local
        if local is None:
            return None
        started = perf_counter()
        items = self.prepared(body)
        if any(item.op is Op.RESET for item in items):  # it is in the audit log first
            return None
        asked = [item for item in items if item.request is not None]
        self.plane.afford(len(items))
        try:
            requests = [item.request for item in asked if item.request is not None]
            replies = local.apply_within(requests, 0.0) if requests else []
        except PartlyAnswered as error:  # the others were decided, and must not be asked about again
            replies = self.limiter._engine.failure.answer(error, requests).replies
            for item, reply in zip(asked, error.replies, strict=True):
                if not answerable(item.op) and any(isinstance(one, StoreError) for one in reply):
                    item.problem = BadRequest(503, "the store could not be asked, so nothing was settled")
                    if not body.exact:
                        raise item.problem from error
        except StoreError:
            replies = None
        if replies is None:
            self.plane.ceiling.give_back(len(items))
            return None
        for item, reply in zip(asked, replies, strict=True):
            item.outcomes = reply
        return self.reply(call, body, items, started)

    async def in_time(self, call: Call, body: BatchBody) -> Reply:
        """The same, in time."""
        started = perf_counter()
        items = self.prepared(body)
        self.plane.afford(len(items))
        for item in items:
            if item.op is Op.RESET and item.request is not None:
                await self.note_reset(call, item, body.exact)
        with self.plane.span(call, "batch"):
            runs = _runs(items)
            if len(runs) == 1:
                await self.ask(runs[0], body.exact)
            else:  # they leave in this order, and together
                await asyncio.gather(*[self.ask(run, body.exact) for run in runs])
        return self.reply(call, body, items, started)

    def prepared(self, body: BatchBody) -> list[Item]:
        """What is to be asked about each check."""
        items: list[Item] = []
        members = 0
        for place, check in enumerate(body.checks):
            item = Item(check, f"checks[{place}]")
            items.append(item)
            try:
                item.op = op_of(check, item.at)
                item.prepared, item.places = prepare_item(self.limiter, item.op, check, item.at)
            except BadRequest as error:
                if not body.exact:
                    raise
                item.problem = error
                continue
            item.request = item.prepared.request
            members += 0 if item.request is None else len(item.request.members)
            if members > self.most_members:
                raise BadRequest(
                    413,
                    f"the first {place + 1:,} checks have more than {self.most_members:,} limits: "
                    "send fewer in one batch",
                )
        return items

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
            if item.request is not None and len(reply) != len(item.request.members):
                item.problem = BadRequest(503, "the store could not be asked, so nothing was settled")
                if not exact:
                    raise item.problem

    async def note_reset(self, call: Call, item: Item, exact: bool) -> None:
        """Let only those forget counters who may call /api/v1/reset, and put it into the audit log as that does."""
        assert item.request is not None
        visit = call.visit
        admitted = self.guard.admit(
            "write", call.scope["headers"], None if visit is None else visit.address, write=True
        )
        if isinstance(admitted, Refusal):
            item.problem = BadRequest(admitted.status, f"{item.at}: {admitted.detail}", admitted.headers)
            item.request = None
            if not exact:
                raise item.problem
            return
        assert visit is not None
        editor = self.plane.parts.editor(visit.actor)
        await asyncio.to_thread(editor.note_reset, *dict.fromkeys([member.key for member in item.request.members]))

    def reply(self, call: Call, body: BatchBody, items: Sequence[Item], started: float) -> Reply:
        """Count what was decided, and say it."""
        plane = self.plane
        now_us = plane.clock.ticks()
        plane.tally.at(now_us)
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
            answers.append(_exact(item) if body.exact else answer_of(decision, now_us))
        plane.tally.batch(len(items))
        plane.tally.timed(perf_counter() - started)
        return Reply(200, encode({"decisions": answers}))


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


def _exact(item: Item) -> Counters:
    """What came of an item, in whole numbers."""
    if item.request is None:
        return Counters([])
    counters: list[Counter] = []
    named, places = item.check.counters, item.places
    for place, member in enumerate(item.request.members):
        outcome = item.outcomes[place]
        decision = outcome.decision
        told = Counter(
            decision._allowed, decision._remaining, decision._wait, decision._reset, decision.reason, outcome.tick
        )
        if named is not None:
            told.at = places[place]
        if named is None or named[places[place]].plan is not None:
            _describe(told, member)
        counters.append(told)
    return Counters(counters)


def _describe(told: Counter, member: Member) -> None:
    algorithm = member.algorithm
    told.key = member.key
    told.name = algorithm.name
    told.label = algorithm.label
    told.limit = str(algorithm.limit)
    told.binds = member.binds
