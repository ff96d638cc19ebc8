"""The soak: growth is found, and some virtual hours pass."""

from __future__ import annotations

from chaos.soak import compare
from chaos.virtual_day import virtual_day


def test_growth_is_found() -> None:
    assert compare("x", "fds", [5] * 40)["flat"]
    assert compare("x", "fds", [5] * 20 + [6] * 20)["flat"]
    assert not compare("x", "fds", list(range(40)))["flat"]
    assert not compare("x", "bytes", [20e6 + 2e6 * i for i in range(40)])["flat"]
    assert compare("x", "bytes", [1e6 * min(i, 9) for i in range(40)])["flat"], "growth at the start is a warm-up"


def test_virtual_hours_leave_nothing_behind() -> None:
    samples = virtual_day(hours=1)
    assert samples[-1]["admitted"] == 300, "the day's limit is used up within the first hour, and not exceeded"
