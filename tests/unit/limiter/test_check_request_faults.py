"""Requests under rules when the store fails or the caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, StoreError
from crestgate.stores.port import Outcome, Request
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock
from flaky_store import Flaky
from shard import Shard
from unit.limiter.rule_limiters import Maker, RuleLimiter
from unit.rules.cases import NOW_US, context_of

# -- stores that fail -----------------------------------------------------------------------------------------------


USER, IP, SHADOW = "u user limit=5", "i ip limit=5", "s user shadow limit=5"
POLICIES = [
    # The limiter's policy, each rule's policy, and the outcome.
    ("open", (USER, IP), True, "fail_open"),
    ("closed", (USER, IP), False, "fail_closed"),
    ("open", (f"{USER} on_store_error=closed", IP), False, "fail_closed"),
    ("open", (USER, f"{IP} on_store_error=closed"), False, "fail_closed"),
    ("open", (f"{USER} on_store_error=local", IP), True, "fallback"),
    ("open", (f"{USER} on_store_error=local", f"{IP} on_store_error=closed"), False, "fail_closed"),
    ("closed", (f"{USER} on_store_error=open", f"{IP} on_store_error=open"), True, "fail_open"),
    ("closed", (f"{USER} on_store_error=open", IP), False, "fail_closed"),
    ("closed", (f"{USER} on_store_error=open", f"{IP} on_store_error=local"), True, "fallback"),
    ("local", (f"{USER} on_store_error=open", IP), True, "fallback"),
    # A shadow rule never makes it stricter.
    ("open", (USER, f"{SHADOW} on_store_error=closed"), True, "fail_open"),
    ("open", (USER, f"{SHADOW} on_store_error=local"), True, "fail_open"),
    ("closed", (f"{USER} on_store_error=open", SHADOW), True, "fail_open"),
    ("open", (f"{SHADOW} on_store_error=closed",), True, "no_rule"),
    ("closed", (SHADOW,), True, "no_rule"),
    ("closed", (USER, f"{SHADOW} on_store_error=open"), False, "fail_closed"),
]


@pytest.mark.parametrize(("policy", "rules", "allowed", "reason"), POLICIES, ids=lambda value: str(value)[:70])
def test_strictest_policy_of_failed_rules_applies(
    make_limiter: Maker, policy: str, rules: tuple[str, ...], allowed: bool, reason: str
) -> None:
    store = Flaky()
    gate = make_limiter("\n".join(rules), store=store, on_store_error=policy)
    store.broken = True
    decision = gate.check("user=1 ip=10.0.0.1")
    assert (decision.allowed, decision.reason) == (allowed, reason)
    assert gate.limiter.store_failures == 1
    assert gate.limiter.shadow_denials == {}, "a failed shadow rule has no result"
    store.broken = False
    assert gate.check("user=1 ip=10.0.0.1").remaining in (4, 2**31 - 1), "the store itself was charged nothing"


def test_log_names_the_policies(make_limiter: Maker, caplog: pytest.LogCaptureFixture) -> None:
    store = Flaky()
    gate = make_limiter(f"{USER} on_store_error=closed\n{SHADOW} on_store_error=local", store=store)
    store.broken = True
    gate.check("user=1")
    assert "on_store_error=open (rules: closed)" in caplog.text


def test_local_policy_limits_in_this_process(make_limiter: Maker) -> None:
    store = Flaky()
    gate = make_limiter("u user limit=2 on_store_error=local", store=store)
    store.broken = True
    assert gate.admits("user=1", 5) == 2
    assert gate.admits("user=2", 5) == 2


def test_failed_reset_is_an_error(make_limiter: Maker) -> None:
    store = Flaky()
    gate = make_limiter("u user", store=store)
    store.broken = True
    with pytest.raises(StoreError, match="does not answer"):
        gate.reset("user=1")


def test_request_without_rules_needs_no_store(make_limiter: Maker) -> None:
    store = Flaky()
    gate = make_limiter("u user", store=store, on_store_error="closed")
    store.broken = True
    assert gate.check("ip=10.0.0.1").reason == "no_rule"


class Two:
    """A limiter on two shards, and a request whose user lives in the first and whose address in the second."""

    def __init__(self, rules: str) -> None:
        clock = FakeClock(NOW_US / 1_000_000)
        self.first, self.second = Shard(clock), Shard(clock)
        store = ShardedStore({"a": self.first, "b": self.second})
        self.gate = RuleLimiter("sync", rules, store=store)
        user = next(n for n in range(100) if store.node_of(f"user:{n}") == 0)
        address = next(f"10.0.0.{n}" for n in range(100) if store.node_of(f"ip:10.0.0.{n}") == 1)
        self.request = f"user={user} ip={address}"


def test_only_policies_of_failed_rules_apply() -> None:
    two = Two("u user limit=5 on_store_error=closed\ni ip limit=5 on_store_error=open")
    two.second.away = True
    decision = two.gate.check(two.request)
    assert (decision.allowed, [part.reason for part in decision.parts]) == (True, ["ok", "fail_open"])
    two.second.away, two.first.away = False, True
    decision = two.gate.check(two.request)
    assert (decision.allowed, [part.reason for part in decision.parts]) == (False, ["fail_closed", "ok"])
    two.first.away = False
    assert two.gate.remaining(two.request) == [4, 5], "charges of reachable shards were given back"


def test_decided_rules_bind() -> None:
    two = Two("u user limit=2\ni ip limit=5")
    two.second.away = True
    assert two.gate.admits(two.request, 5) == 2


def test_failed_shadow_rule_changes_nothing() -> None:
    two = Two("u user limit=5\ns ip shadow limit=1 on_store_error=closed")
    two.second.away = True
    decision = two.gate.check(two.request)
    assert (decision.allowed, decision.reason, decision.remaining) == (True, "ok", 4)


# -- cancelled callers ----------------------------------------------------------------------------------------------


class Slow(Flaky):
    """A store that blocks on demand, in any thread that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.calls = 0

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.called.set()
        self.go.wait(10)
        answer = super().apply(batch)
        self.calls += 1
        return answer


@pytest.mark.parametrize("shadow_limit", [1, 9])
def test_cancelled_check_is_given_back_although_a_shadow_rule_denied(shadow_limit: int) -> None:
    """So is the charge of the shadow rule, if there is one."""
    store = Slow()
    gate = RuleLimiter("async", f"u user limit=5\ng global limit=5\ns user shadow limit={shadow_limit}", store=store)
    assert isinstance(gate.limiter, AsyncLimiter)
    limiter = gate.limiter

    async def main() -> None:
        await limiter.check_request(context_of("user=1"))
        store.called.clear()
        store.go.clear()
        task = asyncio.create_task(limiter.check_request(context_of("user=1")))
        while not store.called.is_set():
            await asyncio.sleep(0.001)  # the loop turns while the store is busy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go.set()
        while store.calls < 3:  # the first check, the second, and its give-back
            await asyncio.sleep(0.001)
        left = await limiter.peek_request(context_of("user=1"))
        assert [part.remaining for part in left.parts] == [4, 4]
        assert [shadow.remaining for shadow in left.shadows] == [shadow_limit - 1]

    gate.runner.run(asyncio.wait_for(main(), 10))
    gate.close()


# -- unsupported algorithms ------------------------------------------------------------------------------------------


def test_unsupported_algorithms_are_refused_at_construction() -> None:
    class Simple(Shard):
        def supports(self, algorithm: Any) -> bool:
            return bool(algorithm.limit.algorithm == "token_bucket")

    clock = FakeClock(NOW_US / 1_000_000)
    with pytest.raises(ConfigError, match="does not support algorithm 'sliding_window_counter'"):
        RuleLimiter("sync", "u user", store=Simple(clock))
    gate = RuleLimiter("sync", "u user algorithm=token_bucket", store=Simple(clock))
    gate.put("v user 5s algorithm=gcra")
    assert gate.catalog.problem is not None
    assert "'gcra'" in gate.catalog.problem
    assert sorted(gate.catalog.current.rules) == ["u"], "rules that use one later are not applied"
    gate.close()
