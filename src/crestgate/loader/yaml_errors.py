"""Explanations of YAML parser errors.

A parser reports what it expected; the author of the file needs to know what to write. A few mistakes (a tab, an
unclosed quote, a `*` without quotes) cause nearly all errors, so those are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ParserError", "explain_error"]


_SECRET = re.compile(r"(?i)://|@.*:|:.*@|pass|pwd|secret|token")
"""Lines that may contain a password; messages do not show them."""


class ParserError(NamedTuple):
    """As PyYAML reports it: the construct and its start, the problem and its position. Lines and columns from 0."""

    context: str
    start: tuple[int, int] | None
    problem: str
    at: tuple[int, int]


def explain_error(error: ParserError, lines: Sequence[str]) -> tuple[int, str]:
    """The line (from 1) to correct, and how.

    >>> error = ParserError("while scanning an alias", (0, 18), "did not find …", (0, 19))
    >>> explain_error(error, ["endpoint_pattern: */x"])
    (1, "a value that begins with '*' must be in quotes: write '*/x'")
    """
    last = max((number for number, text in enumerate(lines, 1) if text.strip()), default=1)
    line, message = _explain(error, lines)
    return min(line, last), message  # the end of the file is after its last line


def _explain(error: ParserError, lines: Sequence[str]) -> tuple[int, str]:
    line = error.at[0]
    context, problem = error.context, error.problem
    start = error.start or error.at
    here = _rest(lines, error.at)
    if "tab character" in problem or here.startswith("\t"):
        return line + 1, "a tab where YAML requires spaces: indent with spaces"
    if "quoted scalar" in context and "end of stream" in problem:
        quote = _rest(lines, start)[:1]
        return start[0] + 1, f"the quote {quote} is never closed: write another {quote} at the end"
    if "quoted scalar" in context and "Unicode" in problem:
        return line + 1, "this escape is not a valid character: write the character itself"
    if "quoted scalar" in context:
        return line + 1, (
            "unknown escape: a backslash in double quotes starts an escape such as \\n: "
            "write \\\\ for a backslash, or use single quotes"
        )
    special = ("an alias", "an anchor", "a block scalar", "a directive")
    if context.endswith(special) or "cannot start any token" in problem or "mapping keys" in problem:
        return start[0] + 1, _unquoted(_rest(lines, start).strip(), context)
    if (closing := re.search(r"expected ',' or '([\]}])'", problem)) is not None:
        return _bracket(error, closing[1], lines)
    if "mapping values" in problem or "simple key" in context:
        return _colon(error, lines)
    if "entries are not allowed" in problem:
        return line + 1, "the '- ' of a list must be first on its line: start a new line with it"
    if "expected key" in problem or "'-' indicator" in problem or "<block end>" in problem:
        return _misplaced(error, lines)
    if "node content" in problem and not here.strip():
        return start[0] + 1, "a value is missing at the end of the file: check that every bracket is closed"
    if "node content" in problem:
        return line + 1, f"a value is missing before {here[:1]!r}: write one, or remove the {here[:1]!r}"
    if "<document start>" in problem:
        return line + 1, "there is text after the end of the document ('...'): remove the '...'"
    return line + 1, f"this is not YAML: {problem}"


def _unquoted(text: str, context: str) -> str:
    if context.endswith("a directive"):  # at the start of a line, so it is a name
        name = _as(text.partition(":")[0])
        return f"a name that begins with '%' must be in quotes{name and name + ': …'}"
    return f"a value that begins with {text[:1]!r} must be in quotes{_as(text)}"


def _bracket(error: ParserError, closing: str, lines: Sequence[str]) -> tuple[int, str]:
    opening = "[" if closing == "]" else "{"
    first, row = (error.start or error.at)[0] + 1, error.at[0]
    if not "".join(lines[row:]).strip():
        return first, f"the '{opening}' is never closed: write '{closing}' at the end"
    return row + 1, f"',' or '{closing}' is missing here or just before: the '{opening}' of line {first} is still open"


def _colon(error: ParserError, lines: Sequence[str]) -> tuple[int, str]:
    if "simple key" in error.context:  # a word alone on its line; PyYAML reports the next line
        row = (error.start or error.at)[0]
        name = lines[row].strip() if row < len(lines) else ""
        text = "this" if _SECRET.search(name) else repr(_shortened(name))
        return row + 1, f"':' is missing after {text}: write 'name: value'"
    row, column = error.at
    before = lines[row][:column] if row < len(lines) else ""
    if ": " in before:
        value = lines[row].partition(": ")[2].strip()
        return row + 1, f"a value that contains ': ' must be in quotes{_as(value)}"
    above = next((number for number in range(row - 1, -1, -1) if lines[number].strip()), row)
    if (key := re.match(r"\s*(?:- )?([\w.-]+):\S", lines[above])) is not None:
        return above + 1, f"a space is missing after the ':' of {key[1]!r}: write '{key[1]}: …'"
    return row + 1, (
        "this line is indented deeper than the one above, which already has a value: indent all fields of a mapping "
        "alike"
    )


def _misplaced(error: ParserError, lines: Sequence[str]) -> tuple[int, str]:
    row, column = error.at
    first = (error.start or error.at)[0] + 1
    line = lines[row] if row < len(lines) else ""
    if line[:column].strip():
        rest = "text" if _SECRET.search(line) else repr(_shortened(line[column:].strip()))
        return row + 1, f"{rest} follows a value: write the whole value in quotes"
    return row + 1, (
        f"this line does not fit the block that starts at line {first}: indent it like the others, and check that "
        "every quote and bracket above is closed"
    )


def _rest(lines: Sequence[str], at: tuple[int, int]) -> str:
    """The rest of a line from a position."""
    return lines[at[0]][at[1] :] if at[0] < len(lines) else ""


def _as(value: str) -> str:
    """How to write a value in quotes; empty if it may contain a password."""
    text = re.split(r"\s#|[,\]}]\s*$", value)[0].strip()
    return "" if _SECRET.search(text) else f": write {_shortened(_quoted(text))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
