"""Python and Lua agree to the bit: decisions, ticks and states, over 100,000 random steps of each algorithm.

A run has a new seed, which a failure shows; HEADGATE_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import random

import naive
import pytest

from conformance.twins import Counter, Twins, magnitude, random_limit
from servers.process import GivenServer
from servers.redis import RedisServer

SEED = int(os.environ.get("HEADGATE_TEST_SEED", random.randrange(2**32)))
STEPS = 100_000
MEMBERS = 400
BATCHES = 25  # with the same counters
LONGEST_SCALE = 2 * 10**15


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", naive.ALGORITHMS)
def test_one_limit(algorithm: str, redis_server: RedisServer | GivenServer) -> None:
    assert agreed(redis_server.url, f"{SEED} {algorithm}", [algorithm], 1) >= STEPS


@pytest.mark.slow
def test_changing_limits_and_algorithms(redis_server: RedisServer | GivenServer) -> None:
    assert agreed(redis_server.url, f"{SEED} changing", naive.ALGORITHMS, 4) >= STEPS


def agreed(url: str, seed: str, algorithms: tuple[str, ...] | list[str], limits: int) -> int:
    """How many steps Python and Lua agreed on."""
    twins = Twins(url, seed)
    draw = twins.random
    while twins.steps < STEPS:
        scale = magnitude(draw, LONGEST_SCALE)
        # Each counter once in a batch, so that every state is seen; or a few of them often, within one run of the script.
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
