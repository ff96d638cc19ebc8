"""Checks that are sent again: a repeat gets the first answer, and consumes nothing.

A caller that does not know whether its check arrived sends it again with the same idempotency key. What is kept (by
the store, in the step that decides: see stores/keeping.py) is the numbers of every limit that was asked, and, in the
note, what those limits were: so the answer can be made again although rules have changed since.

A key belongs to whoever calls: two callers never meet in one. A repeat says `"reason": "replayed"`; the state of
pressure is that of the kept numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import msgspec

from headgate.core.algorithms import build
from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.decision import Decision, combine
from headgate.core.limit import Limit
from headgate.core.pressure import NORMAL, pressure_state
from headgate.embedded.asking import Prepared, PreparedChain, no_rule
from headgate.errors import ConfigError
from headgate.http.field_values import trimmed_bytes
from headgate.service.asgi import BadRequest, Headers
from headgate.service.data.answers import answer_of
from headgate.service.data.bodies import cost_of, wrong
from headgate.service.data.shapes import Answer, BatchBody, CheckBody
from headgate.service.data.slices import ENTRIES_PER_COUNTER, work_of
from headgate.stores.keeping import kept_bytes
from headgate.stores.port import MOST_KEPT_BYTES, Kept, Once

__all__ = ["LONGEST_KEY", "once_of", "refuse_different_keys", "replayed"]

LONGEST_KEY = 255
MAX_WORK = 256
"""Limits that a batch with an idempotency key may look at, 32 entries of a sliding log counted as one more: the record
is written in the step that decides, so it cannot be decided in slices, and everybody else waits for it."""
REPLAYED = "replayed"
MOST_REMEMBERED = 4096

Noted = tuple[int, int, int | None, str, str, bool]
"""A limit's count, period in microseconds, burst and algorithm; what decisions call it; whether it binds."""

_encode = msgspec.msgpack.Encoder().encode
_note = msgspec.msgpack.Decoder(list[list[Noted]])
_built: dict[Noted, Algorithm] = {}


def once_of(
    key: bytes, caller: str, path: str, body: CheckBody | BatchBody, prepared: Sequence[Prepared | PreparedChain]
) -> Once:
    """The record of checks that carry this idempotency key; BadRequest for more than every store keeps."""
    key = trimmed_bytes(key)
    if not 0 < len(key) <= LONGEST_KEY:
        raise wrong("Idempotency-Key", f"has {len(key)} bytes: write 1 to {LONGEST_KEY}, a UUID for example")
    name = blake2b(b"%d %b%b" % (len(caller), caller.encode(), key), digest_size=16).hexdigest()
    members = 0
    for one in prepared:
        members += 0 if one.request is None else len(one.request.members)
    # One check is one step with or without a key, whatever logs apply to it.
    work = members if len(prepared) == 1 else sum([work_of(one.request) for one in prepared])
    if work > MAX_WORK:
        raise BadRequest(
            413,
            f"the batch is as much work as {work:,} limits, and {MAX_WORK:,} is the most that is decided in one step "
            f"(a sliding window log counts as one more for each {ENTRIES_PER_COUNTER} entries): "
            "send fewer checks in one batch with an idempotency key",
        )
    limits = [[_noted(member) for member in one.request.members] if one.request is not None else [] for one in prepared]
    note = _encode(limits)
    size = kept_bytes(len(note), members)
    if size > MOST_KEPT_BYTES:
        raise BadRequest(
            413,
            f"the answer would take {size:,} bytes to be kept for a repeat, and {MOST_KEPT_BYTES:,} is the most: "
            "send fewer checks in one batch with an idempotency key",
        )
    return Once(name, _digest(path, body), note)


def replayed(once: Once, kept: Kept) -> list[Answer]:
    """The answers to what was decided before; BadRequest when something else was asked then."""
    if kept.body != once.body:
        raise BadRequest(422, "this idempotency key was used with another body: take a new key for a new request")
    numbers = iter(kept.numbers)
    answers = []
    for limits in _note.decode(kept.note):
        parts: list[Decision] = []
        shadows: list[Decision] = []
        allowed = True
        for noted in limits:
            admitted, remaining, wait, reset = next(numbers)
            decision = Decision(_algorithm(noted), admitted, remaining, wait, reset, None)
            if noted[5]:
                parts.append(_pressed(decision))
                allowed = allowed and admitted
            else:
                shadows.append(decision)
        decision = combine(tuple(parts), allowed) if parts else no_rule()
        answer = answer_of(decision.beside(tuple(shadows)) if shadows else decision, kept.now_us)
        answer.reason = REPLAYED
        answers.append(answer)
    return answers


def _digest(path: str, body: CheckBody | BatchBody) -> bytes:
    """What was asked, whatever its spelling; `timestamp` aside, which says when."""
    plain: Any
    if isinstance(body, BatchBody):
        plain = [msgspec.structs.replace(check, timestamp=None, cost=cost_of(check)) for check in body.checks]
    else:
        plain = msgspec.structs.replace(body, timestamp=None, cost=cost_of(body))
    return blake2b(path.encode() + b"\0" + _encode(plain), digest_size=16).digest()


def _noted(member: Any) -> Noted:
    limit = member.algorithm.limit
    return limit.count, limit.period_us, limit.burst, limit.algorithm, member.algorithm.label, member.binds


def _algorithm(noted: Noted) -> Algorithm:
    found = _built.get(noted)
    if found is None:
        if len(_built) >= MOST_REMEMBERED:
            _built.clear()
        count, period_us, burst, algorithm, label, _ = noted
        try:
            limit = Limit(count, Fraction(period_us, 1_000_000), burst, algorithm)
        except ConfigError as error:  # an algorithm that was registered when it was kept
            raise BadRequest(409, f"the first answer can no longer be told: {error}") from None
        found = _built[noted] = build(limit, label, label)
    return found


def _pressed(decision: Decision) -> Decision:
    state = pressure_state(NORMAL, decision.allowed, decision.limit, decision.remaining)
    return decision if state == NORMAL else decision.under(state)


def refuse_different_keys(headers: Headers) -> None:
    """A request is one attempt of one call. Of two keys, a proxy and this service might each go by another."""
    found: bytes | None = None
    for name, value in headers:
        if name in (b"idempotency-key", b"x-idempotency-key"):
            key = trimmed_bytes(value)
            if found is not None and key != found:
                raise wrong("Idempotency-Key", "is there several times with different values: send one")
            found = key
