"""Read a mapping that people wrote, field by field: mistakes are noted and reading goes on, so all are told at once.

The data is plain (mappings, lists, text, numbers), whether it came from YAML, from JSON or from a program. Where it
is written in a file is somebody else's knowledge: a problem names its field, by the way to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from headgate.core.masking import masked_text
from headgate.errors import Invalid, Problem

__all__ = ["LARGEST", "Fields", "Problems", "kind_of", "listed"]

LARGEST = 2**53 - 1
MAX_SHOWN = 10**60
"""The largest whole number that is shown in a message, or can be a number of seconds."""
_GROUPED = re.compile(r"[0-9][0-9_', ]{0,20}")


class Problems:
    """The mistakes found so far."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, field: str, message: str) -> None:
        self.found.append(Problem(field, message))

    def raise_any(self) -> None:
        if self.found:
            raise Invalid(self.found)


class Fields:
    """The fields of one mapping. What is absent has its default, or is noted if it is `required`; what is wrong has
    its default too, and is noted.

    >>> problems = Problems()
    >>> fields = Fields({"limit": "many", "metod": "GET"}, "rules[3]", problems, ["limit", "method"])
    >>> fields.whole("limit", 1), fields.text("method", "*")
    (1, '*')
    >>> for problem in problems.found:
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
            problems.add(at, f"must be a mapping with {listed(names)}, not {kind_of(data)}")
            return
        self.values = data
        for name in data:
            if name not in names:
                close = get_close_matches(str(name), names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {listed(names)}"
                problems.add(self.way(str(name)), f"unknown field: {hint}")

    def way(self, name: str) -> str:
        """The way to a field of this mapping."""
        return f"{self.at}.{name}" if self.at else name

    def given(self, name: str) -> bool:
        """Whether it is there, and not null."""
        return self.values.get(name) is not None

    def wrong(self, name: str, message: str) -> None:
        self.problems.add(self.way(name), message)

    def text(
        self, name: str, default: Any = None, *, required: bool = False, most: int = 1024, empty: bool = False
    ) -> Any:
        """Text; a number is not text, but it is easily written so in YAML, and is told."""
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, "a text")
        if not isinstance(value, str):
            hint = f": write it in quotes, '{kind_of(value)}'" if isinstance(value, int | float) else ""
            self.wrong(name, f"must be text, not {kind_of(value)}{hint}")
        elif not value and not empty:
            self.wrong(name, "must not be empty: write a text, or leave it out")
        elif len(value.encode("utf-8", "surrogatepass")) > most:
            self.wrong(name, f"is too long: {most} bytes at most")
        else:
            return value
        return default

    def whole(
        self, name: str, default: Any = None, *, required: bool = False, least: int = 0, most: int = LARGEST
    ) -> Any:
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, _whole_number(least, most))
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and least <= value <= most:
            return value
        wanted = f"a whole number from {least} to {most}" if whole and value > most else _whole_number(least, most)
        # 010 and 1_000 are text for YAML, and so is what stands in quotes.
        hint = f": write {int(_digits(value))}" if isinstance(value, str) and _GROUPED.fullmatch(value) else ""
        self.wrong(name, f"must be {wanted}, not {kind_of(value)}{hint}")
        return default

    def seconds(
        self,
        name: str,
        default: Any = None,
        *,
        required: bool = False,
        least: float | None = None,
        most: float | None = None,
    ) -> Any:
        """A number of seconds above 0, with or without a fraction; or one from `least` to `most`."""
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, "a number of seconds")
        number = is_number(value)
        if number and value > 0 and (least is None or value >= least) and (most is None or value <= most):
            return value
        wanted = "above 0" if least is None or most is None else f"from {least:g} to {most:g}"
        self.wrong(name, f"must be a number of seconds {wanted}, not {kind_of(value)}")
        return default

    def yes(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, f"must be true or false, not {kind_of(value)}")
            return default
        return value

    def choice(self, name: str, choices: Iterable[str], default: Any = None, *, required: bool = False) -> Any:
        """One of a few words, in any case; as it is spelled among the choices."""
        options = list(choices)
        value = self.values.get(name)
        if value is None:
            return self._absent(name, default, required, f"one of {listed(options)}")
        for option in options:
            if isinstance(value, str) and value.lower() == option.lower():
                return option
        spellings = {option.lower(): option for option in options}
        close = get_close_matches(str(value).lower(), spellings, n=1)
        hint = f"; did you mean {spellings[close[0]]!r}?" if close else ""
        self.wrong(name, f"must be one of {listed(options)}, not {kind_of(value)}{hint}")
        return default

    def items(self, name: str) -> list[tuple[str, Any]]:
        """The entries of a list, each with the way to it."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.wrong(name, f"must be a list, in [ ] or with '- ' before each entry, not {kind_of(value)}")
            return []
        return [(f"{self.way(name)}[{position}]", item) for position, item in enumerate(value)]

    def entries(self, name: str) -> list[tuple[str, str, Any]]:
        """The entries of a mapping by free names: the way to each, its name, its value."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, Mapping):
            self.wrong(name, f"must be a mapping, 'name: …' for each entry, not {kind_of(value)}")
            return []
        found = []
        for key, item in value.items():
            way = f"{self.way(name)}.{key}"
            if isinstance(key, str) and key:
                found.append((way, key, item))
            else:
                self.problems.add(way, f"a name must be text, not {kind_of(key)}: write it in quotes, '{key}'")
        return found

    def _absent(self, name: str, default: Any, required: bool, wanted: str) -> Any:
        if required and self.is_mapping:  # what is none has been told, and nothing can be missing in it
            self.wrong(name, f"is missing: write {wanted}")
        return default


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold: JSON may have whole ones of any size.

    >>> is_number(60), is_number(0.5), is_number(10**400), is_number(float("inf")), is_number(True)
    (True, True, False, False, False)
    """
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= MAX_SHOWN
    return isinstance(value, float) and math.isfinite(value)


def _whole_number(least: int, most: int) -> str:
    """Limits that nobody reaches need not be told."""
    return f"a whole number, {least} or more" if most == LARGEST else f"a whole number from {least} to {most}"


def _digits(text: str) -> str:
    return re.sub("[^0-9]", "", text)


def kind_of(value: object) -> str:
    """A value as it is told in a message: short things as they are, others by their kind.

    >>> kind_of("redis://user:secret@localhost"), kind_of([1, 2]), kind_of(None)
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
    if isinstance(value, int) and abs(value) > MAX_SHOWN:  # which may have more digits than Python writes
        return "a number of very many digits"
    shown = repr(masked_text(value)) if isinstance(value, str) else masked_text(repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def listed(names: Iterable[str]) -> str:
    """
    >>> listed(["open", "closed", "local"])
    'open, closed, local'
    """
    return ", ".join(names)
