"""Processes that reserve and settle and are killed at random: see reservation_kills.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from integration.kill_runs import PROCESSES, STORES, store_url
from integration.reservation_kills import PROOF, Known, most_charged, possible_totals, read_reservations, run
from integration.reservation_programs import (
    CHARGED,
    DENIED,
    RECORDED,
    RESERVED,
    RESERVING,
    SETTLED,
    SETTLING,
    TIGHT_LIMIT,
)

SECONDS = 4.0
KEY = 7


@pytest.mark.parametrize("kind", STORES)
def test_killed_reservations(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    server = None if kind in ("shared", "sqlite") else request.getfixturevalue(kind).url
    figures = run(kind, store_url(kind, tmp_path, server), tmp_path, SECONDS)
    report(str(figures))
    assert figures["kills"] >= PROCESSES
    assert figures["settled"] > 0
    assert figures["left to end"] > 0


def read(*steps: tuple[int, int, int, int, int]) -> list[Known]:
    """One reservation, by its steps: what, a flag, two amounts, and when."""
    return read_reservations((step, flag, KEY, tight, wide, 1, at, b"id") for step, flag, tight, wide, at in steps)


KEEP, RELEASE = (RESERVING, 0, 20, 500, 10), (RESERVING, 1, 20, 500, 10)
GRANTED, BEGUN, DONE = (RESERVED, 0, 0, 0, 20), (SETTLING, 0, 5, 600, 30), (SETTLED, 0, 0, 0, 40)


@pytest.mark.parametrize(
    ("steps", "totals"),
    [
        ([KEEP], {(0, 0), (20, 500)}),
        ([KEEP, (DENIED, 0, 0, 0, 20)], {(0, 0)}),
        ([RELEASE, (CHARGED, 0, 0, 0, 20)], {(20, 500)}),
        ([KEEP, (RECORDED, 0, 0, 0, 20)], {(20, 500)}),
        ([RELEASE, (RECORDED, 0, 0, 0, 20)], {(0, 0)}),
        ([KEEP, GRANTED], {(20, 500)}),
        ([RELEASE, GRANTED], {(0, 0)}),
        ([KEEP, GRANTED, BEGUN], {(20, 500), (5, 600)}),
        ([RELEASE, GRANTED, BEGUN], {(0, 0), (5, 600)}),
        ([RELEASE, GRANTED, BEGUN, DONE], {(5, 600)}),
    ],
)
def test_checker_knows_what_is_left(steps: list[tuple[int, int, int, int, int]], totals: set[tuple[int, int]]) -> None:
    assert possible_totals(read(*steps)) == totals


def test_checker_finds_what_is_counted_twice() -> None:
    settled = read(KEEP, GRANTED, BEGUN, DONE)
    unknown = read(KEEP)
    totals = possible_totals([*settled, *unknown])
    assert totals == {(5, 600), (25, 1100)}
    assert (10, 1200) not in totals, "settled twice"
    assert (25, 600) not in totals, "charged to one of two limits"


def test_checker_finds_too_much_charged() -> None:
    one = replace(read(KEEP, GRANTED)[0], cost=(TIGHT_LIMIT, 1))
    assert most_charged([one]) == TIGHT_LIMIT
    lie = replace(one, cost=(1, 1))
    assert most_charged([one, lie]) == TIGHT_LIMIT + 1
    ended = replace(one, release=True)
    after = replace(lie, begun=ended.begun + PROOF, reserved=ended.begun + PROOF)
    assert most_charged([ended, after]) == TIGHT_LIMIT, "the first has ended"
    settled = replace(one, step=SETTLED, settling=30, actual=(5, 1))
    assert most_charged([settled, replace(one, cost=(TIGHT_LIMIT - 5, 1), reserved=31)]) == TIGHT_LIMIT
    assert most_charged([settled, replace(one, cost=(TIGHT_LIMIT - 4, 1), reserved=31)]) == TIGHT_LIMIT + 1
