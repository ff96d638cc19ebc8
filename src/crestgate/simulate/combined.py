"""The combined (and common) log format of nginx and Apache.

    203.0.113.9 - alice [10/Oct/2000:13:55:36 -0700] "GET /orders/7?x=1 HTTP/1.1" 200 2326 "-" "curl/8.0"

The address is the client's, the third field its user, unless it is `-`. What a server escapes in the request line
(`\\x22`, `\\"`) is unescaped.
"""

from __future__ import annotations

import re
from typing import Final

from crestgate.simulate.bad_lines import BadLines, LineError
from crestgate.simulate.log_times import parse_clf_time
from crestgate.simulate.logged_request import LoggedRequest

__all__ = ["CombinedReader", "split_request_line", "strip_query", "unescape"]

# Every repetition is bounded or followed by what it cannot match, so a hostile line costs no more than its length.
_LINE: Final = re.compile(
    r'(\S+) \S+ (\S+|.{0,255}?) \[([^\]]{20,40})\] "([A-Za-z][A-Za-z0-9_-]{0,31}) '
    r'((?=[^" ])[^" \\]*(?:\\.[^" \\]*)*)[" ]'
)
_HEAD: Final = re.compile(r"\S+ \S+ .{1,255}? \[[^\]]{20,40}\] \"")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|([\"\\]))")


class CombinedReader:
    """Reads lines of this format."""

    name = "combined"

    def __init__(self, bad: BadLines) -> None:
        self._bad = bad

    def read(self, first: int, lines: list[str]) -> list[LoggedRequest]:
        """The requests of some lines; `first` is the number of the first line."""
        requests: list[LoggedRequest] = []
        add = requests.append
        match = _LINE.match
        last, last_us = "", 0
        number = first - 1
        for line in lines:
            number += 1
            found = match(line)
            if found is None:
                if line and not line.isspace():
                    self._bad.add(number, _reason(line))
                continue
            ip, user, when, method, path = found.groups()
            if when != last:
                try:
                    last_us = parse_clf_time(when)
                except LineError as error:
                    self._bad.add(number, str(error))
                    continue
                last = when
            if "\\" in path:
                path = unescape(path)
            if "?" in path:
                path = strip_query(path)
            add(LoggedRequest(last_us, number, ip, None if user in {"-", ""} else user, path, method))
        return requests


def strip_query(path: str) -> str:
    """A path without its query, which no rule sees: so paths that differ in it alone are matched once."""
    return path.partition("?")[0] if path.startswith("/") else path


def unescape(text: str) -> str:
    """Text as it was before the server escaped it.

    >>> unescape(r'/a\\x22b'), unescape('/caf\\\\xC3\\\\xA9')
    ('/a"b', '/café')
    """
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else m[2], text)
    try:
        return data.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return data


def split_request_line(text: str) -> tuple[str, str]:
    """Method and path of `GET /orders HTTP/1.1`. LineError if it is none."""
    parts = text.split(" ")
    if len(parts) < 2 or not parts[0].isascii() or not parts[0].isalpha() or not parts[1]:
        raise LineError("no request line such as GET /path HTTP/1.1")
    return parts[0], parts[1]


def _reason(line: str) -> str:
    if _HEAD.match(line):
        return "no request line such as GET /path HTTP/1.1"
    return "not the combined log format"
