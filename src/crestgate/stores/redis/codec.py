# mypyc: compile
"""Binary codec of the Lua script's arguments and reply: packed integers, so that no number is rounded.

A batch is one string: the time (-1: the server's clock), the numbers of limits and requests; the limits; then each
request with its members, which refer to their limit and key by index. The reply is one string: the time, and one
fixed-size record per member. All big-endian; the Lua side of it is in main.lua.

Requests with an idempotency record are a group: before them stand the record's key, its header, and the length of the
group, so that it can be skipped; after them an END. The reply then has, before the members' records, the stored value
of each group and each CLAIM. (See records.lua.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.algorithms.calendar_window import CalendarWindow
from crestgate.core.algorithms.level import Level
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import Decision
from crestgate.core.redaction import mask_api_key
from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock, MachineClock, wall_minus_monotonic
from crestgate.stores.idempotency import group_by_record
from crestgate.stores.idempotency_codec import decode_record, encode_claim, encode_header
from crestgate.stores.port import (
    MAX_RECORD_BYTES,
    BatchOutcomes,
    IdempotencyRecord,
    Member,
    Op,
    Outcome,
    PartialStoreError,
    Request,
)

__all__ = ["KINDS", "SERVER_TIME", "BatchEncoder", "MalformedReplyError", "decode"]

KINDS = {  # script.py makes them constants of the Lua script: TOKEN_BUCKET and so on
    "token_bucket": 1,
    "leaky_bucket": 2,
    "fixed_window": 3,
    "sliding_window_log": 4,
    "sliding_window_counter": 5,
    "gcra": 6,
    "calendar_window": 8,
    "concurrency": 9,
}
OPS = {Op.TAKE: 1, Op.PEEK: 2, Op.RESET: 3, Op.CHARGE: 4, Op.GIVE_BACK: 5, Op.RENEW: 11}
RECORD_OPS = {Op.CLAIM: 8, Op.SAVE: 9, Op.RELEASE: 10}
SERVER_TIME = -1
MAX_CACHED_LIMITS = 4096

_BATCH = struct.Struct(">qHH")
_LIMIT = struct.Struct(">BI5q")
_SEGMENT = struct.Struct(">2q")
_DAY_US = 86_400_000_000
_SEGMENTS_BEFORE_US, _SEGMENTS_AFTER_US = 10 * _DAY_US, 100 * _DAY_US
"""How much time around its clock a client sends the windows of a calendar limit for."""
_REFRESH_US = 50 * _DAY_US
"""How long it sends the same ones."""
_REQUEST = struct.Struct(">BH")
_MEMBER = struct.Struct(">HHBIqI")
_TIME = struct.Struct(">q")
_OUTCOME = struct.Struct(">BqqqqI")
_DENIED, _ADMITTED, _NEVER, _TAKEN, _FOREIGN = 0, 1, 2, 3, 4
_MAX_WAIT_TICKS = 2 * MAX_SAFE_INTEGER
"""The time that the largest debt takes to drain, from any instant."""
_MAX_TICK_US = 1_000_000
_ONE_TAKE = _REQUEST.pack(OPS[Op.TAKE], 1)
_ONE_REPLY_BYTES = _TIME.size + _OUTCOME.size
_GROUP, _END = 6, _REQUEST.pack(7, 0)
_RECORD = struct.Struct(">BHHII")
_STORED = struct.Struct(">I")
_NOT_STORED = 2**32 - 1
_RECORD_NAME = b"%once:"  # instead of a limit's name, none of which is escaped to it


class MalformedReplyError(StoreError):
    """A reply that the script cannot have given to this batch."""


EncodedLimit = tuple[bytes, bytes]
"""A limit as the script reads it, and its name as part of a key."""


@final
class BatchEncoder:
    """Encodes batches. `tag_of` gives the hash tag of a subject, in a cluster. `clock` is roughly the server's, for the
    windows of calendar limits."""

    def __init__(self, prefix: str, tag_of: Callable[[bytes], bytes] | None = None, clock: Clock | None = None) -> None:
        self.prefix = escape(prefix) + b":"
        self.tag_of = tag_of
        self.clock: Clock = MachineClock(wall_minus_monotonic()) if clock is None else clock
        self.limits: dict[Algorithm, EncodedLimit] = BoundedCache(MAX_CACHED_LIMITS)
        self.calendars: dict[Algorithm, tuple[int, EncodedLimit]] = BoundedCache(MAX_CACHED_LIMITS)
        """Calendar limits are not in `limits`: they are encoded again as time goes on."""

    def encode(self, batch: Sequence[Request], now: int) -> tuple[tuple[str | bytes | int, ...], int]:
        """The script's arguments (number of keys, distinct keys, batch), and the maximum size of its reply."""
        if len(batch) == 1 and batch[0].op is Op.TAKE and len(batch[0].members) == 1 and batch[0].record is None:
            member = batch[0].members[0]
            limit, name = self.limits.get(member.algorithm) or self.encode_limit(member.algorithm, now)
            subject = member.key.encode("utf-8", "surrogatepass")
            key = self.prefix + name + subject if self.tag_of is None else self.key(name, member.key)
            one = _MEMBER.pack(1, 1, flags(member), member.cost, 0, 0)
            return (1, key, _BATCH.pack(now, 1, 1) + limit + _ONE_TAKE + one), _ONE_REPLY_BYTES
        keys: dict[tuple[bytes, str], int] = {}
        limits: dict[bytes, int] = {}
        max_bytes = _TIME.size
        records = False
        for request in batch:
            max_bytes += _OUTCOME.size * len(request.members)
            if request.record is not None:
                max_bytes += _STORED.size + MAX_RECORD_BYTES
                records = True
        encoded = self.requests_with_records if records else self.requests
        pieces = encoded(batch, now, keys, limits)
        body = b"".join((_BATCH.pack(now, len(limits), len(batch)), *limits, *pieces))
        return (len(keys), *[self.key(name, subject) for name, subject in keys], body), max_bytes

    def requests(
        self, batch: Sequence[Request], now: int, keys: dict[tuple[bytes, str], int], limits: dict[bytes, int]
    ) -> list[bytes]:
        """Encode requests without records; new keys and limits are added to the numbered ones."""
        pieces: list[bytes] = []
        for request in batch:
            pieces.append(_REQUEST.pack(OPS[request.op], len(request.members)))
            gives_back = request.op is Op.GIVE_BACK
            for member in request.members:
                limit, name = self.limits.get(member.algorithm) or self.encode_limit(member.algorithm, now)
                key = name, member.key
                pieces.append(
                    _MEMBER.pack(
                        keys.setdefault(key, len(keys) + 1),
                        limits.setdefault(limit, len(limits) + 1),
                        flags(member),
                        member.cost,
                        member.tick,
                        0 if gives_back and member.algorithm.keeps_charges else member.amount,
                    )
                )
        return pieces

    def requests_with_records(
        self, batch: Sequence[Request], now: int, keys: dict[tuple[bytes, str], int], limits: dict[bytes, int]
    ) -> list[bytes]:
        """Encode requests of which some have a record. A record fits a few thousand members: their keys' numbers fit
        into two bytes."""
        pieces: list[bytes] = []
        for requests in group_by_record(batch):
            record = requests[0].record
            if record is None:
                pieces += self.requests(requests, now, keys, limits)
                continue
            op = requests[0].op
            key = keys.setdefault((_RECORD_NAME, record.name), len(keys) + 1)
            if op in RECORD_OPS:
                value = record.encoded if op is Op.SAVE else encode_claim(record)
                pieces += (_RECORD.pack(RECORD_OPS[op], 0, key, len(value), 0), value)
            else:
                group = b"".join((*self.requests(requests, now, keys, limits), _END))
                value = encode_header(record)
                pieces += (_RECORD.pack(_GROUP, 0, key, len(value), len(group)), value, group)
        return pieces

    def key(self, name: bytes, subject: str) -> bytes:
        """The Redis key of a counter: `prefix:name:subject`, and in a cluster `prefix:{tag}:name:subject`.

        An idempotency record's is `prefix:%once:name`, with the tag of its name.
        """
        encoded = subject.encode("utf-8", "surrogatepass")
        if self.tag_of is None:
            return self.prefix + name + encoded
        return b"%b{%b}:%b%b" % (self.prefix, self.tag_of(encoded), name, encoded)

    def encode_limit(self, algorithm: Algorithm, now: int = SERVER_TIME) -> EncodedLimit:
        """Encode a limit, and cache it."""
        if isinstance(algorithm, CalendarWindow):
            return self.encode_calendar(algorithm, now)
        limit = algorithm.limit
        unit, rate = (algorithm.unit, algorithm.rate) if isinstance(algorithm, Level) else (0, 0)
        encoded = _LIMIT.pack(
            KINDS[limit.algorithm],
            algorithm.tick,
            limit.period_us,
            algorithm.shape[1],
            algorithm.capacity,
            unit,
            rate,
        )
        self.limits[algorithm] = encoded, escape(algorithm.name) + b":"
        return self.limits[algorithm]

    def encode_calendar(self, algorithm: CalendarWindow, now: int) -> EncodedLimit:
        """Encode a calendar limit with its windows around now, and cache it for a while."""
        if now == SERVER_TIME:
            now = self.clock.ticks()
        cached = self.calendars.get(algorithm)
        if cached is not None and -_DAY_US <= now - cached[0] <= _REFRESH_US:
            return cached[1]
        segments = algorithm.segments(now - _SEGMENTS_BEFORE_US, now + _SEGMENTS_AFTER_US)
        name, identity, capacity, period = algorithm.stored_as
        numbers = _LIMIT.pack(KINDS[name], algorithm.tick, period, identity, capacity, 0, len(segments))
        encoded = numbers + b"".join([_SEGMENT.pack(start, length) for start, length in segments])
        limit = encoded, escape(algorithm.name) + b":"
        self.calendars[algorithm] = now, limit
        return limit


def flags(member: Member) -> int:
    """Whether a member binds (1), and whether it only peeks (2)."""
    return (1 if member.binds else 0) + (2 if member.peeks else 0)


def escape(text: str) -> bytes:
    """Text as a part of a key that ends at the next ':' and contains no hash tag."""
    for plain, code in (("%", "%25"), (":", "%3A"), ("{", "%7B"), ("}", "%7D")):
        text = text.replace(plain, code)
    return text.encode("utf-8", "surrogatepass")


def decode(batch: Sequence[Request], reply: bytes) -> BatchOutcomes:
    """The outcomes in the script's reply to a batch. PartialStoreError where it could not read a key.

    MalformedReplyError, and nothing else, for any other bytes: they come from another machine.
    """
    members = 0
    for request in batch:
        if request.record is not None:
            return decode_with_records(batch, reply)
        members += len(request.members)
    if len(reply) != _TIME.size + members * _OUTCOME.size:
        raise malformed(f"{len(reply)} bytes instead of {_TIME.size + members * _OUTCOME.size}")
    now: int = _TIME.unpack_from(reply)[0]
    if not 0 <= now <= MAX_SAFE_INTEGER:
        raise malformed(f"it was decided at {now}")
    records = _OUTCOME.iter_unpack(memoryview(reply)[_TIME.size :])
    if _FOREIGN in reply[_TIME.size :: _OUTCOME.size]:  # the verdicts
        raise PartialStoreError(
            [[_outcome_or_error(member, now, next(records)) for member in r.members] for r in batch]
        )
    return [[_outcome(member, now, *next(records)) for member in request.members] for request in batch]


def decode_with_records(batch: Sequence[Request], reply: bytes) -> BatchOutcomes:
    """`decode` for requests of which some have a record: a stored result is set as `replay`, and has no outcomes."""
    if len(reply) < _TIME.size:
        raise malformed(f"{len(reply)} bytes")
    now: int = _TIME.unpack_from(reply)[0]
    if not 0 <= now <= MAX_SAFE_INTEGER:
        raise malformed(f"it was decided at {now}")
    groups = group_by_record(batch)
    stored, at = _stored_results(groups, reply)
    members = 0
    for requests, state in zip(groups, stored, strict=True):
        if state is False:
            members += sum([len(request.members) for request in requests])
    if len(reply) != at + members * _OUTCOME.size:
        raise malformed(f"{len(reply)} bytes instead of {at + members * _OUTCOME.size}")
    records = _OUTCOME.iter_unpack(memoryview(reply)[at:])
    outcomes: list[list[Outcome | StoreError]] = []
    for requests, state in zip(groups, stored, strict=True):
        for request in requests:
            if isinstance(state, StoreError):
                outcomes.append([state] * max(len(request.members), 1))  # a CLAIM has no members
            elif state:
                outcomes.append([])
            else:
                outcomes.append([_outcome_or_error(member, now, next(records)) for member in request.members])
    decided = [[item for item in items if isinstance(item, Outcome)] for items in outcomes]
    if any(len(some) < len(items) for some, items in zip(decided, outcomes, strict=True)):
        raise PartialStoreError(outcomes)
    return decided


def _stored_results(groups: Sequence[Sequence[Request]], reply: bytes) -> tuple[list[StoreError | bool], int]:
    """For each group whether it has a stored result, or the error of an invalid one; and where the outcomes begin."""
    stored: list[StoreError | bool] = []
    at = _TIME.size
    for requests in groups:
        record, op = requests[0].record, requests[0].op
        if record is None or op is Op.SAVE or op is Op.RELEASE:
            stored.append(False)
            continue
        if len(reply) < at + _STORED.size:
            raise malformed("an idempotency record is missing")
        size: int = _STORED.unpack_from(reply, at)[0]
        at += _STORED.size
        record.replay, record.pending = None, False
        if size == _NOT_STORED:
            stored.append(False)
            continue
        if len(reply) < at + size:
            raise malformed("an idempotency record is cut off")
        stored.append(_set_replay(record, reply[at : at + size]))
        at += size
    return stored, at


def malformed(reason: str) -> MalformedReplyError:
    return MalformedReplyError(f"unexpected Redis reply for this batch: {reason}")


def _set_replay(record: IdempotencyRecord, value: bytes) -> StoreError | bool:
    """Set the stored result of a record; the error if it is not valid."""
    try:
        record.replay = decode_record(value)
    except StoreError as error:
        return StoreError(f"the Redis key of the idempotency record {mask_api_key(record.name)!r}: {error}")
    record.pending = record.replay is None
    return True


def _outcome(
    member: Member, now: int, verdict: int, remaining: int, wait: int, reset: int, seen: int, tick: int
) -> Outcome:
    """One record: its waits are in ticks of `tick` microseconds from the instant `seen`."""
    algorithm = member.algorithm
    reset_us = (seen + reset) * tick - now if reset >= 0 else 0
    max_wait = _MAX_WAIT_TICKS * tick if 1 <= tick <= _MAX_TICK_US else -1
    if 0 <= remaining <= algorithm.capacity and 0 <= reset_us <= max_wait:
        if verdict in (_TAKEN, _ADMITTED):
            if 0 <= wait <= MAX_SAFE_INTEGER:
                taken_at = seen if verdict == _TAKEN else 0
                return Outcome(Decision(algorithm, True, remaining, wait, reset_us, None), taken_at)
        elif verdict == _DENIED:
            wait_us = (seen + wait) * tick - now
            if 0 <= wait_us <= max_wait:
                return Outcome(Decision(algorithm, False, remaining, wait_us, reset_us, None), 0)
        elif verdict == _NEVER:
            return Outcome(Decision(algorithm, False, remaining, None, reset_us, None), 0)
    raise malformed(f"a counter says {verdict}, {remaining}, {wait}, {reset}, {seen}, {tick}")


def _outcome_or_error(member: Member, now: int, record: tuple[int, int, int, int, int, int]) -> Outcome | StoreError:
    if record[0] != _FOREIGN:
        return _outcome(member, now, *record)
    version = record[1]
    what = f"a counter of layout version {version}" if version else "something that is not a counter"
    return StoreError(
        f"the Redis key of {mask_api_key(member.key)!r} under {member.algorithm.name!r} holds {what}, and version 1 is "
        "read here: use another prefix, or reset it"
    )
