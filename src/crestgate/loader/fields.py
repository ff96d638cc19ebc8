"""Reader of mappings, field by field, that collects all problems instead of failing at the first.

The data is plain (mappings, lists, text, numbers), whether it came from YAML, JSON or a program. A problem names its
field by its path, such as `rules[3].limit`; `Document.locate` adds the file and the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from crestgate.core.redaction import redact_text
from crestgate.errors import Problem, ValidationError

__all__ = ["MAX_INTEGER", "Fields", "Problems", "describe", "join_names"]

MAX_INTEGER = 2**53 - 1
MAX_SHOWN = 10**60
"""The largest integer that a message shows, or that can be a number of seconds."""
_GROUPED = re.compile(r"[0-9][0-9_', ]{0,20}")


class Problems:
    """The problems so far."""

    def __init__(self) -> None:
        self.entries: list[Problem] = []

    def add(self, field: str, message: str) -> None:
        self.entries.append(Problem(field, message))

    def raise_any(self) -> None:
        if self.entries:
            raise ValidationError(self.entries)


class Fields:
    """The fields of one mapping. A field that is absent or invalid has its default; invalid ones, and absent ones that
    are `required`, are reported to `problems`.

    >>> problems = Problems()
    >>> fields = Fields({"limit": "many", "metod": "GET"}, "rules[3]", problems, ["limit", "method"])
    >>> fields.integer("limit", 1), fields.text("method", "*")
    (1, '*')
    >>> for problem in problems.entries:
    ...     print(problem)
    rules[3].metod: unknown field: did you mean 'method'?
    rules[3].limit: must be a whole number, 0 or more, not 'many'
    """

    def __init__(self, data: object, at: str, problems: Problems, known: Iterable[str]) -> None:
        self.at = at
        self.problems = problems
        self.values: Mapping[str, Any] = {}
        self.is_mapping = isinstance(data, Mapping)
        names = list(known)
        if not isinstance(data, Mapping):
            problems.add(at, f"must be a mapping with {join_names(names)}, not {describe(data)}")
            return
        self.values = data
        for name in data:
            if name not in names:
                close = get_close_matches(str(name), names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {join_names(names)}"
                problems.add(self.path(str(name)), f"unknown field: {hint}")

    def path(self, name: str) -> str:
        """The path of a field of this mapping."""
        return f"{self.at}.{name}" if self.at else name

    def has(self, name: str) -> bool:
        """Whether it is present, and not null."""
        return self.values.get(name) is not None

    def report(self, name: str, message: str) -> None:
        self.problems.add(self.path(name), message)

    def text(
        self, name: str, default: Any = None, *, required: bool = False, maximum: int = 1024, empty: bool = False
    ) -> Any:
        """Text. For a number, which YAML reads from text without quotes, the message says to write quotes."""
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, "a string")
        if not isinstance(value, str):
            hint = f": write it in quotes, '{describe(value)}'" if isinstance(value, int | float) else ""
            self.report(name, f"must be text, not {describe(value)}{hint}")
        elif not value and not empty:
            self.report(name, "must not be empty: write a string, or leave it out")
        elif len(value.encode("utf-8", "surrogatepass")) > maximum:
            self.report(name, f"is too long: {maximum} bytes at most")
        else:
            return value
        return default

    def integer(
        self, name: str, default: Any = None, *, required: bool = False, minimum: int = 0, maximum: int = MAX_INTEGER
    ) -> Any:
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, _integer_range(minimum, maximum))
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if is_integer and minimum <= value <= maximum:
            return value
        too_large = is_integer and value > maximum
        expected = f"a whole number from {minimum} to {maximum}" if too_large else _integer_range(minimum, maximum)
        # 010, 1_000 and anything in quotes are text in YAML.
        hint = f": write {int(_digits(value))}" if isinstance(value, str) and _GROUPED.fullmatch(value) else ""
        self.report(name, f"must be {expected}, not {describe(value)}{hint}")
        return default

    def seconds(
        self,
        name: str,
        default: Any = None,
        *,
        required: bool = False,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> Any:
        """A number of seconds above 0, with or without a fraction; or one from `minimum` to `maximum`."""
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, "a number of seconds")
        low, high = minimum or 0, math.inf if maximum is None else maximum
        if is_number(value) and value > 0 and low <= value <= high:
            return value
        expected = "above 0" if minimum is None or maximum is None else f"from {minimum:g} to {maximum:g}"
        self.report(name, f"must be a number of seconds {expected}, not {describe(value)}")
        return default

    def boolean(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.report(name, f"must be true or false, not {describe(value)}")
            return default
        return value

    def choice(self, name: str, choices: Iterable[str], default: Any = None, *, required: bool = False) -> Any:
        """One of a few words, in any case; returned as the choices spell it."""
        options = list(choices)
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, f"one of {join_names(options)}")
        for option in options:
            if isinstance(value, str) and value.lower() == option.lower():
                return option
        spellings = {option.lower(): option for option in options}
        close = get_close_matches(str(value).lower(), spellings, n=1)
        hint = f"; did you mean {spellings[close[0]]!r}?" if close else ""
        self.report(name, f"must be one of {join_names(options)}, not {describe(value)}{hint}")
        return default

    def items(self, name: str) -> list[tuple[str, Any]]:
        """The entries of a list, each with its path."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.report(name, f"must be a list, in [ ] or with '- ' before each entry, not {describe(value)}")
            return []
        return [(f"{self.path(name)}[{position}]", item) for position, item in enumerate(value)]

    def entries(self, name: str) -> list[tuple[str, str, Any]]:
        """The entries of a mapping with free names: path, name and value of each."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, Mapping):
            self.report(name, f"must be a mapping, 'name: …' for each entry, not {describe(value)}")
            return []
        entries = []
        for key, item in value.items():
            path = f"{self.path(name)}.{key}"
            if isinstance(key, str) and key:
                entries.append((path, key, item))
            else:
                self.problems.add(path, f"a name must be text, not {describe(key)}: write it in quotes, '{key}'")
        return entries

    def _absent(self, name: str, default: Any, required: bool, expected: str) -> Any:
        if required and self.is_mapping:  # if it is no mapping, that is reported already
            self.report(name, f"is missing: write {expected}")
        return default


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold: JSON has integers of any size.

    >>> is_number(60), is_number(0.5), is_number(10**400), is_number(float("inf")), is_number(True)
    (True, True, False, False, False)
    """
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= MAX_SHOWN
    return isinstance(value, float) and math.isfinite(value)


def _integer_range(minimum: int, maximum: int) -> str:
    """Omits the default maximum."""
    return (
        f"a whole number, {minimum} or more"
        if maximum == MAX_INTEGER
        else f"a whole number from {minimum} to {maximum}"
    )


def _digits(text: str) -> str:
    return re.sub("[^0-9]", "", text)


def describe(value: object) -> str:
    """A value for a message: short ones as they are, without secrets; others by their type.

    >>> describe("redis://user:secret@localhost"), describe([1, 2]), describe(None)
    ("'redis://***@localhost'", 'a list', 'nothing')
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) > MAX_SHOWN:  # it may have more digits than Python formats
        return "a very long number"
    text = repr(redact_text(value)) if isinstance(value, str) else redact_text(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def join_names(names: Iterable[str]) -> str:
    """
    >>> join_names(["open", "closed", "local"])
    'open, closed, local'
    """
    return ", ".join(names)
