# mypyc: compile
"""Counts the repeated fields of a message in its bytes, before it is decoded.

An empty sub-message is two bytes on the wire, and more than a hundred when it is decoded: a message of 1 MiB would take
60 MiB, only to be refused for what it has too many of. Small messages are decoded first, as they cannot be much. Larger
ones are searched for the tag's byte, which is quick and counts too many; only where that is more than the maximum are
fields read one by one, and no more of them than the maximum.
"""

from __future__ import annotations

from typing import Final, final

from crestgate.errors import InvalidRequestError
from crestgate.protobuf.messages import DecodeError

__all__ = ["SMALL_BYTES", "Repeated", "check_counts"]

SMALL_BYTES: Final = 4096
"""A message up to this size is decoded without being counted."""
MAX_OTHER_FIELDS: Final = 1000
"""Fields of a message beside those that are counted and 10 in each of them."""
LENGTH_DELIMITED: Final = 2
MAX_TAG: Final = 2**32 - 1
MAX_VARINT_BYTES: Final = 10


@final
class Repeated:
    """A repeated field of strings or messages: its number (up to 15), name and maximum, and what to do beyond it."""

    def __init__(self, number: int, name: str, max_count: int, remedy: str) -> None:
        self.name = name
        self.max_count = max_count
        self.remedy = remedy
        self.tag = number << 3 | LENGTH_DELIMITED
        self._tag = bytes([self.tag])
        self._long_tag = bytes([self.tag | 0x80])
        """The tag's first byte where it is written with more bytes than it needs."""

    def may_exceed(self, message: bytes) -> bool:
        """Whether a message may have more than the maximum of these."""
        return message.count(self._tag) + message.count(self._long_tag) > self.max_count


def check_counts(message: bytes, items: Repeated, nested: Repeated | None = None) -> None:
    """InvalidRequestError if a message has too many `items`, or all of its items together too many of `nested`.
    DecodeError if its fields cannot be told apart."""
    if len(message) <= SMALL_BYTES:
        return
    if nested is not None and not nested.may_exceed(message):
        nested = None
    if nested is None and not items.may_exceed(message):
        return
    max_nested = 0 if nested is None else nested.max_count
    fields = _Fields(message, MAX_OTHER_FIELDS + 11 * items.max_count + max_nested)
    end = len(message)
    count = 0
    nested_count = 0
    while fields.at < end:
        if fields.read(end) != items.tag:
            continue
        count += 1
        if count > items.max_count:
            raise InvalidRequestError(items.name, f"has more than {items.max_count:,} {items.name}: {items.remedy}")
        if nested is None:
            continue
        item_end = fields.at
        fields.at = fields.start
        while fields.at < item_end:
            if fields.read(item_end) == nested.tag:
                nested_count += 1
                if nested_count > max_nested:
                    name = f"{items.name}[{count - 1}].{nested.name}"
                    raise InvalidRequestError(
                        name, f"with these there are more than {max_nested:,} {nested.name}: {nested.remedy}"
                    )


@final
class _Fields:
    """Reads the fields of a message, and stops at too many of them."""

    def __init__(self, data: bytes, max_fields: int) -> None:
        self.at = 0
        self.start = 0
        """Where the value of the last field begins; it ends at `at`."""
        self._data = data
        self._left = max_fields

    def read(self, end: int) -> int:
        """Read the next field up to its end; its tag. Of groups, which no message here has, the tags count as fields,
        and so does what is between them."""
        self._left -= 1
        if self._left < 0:
            raise InvalidRequestError("", "the message has more fields than this method can use: send fewer")
        tag = self._varint(end)
        if tag > MAX_TAG:
            raise DecodeError("not a tag")
        kind = tag & 7
        size = 0
        if kind == LENGTH_DELIMITED:
            size = self._varint(end)
        elif kind == 0:
            self._varint(end)
        elif kind == 1:
            size = 8
        elif kind == 5:
            size = 4
        elif kind > 5:
            raise DecodeError("unknown wire type")
        self.start = self.at
        self.at += size
        if self.at > end:
            raise DecodeError("a field is longer than its message")
        return tag

    def _varint(self, end: int) -> int:
        data = self._data
        at = self.at
        value = 0
        for index in range(MAX_VARINT_BYTES):
            if at >= end:
                break
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self.at = at
                return value
        raise DecodeError("an unfinished number")
