"""Readers: combined, JSON lines, Envoy; plain and gzip; bad lines are counted and never an error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from crestgate.errors import ConfigError
from crestgate.simulate.bad_lines import BadLines, LineError
from crestgate.simulate.combined import CombinedReader
from crestgate.simulate.formats import open_reader
from crestgate.simulate.lines import CHUNK, MAX_LINE, LogLines
from crestgate.simulate.log_times import parse_clf_time, parse_time
from crestgate.simulate.logged_request import LoggedRequest
from unit.simulate.logs import START, combined, write_log

ENVOY = {
    "start_time": "2023-11-14T22:13:20.250Z",
    "method": "POST",
    "path": "/orders?x=1",
    "response_code": 200,
    "response_flags": "-",
    "x_forwarded_for": "198.51.100.7",
    "downstream_remote_address": "203.0.113.9:51234",
    "upstream_host": "10.0.0.5:8080",
}


def read(
    lines: list[str], log_format: str = "auto", fields: tuple[str, ...] = ()
) -> tuple[list[LoggedRequest], BadLines]:
    bad = BadLines()
    return open_reader(log_format, fields, lines, bad).read(1, lines), bad


def test_combined_line() -> None:
    line = '203.0.113.9 - alice [10/Oct/2000:13:55:36 -0700] "GET /orders/7?x=1 HTTP/1.1" 200 2326 "-" "curl"'
    [request], bad = read([line])
    assert (request.time_us, request.line) == (971211336000000, 1)
    assert (request.ip, request.user, request.method, request.path) == ("203.0.113.9", "alice", "GET", "/orders/7")
    assert bad.count == 0


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (r"/a\x22b", '/a"b'),
        (r"/a\"b", '/a"b'),
        (r"/caf\xC3\xA9", "/café"),
        ("/", "/"),
        ("http://h/x?y", "http://h/x?y"),
    ],
)
def test_combined_path_is_unescaped(written: str, path: str) -> None:
    [request], _ = read([combined(START, path=written)])
    assert request.path == path


def test_combined_user_with_a_space_and_without() -> None:
    requests, _ = read([combined(START, "Jane Doe"), combined(START)])
    assert [request.user for request in requests] == ["Jane Doe", None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "not the combined log format"),
        ('1.2.3.4 - - [14/Nov/2023:22:13:20 +0000] "\\x16\\x03\\x01" 400 0 "-" "-"', "no request line"),
        ('1.2.3.4 - - [14/Nov/2023:22:13:20 +0000] "-" 408 0 "-" "-"', "no request line"),
        ('1.2.3.4 - - [31/Feb/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 0', "not a date that exists"),
        ('1.2.3.4 - - [14.11.2023 at 22:13:20 +0000] "GET / HTTP/1.1" 200 0', "the time is not as"),
    ],
)
def test_bad_combined_line_is_counted_with_its_number(line: str, reason: str) -> None:
    requests, bad = read([combined(START), line, "", line], "combined")
    assert len(requests) == 1
    assert bad.count == 2
    assert bad.first is not None
    assert bad.first[0] == 2
    assert reason in bad.first[1]


def test_hostile_lines_take_no_long_time() -> None:
    bad = BadLines()
    hostile = ["[" * MAX_LINE, "a " * (MAX_LINE // 2), 'a - b [14/Nov/2023:22:13:20 +0000] "GET ' + "\\" * MAX_LINE]
    assert CombinedReader(bad).read(1, hostile) == []
    assert bad.count == 3


@pytest.mark.parametrize(
    ("value", "time_us"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.123456789+01:00", 1_700_000_000_123_456),
        ("2023-11-14 22:13:20,5", 1_700_000_000_500_000),
        ("14/Nov/2023:22:13:20 +0000", 1_700_000_000_000_000),
        ("1700000000.250", 1_700_000_000_250_000),
        (1_700_000_000, 1_700_000_000_000_000),
        (1_700_000_000_250, 1_700_000_000_250_000),
        (1_700_000_000_250_000, 1_700_000_000_250_000),
        (1_700_000_000_250_000_000, 1_700_000_000_250_000),
    ],
)
def test_time_of_a_json_line(value: object, time_us: int) -> None:
    assert parse_time(value) == time_us


@pytest.mark.parametrize(
    "value", ["", "today", -1, 1e300, float("nan"), True, None, [], "9999-01-01T00:00:00Z", 10**30]
)
def test_bad_time(value: object) -> None:
    with pytest.raises((LineError, ValueError)):
        parse_time(value)


def test_bad_clf_time() -> None:
    with pytest.raises(LineError, match="as \\[10/Oct/2000"):
        parse_clf_time("yesterday")


def test_json_line_with_default_names() -> None:
    line = {"time": "2023-11-14T22:13:20Z", "remote_addr": "1.2.3.4", "user_id": 42, "request": "GET /a?b HTTP/1.1"}
    [request], bad = read([json.dumps({**line, "cost": 3})])
    assert (request.ip, request.user, request.path, request.method, request.cost) == ("1.2.3.4", "42", "/a", "GET", 3)
    assert bad.count == 0


def test_json_field_mapping_into_levels() -> None:
    line = json.dumps(
        {"when": 1_700_000_000, "request": {"uri": "/x", "verb": "PUT"}, "who": {"id": "bob"}, "a.b": "k"}
    )
    fields = ("time=when", "path=request.uri", "method=request.verb", "user=who.id", "key=a.b")
    [request], _ = read([line], "json", fields)
    assert (request.user, request.path, request.method, request.key) == ("bob", "/x", "PUT", "k")


@pytest.mark.parametrize("option", ["user", "user=", "nobody=x", "=x"])
def test_bad_field_option_names_the_fields(option: str) -> None:
    with pytest.raises(ConfigError, match="NAME one of time, ip, user"):
        read(["{}"], "json", (option,))


def test_envoy_is_detected() -> None:
    bad = BadLines()
    lines = [json.dumps(ENVOY)]
    reader = open_reader("auto", (), lines, bad)
    assert reader.name == "envoy"
    [request] = reader.read(1, lines)
    assert (request.ip, request.path, request.method) == ("203.0.113.9", "/orders", "POST")
    assert request.time_us == 1_700_000_000_250_000


def test_json_that_is_not_envoys() -> None:
    assert open_reader("auto", (), ['{"time": 1, "path": "/"}'], BadLines()).name == "json"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 10_000, "not JSON"),
        ('{"path": "/"}', "no time"),
        ('{"time": 1700000000}', "nothing to match"),
        ('{"time": 1700000000, "path": ["/"]}', "path is neither text nor a number"),
        ('{"time": 1700000000, "path": "/", "cost": -1}', "cost is no whole number"),
        ('{"time": 1' + "0" * 5000 + "}", "not JSON"),
    ],
)
def test_bad_json_line(line: str, reason: str) -> None:
    requests, bad = read([line], "json")
    assert requests == []
    assert bad.first is not None
    assert reason in bad.first[1]


def all_lines(path: str, bad: BadLines) -> list[tuple[int, str]]:
    lines = LogLines(path, bad)
    try:
        return [(first + i, line) for first, batch in lines.batches() for i, line in enumerate(batch) if line]
    finally:
        lines.close()


def test_gzip_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(gzip.compress(b"one\ntwo\nthree"))
    assert all_lines(str(path), BadLines()) == [(1, "one"), (2, "two"), (3, "three")]


def test_damaged_gzip_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    content = b"".join(b"line %d\n" % number for number in range(100_000))
    path.write_bytes(gzip.compress(content)[:-2000])
    bad = BadLines()
    assert len(all_lines(str(path), bad)) > 1000
    assert bad.first is not None
    assert "damaged" in bad.first[1]


def test_lines_keep_their_numbers_across_chunks_and_long_lines(tmp_path: Path) -> None:
    text = (
        "a\n" + "x" * (MAX_LINE + 1) + "\nb\n" + "y" * (2 * CHUNK + 5) + "\nc\n" + "z" * 100 + "\n" + "e" * (CHUNK * 2)
    )
    bad = BadLines()
    found = all_lines(write_log(tmp_path, [text]), bad)
    assert [(number, line[:1]) for number, line in found] == [(1, "a"), (3, "b"), (5, "c"), (6, "z")]
    assert bad.count == 3
    assert bad.first == (2, "longer than 65,536 bytes")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\xffb\n")
    assert all_lines(str(path), BadLines()) == [(1, "a\\xffb")]


def test_missing_log() -> None:
    with pytest.raises(ConfigError, match="cannot read the log"):
        LogLines("/nowhere/access.log", BadLines())
