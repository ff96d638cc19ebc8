# mypyc: compile
"""Replies in RESP2, and in RESP3 where a client has asked for it (`HELLO 3`).

RESP3 has maps, booleans and a null of its own. In RESP2 a decision is an array in the order of DECISION_FIELDS, and a
map is an array of names and values in turn.
"""

from __future__ import annotations

from typing import Final

from crestgate.core.decision import Decision

__all__ = [
    "DECISION_FIELDS",
    "EMPTY_ARRAY",
    "EMPTY_MAP",
    "OK",
    "encode_bulk",
    "encode_decision",
    "encode_error",
    "encode_integer",
    "encode_map",
    "encode_throttle",
]

OK: Final = b"+OK\r\n"
EMPTY_ARRAY: Final = b"*0\r\n"
EMPTY_MAP: Final = b"%0\r\n"
MAX_ERROR: Final = 500
"""Characters of an error: some of them may be the client's."""
SECOND_US: Final = 1_000_000
DECISION_FIELDS: Final = (
    *("allowed", "limit", "remaining", "retry_after_ms", "reset_after_ms", "delay_ms"),
    *("reason", "rule", "state"),
)
"""New ones may be added behind these."""
_NAMES: Final = [b"$%d\r\n%b\r\n" % (len(name), name.encode()) for name in DECISION_FIELDS]
_RESP2: Final = b"*%d\r\n:%%d\r\n:%%d\r\n:%%d\r\n:%%d\r\n:%%d\r\n:%%d\r\n%%b%%b%%b" % len(DECISION_FIELDS)
_VALUES: Final = (b"%b", b":%d\r\n", b":%d\r\n", b":%d\r\n", b":%d\r\n", b":%d\r\n", b"%b", b"%b", b"%b")
_RESP3: Final = b"%%%%%d\r\n" % len(DECISION_FIELDS) + b"".join(map(bytes.__add__, _NAMES, _VALUES))


def encode_throttle(decision: Decision) -> bytes:
    """The reply to CL.THROTTLE: limited, limit, remaining, and whole seconds, rounded up, until a retry (-1 where it
    is allowed, or no waiting helps) and until the counter is as good as new."""
    reset = -(-decision.reset_us // SECOND_US)
    if decision.allowed:
        return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (decision.algorithm.capacity, decision.remaining, reset)
    wait = decision.wait_us
    return b"*5\r\n:1\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.algorithm.capacity,
        decision.remaining,
        -1 if wait is None else -(-wait // SECOND_US),
        reset,
    )


def encode_decision(decision: Decision, protocol: int) -> bytes:
    """The reply to RL.CHECK and RL.PEEK. Times are whole milliseconds, rounded up; the wait is -1 where none helps."""
    allowed = decision.allowed
    wait = decision.wait_us
    reason = decision.reason
    rule = None if reason == "no_rule" else decision.algorithm.label
    delay = decision.delay
    numbers = (
        decision.algorithm.capacity,
        decision.remaining,
        0 if allowed else -1 if wait is None else -(-wait // 1000),
        -(-decision.reset_us // 1000),
        int(-(-delay * 1000 // 1)) if delay else 0,
    )
    texts = (
        encode_bulk(reason.encode()),
        encode_bulk(None if rule is None else rule.encode("utf-8", "replace"), protocol),
        encode_bulk(decision.state.encode()),
    )
    if protocol == 2:
        return _RESP2 % (1 if allowed else 0, *numbers, *texts)
    return _RESP3 % (b"#t\r\n" if allowed else b"#f\r\n", *numbers, *texts)


def encode_bulk(data: bytes | None, protocol: int = 2) -> bytes:
    """A string; None is a null."""
    if data is None:
        return b"$-1\r\n" if protocol == 2 else b"_\r\n"
    return b"$%d\r\n%b\r\n" % (len(data), data)


def encode_integer(number: int) -> bytes:
    return b":%d\r\n" % number


def encode_map(fields: dict[str, bytes], protocol: int) -> bytes:
    """A map of names to encoded values."""
    head = b"*%d\r\n" % (2 * len(fields)) if protocol == 2 else b"%%%d\r\n" % len(fields)
    return head + b"".join([encode_bulk(name.encode()) + value for name, value in fields.items()])


def encode_error(code: str, message: str) -> bytes:
    r"""An error: a code in capitals, which clients look at, and a message on one line.

    >>> encode_error("ERR", "limit: cannot read\n it")
    b'-ERR limit: cannot read it\r\n'
    """
    line = " ".join(message.split())
    if len(line) > MAX_ERROR:
        line = f"{line[: MAX_ERROR // 2]}…{line[-MAX_ERROR // 2 :]}"
    return f"-{code} {line}\r\n".encode("utf-8", "replace")
