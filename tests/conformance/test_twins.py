"""Python and Lua agree to the bit: decisions, ticks and states, over 100,000 random steps of each algorithm.

A run has a new seed, which a failure shows; CRESTGATE_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import random
from uuid import uuid4

import pytest

from conformance.schedules import LIMIT_KINDS
from conformance.twins import LARGEST_COST, Counter, Twins, magnitude, random_limit
from crestgate.core.algorithms import build
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, Member, Op, Request
from crestgate.testing import FakeClock
from servers.process import GivenServer
from servers.redis import RedisServer

SEED = int(os.environ.get("CRESTGATE_TEST_SEED", random.randrange(2**32)))
STEPS = 100_000
SINGLE_STEPS = 4_000
MEMBERS = 400
BATCHES = 25  # with the same counters
LONGEST_SCALE = 2 * 10**15


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_one_limit(algorithm: str, redis_server: RedisServer | GivenServer) -> None:
    assert agreed(redis_server.url, f"{SEED} {algorithm}", [algorithm], 1) >= STEPS


@pytest.mark.slow
def test_changing_limits_and_algorithms(redis_server: RedisServer | GivenServer) -> None:
    assert agreed(redis_server.url, f"{SEED} changing", LIMIT_KINDS, 4) >= STEPS


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_single_requests(algorithm: str, redis_server: RedisServer | GivenServer) -> None:
    """Batches of one request, most of which single.lua decides."""
    twins = Twins(redis_server.url, f"{SEED} single {algorithm}")
    draw = twins.random
    while twins.steps < SINGLE_STEPS:
        scale = magnitude(draw, LONGEST_SCALE)
        limits = [random_limit(draw, algorithm, scale) for _ in range(draw.choice((1, 1, 2)))]
        counter = Counter(f"{twins.steps}", limits, twins.clock)
        for _ in range(BATCHES):
            twins.move(scale)
            twins.batch([counter])
    twins.close()


@pytest.mark.slow
def test_chains(redis_server: RedisServer | GivenServer) -> None:
    """Several counters in a request, some non-binding; the clock only advances, since this memory store sweeps."""
    draw = random.Random(f"{SEED} chains")
    clock = FakeClock(1_700_000_000)
    memory = MemoryStore(clock=clock)
    store = open_store(f"{redis_server.url}?prefix={uuid4()}&timeout_ms=60000", clock)
    denied = 0
    for _ in range(100):
        limits = [random_limit(draw, draw.choice(LIMIT_KINDS), 10**6) for _ in range(8)]
        chain = [build(limit, f"{draw.random()}") for limit in limits]
        batch = []
        for _ in range(100):
            members = draw.sample(chain, draw.randint(2, 5))
            cost = magnitude(draw, min(LARGEST_COST, *(int(member.capacity) for member in members)))
            batch.append(Request(Op.TAKE, [Member("key", member, cost, draw.random() < 0.8) for member in members]))
        clock.advance(draw.random())
        expected, replies = memory.apply(batch), store.apply(batch)
        assert summary(replies) == summary(expected), f"seed {SEED}"
        denied += sum(not outcome.decision.allowed for outcomes in expected for outcome in outcomes)
    store.close()
    assert denied > 1_000


def summary(replies: BatchOutcomes) -> list[list[tuple[object, ...]]]:
    return [[(outcome.decision, outcome.tick) for outcome in reply] for reply in replies]


def agreed(url: str, seed: str, algorithms: tuple[str, ...] | list[str], limits: int) -> int:
    """The number of operations on which Python and Lua agreed."""
    twins = Twins(url, seed)
    draw = twins.random
    while twins.steps < STEPS:
        scale = magnitude(draw, LONGEST_SCALE)
        # Each counter once in a batch, so that every state is seen; or a few often, within one run of the script.
        distinct = draw.choice((MEMBERS, MEMBERS, MEMBERS // 20))
        counters = [
            Counter(
                f"{twins.steps}-{i}",
                [random_limit(draw, draw.choice(algorithms), scale) for _ in range(limits)],
                twins.clock,
            )
            for i in range(distinct)
        ]
        for _ in range(BATCHES):
            twins.move(scale)
            twins.batch(counters if distinct == MEMBERS else draw.choices(counters, k=MEMBERS))
    twins.close()
    return twins.steps
