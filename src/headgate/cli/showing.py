"""How commands show things: tables that are drawn on a terminal and aligned text in a pipe, JSON and YAML."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.reading.parsing import scalar

__all__ = ["Cell", "Column", "complain", "say", "say_json", "say_table", "say_yaml", "shown", "span"]

GAP = 2
"""Blanks between two columns."""
WIDE, NARROW = 20, 12
"""Characters that a column which folds has at least: while others can be left out for it, and when none can."""


class Cell(NamedTuple):
    """A piece of text, and how it looks on a terminal."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """What a column of a table is called, and what becomes of it where there is little room."""

    title: str
    folds: bool = False
    """Whether its text may go on in the next line."""
    spare: int = 0
    """Whether it may be left out, and after which others: 1 goes first; 0 stays, and the terminal has to bear it."""


def say(*cells: str | Cell) -> None:
    """A line, on stdout."""
    console = _console()
    parts = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
    if not console.is_terminal:
        _write(sys.stdout, "".join(cell.text for cell in parts))
        return
    console.print(Text.assemble(*((cell.text, cell.style) for cell in parts)), soft_wrap=True)


def complain(message: str, prefix: str = "headgate: ") -> None:
    """A line, on stderr. Lines that are set in draw a picture below the first, which would be lost on one line."""
    lines = [line for line in message.splitlines() if not line.startswith(" ")]
    _write(sys.stderr, prefix + shown(" ".join(lines)))


def say_json(data: object) -> None:
    _write(sys.stdout, json.dumps(data, indent=2, ensure_ascii=False))


def say_yaml(data: object) -> None:
    """YAML that is read again as what it was."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Dumper, value: str) -> yaml.ScalarNode:
        # What Headgate would read as a number or the like needs its quotes, even where other readers disagree.
        plain = value if isinstance(scalar(value), str) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain is not None else "'")

    Dumper.add_representer(str, text)
    dumped = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
    _write(sys.stdout, dumped.rstrip("\n"))


def say_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
    """A table: drawn on a terminal, aligned text elsewhere.

    On a terminal, where room is dear, a spare column that says nothing (only `*` and `-`) is left out, and so are
    others while the table is too wide, which is said. What is shown is shown whole: only text that folds has less
    room than it needs, and a table that is still too wide goes over the edge. In a pipe all columns are there.
    """
    cells = [
        [Cell(shown(cell.text), cell.style) if isinstance(cell, Cell) else Cell(shown(cell)) for cell in row]
        for row in rows
    ]
    console = _console()
    if not console.is_terminal:
        _say_aligned([column.title for column in columns], [[cell.text for cell in row] for row in cells])
        return
    widths, left_out = _fitted(columns, cells, console.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for place, width in widths.items():
        table.add_column(columns[place].title, overflow="fold", no_wrap=not columns[place].folds, width=width)
    for row in cells:
        table.add_row(*(Text(row[place].text, row[place].style) for place in widths))
    # rich would cut what does not fit, and half a number is a wrong number.
    console.width = max(console.width, _room(widths.values()))
    console.print(table)
    if left_out:
        say(Cell(f"left out for want of room: {', '.join(left_out)}", "dim"))


def _fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[Cell]], room: int
) -> tuple[dict[int, int], Sequence[str]]:
    """The places of the columns that are shown, with their widths, and the titles of those there is no room for."""
    widths = {
        place: max(cell_len(column.title), *(cell_len(row[place].text) for row in cells))
        for place, column in enumerate(columns)
        if not column.spare or any(row[place].text not in ("", "*", "-") for row in cells)
    }
    left_out = []
    for place in sorted((place for place in widths if columns[place].spare), key=lambda place: columns[place].spare):
        if _room(min(width, WIDE) if columns[at].folds else width for at, width in widths.items()) <= room:
            break
        del widths[place]
        left_out.append(columns[place].title)
    for least in (WIDE, NARROW):
        while _room(widths.values()) > room:
            folding = [place for place, width in widths.items() if columns[place].folds and width > least]
            if not folding:
                break
            widths[max(folding, key=lambda place: widths[place])] -= 1
    return widths, left_out


def _room(widths: Iterable[int]) -> int:
    """What columns take, side by side."""
    return sum(width + GAP for width in widths) - GAP


def _say_aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[title.upper() for title in titles], *([shown(cell) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(titles))]
    for line in lines:
        _write(sys.stdout, "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def span(seconds: float) -> str:
    """A span of time for people: all that matters of it.

    >>> [span(s) for s in (0, 0.0042, 5.25, 59.999, 60, 5400, 90000)]
    ['0 s', '0.0042 s', '5.25 s', '60 s', '1 min', '1 h 30 min', '1 d 1 h']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    parts = []
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, whole = divmod(whole, unit)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2])


def shown(text: str) -> str:
    """Text with what a terminal would obey, or break a table by, as escapes.

    >>> shown("a\\tb\\x1b[31m"), shown("Zoë")
    ('a\\\\tb\\\\x1b[31m', 'Zoë')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _console() -> Console:
    """Made anew each time: whether stdout is a terminal may differ from one to the next, in tests above all."""
    return Console(highlight=False, emoji=False, markup=False)


def _write(stream: TextIO, text: str) -> None:
    """A line. What the stream's encoding has no character for is written as an escape."""
    encoding: Any = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
