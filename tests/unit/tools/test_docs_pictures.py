"""The pictures of the pages are what tools/pictures.py draws; its `--check` compares the slow one, too."""

from __future__ import annotations

import re

from tools import pictures

DOCS = pictures.ROOT / "docs"


def test_picture_of_traffic_is_current() -> None:
    assert pictures.traffic_picture() == (DOCS / "algorithms-traffic.svg").read_text()


def test_picture_of_workers_is_current() -> None:
    assert pictures.workers_picture() == (DOCS / "workers.svg").read_text()


def test_log_admits_the_limit_and_no_more() -> None:
    """The bounds of docs/algorithms.md: N in any period for the log, at most 2N for the others here."""
    most = {
        name: pictures.most_in_a_period(pictures.run(name, pictures.pattern()).allowed) for name in pictures.ALGORITHMS
    }
    assert most["sliding_window_log"] == pictures.COUNT
    assert all(pictures.COUNT <= count <= 2 * pictures.COUNT for count in most.values())


def test_errors_in_the_text_are_those_of_the_picture() -> None:
    measured = [
        float(share) for share in re.findall(r">([\d.]+) % of [\d,]+<", (DOCS / "algorithms-error.svg").read_text())
    ]
    text = (DOCS / "algorithms.md").read_text()
    told = re.findall(r"([\d.]+) % differ if .*?([\d.]+) % if .*?([\d.]+) % if", text, re.DOTALL)
    assert [[float(share) for share in row] for row in told] == [
        [round(share, 2 if share < 1 else 1) for share in measured]
    ]
