"""What is kept of requests that are decided once, as bytes: the same in every store.

    layout   1 byte: 1
    body     16 bytes: a digest of what was asked
    note     4 bytes: its length, and then the note of whoever asked
    now      8 bytes: when it was decided, in microseconds since the epoch
    numbers  37 bytes a member: as the Lua program answers (see redis/wire.py), so that Redis keeps its own answer

All big-endian. A claim that nobody has decided yet is the layout byte and the body alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headgate.errors import StoreError
from headgate.stores.port import Kept, Once, Outcome

__all__ = ["CLAIM_BYTES", "claim_bytes", "head_bytes", "kept_bytes", "pack_kept", "read_kept"]

LAYOUT = 1
_HEAD = struct.Struct(">B16sI")
_CLAIM = struct.Struct(">B16s")
_NOW = struct.Struct(">q")
_NUMBERS = struct.Struct(">BqqqqI")
_DENIED, _ADMITTED, _NEVER, _TAKEN = 0, 1, 2, 3
CLAIM_BYTES = _CLAIM.size


def claim_bytes(once: Once) -> bytes:
    """What is kept while it is being decided."""
    return _CLAIM.pack(LAYOUT, once.body)


def head_bytes(once: Once) -> bytes:
    """What is known of a record before it is decided: all that comes before `now`."""
    return _HEAD.pack(LAYOUT, once.body, len(once.note)) + once.note


def kept_bytes(note: int, members: int) -> int:
    """How long a record will be, from the length of its note and the number of members."""
    return _HEAD.size + note + _NOW.size + members * _NUMBERS.size


def pack_kept(once: Once, now_us: int, replies: Sequence[Sequence[Outcome]]) -> bytes:
    """What is kept once it is decided."""
    numbers = [
        _NUMBERS.pack(
            _verdict(outcome),
            outcome.decision._remaining,
            outcome.decision._wait or 0,
            outcome.decision._reset,
            now_us,
            1,
        )
        for reply in replies
        for outcome in reply
    ]
    return b"".join((head_bytes(once), _NOW.pack(now_us), *numbers))


def read_kept(kept: bytes) -> Kept | None:
    """What was decided; None for a claim. StoreError for what another version of Headgate has kept."""
    if len(kept) == CLAIM_BYTES and kept[0] == LAYOUT:
        return None
    try:
        layout, body, size = _HEAD.unpack_from(kept)
        if layout != LAYOUT:
            raise StoreError(f"an idempotency record has layout version {layout}, and {LAYOUT} is read here")
        at = _HEAD.size + size
        now_us: int = _NOW.unpack_from(kept, at)[0]
        records = _NUMBERS.iter_unpack(memoryview(kept)[at + _NOW.size :])
        numbers = [_numbers(now_us, *record) for record in records]
    except struct.error as error:
        raise StoreError(f"an idempotency record cannot be read: {error}") from None
    return Kept(body, kept[_HEAD.size : at], now_us, numbers)


def _verdict(outcome: Outcome) -> int:
    decision = outcome.decision
    if decision._allowed:
        return _TAKEN
    return _NEVER if decision._wait is None else _DENIED


def _numbers(
    now_us: int, verdict: int, remaining: int, wait: int, reset: int, seen: int, tick: int
) -> tuple[bool, int, int | None, int]:
    """As redis/wire.py reads an answer: waits are in ticks of so many microseconds, from the instant `seen`."""
    reset_us = (seen + reset) * tick - now_us if reset >= 0 else 0
    if verdict in (_TAKEN, _ADMITTED):
        return True, remaining, wait, reset_us
    return False, remaining, (seen + wait) * tick - now_us if verdict == _DENIED else None, reset_us
