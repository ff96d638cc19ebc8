"""What a YAML parser complains about, in words that say what to write.

A parser tells what it expected; whoever wrote the file has to know what they did. The same few slips (a tab, a quote
that is never closed, a `*` without quotes) make up nearly all complaints, so those are told as what they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Complaint", "plain_words"]


_SECRET = re.compile(r"(?i)://|@.*:|:.*@|pass|pwd|secret|token")
"""What a line with a password in it has: such a line is not shown."""


class Complaint(NamedTuple):
    """What the parser said: while doing what, since where; what was wrong, and where. Lines and columns from 0."""

    doing: str
    since: tuple[int, int] | None
    problem: str
    at: tuple[int, int]


def plain_words(complaint: Complaint, lines: Sequence[str]) -> tuple[int, str]:
    """The line (from 1) that is to be mended, and how.

    >>> plain_words(Complaint("while scanning an alias", (0, 18), "did not find …", (0, 19)), ["endpoint_pattern: */x"])
    (1, "a value that begins with '*' must be in quotes: write '*/x'")
    """
    last = max((number for number, text in enumerate(lines, 1) if text.strip()), default=1)
    line, words = _words(complaint, lines)
    return min(line, last), words  # the end of the file is behind its last line


def _words(complaint: Complaint, lines: Sequence[str]) -> tuple[int, str]:
    line = complaint.at[0]
    doing, problem = complaint.doing, complaint.problem
    since = complaint.since or complaint.at
    here = _rest(lines, complaint.at)
    if "tab character" in problem or here.startswith("\t"):
        return line + 1, "a tab where YAML wants blanks: indent with spaces, never with tabs"
    if "quoted scalar" in doing and "end of stream" in problem:
        quote = _rest(lines, since)[:1]
        return since[0] + 1, f"the quote {quote} that begins here is never closed: write another {quote} at the end"
    if "quoted scalar" in doing and "Unicode" in problem:
        return line + 1, "this escape stands for no character: write the character itself"
    if "quoted scalar" in doing:
        return line + 1, (
            "a backslash in double quotes begins an escape such as \\n, and this is none that YAML knows: "
            "write \\\\ for a backslash, or use single quotes"
        )
    special = ("an alias", "an anchor", "a block scalar", "a directive")
    if doing.endswith(special) or "cannot start any token" in problem or "mapping keys" in problem:
        return since[0] + 1, _unquoted(_rest(lines, since).strip(), doing)
    if (closing := re.search(r"expected ',' or '([\]}])'", problem)) is not None:
        return _bracket(complaint, closing[1], lines)
    if "mapping values" in problem or "simple key" in doing:
        return _colon(complaint, lines)
    if "entries are not allowed" in problem:
        return line + 1, "a list's '- ' cannot stand behind something else on a line: begin a new line with it"
    if "expected key" in problem or "'-' indicator" in problem or "<block end>" in problem:
        return _misplaced(complaint, lines)
    if "node content" in problem and not here.strip():
        return since[0] + 1, "a value is missing at the end of the file: see that every bracket is closed"
    if "node content" in problem:
        return line + 1, f"a value is missing before {here[:1]!r}: write one, or take the {here[:1]!r} away"
    if "<document start>" in problem:
        return line + 1, "there is something after the end of the document ('...'): take the '...' away"
    return line + 1, f"this is not YAML: {problem}"


def _unquoted(text: str, doing: str) -> str:
    if doing.endswith("a directive"):  # which begins a line, so a name is meant
        name = _as(text.partition(":")[0])
        return f"a name that begins with '%' must be in quotes{name and name + ': …'}"
    return f"a value that begins with {text[:1]!r} must be in quotes{_as(text)}"


def _bracket(complaint: Complaint, closing: str, lines: Sequence[str]) -> tuple[int, str]:
    opening = "[" if closing == "]" else "{"
    began, row = (complaint.since or complaint.at)[0] + 1, complaint.at[0]
    if not "".join(lines[row:]).strip():
        return began, f"the '{opening}' that begins here is never closed: write '{closing}' at the end"
    return row + 1, f"',' or '{closing}' is missing here or just before: the '{opening}' of line {began} is still open"


def _colon(complaint: Complaint, lines: Sequence[str]) -> tuple[int, str]:
    if "simple key" in complaint.doing:  # a word on a line of its own, seen as such only on the next
        row = (complaint.since or complaint.at)[0]
        name = lines[row].strip() if row < len(lines) else ""
        shown = "this" if _SECRET.search(name) else repr(_shortened(name))
        return row + 1, f"':' is missing after {shown}: write 'name: value'"
    row, column = complaint.at
    before = lines[row][:column] if row < len(lines) else ""
    if ": " in before:
        value = lines[row].partition(": ")[2].strip()
        return row + 1, f"a value that holds ': ' must be in quotes{_as(value)}"
    above = next((number for number in range(row - 1, -1, -1) if lines[number].strip()), row)
    if (glued := re.match(r"\s*(?:- )?([\w.-]+):\S", lines[above])) is not None:
        return above + 1, f"a blank is missing after the ':' of {glued[1]!r}: write '{glued[1]}: …'"
    return row + 1, (
        "this line is indented deeper than the one above, which has a value already: indent all fields of a mapping "
        "alike"
    )


def _misplaced(complaint: Complaint, lines: Sequence[str]) -> tuple[int, str]:
    row, column = complaint.at
    began = (complaint.since or complaint.at)[0] + 1
    line = lines[row] if row < len(lines) else ""
    if line[:column].strip():
        rest = "something" if _SECRET.search(line) else repr(_shortened(line[column:].strip()))
        return row + 1, f"{rest} stands behind a value: write the whole value in quotes"
    return row + 1, (
        f"this line does not fit the block that begins at line {began}: indent it like the others, and see that every "
        "quote and bracket above is closed"
    )


def _rest(lines: Sequence[str], at: tuple[int, int]) -> str:
    """What stands on a line from a place on."""
    return lines[at[0]][at[1] :] if at[0] < len(lines) else ""


def _as(value: str) -> str:
    """How to write a value in quotes; not shown if there may be a password in it."""
    text = re.split(r"\s#|[,\]}]\s*$", value)[0].strip()
    return "" if _SECRET.search(text) else f": write {_shortened(_quoted(text))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
