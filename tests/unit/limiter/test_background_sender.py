"""Give-backs in the background: no caller waits for them beyond its deadline, and what is lost is counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from crestgate import Limit, Limiter
from crestgate.core.algorithms import build
from crestgate.errors import StoreError
from crestgate.limiter import background_sender
from crestgate.limiter.background_sender import BackgroundSender
from crestgate.stores.port import BatchOutcomes, Member, Op, Request
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock
from shard import Shard

PATIENCE = 10.0


def give_back(key: str = "key") -> Request:
    return Request(Op.GIVE_BACK, [Member(key, build(Limit.parse("3/hour"), "limit"), 1)])


class StuckShard(Shard):
    """Decides; but it holds give-backs until it is told to go on, whatever their deadline."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.go_on = threading.Event()
        self.failure: StoreError | None = None

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if batch[0].op is Op.GIVE_BACK:
            assert self.go_on.wait(PATIENCE)
            if self.failure is not None:
                raise self.failure
        return super().call(batch, deadline)


class Denied:
    """A request over two shards, of which one is away: denied, and to be given back by the other."""

    def __init__(self) -> None:
        clock = FakeClock(1_700_000_000)
        self.shard = StuckShard(clock)
        away = Shard(clock)
        away.away = True
        self.shard.timeout = away.timeout = 0.05
        store = ShardedStore({"a": self.shard, "b": away})
        self.limiter = Limiter(store, on_store_error="closed")
        keys = [f"user:{n}" for n in range(100)]
        self.key = next(key for key in keys if store.node_of(key) == 0)
        other = next(key for key in keys if store.node_of(key) == 1)
        self.algorithm = build(Limit.parse("3/hour"), "limit")
        members = [Member(key, self.algorithm, 1) for key in (self.key, other)]
        (self.decision,) = self.limiter.decide([self.limiter.prepare_counters(Op.TAKE, members)])

    def remaining(self) -> int:
        peek = Request(Op.PEEK, [Member(self.key, self.algorithm, 1)])
        return self.shard.inner.apply([peek])[0][0].decision.remaining

    def drain(self) -> None:
        assert self.limiter.backend.sender is not None
        assert self.limiter.backend.sender.wait(time.monotonic() + PATIENCE)


def test_caller_is_answered_before_its_give_back_is_sent() -> None:
    denied = Denied()
    assert (denied.decision.allowed, denied.remaining()) == (False, 2), "it was answered, the give-back is still on"
    denied.shard.go_on.set()
    denied.drain()
    assert denied.remaining() == 3


def test_lost_give_back_is_counted() -> None:
    denied = Denied()
    before = denied.limiter.store_failures
    denied.shard.failure = StoreError("it went away, too")
    denied.shard.go_on.set()
    denied.drain()
    assert (denied.limiter.store_failures, denied.remaining()) == (before + 1, 2)


def test_closing_waits_for_give_backs_but_not_for_ever() -> None:
    denied = Denied()
    denied.limiter.close()  # it returns, although the shard is stuck
    assert denied.remaining() == 2
    denied.shard.go_on.set()
    denied.drain()
    denied.limiter.close()
    assert denied.remaining() == 3


def test_pending_give_backs_are_bounded() -> None:
    go_on, lost = threading.Event(), list[int]()

    def apply(batch: Sequence[Request]) -> BatchOutcomes:
        assert go_on.wait(PATIENCE)
        return [[] for _ in batch]

    sender = BackgroundSender(apply, lambda _, count: lost.append(count))
    for _ in range(background_sender.MAX_PENDING + 500):
        sender.send([give_back()])
    go_on.set()
    assert sender.wait(time.monotonic() + PATIENCE)
    assert 0 < sum(lost) <= 500


def test_thread_ends_when_all_is_sent_and_starts_again() -> None:
    sent: list[str] = []

    def apply(batch: Sequence[Request]) -> BatchOutcomes:
        sent.extend(request.members[0].key for request in batch)
        return [[] for _ in batch]

    sender = BackgroundSender(apply, lambda *_: None)
    for key in ("a", "b"):
        sender.send([give_back(key)])
        assert sender.wait(time.monotonic() + PATIENCE)
    assert sent == ["a", "b"]
    end = time.monotonic() + PATIENCE
    while any(thread.name == "crestgate-give-back" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_unexpected_error_is_counted_and_ends_nothing() -> None:
    lost: list[str] = []

    def apply(batch: Sequence[Request]) -> BatchOutcomes:
        raise ZeroDivisionError("a bug")

    sender = BackgroundSender(apply, lambda error, _: lost.append(str(error)))
    sender.send([give_back()])
    assert sender.wait(time.monotonic() + PATIENCE)
    assert lost == ["a give-back failed: ZeroDivisionError('a bug')"]


def test_forked_child_sends_nothing_of_its_parent() -> None:
    go_on = threading.Event()
    sender = BackgroundSender(lambda batch: [[] for _ in batch] if go_on.wait(PATIENCE) else [], lambda *_: None)
    sender.send([give_back()])
    child = os.fork()
    if child == 0:
        os._exit(0 if sender.wait(time.monotonic()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    assert sender.wait(time.monotonic() + PATIENCE)
