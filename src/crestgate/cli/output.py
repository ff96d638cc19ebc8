"""Output of commands: tables on a terminal, aligned text in a pipe, JSON and YAML."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crestgate.loader.parser import scalar

__all__ = [
    "Cell",
    "Column",
    "escape_control",
    "format_duration",
    "print_error",
    "print_json",
    "print_line",
    "print_table",
    "print_yaml",
]

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
GAP = 2
"""Spaces between two columns."""
WIDE, NARROW = 20, 12
"""Minimum width of a column that wraps: while others can be dropped for it, and when none can."""


class Cell(NamedTuple):
    """Text, and its style on a terminal."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """Title of a column, and how it behaves on a narrow terminal."""

    title: str
    wraps: bool = False
    """Whether its text may wrap."""
    drop_order: int = 0
    """Order in which columns are dropped: 1 first; 0 never."""


def print_line(*cells: str | Cell) -> None:
    """Print a line on stdout, with control characters as escapes: a service or a client may have chosen the text."""
    console = _console()
    parts = [
        Cell(escape_control(cell.text), cell.style) if isinstance(cell, Cell) else Cell(escape_control(cell))
        for cell in cells
    ]
    if not console.is_terminal:
        _write(sys.stdout, "".join(cell.text for cell in parts))
        return
    console.print(Text.assemble(*((cell.text, cell.style) for cell in parts)), soft_wrap=True)


def print_error(message: str, prefix: str = "crestgate: ") -> None:
    """One line on stderr. Indented lines are omitted: they only illustrate the first."""
    lines = [line for line in message.splitlines() if not line.startswith(" ")]
    _write(sys.stderr, prefix + escape_control(" ".join(lines)))


def print_json(data: object) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    _write(sys.stdout, text if text.isascii() and "\x7f" not in text else _UNPRINTABLE.sub(_json_escape, text))


def _json_escape(match: re.Match[str]) -> str:
    """As JSON writes it: beyond 16 bits as a pair of surrogates."""
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")


def print_yaml(data: object) -> None:
    """YAML that parses to the same data."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Dumper, value: str) -> yaml.ScalarNode:
        # Quote what Crestgate's own parser would read as a number or a boolean.
        plain = value if isinstance(scalar(value), str) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain is not None else "'")

    Dumper.add_representer(str, text)
    dumped = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
    _write(sys.stdout, dumped.rstrip("\n"))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
    """A table: drawn on a terminal, aligned text elsewhere.

    On a terminal, droppable columns without information (only `*` and `-`) are omitted, and others while the table is
    too wide, which is noted below it. Text is never cut: columns may wrap, and a table that is still too wide exceeds
    the terminal. In a pipe all columns are printed.
    """
    cells = [
        [
            Cell(escape_control(cell.text), cell.style) if isinstance(cell, Cell) else Cell(escape_control(cell))
            for cell in row
        ]
        for row in rows
    ]
    console = _console()
    if not console.is_terminal:
        _print_aligned([column.title for column in columns], [[cell.text for cell in row] for row in cells])
        return
    widths, omitted = _fit_columns(columns, cells, console.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, width in widths.items():
        table.add_column(columns[index].title, overflow="fold", no_wrap=not columns[index].wraps, width=width)
    for row in cells:
        table.add_row(*(Text(row[index].text, row[index].style) for index in widths))
    # rich would truncate what does not fit, and a truncated number is wrong.
    console.width = max(console.width, _total_width(widths.values()))
    console.print(table)
    if omitted:
        print_line(Cell(f"omitted for lack of space: {', '.join(omitted)}", "dim"))


def _fit_columns(
    columns: Sequence[Column], cells: Sequence[Sequence[Cell]], width: int
) -> tuple[dict[int, int], Sequence[str]]:
    """The widths of the printed columns by their index, and the titles of those that were dropped."""
    widths = {
        index: max(cell_len(column.title), *(cell_len(row[index].text) for row in cells))
        for index, column in enumerate(columns)
        if not column.drop_order or any(row[index].text not in ("", "*", "-") for row in cells)
    }
    omitted = []
    for index in sorted(
        (index for index in widths if columns[index].drop_order), key=lambda index: columns[index].drop_order
    ):
        if _total_width(min(size, WIDE) if columns[at].wraps else size for at, size in widths.items()) <= width:
            break
        del widths[index]
        omitted.append(columns[index].title)
    for minimum in (WIDE, NARROW):
        while _total_width(widths.values()) > width:
            wrapping = [index for index, size in widths.items() if columns[index].wraps and size > minimum]
            if not wrapping:
                break
            widths[max(wrapping, key=lambda index: widths[index])] -= 1
    return widths, omitted


def _total_width(widths: Iterable[int]) -> int:
    """Width of columns with the gaps between them."""
    return sum(width + GAP for width in widths) - GAP


def _print_aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[title.upper() for title in titles], *([escape_control(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    for line in lines:
        _write(sys.stdout, "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def format_duration(seconds: float) -> str:
    """A duration as text, in two units at most.

    >>> [format_duration(s) for s in (0, 0.0042, 5.25, 59.999, 60, 5400, 90000)]
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


def escape_control(text: str) -> str:
    """Text with control characters as escapes.

    >>> escape_control("a\\tb\\x1b[31m"), escape_control("Zoë")
    ('a\\\\tb\\\\x1b[31m', 'Zoë')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _console() -> Console:
    """Created for each use: tests replace stdout."""
    return Console(highlight=False, emoji=False, markup=False)


def _write(stream: TextIO, text: str) -> None:
    """A line; characters that the stream cannot encode are escaped."""
    encoding: Any = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
