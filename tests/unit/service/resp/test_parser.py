"""The parser of commands: what it reads, what it refuses, and what it holds, however the input is cut."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crestgate.service.resp.parser import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_COMMAND_BYTES,
    MAX_LINE_BYTES,
    WINDOW,
    Parser,
    split_line,
)

LIMIT = 128
MAX_HELD = MAX_COMMAND_BYTES
"""What is held of an incomplete command at most."""
LARGE = b"$8000\r\n%b\r\n" % (b"x" * 8000)


def command(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments)


def read_all(pieces: list[bytes], limit: int = LIMIT) -> tuple[list[list[bytes]], str | None]:
    """All commands of an input that comes in these pieces, and the error that ends it."""
    parser = Parser()
    commands: list[list[bytes]] = []
    for piece in pieces:
        parser.feed(piece)
        while parser.has_more:
            read = parser.read(limit)
            assert len(read) <= limit
            commands += read
        if parser.error is None:
            assert parser.size <= MAX_HELD
    return commands, parser.error


def naive(data: bytes) -> tuple[list[list[bytes]], bool]:
    """The commands of a whole input, read in the plainest way; and whether an error ends it."""
    commands: list[list[bytes]] = []
    while data:
        if data[:1] != b"*":
            line, end, rest = data.partition(b"\n")
            if not end or len(line) >= MAX_LINE_BYTES:
                return commands, len(line) >= MAX_LINE_BYTES
            words = split_line(line)
            if words is None or len(words) > MAX_ARGUMENTS or _is_http(words):
                return commands, True
            commands += [words] if words else []
            data = rest
            continue
        taken = _naive_array(data)
        if taken is None or isinstance(taken, bool):
            return commands, taken is True
        arguments, data = taken
        commands += [arguments] if arguments else []
    return commands, False


def _is_http(words: list[bytes]) -> bool:
    line = b" ".join(words).upper()
    return (
        line.startswith((b"POST ", b"HOST: "))
        or line in (b"POST", b"HOST:")
        or re.match(rb"(GET|HEAD|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT) (.* )?HTTP/\S*$", line, re.DOTALL) is not None
    )


def _naive_array(data: bytes) -> tuple[list[bytes], bytes] | bool | None:
    """Arguments and the rest; None: incomplete; True: wrong."""
    size = len(data)
    header = _naive_header(data)
    if not isinstance(header, tuple):
        return header
    count, data = header
    if count > MAX_ARGUMENTS:
        return True
    arguments = []
    for _ in range(count):
        if not data:
            return None
        if data[:1] != b"$":
            return True
        header = _naive_header(data)
        if not isinstance(header, tuple):
            return header
        length, data = header
        if not 0 <= length <= MAX_ARGUMENT_BYTES or size - len(data) + length + 2 > MAX_COMMAND_BYTES:
            return True
        if len(data) < length + 2:
            return None
        if data[length : length + 2] != b"\r\n":
            return True
        arguments.append(data[:length])
        data = data[length + 2 :]
    return arguments, data


def _naive_header(data: bytes) -> tuple[int, bytes] | bool | None:
    line, end, _ = data[:16].partition(b"\r\n")
    if not end:
        return True if len(data) >= 16 else None
    if re.fullmatch(rb"-?[0-9]{1,10}", line[1:]) is None:
        return True
    return int(line[1:]), data[len(line) + 2 :]


@pytest.mark.parametrize(
    ("data", "commands"),
    [
        (b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n", [[b"ECHO", b"hello"]]),
        (b"PING\r\nECHO hello\r\n", [[b"PING"], [b"ECHO", b"hello"]]),
        (b"PING\nECHO  hello \n", [[b"PING"], [b"ECHO", b"hello"]]),
        (b"\r\n\r\n*0\r\n*-1\r\nPING\r\n", [[b"PING"]]),
        (b'RL.CHECK user:42 "10 per 30 seconds"\r\n', [[b"RL.CHECK", b"user:42", b"10 per 30 seconds"]]),
        (b'ECHO \'"\' "\\x41\\n\\""\r\n', [[b"ECHO", b'"', b'A\n"']]),
        (command(b"ECHO", b"a\r\nb") + command(b"PING"), [[b"ECHO", b"a\r\nb"], [b"PING"]]),
        (command(b"ECHO", b"\r\n$1\r\nx\r\n") + command(b"PING"), [[b"ECHO", b"\r\n$1\r\nx\r\n"], [b"PING"]]),
        (command(b"ECHO", b""), [[b"ECHO", b""]]),
        (command(*[b"a"] * MAX_ARGUMENTS), [[b"a"] * MAX_ARGUMENTS]),
        (command(b"ECHO", b"x" * MAX_ARGUMENT_BYTES), [[b"ECHO", b"x" * MAX_ARGUMENT_BYTES]]),
        (command(b"ECHO", b"x")[:-1], []),
    ],
)
def test_commands(data: bytes, commands: list[list[bytes]]) -> None:
    assert read_all([data]) == (commands, None)
    assert read_all([bytes([byte]) for byte in data]) == (commands, None)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*x\r\n", "Protocol error: invalid multibulk length"),
        (b"*" + b"1" * 20, "Protocol error: invalid multibulk length"),
        (b"*129\r\n", "Protocol error: 129 arguments, and a command may have 128"),
        (b"*2000000000\r\n", "Protocol error: 2000000000 arguments, and a command may have 128"),
        (b"*1\r\n:5\r\n", "Protocol error: expected '$', got ':'"),
        (b"*1\r\n\xff", "Protocol error: expected '$', got '\\xff'"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$2000000000\r\n", "Protocol error: an argument of 2000000000 bytes, and 8192 is the most"),
        (b"*3\r\n" + LARGE + LARGE + LARGE, "Protocol error: a command of more than 16384 bytes"),
        (b"*1\r\n$1\r\nxyz", "Protocol error: an argument is not followed by a line end"),
        (b"ECHO 'a\r\n", "Protocol error: unbalanced quotes in request"),
        (b"x" * MAX_LINE_BYTES, "Protocol error: a line of more than 8192 bytes"),
        (b"a " * 200 + b"\r\n", "Protocol error: 200 arguments, and a command may have 128"),
    ],
)  # fmt: skip
def test_errors(data: bytes, error: str) -> None:
    """Commands in front of an error are read, and nothing behind it."""
    before = command(b"PING")
    assert read_all([before + data + before]) == ([[b"PING"]], error)
    assert read_all([bytes([byte]) for byte in before + data + before]) == ([[b"PING"]], error)


@pytest.mark.parametrize(
    "line",
    [
        b"POST / HTTP/1.1",
        b"post /",
        b"GET / HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"Host: 127.0.0.1",
        b"CONNECT a:1 HTTP/1.1",
    ],
)
def test_http_is_refused_with_all_that_follows(line: bytes) -> None:
    parser = Parser()
    parser.feed(line + b"\r\nContent-Length: 99\r\n\r\nCL.THROTTLE user 1 1 1\r\n" + command(b"PING"))
    assert parser.read(LIMIT) == []
    assert parser.is_http
    assert parser.read(LIMIT) == []


def test_get_of_a_key_is_no_http() -> None:
    assert read_all([b"GET key\r\n"]) == ([[b"GET", b"key"]], None)


def test_at_most_so_many_commands_are_read_at_a_time() -> None:
    parser = Parser()
    parser.feed(command(b"PING") * 10 + b"\r\n" * 10 + b"PING\r\n" * 10)
    assert [len(parser.read(8)) for _ in range(5)] == [8, 2, 4, 6, 0]  # empty lines count
    assert not parser.has_more


def test_unfinished_command_is_not_parsed_again_for_each_byte() -> None:
    parser = Parser()
    data = command(b"ECHO", b"x" * 8000)
    parser.feed(data[:30])
    assert parser.read(LIMIT) == []
    assert parser.needed == len(data)  # no byte before the last can complete it


_arguments = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r\n", b"*1\r\n$4\r\nPING\r\n", b"$3", b"x" * 300, b"x" * WINDOW, b"\r", b"\n"]),
)
_commands = st.lists(_arguments, min_size=1, max_size=40).map(lambda arguments: command(*arguments))
_noise = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"PING\r\n",
            b"\r\n",
            b"\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*5\r\n",
            b"$3\r\n",
            b"*1\r\n$3\r\nabc",
            b"ECHO 'a'\n",
            b'"',
        ]
    ),
)
_inputs = st.lists(st.one_of(_commands, _commands, _noise), max_size=8).map(b"".join)


@given(_inputs, st.lists(st.integers(1, 400), max_size=30), st.integers(1, 9))
@example(command(b"ECHO", b"x" * WINDOW, b"y" * 400) * 3, [WINDOW], 2)
def test_input_is_read_alike_however_it_is_cut(data: bytes, sizes: list[int], limit: int) -> None:
    commands, failed = naive(data)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    pieces.append(data[start:])
    read, error = read_all(pieces, limit)
    assert (read, error is not None) == (commands, failed)


def test_random_mutations_never_crash_it() -> None:
    """From well-formed commands, since random bytes alone reach little of the code."""
    rng = random.Random(16)
    seeds = [
        command(b"CL.THROTTLE", b"user:%d" % number, b"15", b"30", b"60") + command(b"RL.CHECK", b"k", b"5/min; 9/day")
        for number in range(20)
    ]
    for _ in range(3000):
        data = bytearray(b"".join(rng.sample(seeds, 3)))
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 20)]
                case 2:
                    data[place:place] = rng.choice([b"\r\n", b"*", b"$", b"9" * 12, b"-1", b"'", b'"', b"POST "])
                case _:
                    data[place:place] = data[: rng.randint(1, 40)]
            if not data:
                break
        whole = read_all([bytes(data)])
        cut = rng.randint(0, len(data))
        assert read_all([bytes(data[:cut]), bytes(data[cut:])]) == whole
        assert (whole[0], whole[1] is not None) == naive(bytes(data))
