# mypyc: compile
"""RESP2 parser with bounds: no reply may be larger than the command can have.

A broken or hostile server may send anything: an array of two billion elements, an endless line, unsolicited replies.
hiredis allocates memory for whatever length a server announces, so replies are parsed here: every length is checked
against the bounds of the call before anything is stored. Whatever exceeds them is a ProtocolError, and the connection
must be closed.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["MAX_LINE_BYTES", "NOT_REDIS", "ProtocolError", "ReplyError", "ReplyReader"]

MAX_LINE_BYTES = 4096
"""Of a status, an error or a length. The longest errors of Redis have a few hundred bytes."""
MAX_DEPTH = 8
"""Of nested arrays. CLUSTER SLOTS has four."""
NOT_REDIS = "what answers there is not a Redis"
TOO_LONG = "its reply is longer than any reply to this command"
UNASKED = "it sent more replies than there were commands"
_KINDS = b"+-:$*"
_STATUS: Final = 43
_ERROR: Final = 45
_INTEGER: Final = 58
_BULK: Final = 36


class ProtocolError(Exception):
    """The received bytes cannot be a reply to the commands."""


class ReplyError(Exception):
    """An error reply: a value in `replies`, never raised here."""


@final
class _OpenArray:
    """An array with missing elements."""

    def __init__(self, missing: int) -> None:
        self.items: list[object] = []
        self.missing = missing


@final
class ReplyReader:
    """Parses the replies of one call at a time: `feed` received bytes until it returns True."""

    def __init__(self) -> None:
        self.replies: list[object] = []
        self._started = False
        self._bytes = 0
        self._elements = 0
        self._open: list[_OpenArray] = []
        self._held = bytearray()  # an incomplete reply
        self._needed = 0  # bytes that `_held` must have before it is parsed again

    def feed(self, data: bytes, replies: int, max_bytes: int, max_elements: int) -> bool:  # noqa: PLR0912, PLR0915 - the hot path, in one function
        """Parse bytes of a call with so many replies; True when all are complete. ProtocolError leaves it unusable."""
        if not self._started:
            self._started = True
            self.replies = []
            self._bytes = 0
            self._elements = 0
        self._bytes += len(data)
        if self._bytes > max_bytes:
            raise ProtocolError(TOO_LONG)
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return False
            data = bytes(held)
            held.clear()
        elif replies == 1 and not self._open:  # the common case: one complete bulk string
            end = data.find(b"\r\n", 0, 16)
            if end > 1 and data[0] == _BULK:
                digits = data[1:end]
                if digits.isdigit() and len(data) == end + 4 + int(digits) and data.endswith(b"\r\n"):
                    self.replies.append(data[end + 2 : len(data) - 2])
                    self._started = False
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
                        if stop + 2 - len(data) > max_bytes - self._bytes:
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
                if count > max_elements - self._elements or len(self._open) >= MAX_DEPTH:
                    raise ProtocolError(TOO_LONG)
                if count > 0:
                    self._elements += count
                    self._open.append(_OpenArray(count))
                    at = end + 2
                    continue
                value = [] if count == 0 else None
            at = end + 2
            self._add(value)
            if len(self.replies) == replies:
                if at < len(data):
                    raise ProtocolError(UNASKED)
                self._started = False
                return True
        return False

    def _add(self, value: object) -> None:
        """Add a value to its array, and a complete array to the replies."""
        while self._open:
            array = self._open[-1]
            array.items.append(value)
            array.missing -= 1
            if array.missing:
                return
            self._open.pop()
            value = array.items
        self.replies.append(value)

    def _hold(self, data: bytes, at: int, needed: int) -> bool:
        """Keep an incomplete reply until more bytes are received."""
        self._held += data[at:]
        self._needed = needed
        return False


def _number(data: bytes, start: int, end: int) -> int:
    """A decimal integer; as a length, -1 means null."""
    digits = data[start:end]
    if len(digits) > 20 or not digits.removeprefix(b"-").isdigit():
        raise ProtocolError(NOT_REDIS)
    return int(digits)
