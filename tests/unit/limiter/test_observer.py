"""Observers: told of every call, on every path, and unable to change a decision."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from crestgate import (
    AsyncLimiter,
    ConfigError,
    Limiter,
    LimiterCall,
    Observer,
    StoreClosedError,
    StoreError,
    StoreStatus,
)
from crestgate.limiter.observation import LOG_SECONDS, Observation
from crestgate.stores.memory import MemoryStore
from flaky_store import Flaky
from slow_store import SlowStore
from unit.limiter.rule_limiters import Maker


class Recorder(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.statuses: list[StoreStatus] = []
        self.calls: list[LimiterCall] = []
        self.batches: list[int] = []
        self.failed: list[tuple[str, int]] = []

    def attached(self, status: StoreStatus) -> None:
        self.statuses.append(status)

    def called(self, call: LimiterCall) -> None:
        self.calls.append(call)

    def batch_sent(self, size: int) -> None:
        self.batches.append(size)

    def store_failed(self, error: StoreError, requests: int) -> None:
        self.failed.append((str(error), requests))

    def take(self) -> list[tuple[Any, ...]]:
        """Operations, and the decisions of each: name, allowed, dimension. Forgotten after that."""
        taken = [
            (call.operation, *((check.decision.name, check.decision.allowed, check.dimension) for check in call.checks))
            for call in self.calls
        ]
        self.calls.clear()
        return taken


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


ONE = ("check", ("1/minute", True, "key"))
DENIED = ("check", ("1/minute", False, "key"))


@pytest.mark.parametrize("store", ["memory", "shared", "custom", "remote"])
def test_every_call_of_a_limiter_is_observed(recorder: Recorder, store: str, tmp_path: Any) -> None:
    kinds: dict[str, Callable[[], Any]] = {
        "memory": lambda: "memory://",
        "shared": lambda: f"shared://{tmp_path}/counters?max_keys=1000",
        "custom": Flaky,
        "remote": SlowStore,
    }
    made = kinds[store]()
    if isinstance(made, SlowStore):
        made.gate = threading.Semaphore(1_000)
    with Limiter(made, observer=recorder) as limiter:
        assert limiter.check("a", "1/minute").allowed
        assert not limiter.check("a", "1/minute").allowed
        assert recorder.take() == [ONE, DENIED]
        limiter.bind("1/minute").check("b")
        limiter.check_many([("b", "1/minute"), ("c", "2/hour", 2)])
        assert recorder.take() == [ONE, ("check", ("1/minute", False, "key"), ("2/hour", True, "key"))]
        limiter.check("d", ["2/hour", "1/minute"])
        limiter.check("d", ["2/hour", "1/minute"])
        assert recorder.take() == [ONE, DENIED]
        limiter.peek("d", "1/minute")
        limiter.reset("d", "1/minute")
        assert recorder.take() == [("peek", ("1/minute", False, "key")), ("reset",)]
        with limiter.reserve("e", "10/minute", cost=5) as reservation:
            reservation.settle(7)
        assert recorder.take() == [("check", ("10/minute", True, "key")), ("settle",)]
        limiter.acquire("f", "1/minute", timeout=1)
        limited: Callable[[], None] = limiter.limit("1/minute", key="g")(lambda: None)
        limited()
        assert recorder.take() == [ONE, ONE]
        assert recorder.failed == []
        assert recorder.statuses[0].remote == (store == "remote")


@pytest.mark.parametrize("store", ["memory", "shared", "custom", "remote"])
def test_every_call_of_an_async_limiter_is_observed(recorder: Recorder, store: str, tmp_path: Any) -> None:
    async def calls() -> None:
        kinds: dict[str, Callable[[], Any]] = {
            "memory": lambda: "memory://",
            "shared": lambda: f"shared://{tmp_path}/counters?max_keys=1000",
            "custom": Flaky,
            "remote": SlowStore,
        }
        made = kinds[store]()
        answering = None
        if isinstance(made, SlowStore):
            answering = asyncio.create_task(keep_answering(made))
        async with AsyncLimiter(made, observer=recorder) as limiter:
            await limiter.check("a", "1/minute")
            await limiter.bind("1/minute").check("a")
            assert recorder.take() == [ONE, DENIED]
            await limiter.check_many([("b", "1/minute"), ("c", "2/hour", 2)])
            assert recorder.take() == [("check", ("1/minute", True, "key"), ("2/hour", True, "key"))]
            await limiter.peek("b", "1/minute")
            await limiter.reset("b", "1/minute")
            assert recorder.take() == [("peek", ("1/minute", False, "key")), ("reset",)]
            async with limiter.reserve("e", "10/minute", cost=5) as reservation:
                await reservation.settle(1)
            assert recorder.take() == [("check", ("10/minute", True, "key")), ("settle",)]
            await limiter.acquire("f", "1/minute", timeout=1)
            assert recorder.take() == [ONE]
            sync = Limiter.sharing(limiter, connect=False)
            if store != "remote":
                sync.check("g", "1/minute")
                assert recorder.take() == [ONE], "a limiter that shares the store is observed, too"
        if answering is not None:
            answering.cancel()

    async def keep_answering(slow: SlowStore) -> None:
        while True:
            await slow.answer_all()

    asyncio.run(calls())


def test_concurrent_callers_of_a_remote_store_share_a_batch(recorder: Recorder) -> None:
    async def calls() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store, observer=recorder)
        await limiter.connect()
        checks = [asyncio.create_task(limiter.check(f"user:{n}", "1/minute")) for n in range(5)]
        await store.answer_all()
        await asyncio.gather(*checks)

    asyncio.run(calls())
    assert recorder.batches == [5]
    assert recorder.take() == [ONE] * 5


def test_threads_that_share_a_batch(recorder: Recorder) -> None:
    store = SlowStore()
    limiter = Limiter(store, observer=recorder)
    threads = [threading.Thread(target=limiter.check, args=(f"user:{n}", "1/minute")) for n in range(4)]
    threads[0].start()
    assert store.entered.acquire(timeout=10)
    for thread in threads[1:]:
        thread.start()
    coalescer = limiter.backend.coalescer
    assert coalescer is not None
    while len(coalescer.waiting) < 3:
        threading.Event().wait(0.001)
    store.gate.release(2)
    for thread in threads:
        thread.join(10)
    assert recorder.batches == [1, 3]
    assert recorder.take() == [ONE] * 4


def test_decision_of_the_failure_policy_is_observed_with_its_reason(recorder: Recorder) -> None:
    store = Flaky()
    limiter = Limiter(store, observer=recorder)
    store.broken = True
    assert limiter.check("a", "1/minute").reason == "fail_open"
    (call,) = recorder.calls
    assert [check.decision.reason for check in call.checks] == ["fail_open"]
    assert isinstance(call.error, StoreError)
    assert recorder.failed == [("the store at nowhere does not answer", 1)]
    assert limiter.store_failures == 1
    with pytest.raises(StoreError):
        limiter.reset("a", "1/minute")
    assert recorder.calls[1].operation == "reset"
    assert isinstance(recorder.calls[1].error, StoreError)
    assert limiter.store_failures == 1


def test_failure_of_a_remote_store_on_an_event_loop(recorder: Recorder) -> None:
    async def calls() -> None:
        store = SlowStore()
        store.failure = StoreError("it is gone")
        limiter = AsyncLimiter(store, observer=recorder, on_store_error="closed")
        await limiter.connect()
        check = asyncio.create_task(limiter.check("a", "1/minute"))
        await store.answer_all()
        assert (await check).reason == "fail_closed"
        assert limiter.store_failures == 1

    asyncio.run(calls())
    (call,) = recorder.calls
    assert (call.checks[0].decision.reason, call.remote, call.store) == ("fail_closed", True, "the store")
    assert recorder.failed == [("it is gone", 1)]


def test_cancelled_check_is_given_back_and_has_no_decision(recorder: Recorder) -> None:
    async def calls() -> SlowStore:
        store = SlowStore()
        limiter = AsyncLimiter(store, observer=recorder)
        await limiter.connect()
        check = asyncio.create_task(limiter.check("a", "5/minute"))
        while not store.held:
            await asyncio.sleep(0)
        check.cancel()
        await asyncio.wait([check])
        await store.answer_all()
        return store

    store = asyncio.run(calls())
    assert store.used("a", "5/minute") == 0
    (call,) = recorder.calls
    assert call.checks == ()
    assert isinstance(call.error, asyncio.CancelledError)


def test_closed_store_raises_as_without_an_observer(recorder: Recorder) -> None:
    limiter = Limiter("memory://", observer=recorder)
    limiter.close()
    with pytest.raises(StoreClosedError):
        limiter.check("a", "1/minute")
    assert isinstance(recorder.calls[0].error, StoreClosedError)


def test_rules_are_observed_by_dimension(recorder: Recorder, make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2\ng global limit=1\ns user on=/shadow shadow limit=0", observer=recorder)
    gate.check("user=1")
    gate.check("user=1")
    assert recorder.take() == [("check", ("g", True, "global")), ("check", ("g", False, "global"))]
    gate.check("user=1 path=/shadow")
    (call,) = recorder.calls
    assert [(check.decision.name, check.dimension) for check in call.shadow_denials] == [("s", "user")]
    gate.peek("user=1")
    gate.reset("user=1")
    assert [operation for operation, *_ in recorder.take()] == ["check", "peek", "reset"]


def test_request_without_a_rule_is_observed(recorder: Recorder, make_limiter: Maker) -> None:
    gate = make_limiter("s user on=/shadow shadow limit=0", observer=recorder)
    assert gate.check("user=1").reason == "no_rule"
    gate.peek("user=1")
    assert recorder.take() == [("check", ("", True, "none"))]
    gate.check("user=1 path=/shadow")
    (call,) = recorder.calls
    assert [(check.decision.name, check.dimension) for check in call.checks] == [("", "none")]
    assert [(check.decision.name, check.dimension) for check in call.shadow_denials] == [("s", "user")]
    assert gate.limiter.shadow_denials == {"s": 1}


def test_observed_decision_is_the_returned_one(recorder: Recorder) -> None:
    limiter = Limiter("memory://", plans={"gold": ["5/second", "100/day"], "free": "0/minute"}, observer=recorder)
    for limits in ("gold", ["gold", "free"], "3/hour; 2/minute"):
        for cost in (1, 2, 200):
            returned = limiter.check("user:42", limits, cost)
            observed = recorder.calls[-1].checks[0].decision
            assert (observed.name, observed.allowed, observed.reason, observed.remaining, observed.retry_after) == (
                returned.name,
                returned.allowed,
                returned.reason,
                returned.remaining,
                returned.retry_after,
            )


def test_no_event_contains_a_key(recorder: Recorder) -> None:
    limiter = Limiter("memory://", observer=recorder)
    limiter.check("user:secret-name", "1/minute")
    limiter.check("user:secret-name", "1/minute")
    assert "secret-name" not in repr(recorder.calls)


class Broken(Observer):
    def __init__(self) -> None:
        self.called_times = 0

    def attached(self, status: StoreStatus) -> None:
        raise RuntimeError("attached")

    def called(self, call: LimiterCall) -> None:
        self.called_times += 1
        raise RuntimeError("called")

    def batch_sent(self, size: int) -> None:
        raise RuntimeError("batch_sent")

    def store_failed(self, error: StoreError, requests: int) -> None:
        raise RuntimeError("store_failed")


def test_failing_observer_changes_no_decision(caplog: pytest.LogCaptureFixture) -> None:
    store, observer = Flaky(), Broken()
    limiter = Limiter(store, observer=observer)
    assert [limiter.check("a", "2/minute").allowed for _ in range(3)] == [True, True, False]
    store.broken = True
    assert limiter.check("a", "2/minute").reason == "fail_open"
    assert observer.called_times == 4
    failures = [record for record in caplog.records if "observer failed" in record.message]
    assert len(failures) == 1, "once a minute at most"
    assert failures[0].exc_info is not None


def test_failures_of_an_observer_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    with caplog.at_level(logging.ERROR, "crestgate"):
        observation = Observation(Broken(), MemoryStore(), lambda: now)
        for _ in range(5):
            observation.batch_sent(1)
        now += LOG_SECONDS - 1
        observation.batch_sent(1)
        assert len(caplog.records) == 1
        now += 1
        observation.batch_sent(1)
    assert [record.getMessage() for record in caplog.records] == [
        "observer failed, decisions are unchanged (1 since last logged)",
        "observer failed, decisions are unchanged (7 since last logged)",
    ]


@pytest.mark.parametrize("given", ["prometheus", Recorder, object()])
def test_other_objects_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"observer must be a crestgate\.Observer"):
        Limiter("memory://", observer=given)


def test_limiter_without_an_observer_uses_the_shortcut_of_local_stores() -> None:
    """The hot path: see docs/observability.md."""
    plain = Limiter("memory://")
    assert plain.backend.observation is None
    assert plain.resolve("1/minute").local is plain.store
    assert plain.backend.apply == plain.store.apply


def test_base_class_ignores_everything() -> None:
    limiter = Limiter("memory://", observer=Observer())
    assert limiter.check("a", "1/minute").allowed


def test_status_goes_with_its_limiter(recorder: Recorder) -> None:
    limiter = Limiter("memory://", observer=recorder)
    weak = ref(recorder.statuses.pop())
    del limiter
    gc.collect()
    assert weak() is None


def test_configuration_with_an_observer(recorder: Recorder, tmp_path: Any) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text("store: memory://\nplans: {gold: 5/minute}\n")
    with Limiter.from_config(path, environ={}, observer=recorder) as limiter:
        limiter.check("user:42", "gold")
    assert recorder.take() == [("check", ("gold", True, "key"))]
