# mypyc: compile
"""Envoy's RateLimitResponse, encoded by hand.

Its fields are few and most of their bytes are always the same: the limit, the names of headers. So they are encoded
once, and a response is built from them and a few numbers, in a third of the time that a message object takes to be
filled and serialized. The wire format of protobuf is a tag, (field number * 8 + kind), before each value:
kind 0 for numbers, kind 2 for values with a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from crestgate.core.decision import Decision

if TYPE_CHECKING:
    from crestgate.envoy.matcher import DescriptorLimit
    from crestgate.envoy.request import RateLimitCheck

__all__ = ["NOT_LIMITED", "NO_LIMIT", "OK", "OVER_LIMIT", "current_limit", "encode_response", "headers_field", "varint"]

MAX_UINT32: Final = 2**32 - 1
OK: Final = b"\x08\x01"
OVER_LIMIT: Final = b"\x08\x02"
NO_LIMIT: Final = b"\x12\x02\x08\x01"
"""The status of a descriptor without a limit."""
NOT_LIMITED: Final = b"\x12\x08\x08\x01\x18\xff\xff\xff\xff\x0f"
"""The status of an unlimited descriptor: the maximum remains."""
NO_NUMBERS: Final = b"\x12\x02"
"""The beginning of a status that has only a code."""
SECOND_US: Final = 1_000_000
_SHORT: Final = [bytes([number]) for number in range(128)]

_names: dict[bytes, bytes] = {}
"""The names of headers, encoded: there are seven."""


def varint(number: int) -> bytes:
    """A whole number, seven bits in a byte."""
    if number < 128:
        return _SHORT[number]
    if number < 16384:
        return bytes((number & 127 | 128, number >> 7))
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)


def current_limit(limit: DescriptorLimit) -> bytes:
    """The current_limit of a status: requests_per_unit, unit and name. Empty for a limit that headers do not show:
    Envoy makes headers of each status that has one."""
    if not limit.headers:
        return b""
    data = b""
    if limit.requests_per_unit:
        data = b"\x08" + varint(min(limit.requests_per_unit, MAX_UINT32))
    if limit.unit:
        data += b"\x10" + varint(limit.unit)
    if limit.name:
        name = limit.name.encode()
        data += b"\x1a" + varint(len(name)) + name
    return b"\x12" + varint(len(data)) + data


def encode_response(
    check: RateLimitCheck, decisions: Sequence[Decision], over: bool, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """A RateLimitResponse, without dynamic metadata."""
    data = OVER_LIMIT if over else OK
    indexes, limits, denies = check.indexes, check.encoded_limits, check.denies
    for i in range(len(indexes)):
        index = indexes[i]
        if index < 0:
            data += limits[i]
        else:
            decision = decisions[index]
            data += _status(limits[i], decision, denies[i] and not decision.allowed)
    return data + headers_field(headers) if headers else data


def _status(limit: bytes, decision: Decision, over: bool) -> bytes:
    """The status of a descriptor: `over` if it denies the request. Without a current_limit, only that."""
    if not limit:
        return NO_NUMBERS + (OVER_LIMIT if over else OK)
    left = decision.remaining
    until = decision.reset_us
    if over:
        wait = decision.wait_us
        # A request that can never pass waits until the counter resets, at least a period.
        until = wait if wait is not None else until or decision.algorithm.limit.period_us
    seconds = -(-until // SECOND_US)
    data = (OVER_LIMIT if over else OK) + limit
    if left:
        data += b"\x18" + varint(min(left, MAX_UINT32))
    if seconds:
        number = varint(seconds)
        data += b'"' + _SHORT[len(number) + 1] + b"\x08" + number
    else:
        data += b'"\x00'
    return b"\x12" + varint(len(data)) + data


def headers_field(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """All of response_headers_to_add."""
    data = b""
    for name, value in headers:
        head = _names.get(name)
        if head is None:
            head = _names[name] = b"\x0a" + varint(len(name)) + name + b"\x12"
        size = len(value)
        inner = len(head) + 1 + size
        if inner < 128:  # nearly always; a length of one byte each
            data += b"\x1a%c%b%c%b" % (inner, head, size, value)
        else:
            length = varint(size)
            data += b"\x1a" + varint(len(head) + len(length) + size) + head + length + value
    return data
