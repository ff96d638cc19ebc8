# mypyc: compile
"""Binary codec for idempotency records, the same in every store.

    layout       1 byte: 1
    fingerprint  16 bytes: digest of the request
    note         4 bytes: its length, and then the caller's note
    now          8 bytes: when it was decided, in microseconds since the epoch
    numbers      37 bytes per member: as the Lua script replies (see redis/codec.py), so that Redis stores its own reply

All big-endian. A claim that is not decided yet is the layout byte and the fingerprint alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crestgate.errors import StoreError
from crestgate.stores.port import IdempotencyRecord, Outcome, Replay

__all__ = ["CLAIM_BYTES", "decode_record", "encode_claim", "encode_header", "encode_record", "record_bytes"]

LAYOUT = 1
_HEAD = struct.Struct(">B16sI")
_CLAIM = struct.Struct(">B16s")
_NOW = struct.Struct(">q")
_NUMBERS = struct.Struct(">BqqqqI")
_DENIED, _ADMITTED, _NEVER, _TAKEN = 0, 1, 2, 3
CLAIM_BYTES = _CLAIM.size


def encode_claim(record: IdempotencyRecord) -> bytes:
    """The record while it is being decided."""
    return _CLAIM.pack(LAYOUT, record.fingerprint)


def encode_header(record: IdempotencyRecord) -> bytes:
    """The part of a record that is known before it is decided: everything before `now`."""
    return _HEAD.pack(LAYOUT, record.fingerprint, len(record.note)) + record.note


def record_bytes(note: int, members: int) -> int:
    """The length of a record, from that of its note and the number of members."""
    return _HEAD.size + note + _NOW.size + members * _NUMBERS.size


def encode_record(record: IdempotencyRecord, now_us: int, replies: Sequence[Sequence[Outcome]]) -> bytes:
    """The record of a decision."""
    numbers = [
        _NUMBERS.pack(
            _verdict(outcome),
            outcome.decision.remaining,
            outcome.decision.wait_us or 0,
            outcome.decision.reset_us,
            now_us,
            1,
        )
        for reply in replies
        for outcome in reply
    ]
    return b"".join((encode_header(record), _NOW.pack(now_us), *numbers))


def decode_record(content: bytes) -> Replay | None:
    """What was decided; None for a claim. StoreError for a record of another version of Crestgate."""
    if len(content) == CLAIM_BYTES and content[0] == LAYOUT:
        return None
    try:
        layout, fingerprint, size = _HEAD.unpack_from(content)
        if layout != LAYOUT:
            raise StoreError(f"an idempotency record has layout version {layout}, this version reads {LAYOUT}")
        at = _HEAD.size + size
        now_us: int = _NOW.unpack_from(content, at)[0]
        records = _NUMBERS.iter_unpack(memoryview(content)[at + _NOW.size :])
        numbers = [_numbers(now_us, *record) for record in records]
    except struct.error as error:
        raise StoreError(f"an idempotency record cannot be read: {error}") from None
    return Replay(fingerprint, content[_HEAD.size : at], now_us, numbers)


def _verdict(outcome: Outcome) -> int:
    decision = outcome.decision
    if decision.allowed:
        return _TAKEN
    return _NEVER if decision.wait_us is None else _DENIED


def _numbers(
    now_us: int, verdict: int, remaining: int, wait: int, reset: int, seen: int, tick: int
) -> tuple[bool, int, int | None, int]:
    """As redis/codec.py reads a reply: waits are in ticks of `tick` microseconds, counted from `seen`."""
    reset_us = (seen + reset) * tick - now_us if reset >= 0 else 0
    if verdict in (_TAKEN, _ADMITTED):
        return True, remaining, wait, reset_us
    return False, remaining, (seen + wait) * tick - now_us if verdict == _DENIED else None, reset_us
