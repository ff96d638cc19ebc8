"""What goes to the Lua program and what comes back: packed bytes, so that no number is rounded on the way.

A batch is one string: the time (-1: the server's own), how many limits and requests follow; the limits; then each
request with its members, which name their limit and their key by number. The answer is one string: the time, and
equal records, one per member. All big-endian; the program's own side of it is at the end of program.lua.

What is decided once comes as a group: before its requests stand the key of the record, how it begins, and how long the
group is, so that it can be skipped; behind them an END. The answer then has, before the records of the members, what
was found under the name of each group and each CLAIM. (See records.lua.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import final

from headgate.core.algorithms.algorithm import LARGEST, Algorithm
from headgate.core.algorithms.level import Level
from headgate.core.decision import Decision
from headgate.core.masking import masked_key
from headgate.errors import StoreError
from headgate.stores.keeping import claim_bytes, head_bytes, read_kept
from headgate.stores.port import MOST_KEPT_BYTES, Member, Once, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.records import grouped

__all__ = ["KINDS", "SERVER_TIME", "MalformedReplyError", "Wire", "decode", "max_reply_bytes"]

KINDS = {
    "token_bucket": 1,
    "leaky_bucket": 2,
    "fixed_window": 3,
    "sliding_window_log": 4,
    "sliding_window_counter": 5,
    "gcra": 6,
}
OPS = {Op.TAKE: 1, Op.PEEK: 2, Op.RESET: 3, Op.CHARGE: 4, Op.GIVE_BACK: 5}
ON_RECORDS = {Op.CLAIM: 8, Op.KEEP: 9, Op.RELEASE: 10}
SERVER_TIME = -1
MOST_REMEMBERED = 4096

_BATCH = struct.Struct(">qHH")
_LIMIT = struct.Struct(">BI5q")
_REQUEST = struct.Struct(">BH")
_MEMBER = struct.Struct(">HHBIqI")
_TIME = struct.Struct(">q")
_ANSWER = struct.Struct(">BqqqqI")
_DENIED, _ADMITTED, _NEVER, _TAKEN, _FOREIGN = 0, 1, 2, 3, 4
_MAX_WAIT_TICKS = 2 * LARGEST
_MAX_TICK_US = 1_000_000
"""Microseconds: what the longest debt takes to drain, from any instant."""
_ONE_TAKE = _REQUEST.pack(OPS[Op.TAKE], 1)
_GROUP, _END = 6, _REQUEST.pack(7, 0)
_RECORD = struct.Struct(">BHHII")
_FOUND = struct.Struct(">I")
_NOT_FOUND = 2**32 - 1
_RECORD_NAME = b"%once:"  # as a part of a key: no name of a limit is escaped to it


class MalformedReplyError(StoreError):
    """What the program is said to have answered cannot be its answer to this batch."""


Named = tuple[bytes, bytes]
"""A limit as the program reads it, and its name as part of a key."""


@final
class Wire:
    """Writes batches. `lead` begins every key; `tag_of` gives the hash tag of a subject, in a cluster."""

    def __init__(self, prefix: str, tag_of: Callable[[bytes], bytes] | None = None) -> None:
        self.lead = escaped(prefix) + b":"
        self.tag_of = tag_of
        self.named: dict[Algorithm, Named] = {}

    def encode(self, batch: Sequence[Request], now: int) -> tuple[list[bytes], bytes]:
        """The keys of a batch, each once, and the batch itself."""
        if len(batch) == 1 and batch[0].op is Op.TAKE and len(batch[0].members) == 1 and batch[0].once is None:
            member = batch[0].members[0]
            limit, name = self.named.get(member.algorithm) or self.name(member.algorithm)
            one = _MEMBER.pack(1, 1, 1 if member.binds else 0, member.cost, 0, 0)
            return [self.key(name, member.key)], _BATCH.pack(now, 1, 1) + limit + _ONE_TAKE + one
        keys: dict[tuple[bytes, str], int] = {}
        limits: dict[bytes, int] = {}
        pieces = self.with_records(batch, keys, limits) if has_records(batch) else self.requests(batch, keys, limits)
        body = b"".join((_BATCH.pack(now, len(limits), len(batch)), *limits, *pieces))
        return [self.key(name, subject) for name, subject in keys], body

    def requests(
        self, batch: Sequence[Request], keys: dict[tuple[bytes, str], int], limits: dict[bytes, int]
    ) -> list[bytes]:
        """Requests that may be decided again; new keys and limits are added to those that have a number."""
        pieces: list[bytes] = []
        for request in batch:
            pieces.append(_REQUEST.pack(OPS[request.op], len(request.members)))
            for member in request.members:
                limit, name = self.named.get(member.algorithm) or self.name(member.algorithm)
                key = name, member.key
                pieces.append(
                    _MEMBER.pack(
                        keys.setdefault(key, len(keys) + 1),
                        limits.setdefault(limit, len(limits) + 1),
                        1 if member.binds else 0,
                        member.cost,
                        member.tick,
                        member.amount,
                    )
                )
        return pieces

    def with_records(
        self, batch: Sequence[Request], keys: dict[tuple[bytes, str], int], limits: dict[bytes, int]
    ) -> list[bytes]:
        """Requests of which some are decided once. A record has room for some thousand members, so two bytes suffice to
        number their keys."""
        pieces: list[bytes] = []
        for requests in grouped(batch):
            once = requests[0].once
            if once is None:
                pieces += self.requests(requests, keys, limits)
                continue
            op = requests[0].op
            key = keys.setdefault((_RECORD_NAME, once.name), len(keys) + 1)
            if op in ON_RECORDS:
                value = once.packed if op is Op.KEEP else claim_bytes(once)
                pieces += (_RECORD.pack(ON_RECORDS[op], 0, key, len(value), 0), value)
            else:
                group = b"".join((*self.requests(requests, keys, limits), _END))
                value = head_bytes(once)
                pieces += (_RECORD.pack(_GROUP, 0, key, len(value), len(group)), value, group)
        return pieces

    def key(self, name: bytes, subject: str) -> bytes:
        """The Redis key of a counter: `prefix:name:subject`, and in a cluster `prefix:{tag}:name:subject`.

        A record's is `prefix:%once:its name`, with the tag of that.
        """
        bytes_of = subject.encode("utf-8", "surrogatepass")
        if self.tag_of is None:
            return self.lead + name + bytes_of
        return b"%b{%b}:%b%b" % (self.lead, self.tag_of(bytes_of), name, bytes_of)

    def name(self, algorithm: Algorithm) -> Named:
        """Work out what stays the same for every request under a limit, and remember it."""
        if len(self.named) >= MOST_REMEMBERED:
            self.named.clear()
        limit = algorithm.limit
        unit, rate = (algorithm.unit, algorithm.rate) if isinstance(algorithm, Level) else (0, 0)
        record = _LIMIT.pack(
            KINDS[limit.algorithm],
            algorithm.tick,
            limit.period_us,
            algorithm.shape[1],
            algorithm.capacity,
            unit,
            rate,
        )
        named = record, escaped(algorithm.name) + b":"
        self.named[algorithm] = named
        return named


def escaped(text: str) -> bytes:
    """Text as a part of a key that ends at the next ':' and begins no hash tag."""
    for plain, code in (("%", "%25"), (":", "%3A"), ("{", "%7B"), ("}", "%7D")):
        text = text.replace(plain, code)
    return text.encode("utf-8", "surrogatepass")


def has_records(batch: Sequence[Request]) -> bool:
    for request in batch:  # noqa: SIM110 - compiled, this is a fraction of what `any` takes
        if request.once is not None:
            return True
    return False


def max_reply_bytes(batch: Sequence[Request]) -> int:
    """How long the program's answer to a batch can be."""
    size = _TIME.size
    for request in batch:
        size += _ANSWER.size * len(request.members)
        if request.once is not None:
            size += _FOUND.size + MOST_KEPT_BYTES
    return size


def decode(batch: Sequence[Request], answer: bytes) -> Replies:
    """The outcomes that the program's answer to a batch stands for. PartlyAnswered where it could not read a key.

    MalformedReplyError, and nothing else, for what is no such answer: it comes from another machine.
    """
    if has_records(batch):
        return decode_with_records(batch, answer)
    members = 0
    for request in batch:
        members += len(request.members)
    if len(answer) != _TIME.size + members * _ANSWER.size:
        raise malformed(f"{len(answer)} bytes instead of {_TIME.size + members * _ANSWER.size}")
    now = _now(answer)
    records = _ANSWER.iter_unpack(memoryview(answer)[_TIME.size :])
    if _FOREIGN in answer[_TIME.size :: _ANSWER.size]:  # the verdicts
        raise PartlyAnswered([[_whatever(member, now, next(records)) for member in r.members] for r in batch])
    return [[_outcome(member, now, *next(records)) for member in request.members] for request in batch]


def decode_with_records(batch: Sequence[Request], answer: bytes) -> Replies:
    """The same where some are decided once: what was found is said to their `Once`, and has no outcomes here."""
    groups = grouped(batch)
    now = _now(answer)
    found, at = _records(groups, answer)
    members = 0
    for requests, fate in zip(groups, found, strict=True):
        if fate is False:
            members += sum([len(request.members) for request in requests])
    if len(answer) != at + members * _ANSWER.size:
        raise malformed(f"{len(answer)} bytes instead of {at + members * _ANSWER.size}")
    records = _ANSWER.iter_unpack(memoryview(answer)[at:])
    replies: list[list[Outcome | StoreError]] = []
    for requests, fate in zip(groups, found, strict=True):
        for request in requests:
            if isinstance(fate, StoreError):
                replies.append([fate] * max(len(request.members), 1))  # who claims must hear of it too
            elif fate:
                replies.append([])
            else:
                replies.append([_whatever(member, now, next(records)) for member in request.members])
    whole = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
    if any(len(outcomes) < len(reply) for outcomes, reply in zip(whole, replies, strict=True)):
        raise PartlyAnswered(replies)
    return whole


def _records(groups: Sequence[Sequence[Request]], answer: bytes) -> tuple[list[StoreError | bool], int]:
    """Whether each group was decided before, or the error if that cannot be said; and where the outcomes begin."""
    found: list[StoreError | bool] = []
    at = _TIME.size
    for requests in groups:
        once, op = requests[0].once, requests[0].op
        if once is None or op is Op.KEEP or op is Op.RELEASE:
            found.append(False)
            continue
        if len(answer) < at + _FOUND.size:
            raise malformed("an idempotency record is missing")
        size: int = _FOUND.unpack_from(answer, at)[0]
        at += _FOUND.size
        once.kept, once.pending = None, False
        if size == _NOT_FOUND:
            found.append(False)
            continue
        if len(answer) < at + size:
            raise malformed("an idempotency record is cut off")
        found.append(_found(once, answer[at : at + size]))
        at += size
    return found, at


def malformed(problem: str) -> MalformedReplyError:
    return MalformedReplyError(f"what Redis answered is not an answer to this batch: {problem}")


def _now(answer: bytes) -> int:
    if len(answer) < _TIME.size:
        raise malformed(f"{len(answer)} bytes")
    now: int = _TIME.unpack_from(answer)[0]
    if not 0 <= now <= LARGEST:
        raise malformed(f"it was decided at {now}")
    return now


def _found(once: Once, value: bytes) -> StoreError | bool:
    """Take note of a record; the error if it is none of ours."""
    try:
        once.kept = read_kept(value)
    except StoreError as error:
        return StoreError(f"the Redis key of the idempotency record {masked_key(once.name)!r}: {error}")
    once.pending = once.kept is None
    return True


def _outcome(
    member: Member, now: int, verdict: int, remaining: int, wait: int, reset: int, seen: int, tick: int
) -> Outcome:
    """One record: its waits are in ticks of so many microseconds, from the instant `seen`."""
    algorithm = member.algorithm
    reset_us = (seen + reset) * tick - now if reset >= 0 else 0
    max_wait = _MAX_WAIT_TICKS * tick if 1 <= tick <= _MAX_TICK_US else -1
    if 0 <= remaining <= algorithm.capacity and 0 <= reset_us <= max_wait:
        if verdict in (_TAKEN, _ADMITTED):
            if 0 <= wait <= LARGEST:
                taken_at = seen if verdict == _TAKEN else 0
                return Outcome(Decision(algorithm, True, remaining, wait, reset_us, None), taken_at)
        elif verdict == _DENIED:
            wait_us = (seen + wait) * tick - now
            if 0 <= wait_us <= max_wait:
                return Outcome(Decision(algorithm, False, remaining, wait_us, reset_us, None), 0)
        elif verdict == _NEVER:
            return Outcome(Decision(algorithm, False, remaining, None, reset_us, None), 0)
    raise malformed(f"a counter says {verdict}, {remaining}, {wait}, {reset}, {seen}, {tick}")


def _whatever(member: Member, now: int, record: tuple[int, int, int, int, int, int]) -> Outcome | StoreError:
    if record[0] != _FOREIGN:
        return _outcome(member, now, *record)
    version = record[1]
    what = f"a counter of layout version {version}" if version else "something that is not a counter"
    return StoreError(
        f"the Redis key of {masked_key(member.key)!r} under {member.algorithm.name!r} holds {what}, and version 1 is "
        "read here: use another prefix, or reset it"
    )
