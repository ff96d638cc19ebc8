"""Tables on narrow terminals: nothing is cut, and dropped columns are named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.cli.output import Cell, Column, print_json, print_line, print_table
from unit.cli.conftest import Run

SETTINGS = """\
plans: {gold: 100000/hour burst 200000, daily: 500000/day}
rules:
  - rule_id: orders-of-customers-that-pay
    dimension: user
    endpoint_pattern: "/orders/{id}/items/*"
    method: POST
    tier: premium
    limit: 100000
    window_seconds: 60
  - {rule_id: trial, dimension: ip, mode: shadow, limit: 1, window_seconds: 0.5, expires_at: "2999-01-01T00:00:00Z"}
policies:
  - {key: user-123, capacity: 1000, refillRate: 10}
"""
WIDTHS = [10, 20, 30, 36, 40, 60, 80, 120, 250]

Terminal = Callable[[int], None]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def dropped_columns(text: str) -> list[str]:
    """The columns named in the last line, if any."""
    _, found, names = text.splitlines()[-1].partition("omitted for lack of space: ")
    return names.split(", ") if found else []


@pytest.fixture(autouse=True)
def settings(folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(SETTINGS)


@pytest.mark.parametrize("width", WIDTHS)
def test_limits_and_numbers_of_a_decision_are_not_truncated(width: int, run: Run, on_a_terminal: Terminal) -> None:
    on_a_terminal(width)
    text = plain(run("peek", "user:42", "--limit", "gold", "--limit", "daily").out)
    _, titles, _, gold, daily, *_ = text.splitlines()
    assert titles.split()[0] == "limit"
    assert gold.split()[0] == "gold"
    assert daily.split()[0] == "daily"
    columns = "limit allowed remaining of resets-in state".split()
    assert titles.replace("s in", "s-in").split() == [
        title for title in columns if title.replace("s-in", "s in") not in dropped_columns(text)
    ]
    for title, number in (("remaining", "500000"), ("of", "500000")):
        assert (title in dropped_columns(text)) == (title not in titles.split())
        assert title in dropped_columns(text) or number in daily.split()
    if width >= 30:
        assert max(map(len, text.splitlines()[:-1])) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_ids_and_limits_of_a_list_are_not_truncated(width: int, run: Run, on_a_terminal: Terminal) -> None:
    on_a_terminal(width)
    text = plain(run("rules", "list").out)
    titles, _, *lines = text.splitlines()
    columns = "id dimension identifier pattern method tier limit algorithm mode expires version".split()
    assert titles.split() == [title for title in columns if title not in dropped_columns(text)]
    assert {"id", "limit"} <= set(titles.split())
    room = len(titles[: titles.index(titles.split()[1])]) - 2
    assert room >= 12
    assert "orders-of-customers-that-pay" in "".join(line[:room].strip() for line in lines)
    assert "10/s burst 1000" in text
    if width >= 30:
        assert max(map(len, [titles, *lines[: -1 if dropped_columns(text) else None]])) <= width


def test_least_important_columns_are_dropped_first(run: Run, on_a_terminal: Terminal) -> None:
    dropped = []
    for width in (60, 40, 30):
        on_a_terminal(width)
        dropped.append(dropped_columns(plain(run("rules", "list").out)))
    assert dropped[0][:3] == ["version", "algorithm", "expires"]
    assert dropped[1][: len(dropped[0])] == dropped[0]
    assert dropped[2][: len(dropped[1])] == dropped[1]


def test_wide_characters(capsys: pytest.CaptureFixture[str], on_a_terminal: Terminal) -> None:
    on_a_terminal(30)
    print_table([Column("key", wraps=True), Column("number", drop_order=1)], [("漢字" * 5, "1234567")])
    assert "漢字漢字漢字漢字漢字  1234567" in plain(capsys.readouterr().out)


HOSTILE = "\x1b]0;x\x07 \x9b31m \u202e \x7f \U000e0001 Zoë"


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("rule ", Cell(HOSTILE, "red"))
    print_json({HOSTILE: [HOSTILE]})
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    line, text = out.split("\n", 1)
    assert "Zoë" in line
    assert json.loads(text) == {HOSTILE: [HOSTILE]}
