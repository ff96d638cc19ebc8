# mypyc: compile
"""Idempotent checks: a repeat gets the first answer, and consumes nothing.

A caller that does not know whether its check arrived sends it again with the same idempotency key. The store records,
in the step that decides (see stores/idempotency_codec.py), the numbers of every limit, and in the note what those
limits were, and which time the answer counts from: so it can be built again although rules have changed since.

A key belongs to its caller: two callers never share one. A repeat has `"reason": "replayed"`; its pressure state is
that of the recorded numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b
from typing import Final

import msgspec

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.core.pressure import NORMAL, pressure_state
from crestgate.errors import ConfigError, InvalidRequestError
from crestgate.http.field_values import trimmed_bytes
from crestgate.limiter.pending_check import PendingCheck, combine_parts
from crestgate.service.checks.forms import cost_of
from crestgate.service.checks.responses import answer_of
from crestgate.service.checks.schemas import CheckBody, DecisionBody
from crestgate.service.checks.slices import ENTRIES_PER_COUNTER, work_of
from crestgate.service.context import CallContext, Fields
from crestgate.service.errors import ApiError
from crestgate.stores.idempotency_codec import record_bytes
from crestgate.stores.port import MAX_RECORD_BYTES, IdempotencyRecord, Member, Replay

__all__ = ["MAX_KEY_LENGTH", "build_record", "idempotency_key", "replay"]

HEADERS: Final = (b"idempotency-key", b"x-idempotency-key")
FIELD: Final = "Idempotency-Key"
MAX_KEY_LENGTH: Final = 255
MAX_WORK: Final = 256
"""Limits of a batch with an idempotency key, 32 entries of a sliding log counted as one more: the record is written in
the step that decides, so it cannot be decided in slices, and everybody else waits for it."""
REPLAYED: Final = "replayed"
MAX_CACHED: Final = 4096

LimitNote = tuple[int, int, int | None, str, str, bool]
"""A limit's count, period in microseconds, burst and algorithm; its label; whether it binds."""

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_note: Final = msgspec.msgpack.Decoder(tuple[int, list[list[LimitNote]]])
_algorithms: dict[LimitNote, Algorithm] = BoundedCache(MAX_CACHED)


def idempotency_key(fields: Fields) -> bytes | None:
    """The idempotency key of a request, if it has one."""
    return fields.get(b"idempotency-key", fields.get(b"x-idempotency-key"))


def build_record(
    key: bytes,
    call: CallContext,
    checks: Sequence[CheckBody],
    batch: bool,
    pending: Sequence[PendingCheck],
    now_us: int,
) -> IdempotencyRecord:
    """The record of checks with an idempotency key; ApiError for more than every store keeps. `now_us` is the time from
    which the answers count: the store's is a little later."""
    _refuse_different_keys(call)
    key = trimmed_bytes(key)
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequestError(FIELD, f"has {len(key)} bytes: write 1 to {MAX_KEY_LENGTH}, a UUID for example")
    caller = call.key_id
    name = blake2b(b"%d %b%b" % (len(caller), caller.encode(), key), digest_size=16).hexdigest()
    members = 0
    for one in pending:
        members += len(one.members)
    # One check is one step with or without a key, whatever logs apply to it.
    work = members if len(pending) == 1 else sum([work_of(one) for one in pending])
    if work > MAX_WORK:
        raise ApiError(
            413,
            f"the batch is as much work as {work:,} limits, and {MAX_WORK:,} is the most that is decided in one step "
            f"(a sliding window log counts as one more for each {ENTRIES_PER_COUNTER} entries): "
            "send fewer checks in one batch with an idempotency key",
        )
    note = _encode((now_us, [[_note_of(m) for m in one.members] for one in pending]))
    size = record_bytes(len(note), members)
    if size > MAX_RECORD_BYTES:
        raise ApiError(
            413,
            f"the answer would take {size:,} bytes to be kept for a repeat, and {MAX_RECORD_BYTES:,} is the most: "
            "send fewer checks in one batch with an idempotency key",
        )
    return IdempotencyRecord(name, _fingerprint(checks, batch), note)


def replay(record: IdempotencyRecord, stored: Replay) -> list[DecisionBody]:
    """The answers to the first request with this key; ApiError if that had another body."""
    if stored.fingerprint != record.fingerprint:
        raise ApiError(422, "this idempotency key was used with another body: take a new key for a new request")
    numbers = iter(stored.numbers)
    answers = []
    now_us, notes = _note.decode(stored.note)
    for limits in notes:
        parts: list[Decision] = []
        shadows: list[Decision] = []
        allowed = True
        for limit in limits:
            admitted, remaining, wait, reset = next(numbers)
            decision = Decision(_algorithm_of(limit), admitted, remaining, wait, reset, None)
            if limit[5]:
                parts.append(_with_pressure(decision))
                allowed = allowed and admitted
            else:
                shadows.append(decision)
        answer = answer_of(combine_parts(parts, shadows, allowed), now_us)
        answer.reason = REPLAYED
        answers.append(answer)
    return answers


def _fingerprint(checks: Sequence[CheckBody], batch: bool) -> bytes:
    """A digest of what is checked, whatever its spelling, without `timestamp`."""
    bodies = [msgspec.structs.replace(check, timestamp=None, cost=cost_of(check)) for check in checks]
    name, body = (b"batch", _encode(bodies)) if batch else (b"check", _encode(bodies[0]))
    return blake2b(name + b"\0" + body, digest_size=16).digest()


def _note_of(member: Member) -> LimitNote:
    limit = member.algorithm.limit
    if limit.unit is not None:  # in notation: older versions, which cannot read it, have no calendar windows
        return limit.count, limit.period_us, None, str(limit), member.algorithm.label, member.binds
    return limit.count, limit.period_us, limit.burst, limit.algorithm, member.algorithm.label, member.binds


def _algorithm_of(note: LimitNote) -> Algorithm:
    algorithm = _algorithms.get(note)
    if algorithm is None:
        count, period_us, burst, name, label, _ = note
        try:
            limit = Limit.parse(name) if "/" in name else Limit(count, Fraction(period_us, 1_000_000), burst, name)
        except ConfigError as error:  # a custom algorithm that was registered then
            raise ApiError(409, f"the recorded response cannot be decoded: {error}") from None
        algorithm = _algorithms[note] = build(limit, label, label)
    return algorithm


def _with_pressure(decision: Decision) -> Decision:
    state = pressure_state(NORMAL, decision.allowed, decision.limit, decision.remaining)
    return decision if state == NORMAL else decision.with_pressure(state)


def _refuse_different_keys(call: CallContext) -> None:
    """A request is one attempt of one call. Of two keys, a proxy and this service might each use another."""
    first: bytes | None = None
    for name, value in call.scope["headers"]:
        if name in HEADERS:
            key = trimmed_bytes(value)
            if first is not None and key != first:
                raise InvalidRequestError(FIELD, "is there several times with different values: send one")
            first = key
