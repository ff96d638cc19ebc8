"""The page that states the bounds: complete, read by the runs, and written by them between its markers only."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.environments import DEADLINE, STORES
from chaos.judge import Result
from chaos.matrix import FAULTS, cells
from chaos.report import BEGIN, END, render, write_report
from chaos.slack import PAGE, read_slack


def test_every_store_and_every_fault_has_a_stated_bound() -> None:
    slack = read_slack()
    assert list(slack.forgets) == list(STORES)
    assert sorted(slack.excess) == sorted(FAULTS)


def test_clients_have_the_stated_deadline() -> None:
    assert read_slack().deadline_seconds == DEADLINE


def test_bound_of_a_kill_is_what_the_store_forgets() -> None:
    slack = read_slack()
    assert slack.excess_of("redis", "server-kill") == "all"
    assert slack.excess_of("mariadb", "server-kill") == "none"
    assert slack.excess_of("redis", "cut") == "none"


def test_unknown_bound_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(PAGE.read_text().replace("| `lag` |", "| `some` |", 1))
    with pytest.raises(ValueError, match=r"unknown bounds \['some'\]"):
        read_slack(page)


def test_every_cell_is_run_or_explained() -> None:
    assert len(cells()) == len(STORES) * len(FAULTS)
    for store, fault in cells():
        reason = FAULTS[fault].unsupported(store)
        assert reason is None or reason.strip()
    for store in STORES:
        assert FAULTS["none"].unsupported(store) is None
        assert FAULTS["client-kill"].unsupported(store) is None


def result(store: str, fault: str, **fields: object) -> dict[str, object]:
    return {**Result(store, fault, 7, 5.0).as_dict(), **fields}


def test_report_shows_results_violations_and_reasons() -> None:
    text = render(
        [
            result("redis", "cut", decisions=1000, recovery=0.5, over=3, over_bound=4),
            result(
                "redis", "fork", decisions=10, violations=["a client\nraised"], slow=["2 answers after the deadline"]
            ),
            result("memory", "cut", skipped="no connection"),
        ],
        [{"what": "redis", "measure": "fds", "early": 5, "late": 5, "flat": True}],
    )
    assert "2 of 3 cells were run, with 5 s of load each" in text
    assert "| cut | ✓ | – |" in text
    assert "| fork | ✗ |  |" in text
    assert "| redis | cut | 1000 | 0 | 0 | 0 | 3 (4) | 0, 0 | 0 | 0.50 | 7 |" in text
    assert "- redis × fork: a client raised\n- redis × fork: 2 answers after the deadline" in text
    assert "| cut | memory | no connection |" in text
    assert "| redis | fds | 5 | 5 | flat |" in text


def test_only_the_results_of_the_page_are_written(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(PAGE.read_text())
    write_report([result("redis", "cut", decisions=1)], [], page)
    first = page.read_text()
    write_report([result("redis", "cut", decisions=2)], [], page)
    assert first.replace("| 1 |", "| 2 |", 1).partition(BEGIN)[0] == page.read_text().partition(BEGIN)[0]
    assert page.read_text().partition(END)[2] == PAGE.read_text().partition(END)[2]
    assert "| redis | cut | 2 |" in page.read_text()
    assert read_slack(page) == read_slack()
