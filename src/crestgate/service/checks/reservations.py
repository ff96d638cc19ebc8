"""Reservations over HTTP and gRPC: take now, settle by an id later. See limiter/stored_reservations.py."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, final

import msgspec

from crestgate.core.bounds import MAX_COST
from crestgate.errors import (
    InvalidRequestError,
    ReservationClosedError,
    ReservationError,
    UnknownReservationError,
    field_of,
)
from crestgate.limiter.reservation import Settlement
from crestgate.limiter.reservation_terms import PreparedReservation, check_terms, check_ttl, take_slots, with_rule_costs
from crestgate.limiter.stored_reservations import Extension, Grant, Holder, Steps, StoredReservations
from crestgate.runtime.tasks import run_to_completion
from crestgate.service.checks.counter_audit import run_audited
from crestgate.service.checks.forms import FORMS, GOES_INTO_A_BATCH, prepare_check
from crestgate.service.checks.idempotency import idempotency_key
from crestgate.service.checks.inline_counters import SettlementAuthorization, prepare_counters
from crestgate.service.checks.json_body import decode_json
from crestgate.service.checks.operations import describe_counter
from crestgate.service.checks.responses import answer_of
from crestgate.service.checks.schemas import (
    Counter,
    ExtendBody,
    ExtensionResponse,
    ReservationBody,
    ReservationResponse,
    SettleBody,
    SettlementResponse,
)
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.tokens import Tokens
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError
from crestgate.stores.port import Member, Op, Outcome

__all__ = ["MAX_COSTS", "ReservationService", "read_extend", "read_reservation", "read_settle"]

MAX_COSTS: Final = 100
ANONYMOUS: Final = "anonymous"
"""The owner of what is reserved without a key, which is no id of a key. The empty owner is the library's."""
SETTLE_FORMS: Final = 'write {"actual": 620}, or {"actual": {"tokens": 620}} with a number for each limit'
EXTEND_FORMS: Final = 'write {"ttl": 120}, in seconds from now'

_reservation: Final = msgspec.json.Decoder(ReservationBody)
_settle: Final = msgspec.json.Decoder(SettleBody)
_extend: Final = msgspec.json.Decoder(ExtendBody)


def read_reservation(body: bytes) -> ReservationBody:
    reservation: ReservationBody = decode_json(_reservation, body, f"{FORMS}, with costs, ttl and on_expiry")
    if reservation.op is not None:
        raise InvalidRequestError("op", GOES_INTO_A_BATCH)
    return reservation


def read_settle(body: bytes) -> SettleBody:
    settle: SettleBody = decode_json(_settle, body, SETTLE_FORMS)
    return settle


def read_extend(body: bytes) -> ExtendBody:
    extend: ExtendBody = decode_json(_extend, body, EXTEND_FORMS)
    return extend


@final
class ReservationService:
    """The reservations of one worker."""

    def __init__(self, checks: CheckService) -> None:
        self.checks = checks
        self.limiter = checks.limiter
        self.tokens = Tokens(checks.dependencies.token_key)

    async def reserve(self, call: CallContext, body: ReservationBody) -> ReservationResponse:
        """Decide a check, and keep what it has charged under an id. Without an id in the response if it is denied."""
        self._enter(call, max(len(body.counters or ()), 1))
        checks = self.checks
        now_us = checks.clock.ticks()
        try:
            ttl_us = check_terms(body.ttl, body.on_expiry)
            prepared, indexes = self._prepare(call, body, now_us)
        except ValueError as error:  # raised by the limiter; a ConfigError is one, too
            raise InvalidRequestError(*field_of(error)) from None
        with checks.span(call, "reserve"):
            stored = await self._open()
            grant: Grant = await self._run(stored.reserve(prepared, ttl_us, body.on_expiry, _caller(call)))
        checks.metrics.set_time(now_us)
        checks.count(call, prepared.check, grant.decision)
        checks.record_names(body, now_us)
        checks.metrics.durations.observe(perf_counter() - call.started)
        answer = answer_of(grant.decision, now_us)
        fields: dict[str, Any] = {name: getattr(answer, name) for name in answer.__struct_fields__}
        if grant.id is not None:
            fields.update(id=grant.id, expires_at=grant.expires_us / 1_000_000)
        if body.exact:
            fields["counters"] = _counters(body, prepared.check.members, grant.outcomes, indexes)
        return ReservationResponse(**fields)

    async def settle(self, call: CallContext, reservation_id: str, body: SettleBody) -> SettlementResponse:
        return await self._settle(call, reservation_id, body.actual, "settle")

    async def release(self, call: CallContext, reservation_id: str) -> SettlementResponse:
        return await self._settle(call, reservation_id, 0, "release")

    async def extend(self, call: CallContext, reservation_id: str, body: ExtendBody) -> ExtensionResponse:
        self._enter(call)
        try:
            ttl_us = check_ttl(body.ttl)
        except ValueError as error:
            raise InvalidRequestError(*field_of(error)) from None
        with self.checks.span(call, "extend"):
            stored = await self._open()
            work = self._run(stored.extend(reservation_id, ttl_us, _owner(call)))
            extension: Extension = await self._audited(call, stored, reservation_id, "extend", work)
        return ExtensionResponse(extension.extended, extension.expires_us / 1_000_000)

    async def _settle(
        self, call: CallContext, reservation_id: str, actual: int | Mapping[str, int], action: str
    ) -> SettlementResponse:
        self._enter(call)
        if isinstance(actual, Mapping) and len(actual) > MAX_COSTS:
            raise InvalidRequestError("actual", f"names {len(actual)} limits; the maximum is {MAX_COSTS}")
        with self.checks.span(call, "settle"):
            stored = await self._open()
            work = self._run(stored.settle(reservation_id, actual, _owner(call)))
            settlement: Settlement = await self._audited(call, stored, reservation_id, action, work)
        return SettlementResponse(settlement.settled, settlement.late)

    async def _audited(
        self,
        call: CallContext,
        stored: StoredReservations,
        reservation_id: str,
        action: str,
        work: Coroutine[Any, Any, Any],
    ) -> Any:
        """Do the work. If the reservation is of another key, an operator must be able to tell who has done it."""
        holder: Holder | None = await self._run(stored.look_up(reservation_id)) if call.may_write else None
        if holder is None or holder.owner == call.key_id:
            return await work
        editor = self.checks.dependencies.editor(call.actor)
        return await run_to_completion(run_audited(editor, action, holder.keys, work))

    def _enter(self, call: CallContext, checks: int = 1) -> None:
        if idempotency_key(call.fields) is not None:
            raise InvalidRequestError("Idempotency-Key", "is only valid with checks: a reservation is settled once")
        self.checks.admit(checks)

    def _prepare(
        self, call: CallContext, body: ReservationBody, now_us: int
    ) -> tuple[PreparedReservation, Sequence[int]]:
        """The check, and for each member the index of the counter that it is of, if the body lists any."""
        costs = body.costs or {}
        if body.counters is not None:
            if body.costs is not None:
                raise InvalidRequestError("costs", "cannot be combined with 'counters': each of them has a cost")
            proof = SettlementAuthorization(self.tokens, call.key_id, now_us // 1_000_000, call.may_write)
            check, indexes = prepare_counters(self.limiter, Op.TAKE, body, proof)
            take_slots(check)
            named = [body.counters[index] for index in indexes]
            return PreparedReservation(check, [(one.plan or one.name or one.limit or "",) for one in named]), indexes
        if len(costs) > MAX_COSTS:
            raise InvalidRequestError("costs", f"names {len(costs)} limits; the maximum is {MAX_COSTS}")
        for name, cost in costs.items():
            if not 0 <= cost <= MAX_COST:
                raise InvalidRequestError(f"costs.{name}", f"must be a whole number from 0 to {MAX_COST}, not {cost}")
        check = prepare_check(self.limiter, Op.TAKE, body, now_us, True)
        return with_rule_costs(self.limiter, check, costs, by_rules=body.key is None), ()

    async def _open(self) -> StoredReservations:
        return await asyncio.to_thread(self.limiter.reservations.open)

    async def _run(self, steps: Steps) -> Any:
        """Errors of reservations have a status of their own; they are the caller's, and not logged."""
        try:
            return await self.limiter.run_reservation(steps)
        except UnknownReservationError as error:
            raise ApiError(404, str(error)) from None
        except ReservationClosedError as error:
            raise ApiError(409, str(error)) from None
        except ReservationError as error:
            raise ApiError(429, str(error)) from None
        except ValueError as error:
            raise InvalidRequestError(*field_of(error)) from None


def _owner(call: CallContext) -> str | None:
    """Whose reservations a caller may settle; None for all."""
    return None if call.may_write else _caller(call)


def _caller(call: CallContext) -> str:
    """Whose reservations are counted together: callers without a key are one caller."""
    return call.key_id or ANONYMOUS


def _counters(
    body: ReservationBody, members: Sequence[Member], outcomes: Sequence[Outcome], indexes: Sequence[int]
) -> list[Counter]:
    counters: list[Counter] = []
    for position, (member, outcome) in enumerate(zip(members, outcomes, strict=True)):
        decision = outcome.decision
        counter = Counter(
            decision.allowed, decision.remaining, decision.wait_us, decision.reset_us, decision.reason, outcome.tick
        )
        if body.counters is not None:
            counter.at = indexes[position]
        if body.counters is None or body.counters[indexes[position]].plan is not None:
            describe_counter(counter, member)
        counters.append(counter)
    return counters
