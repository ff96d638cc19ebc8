"""Counters move from MariaDB to Redis and back under load, while both servers are killed and stopped: nobody is
admitted beyond the limit.

Redis writes every command to disk before it answers, as MariaDB does, so that a kill loses nothing: what a store loses
by itself is not a matter of a migration. The policy is `closed`, so that only stores admit.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from crestgate import Limiter
from crestgate.stores.factory import open_store
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from servers.mariadb import MariaDB
from servers.redis import RedisServer

SEED = int(os.environ.get("CRESTGATE_TEST_SEED", "17"))
INSTANCES = 3
STEPS = [0, 30, 100, 100, 40, 0, 0]
"""Percentages, each for a while."""
STEP_SECONDS = 4.5
MIN_STAY_US = 3_000_000
"""Shorter than usual, so that counters move several times, and longer than a server is stopped."""
COUNT = 1000
ALGORITHMS = [
    *("token_bucket", "leaky_bucket", "gcra"),
    *("fixed_window", "sliding_window_log", "sliding_window_counter"),
]
LIMITS = {name: f"{COUNT}/year using {name}" for name in ALGORITHMS}
"""So long a period that nothing recovers during the test: each subject is admitted COUNT times in all."""
SUBJECTS = [f"user:{number}" for number in range(4)]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer(settings={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


def opened(source: str, to: str, percent: float) -> MigratingStore:
    return MigratingStore(open_store(source), open_store(to), Share(percent), MIN_STAY_US)


class Instance(threading.Thread):
    """One instance of a service: a limiter that is built again whenever its settings change, and load on it."""

    def __init__(self, source: str, to: str, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.source, self.to = source, to
        self.random = random.Random(seed)
        self.stop = stop
        self.percent = self.applied = 0.0
        self.admitted: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.carried: Counter[str] = Counter()
        self.longest = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.applied = self.percent
                store = opened(self.source, self.to, self.applied)
                with closing(store), Limiter(store, on_store_error="closed") as limiter:
                    while self.applied == self.percent and not self.stop.is_set():
                        self.check(limiter)
                    self.carried.update(limiter.store_counts)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.error = error

    def check(self, limiter: Limiter) -> None:
        subject, name = self.random.choice(SUBJECTS), self.random.choice(ALGORITHMS)
        cost = self.random.choice([1, 1, 1, 2, 5])
        before = time.monotonic()
        decision = limiter.check(subject, LIMITS[name], cost=cost)
        self.longest = max(self.longest, time.monotonic() - before)
        self.reasons[decision.reason] += 1
        if decision.allowed:
            self.admitted[subject, name] += cost


@pytest.mark.slow
def test_there_and_back_while_both_stores_are_killed(
    mariadb: MariaDB, redis: RedisServer, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(SEED)
    options = f"prefix=kills{SEED}&timeout_ms=500"
    stop = threading.Event()
    instances = [
        Instance(f"{mariadb.url}?{options}", f"{redis.url}?{options}", SEED + n, stop) for n in range(INSTANCES)
    ]
    for one in instances:
        one.start()
    kills = 0
    for number, percent in enumerate(STEPS):
        ends = time.monotonic() + STEP_SECONDS
        for one in chance.sample(instances, INSTANCES):  # a roll-out reaches one after the other
            one.percent = percent
            time.sleep(chance.uniform(0, 0.2))
        server = (mariadb, redis)[number % 2]
        time.sleep(chance.uniform(0, STEP_SECONDS - 1))  # counters move some time after the roll-out
        if chance.random() < 0.3:
            server.pause()
            time.sleep(chance.uniform(0.1, 0.7))
            server.resume()
        else:
            server.kill()
            kills += 1
            time.sleep(chance.uniform(0, 0.3))
            server.start()
        time.sleep(max(0.0, ends - time.monotonic()))
    stop.set()
    for one in instances:
        one.join(60)
        assert not one.is_alive()
        if one.error is not None:
            raise one.error

    admitted: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    carried: Counter[str] = Counter()
    for one in instances:
        admitted.update(one.admitted)
        reasons.update(one.reasons)
        carried.update(one.carried)
    most = max(admitted.values())
    figures = f"{kills} kills, at most {most} of {COUNT} admitted, {admitted.total()} in all, {reasons}, {carried}"
    record_property("migration", figures)
    assert kills
    assert most <= COUNT, figures
    assert carried["migrate_carried"] >= len(ALGORITHMS), figures
    assert carried["migrate_carried_back"] >= 1, figures
    assert reasons["fail_closed"], figures
    # Lost answers leave too much charged, never too little; most of it is still there to use.
    store = opened(instances[0].source, instances[0].to, 0)
    with closing(store), Limiter(store, on_store_error="closed") as last:
        for subject in SUBJECTS:
            for name, limit in LIMITS.items():
                decision = last.peek(subject, limit)
                assert decision.reason in ("ok", "limited"), figures
                assert decision.remaining <= COUNT - admitted[subject, name], (subject, name, figures)
