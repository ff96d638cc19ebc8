"""Envoy's RateLimitResponse, encoded by hand.

Its fields are few and most of their bytes are always the same: what is said of a limit, the names of headers. So they
are made once, and an answer is put together from them and a few numbers, in a third of the time that a message object
takes to be filled and serialized. The wire format of protobuf is a tag, (field number * 8 + kind), before each value:
kind 0 for numbers, kind 2 for what has a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headgate.core.decision import Decision

if TYPE_CHECKING:
    from headgate.envoy.limits import DescriptorLimit

__all__ = ["NOT_LIMITED", "NO_LIMIT", "OK", "OVER_LIMIT", "current_limit", "headers_field", "status", "varint"]

MOST: Final = 2**32 - 1
"""What a uint32 has room for."""
OK: Final = b"\x08\x01"
OVER_LIMIT: Final = b"\x08\x02"
NO_LIMIT: Final = b"\x12\x02\x08\x01"
"""The status of a descriptor that no limit is for."""
NOT_LIMITED: Final = b"\x12\x08\x08\x01\x18\xff\xff\xff\xff\x0f"
"""The status of one that is unlimited: as much as there can be is left."""
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
    said = bytearray()
    while number > 127:
        said.append(number & 127 | 128)
        number >>= 7
    said.append(number)
    return bytes(said)


def current_limit(limit: DescriptorLimit) -> bytes:
    """What a status says of its limit: requests_per_unit, unit and name."""
    said = b""
    if limit.requests_per_unit:
        said = b"\x08" + varint(min(limit.requests_per_unit, MOST))
    if limit.unit:
        said += b"\x10" + varint(limit.unit)
    if limit.name:
        name = limit.name.encode()
        said += b"\x1a" + varint(len(name)) + name
    return b"\x12" + varint(len(said)) + said


def status(head: bytes, decision: Decision, over: bool) -> bytes:
    """The status of a descriptor: `over` if it is why the request is denied, or one of the reasons."""
    left = decision._remaining
    until = decision._reset
    if over:
        wait = decision._wait
        # What never passes is no better off before the counter is new, nor in less than a period.
        until = wait if wait is not None else until or decision._algorithm.limit.period_us
    seconds = -(-until // SECOND_US)
    said = (OVER_LIMIT if over else OK) + head
    if left:
        said += b"\x18" + varint(min(left, MOST))
    if seconds:
        number = varint(seconds)
        said += b'"' + _SHORT[len(number) + 1] + b"\x08" + number
    else:
        said += b'"\x00'
    return b"\x12" + varint(len(said)) + said


def headers_field(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """All of response_headers_to_add."""
    said = b""
    for name, value in headers:
        head = _names.get(name)
        if head is None:
            head = _names[name] = b"\x0a" + varint(len(name)) + name + b"\x12"
        size = len(value)
        inner = len(head) + 1 + size
        if inner < 128:  # nearly always; a length of one byte each
            said += b"\x1a%c%b%c%b" % (inner, head, size, value)
        else:
            length = varint(size)
            said += b"\x1a" + varint(len(head) + len(length) + size) + head + length + value
    return said
