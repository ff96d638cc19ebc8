"""Reads the replies of a Redis server, and never more of them than the command can have.

A server that is broken or hostile may send anything: a length of two thousand million elements, a line without an end,
replies that nobody asked for. hiredis reserves memory for whatever length a server announces, so the replies are read
here: every length is compared with the bounds of the call before anything is kept. What exceeds them is a
ProtocolError, and the connection is of no further use.

Only RESP2 is read: these connections never ask for RESP3.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["MAX_LINE_BYTES", "NOT_REDIS", "ProtocolError", "ReplyError", "ReplyReader"]

MAX_LINE_BYTES = 4096
"""Of a status, an error or a length. The longest errors of Redis have a few hundred."""
MAX_DEPTH = 8
"""Of arrays in arrays. CLUSTER SLOTS has four."""
NOT_REDIS = "what answers there is not a Redis"
TOO_LONG = "its reply is longer than any reply to this command"
UNASKED = "it sent more replies than there were commands"
_KINDS = b"+-:$*"
_STATUS: Final = 43
_ERROR: Final = 45
_INTEGER: Final = 58
_BULK: Final = 36


class ProtocolError(Exception):
    """What was received cannot be a reply to what was sent."""


class ReplyError(Exception):
    """An error reply: a value among the other replies, never raised here."""


@final
class _OpenArray:
    """An array of which some elements are still to come."""

    def __init__(self, missing: int) -> None:
        self.items: list[object] = []
        self.missing = missing


@final
class ReplyReader:
    """The replies to one call at a time: `expect` them, then `feed` what was received until it returns True."""

    def __init__(self) -> None:
        self.replies: list[object] = []
        self._expected = 0
        self._bytes_left = 0
        self._elements_left = 0
        self._open: list[_OpenArray] = []
        self._held = bytearray()  # received, but not whole yet
        self._needed = 0  # bytes that `_held` must have before it is worth another look

    def expect(self, replies: int, max_bytes: int, max_elements: int) -> None:
        """Prepare for a call: how many replies it has, and how many bytes and array elements they have at most."""
        self.replies = []
        self._expected = replies
        self._bytes_left = max_bytes
        self._elements_left = max_elements

    def feed(self, data: bytes) -> bool:  # noqa: PLR0912, PLR0915 - the hot path, in one piece
        """Take in what was received; True when all replies are there. ProtocolError leaves the reader unusable."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise ProtocolError(TOO_LONG)
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return False
            data = bytes(held)
            held.clear()
        elif self._expected == 1 and not self._open:  # nearly always one text, and all of it at once
            end = data.find(b"\r\n", 0, 16)
            if end > 1 and data[0] == _BULK:
                digits = data[1:end]
                if digits.isdigit() and len(data) == end + 4 + int(digits) and data.endswith(b"\r\n"):
                    self.replies.append(data[end + 2 : len(data) - 2])
                    return True
        at = 0
        while at < len(data):
            kind = data[at]
            if kind not in _KINDS:
                raise ProtocolError(NOT_REDIS)
            end = data.find(b"\r\n", at, at + MAX_LINE_BYTES)
            if end < 0:
                if len(data) - at >= MAX_LINE_BYTES:
                    raise ProtocolError(TOO_LONG)
                return self._hold(data, at, 0)
            value: object = None
            if kind == _BULK:
                size = _number(data, at + 1, end)
                if size >= 0:
                    stop = end + 2 + size
                    if len(data) < stop + 2:
                        if stop + 2 - len(data) > self._bytes_left:
                            raise ProtocolError(TOO_LONG)
                        return self._hold(data, at, stop + 2 - at)
                    if data[stop : stop + 2] != b"\r\n":
                        raise ProtocolError(NOT_REDIS)
                    value = data[end + 2 : stop]
                    end = stop
            elif kind == _STATUS:
                value = data[at + 1 : end]
            elif kind == _ERROR:
                value = ReplyError(data[at + 1 : end].decode("utf-8", "replace"))
            elif kind == _INTEGER:
                value = _number(data, at + 1, end)
            else:
                count = _number(data, at + 1, end)
                if count > self._elements_left or len(self._open) >= MAX_DEPTH:
                    raise ProtocolError(TOO_LONG)
                if count > 0:
                    self._elements_left -= count
                    self._open.append(_OpenArray(count))
                    at = end + 2
                    continue
                value = [] if count == 0 else None
            at = end + 2
            if self._complete(value):
                if at < len(data):
                    raise ProtocolError(UNASKED)
                return True
        return False

    def _complete(self, value: object) -> bool:
        """Put a value where it belongs; True when that was the last of all replies."""
        while self._open:
            array = self._open[-1]
            array.items.append(value)
            array.missing -= 1
            if array.missing:
                return False
            self._open.pop()
            value = array.items
        self.replies.append(value)
        return len(self.replies) == self._expected

    def _hold(self, data: bytes, at: int, needed: int) -> bool:
        """Keep the beginning of a reply until there is more of it."""
        self._held += data[at:]
        self._needed = needed
        return False


def _number(data: bytes, start: int, end: int) -> int:
    """A whole number in decimal: -1 as a length means that there is no value."""
    digits = data[start:end]
    if len(digits) > 20 or not digits.removeprefix(b"-").isdigit():
        raise ProtocolError(NOT_REDIS)
    return int(digits)
