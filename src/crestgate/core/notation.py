"""Parser and formatter of limits: `COUNT (/ | per) [N] UNIT [burst B] [using ALGORITHM]`,
`COUNT (/ | per) calendar UNIT [in ZONE]`, and `COUNT concurrent [ttl [N] UNIT]`.

A tokenizer rather than one regular expression, because errors show the position and what is expected there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import NamedTuple

from crestgate.core.algorithms import ALGORITHMS, CONCURRENCY
from crestgate.core.calendar_units import CALENDAR_UNITS
from crestgate.core.redaction import may_contain_secret
from crestgate.errors import ConfigError

__all__ = ["DEFAULT_TTL_US", "Notation", "canonical", "parse_chain"]

_SECOND = 1_000_000
_UNITS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ms": (1_000, ("ms",)),
    "second": (_SECOND, ("s", "sec", "secs", "second", "seconds")),
    "minute": (60 * _SECOND, ("m", "min", "mins", "minute", "minutes")),
    "hour": (3_600 * _SECOND, ("h", "hr", "hrs", "hour", "hours")),
    "day": (86_400 * _SECOND, ("d", "day", "days")),
    "week": (7 * 86_400 * _SECOND, ("w", "week", "weeks")),
    "month": (30 * 86_400 * _SECOND, ("month", "months")),
    "year": (365 * 86_400 * _SECOND, ("year", "years")),
}
_MICROSECONDS = {spelling: size for size, spellings in _UNITS.values() for spelling in spellings}
_UNIT_NAMES = "ms, s, sec, second, m, min, minute, h, hr, hour, d, day, w, week, month (30 days), year (365 days)"
_CALENDAR_SPELLINGS = {
    **{spelling: unit for unit in CALENDAR_UNITS if unit in _UNITS for spelling in _UNITS[unit][1]},
    "quarter": "quarter",
    "quarters": "quarter",
}
_CALENDAR_NAMES = f"calendar windows are of a {', '.join(CALENDAR_UNITS)}"
_ZONE = re.compile(r"\s*([A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*)")
MAX_DIGITS = 18
DEFAULT_TTL_US = 60 * _SECOND
"""Time to live of a slot of an in-flight limit that gives none."""
_EXAMPLE = "write for example '100/minute' or '10 per 30 seconds burst 5 using gcra'"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+(?:_\w+)*|_\w+)|(?P<sign>[/;,])|(?P<other>\S))", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Notation:
    """One parsed limit, and its position in the text."""

    count: int
    period_us: int
    burst: int | None
    algorithm: str | None
    start: int
    end: int
    calendar_unit: str | None = None
    zone: str | None = None
    is_concurrent: bool = False

    def show(self, text: str, message: str) -> str:
        """An error message that marks this limit in the text."""
        return _show(text, self.start, self.end, message)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def parse_chain(text: str) -> list[Notation]:
    """Read limits separated by `;` or `,`; the whole text must match."""
    if not isinstance(text, str):
        raise ConfigError(f"a limit is written as text, not {text!r}: {_EXAMPLE}")
    if may_contain_secret(text):  # not a limit, and it may contain a password, which must not be shown
        raise ConfigError(f"cannot read an address as a limit: {_EXAMPLE}")
    return _Parser(text).chain()


def canonical(count: int, period_us: int, burst: int | None, algorithm: str | None) -> str:
    """The canonical spelling of a limit, with the largest unit that divides its period."""
    if algorithm == CONCURRENCY:
        return (
            f"{count} concurrent" if period_us == DEFAULT_TTL_US else f"{count} concurrent ttl {_duration(period_us)}"
        )
    text = f"{count}/{_duration(period_us).removeprefix('1 ')}"
    if burst is not None:
        text += f" burst {burst}"
    if algorithm is not None:
        text += f" using {algorithm}"
    return text


def _duration(period_us: int) -> str:
    """A period with the largest unit that divides it: `1 minute`, `90 seconds`, `1.500 ms`."""
    unit = next((u for u in reversed(_UNITS) if period_us % _UNITS[u][0] == 0), "ms")
    many = Fraction(period_us, _UNITS[unit][0])
    if many.denominator == 1:
        return f"{many} {unit if many == 1 or unit == 'ms' else unit + 's'}"
    return f"{period_us // 1_000}.{period_us % 1_000:03d} ms"


class _Parser:
    """Recursive-descent parser of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [
            _Token(kind, match[kind], match.start(kind), match.end(kind))
            for match in _TOKEN.finditer(text)
            if (kind := match.lastgroup) is not None
        ]
        self.at = 0

    def chain(self) -> list[Notation]:
        limits = [self.limit()]
        while (token := self.take("sign", ";", ",")) is not None:
            limits.append(self.limit())
        token = self.peek()
        if token is not None:
            raise self.error(token, f"unexpected {token.text!r}", self.expected_at_end(limits[-1]))
        return limits

    def limit(self) -> Notation:
        start = self.peek()
        count = self.whole("the count, a whole number,")
        if self.take("word", "concurrent") is not None:
            ttl_us = DEFAULT_TTL_US if self.take("word", "ttl") is None else self.period()
            end = self.tokens[self.at - 1].end
            return Notation(count, ttl_us, None, CONCURRENCY, start.start if start else 0, end, is_concurrent=True)
        if self.take("sign", "/") is None and self.take("word", "per") is None:
            raise self.error(self.peek(), "'/' or 'per' is missing after the count", self.expected_after_count())
        unit = zone = None
        period_us = 0
        if self.take("word", "calendar") is not None:
            unit, zone = self.calendar()
        else:
            period_us = self.period()
        burst = algorithm = None
        if self.take("word", "burst") is not None:
            burst = self.whole("the burst, a whole number,")
        if self.take("word", "using") is not None:
            algorithm = self.algorithm()
        end = self.tokens[self.at - 1].end
        return Notation(count, period_us, burst, algorithm, start.start if start else 0, end, unit, zone)

    def whole(self, what: str) -> int:
        token = self.take("number")
        if token is None:
            raise self.error(self.peek(), f"{what} is missing", _EXAMPLE)
        if "." in token.text:
            raise self.error(token, f"{token.text!r} is not a whole number", _EXAMPLE)
        return int(self.digits(token))

    def digits(self, token: _Token) -> str:
        """The digits of a number, bounded."""
        if len(token.text) > MAX_DIGITS:
            raise self.error(token, f"a number of {len(token.text)} digits is too large", _EXAMPLE)
        return token.text

    def period(self) -> int:
        number = self.take("number")
        unit = self.take("word")
        if unit is None:
            raise self.error(self.peek(), "the unit of time is missing", f"units are {_UNIT_NAMES}")
        size = _MICROSECONDS.get(unit.text.lower())
        if size is None:
            close = get_close_matches(unit.text.lower(), _MICROSECONDS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise self.error(unit, f"unknown unit {unit.text!r}", f"{hint}units are {_UNIT_NAMES}")
        period = size * Fraction(self.digits(number) if number is not None else 1)
        if number is not None and (period <= 0 or period.denominator != 1):
            wrong = "must be above 0" if period <= 0 else "is not a whole number of microseconds"
            raise self.error(number, f"{number.text} {unit.text} {wrong}", "write a longer period")
        return int(period)

    def calendar(self) -> tuple[str, str | None]:
        """The unit of a calendar window, and its zone if there is one."""
        token = self.take("word")
        unit = _CALENDAR_SPELLINGS.get(token.text.lower()) if token is not None else None
        if unit is None:
            what = "the unit of the calendar window is missing" if token is None else f"unknown unit {token.text!r}"
            if token is None and (number := self.peek()) is not None and number.kind == "number":
                what = "a calendar window is one unit: it has no number"
            raise self.error(token or self.peek(), what, _CALENDAR_NAMES)
        if self.take("word", "in") is None:
            return unit, None
        found = _ZONE.match(self.text, self.tokens[self.at - 1].end)
        if found is None:
            raise self.error(self.peek(), "the time zone is missing", "write an IANA name such as Europe/Berlin")
        while (token := self.peek()) is not None and token.start < found.end():
            self.at += 1
        return unit, found[1]

    def algorithm(self) -> str:
        token = self.take("word")
        while (
            token is not None and (rest := self.peek()) is not None and rest.start == token.end and rest.kind != "sign"
        ):
            self.at += 1  # a name may contain digits: my_window2
            token = _Token("word", token.text + rest.text, token.start, rest.end)
        name = token.text.lower() if token is not None else None
        if token is None or name is None or name not in ALGORITHMS:
            close = get_close_matches(name or "", ALGORITHMS, n=1) or [
                one for one in ALGORITHMS if name and name in one
            ]
            hint = f"did you mean {close[0]!r}? " if close else ""
            what = "the algorithm is missing" if token is None else f"unknown algorithm {token.text!r}"
            raise self.error(token or self.peek(), what, f"{hint}there are {', '.join(ALGORITHMS)}")
        return name

    def peek(self) -> _Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, kind: str, *texts: str) -> _Token | None:
        """The next token if it is of this kind (and one of these texts, in any case), else None."""
        token = self.peek()
        if token is None or token.kind != kind or (texts and token.text.lower() not in texts):
            return None
        self.at += 1
        return token

    def expected_after_count(self) -> str:
        token = self.peek()
        if token is not None and token.text == ",":
            return f"write numbers without commas: {_EXAMPLE}"
        if token is not None and token.kind == "word":
            return f"write no words between the count and 'per': {_EXAMPLE}"
        return _EXAMPLE

    def expected_at_end(self, limit: Notation) -> str:
        if limit.is_concurrent:
            return "after an in-flight limit there may be 'ttl 60s' once, or ';' and another limit"
        if limit.algorithm is not None:
            return "after this limit there may be ';' and another limit ('burst' goes before 'using')"
        if limit.calendar_unit is not None:
            more = "'in ZONE', " if limit.zone is None else ""
            return f"after this limit there may be {more}or ';' and another limit"
        more = "'burst B', " if limit.burst is None else ""
        return f"after this limit there may be {more}'using ALGORITHM', or ';' and another limit"

    def error(self, token: _Token | None, message: str, remedy: str) -> ConfigError:
        start, end = (token.start, token.end) if token is not None else (len(self.text), len(self.text) + 1)
        return ConfigError(_show(self.text, start, end, f"{message}; {remedy}"))


def _show(text: str, start: int, end: int, message: str) -> str:
    # Control characters would move the marker; a blank has their width.
    line = "".join(c if c.isprintable() else " " for c in text)
    return f"cannot read limit {text!r}: {message}\n    {line}\n    {' ' * start}{'^' * max(end - start, 1)}"
