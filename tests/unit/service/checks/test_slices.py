"""Slices of large batches, and their weight against the ceiling."""

from __future__ import annotations

import asyncio

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.service.checks.responses import join_decisions
from crestgate.service.checks.schemas import CheckBody, ContextBody, CounterBody
from crestgate.service.checks.slices import PATH_CHARACTERS, groups, next_turn, slice_end, weigh
from crestgate.stores.port import Member, Op, Request

LIMIT = build(Limit(1, 1), "x")


def request(members: int) -> Request:
    return Request(Op.TAKE, [Member("k", LIMIT, 1) for _ in range(members)])


def test_groups_cover_all_requests_in_order_and_cut_none() -> None:
    assert groups([], 10) == []
    assert groups([request(1)] * 5, 10) == [(0, 5)]
    assert groups([request(4), request(4), request(4)], 8) == [(0, 2), (2, 3)]
    assert groups([request(50), None, request(3)], 8) == [(0, 1), (1, 3)]
    assert groups([None, request(50), request(50)], 8) == [(0, 1), (1, 2), (2, 3)]


def test_named_counters_and_plans_count_against_the_ceiling() -> None:
    counters = [CounterBody(key=str(n), limit="1/s") for n in range(7)]
    checks = [CheckBody(key="a"), CheckBody(key="a", plans=["x", "y", "z"]), CheckBody(counters=counters)]
    assert weigh(checks) == 1 + 3 + 7
    assert weigh([]) == 0


def test_decisions_of_slices_are_one_list() -> None:
    assert join_decisions([b"[1,2]", b"[3]"]) == b'{"decisions":[1,2,3]}'
    assert join_decisions([b"[]"]) == b'{"decisions":[]}'
    assert join_decisions([]) == b'{"decisions":[]}'


def test_slices_of_long_paths_have_fewer_checks() -> None:
    short, long = CheckBody(context=ContextBody(path="/a")), CheckBody(endpoint="/" * (4 * PATH_CHARACTERS))
    assert slice_end([short] * 20, 0, 8) == 8
    assert slice_end([short] * 20, 16, 8) == 20
    assert slice_end([CheckBody(key="k")] * 20, 8, 8) == 16
    assert slice_end([long] * 20, 0, 8) == 2
    assert slice_end([long] * 20, 0, 2) == 1, "at least one"
    assert slice_end([short, long, long], 0, 8) == 2


def test_each_iteration_of_the_loop_runs_one_slice() -> None:
    """However many batches there are, in their order; one that is cancelled leaves the queue."""
    order: list[str] = []

    async def batch(name: str) -> None:
        for _ in range(3):
            await next_turn()
            order.append(name)

    async def count_iterations() -> None:
        while True:
            order.append("|")
            await asyncio.sleep(0)

    async def run() -> None:
        iterations = asyncio.create_task(count_iterations())
        batches = [asyncio.create_task(batch(name)) for name in "abcd"]
        await asyncio.sleep(0)
        batches.pop().cancel()
        await asyncio.gather(*batches)
        iterations.cancel()

    asyncio.run(run())
    slices = [part for part in "".join(order).split("|") if part]
    assert slices == ["a", "b", "c"] * 3
