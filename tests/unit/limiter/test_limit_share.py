"""Sharing out limits among instances under the policy `local`."""

from __future__ import annotations

import pytest

from crestgate import ConfigError, Limit, Limiter
from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.limiter.limit_share import LimitShares, share_of
from flaky_store import Flaky


def limiters(count: int) -> list[Limiter]:
    """Instances whose store is away."""
    instances = []
    for _ in range(count):
        store = Flaky()
        store.broken = True
        instances.append(Limiter(store, on_store_error="local", fallback_instances=count))
    return instances


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "gcra"])
@pytest.mark.parametrize(("count", "instances"), [(100, 3), (10, 4), (7, 7), (8, 7), (1000, 16)])
def test_instances_together_admit_no_more_than_the_limit(algorithm: str, count: int, instances: int) -> None:
    limit = Limit(count, 3600, algorithm=algorithm)
    admitted = sum(limiter.check("user:42", limit).allowed for limiter in limiters(instances) for _ in range(count + 1))
    assert count - instances < admitted <= count


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_no_share_exceeds_the_limit(algorithm: str) -> None:
    takes_burst = ALGORITHMS[algorithm].takes_burst
    for count in (*range(1, 40), 1000, 123_457):
        for instances in (1, 2, 3, 7, 10, 39):
            limit = Limit(count, 60, burst=count + 5 if takes_burst else None, algorithm=algorithm)
            share = share_of(limit, instances)
            if count >= instances:
                assert share.count * instances <= limit.count
                assert share.capacity * instances <= limit.capacity
            assert share.count >= 1
            assert share.period_us == limit.period_us


def test_limit_below_the_number_of_instances_is_one_each() -> None:
    assert [sum(limiter.check("k", "2/hour").allowed for _ in range(5)) for limiter in limiters(3)] == [1, 1, 1]


def test_blocking_limit_still_blocks() -> None:
    assert [limiter.check("k", "0/hour").allowed for limiter in limiters(2)] == [False, False]


def test_cost_above_the_share_is_denied() -> None:
    decision = limiters(4)[0].check("k", "100/hour", cost=26)
    assert (decision.allowed, decision.retry_after, decision.limit) == (False, None, 25)


def test_share_is_of_the_same_counter() -> None:
    algorithm = build(Limit.parse("100/minute"), "gold", "Gold plan")
    share = LimitShares(4).of(algorithm)
    assert (share.name, share.label, share.capacity) == ("gold", "Gold plan", 25)


def test_reservation_is_settled_in_the_share() -> None:
    (limiter, _) = limiters(2)
    with limiter.reserve("k", "10/hour", cost=5) as reservation:
        assert not limiter.check("k", "10/hour").allowed
        reservation.settle(0)


@pytest.mark.parametrize("instances", [0, -1, 1.5, True, "4", None, 1_000_001])
def test_invalid_number_is_an_error(instances: object) -> None:
    with pytest.raises(ConfigError, match="fallback_instances must be a whole number from 1 to 1000000, not"):
        Limiter("memory://", fallback_instances=instances)  # type: ignore[arg-type]  # the error under test


def test_configuration_sets_it() -> None:
    environ = {"CRESTGATE_STORE": "memory://", "CRESTGATE_FALLBACK_INSTANCES": "4"}
    with Limiter.from_config(environ=environ) as limiter:
        assert limiter.backend.failure.shares.instances == 4
