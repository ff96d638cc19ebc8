# mypyc: compile
r"""Reads the commands of a connection, without any I/O.

A client sends arrays of bulk strings, or single lines, as people type them into a terminal:

    *2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n        ECHO hello\r\n

Nearly all commands are small and come whole, many at a time. So a window of the input is split at its line ends, which
the interpreter does in C, and then only lengths are compared. What is out of the ordinary (an argument that contains a
line end, a command that is larger than the window, a line) is read piece by piece.

Everything is bounded: the arguments of a command, the bytes of an argument and of a command, and the commands that are
read at a time. How the input is cut into pieces makes no difference. Input that breaks the protocol is an error, and
nothing behind it is read.
"""

from __future__ import annotations

import re
from typing import Final, final

__all__ = ["MAX_ARGUMENTS", "MAX_ARGUMENT_BYTES", "MAX_COMMAND_BYTES", "MAX_LINE_BYTES", "WINDOW", "Parser"]

MAX_ARGUMENTS: Final = 128
"""Of a command, with its name."""
MAX_ARGUMENT_BYTES: Final = 8 * 1024
MAX_COMMAND_BYTES: Final = 16 * 1024
"""Of a command as it is sent."""
MAX_LINE_BYTES: Final = 8 * 1024
"""Of a command that is one line."""
WINDOW: Final = 8 * 1024
"""Bytes that are split at once."""
MAX_HEADER_BYTES: Final = 16
"""Of the line with a length: more than the digits of any that is allowed."""

LINE_END: Final = b"\r\n"
STAR: Final = 42
DOLLAR: Final = 36
ARRAYS: Final[dict[bytes, int]] = {b"*%d" % count: count for count in range(1, 33)}
"""The usual first lines of commands, and how many arguments follow."""
BULKS: Final[dict[bytes, int]] = {b"$%d" % size: size for size in range(257)}
"""The usual first lines of arguments, and how long those are."""
HTTP_METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT")
)
_NUMBER: Final = re.compile(rb"-?[0-9]{1,10}")
_WORD: Final = re.compile(
    rb"""[ \t]*(?:"((?:[^"\\]|\\.)*)"(?![^ \t])|'((?:[^'\\]|\\.)*)'(?![^ \t])|([^ \t"'][^ \t]*))"""
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))")
ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


@final
class Parser:
    """The input of one connection."""

    def __init__(self) -> None:
        self.error: str | None = None
        """What is wrong with the input behind the commands that were read. Nothing more is read then."""
        self.is_http = False
        """Whether the error is that the peer speaks HTTP."""
        self.has_more = False
        """Whether there may be a complete command that `read` has not returned."""
        self._data = b""
        self._start = 0
        self.needed = 0
        """Bytes that an incomplete command needs at least before it is complete."""
        self._end = 0
        """Where the command ends that was read last."""

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        start = self._start
        if start < len(self._data):
            data = self._data[start:] + data
        self._data = data
        self._start = 0
        self.has_more = True

    def clear(self) -> None:
        """Drop all input."""
        self._data = b""
        self._start = 0
        self.needed = 0
        self.has_more = False

    def read(self, limit: int) -> list[list[bytes]]:
        """The next commands that are complete: at most so many, and no further than one that begins within the window.
        Each is a list of its name and its arguments."""
        commands: list[list[bytes]] = []
        self.has_more = False
        data = self._data
        start = self._start
        if self.error is not None or len(data) - start < self.needed:
            return commands
        self.needed = 0
        last = start + WINDOW
        start = self._read_window(commands, limit)
        work = len(commands)
        while start < len(data):
            if work >= limit or start >= last:
                self._start = start
                self.has_more = True
                return commands
            work += 1
            command = self._read_array(start) if data[start] == STAR else self._read_line(start)
            if command is None:
                break
            start = self._end
            if command:
                commands.append(command)
        self._data = data[start:]
        self._start = 0
        return commands

    def _read_window(self, commands: list[list[bytes]], limit: int) -> int:
        """Read usual commands from the start of the input, up to the first that is not; returns where that is."""
        data = self._data
        start = self._start
        window = data if not start and len(data) <= WINDOW else data[start : start + WINDOW]
        parts = window.split(LINE_END)
        last = len(parts) - 1  # no line end follows this one
        index = 0
        while index < last and len(commands) < limit:
            count = ARRAYS.get(parts[index], 0)
            end = index + 2 * count
            if not count or end >= last:
                break
            size = len(parts[index]) + 2
            position = index + 1
            while position < end:
                length = len(parts[position + 1])
                if BULKS.get(parts[position], -1) != length:
                    return start
                size += len(parts[position]) + length + 4
                position += 2
            commands.append(parts[index + 2 : end + 1 : 2])
            start += size
            index = end + 1
        return start

    def _read_array(self, start: int) -> list[bytes] | None:
        """The command that begins here, empty for an array without arguments; None if it is incomplete, or wrong."""
        data = self._data
        count = self._read_length(start, "multibulk")
        if count is None:
            return None
        if count > MAX_ARGUMENTS:
            return self._fail(f"Protocol error: {count} arguments, and a command may have {MAX_ARGUMENTS}")
        position = self._end
        arguments: list[bytes] = []
        for _ in range(count):
            if position >= len(data):
                self.needed = position + 1 - start
                return None
            if data[position] != DOLLAR:
                return self._fail(f"Protocol error: expected '$', got {chr(data[position])!a}")
            size = self._read_length(position, "bulk")
            if size is None:
                self.needed += position - start if self.needed else 0
                return None
            if size < 0:
                return self._fail("Protocol error: invalid bulk length")
            if size > MAX_ARGUMENT_BYTES:
                return self._fail(f"Protocol error: an argument of {size} bytes, and {MAX_ARGUMENT_BYTES} is the most")
            begin = self._end
            position = begin + size + 2
            if position - start > MAX_COMMAND_BYTES:
                return self._fail(f"Protocol error: a command of more than {MAX_COMMAND_BYTES} bytes")
            if position > len(data):
                self.needed = position - start
                return None
            if data[position - 2 : position] != LINE_END:
                return self._fail("Protocol error: an argument is not followed by a line end")
            arguments.append(data[begin : position - 2])
        self._end = position
        return arguments

    def _read_length(self, start: int, kind: str) -> int | None:
        """The number behind the first byte of the line that begins here; `_end` is behind the line. None if the line
        is incomplete or wrong."""
        data = self._data
        end = data.find(LINE_END, start, start + MAX_HEADER_BYTES)
        if end < 0 and len(data) - start < MAX_HEADER_BYTES:
            self.needed = len(data) - start + 1
            return None
        number = data[start + 1 : end]
        if end < 0 or _NUMBER.fullmatch(number) is None:
            self._fail(f"Protocol error: invalid {kind} length")
            return None
        self._end = end + 2
        return int(number)

    def _read_line(self, start: int) -> list[bytes] | None:
        """The command on the line that begins here; empty for an empty line."""
        data = self._data
        end = data.find(b"\n", start, start + MAX_LINE_BYTES)
        if end < 0:
            if len(data) - start >= MAX_LINE_BYTES:
                return self._fail(f"Protocol error: a line of more than {MAX_LINE_BYTES} bytes")
            return None
        words = split_line(data[start:end])
        if words is None:
            return self._fail("Protocol error: unbalanced quotes in request")
        if len(words) > MAX_ARGUMENTS:
            return self._fail(f"Protocol error: {len(words)} arguments, and a command may have {MAX_ARGUMENTS}")
        if words and is_http(words):
            self.is_http = True
            return self._fail("this port speaks RESP, the protocol of Redis: the HTTP API is on another one")
        self._end = end + 1
        return words

    def _fail(self, error: str) -> list[bytes] | None:
        """No command is read, and no other one will be."""
        self.error = error
        return None


def split_line(line: bytes) -> list[bytes] | None:
    r"""The words of a line, as redis-cli reads them; None if a quote is missing.

    >>> split_line(b'RL.CHECK user:42 "10 per 30 seconds" \r')
    [b'RL.CHECK', b'user:42', b'10 per 30 seconds']
    """
    words: list[bytes] = []
    line = line.rstrip(b" \t\r")
    position = 0
    while position < len(line):
        match = _WORD.match(line, position)
        if match is None:
            return None
        double, single, plain = match.groups()
        if plain is not None:
            words.append(plain)
        elif double is not None:
            words.append(_ESCAPE.sub(_unescape, double))
        else:
            words.append(single.replace(b"\\'", b"'"))
        position = match.end()
    return words


def _unescape(match: re.Match[bytes]) -> bytes:
    digits, character = match.groups()
    if digits is not None:
        return bytes([int(digits, 16)])
    return ESCAPES.get(character, character)


def is_http(words: list[bytes]) -> bool:
    """Whether a line is of an HTTP request. A web page can make a browser send one to any port, with commands in its
    body: so nothing behind it may be read."""
    name = words[0].upper()
    return name in (b"POST", b"HOST:") or (name in HTTP_METHODS and words[-1].upper().startswith(b"HTTP/"))
