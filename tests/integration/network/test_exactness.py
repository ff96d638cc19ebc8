"""Eight processes of fifty tasks each together admit exactly the limit, on every remote store.

Assertions use the history that the processes recorded, never the store under test. Deadlines are long, so that no check
fails because the machine is busy, and none may fail.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from crestgate import Limiter
from integration.network.history import (
    admitted,
    assert_bounded,
    assert_denials_explained,
    assert_linearizable,
    assert_windows,
    by_key,
    cost,
    denied,
)
from integration.network.load_processes import LoadProcesses, with_options
from integration.network.workers import Target
from servers.redis import RedisServer

STORES = ["redis_server", "redis_cluster", "mariadb", "postgres"]
ALGORITHMS = ["leaky_bucket", "gcra", "fixed_window", "sliding_window_counter", "sliding_window_log"]

Url = Callable[[str], str]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Url:
    """The URL of a store by name, with a unique prefix."""

    def of(store: str) -> str:
        return with_unique_prefix(request.getfixturevalue(store).url)

    return of


def with_unique_prefix(url: str) -> str:
    return with_options(url, prefix=uuid4().hex, timeout_ms=10_000)


def used(url: str, key: str, limit: str) -> int:
    """The usage counted by the store."""
    with Limiter(url) as limiter:
        state = limiter.peek(key, limit, 0)
        assert state.reason == "ok"
        return state.limit - state.remaining


@pytest.mark.parametrize("store", STORES)
def test_one_key(store: str, url: Url, load_processes: LoadProcesses) -> None:
    limit = "10000/year"
    at = url(store)
    history = load_processes.run(at, [Target("key", [limit])], checks=40)
    assert assert_linearizable(history, 10_000) == 10_000
    assert used(at, "key", limit) == 10_000


@pytest.mark.parametrize("store", STORES)
def test_thousand_keys(store: str, url: Url, load_processes: LoadProcesses) -> None:
    history = load_processes.run(url(store), [Target(f"key:{i}", ["10/year"]) for i in range(1000)], checks=40)
    keys = by_key(history)
    assert len(keys) == 1000
    assert all(assert_linearizable(checks, 10) == 10 for checks in keys.values())


@pytest.mark.parametrize("store", STORES)
def test_every_algorithm(store: str, url: Url, load_processes: LoadProcesses) -> None:
    targets = [Target(algorithm, [f"1000/year using {algorithm}"]) for algorithm in ALGORITHMS]
    history = by_key(load_processes.run(url(store), targets, checks=20))
    assert {algorithm: assert_linearizable(history[algorithm], 1000) for algorithm in ALGORITHMS} == dict.fromkeys(
        ALGORITHMS, 1000
    )


@pytest.mark.parametrize("store", STORES)
def test_costs_and_chains(store: str, url: Url, load_processes: LoadProcesses) -> None:
    """A request denied by one limit of a chain is not counted by the others."""
    smaller, larger, log = "3000/year using fixed_window", "4000/year", "5000/year using sliding_window_log"
    costs = [1, 1, 2, 3, 5]
    targets = [
        Target("costs", ["2000/year using gcra"], costs),
        Target("log", ["1500/year using sliding_window_log"], costs),
        Target("chain", [larger, smaller, log], costs),
    ]
    at = url(store)
    history = by_key(load_processes.run(at, targets, checks=18))
    assert assert_linearizable(history["costs"], 2000) == 2000
    assert assert_linearizable(history["log"], 1500) == 1500
    assert assert_linearizable(history["chain"], 3000) == 3000
    assert [used(at, "chain", limit) for limit in (smaller, larger, log)] == [3000] * 3


@pytest.mark.parametrize("store", STORES)
def test_concurrent_give_backs(store: str, url: Url, load_processes: LoadProcesses) -> None:
    """No span admits more than the algorithm allows, and nothing is denied that fitted."""
    targets = [
        Target("bucket", ["100/second burst 50"], [1, 1, 3]),
        Target("window", ["50 per 500ms using fixed_window"]),
        Target("log", ["50 per 500ms using sliding_window_log"], [1, 2]),
    ]
    wall = time.time() - time.monotonic()
    history = by_key(load_processes.run(url(store), targets, checks=12, pause=0.08))
    for checks in history.values():
        assert cost(admitted(checks)) > 50, "it refilled"
        assert len(denied(checks)) > 50, "and denied meanwhile"
    assert_bounded(history["bucket"], lambda seconds: 50 + 100 * seconds)
    assert_denials_explained(history["bucket"], 50, lambda seconds: 100 * seconds)
    assert_windows(history["window"], 50, 0.5, wall)
    assert_bounded(history["log"], lambda seconds: 50 * (seconds // 0.5 + 1))
    assert_denials_explained(history["log"], 50, lambda seconds: 0 if seconds < 0.5 else float("inf"))


def test_chains_across_the_nodes_of_a_cluster(url: Url, load_processes: LoadProcesses) -> None:
    """Members are taken node by node and returned on denial: never too many, and nothing is lost."""
    limit = "2000/year using fixed_window"
    keys = ["a", "b", "c"]  # of three hash tags
    pairs = [("a", "b"), ("b", "c"), ("c", "a")]
    at = url("redis_cluster")
    targets = [Target(first, [limit], [1, 2, 3], [second]) for first, second in pairs]
    history = by_key(load_processes.run(at, targets, checks=20))
    for key in keys:
        charged = sum(cost(admitted(history[first])) for first, second in pairs if key in (first, second))
        assert used(at, key, limit) == charged <= 2000
    assert sum(cost(admitted(checks)) for checks in history.values()) >= 2900, "of 3,000; some met a reservation"


@pytest.mark.parametrize("store", ["redis_server", "mariadb"])
def test_threads(store: str, url: Url, load_processes: LoadProcesses) -> None:
    """Four processes of sixteen threads each."""
    targets = [Target("one", ["1500/year"]), Target("other", ["800/year using fixed_window"], [1, 2])]
    history = by_key(load_processes.run(url(store), targets, checks=60, callers=16, kind="threads", size=4))
    assert assert_linearizable(history["one"], 1500) == 1500
    assert assert_linearizable(history["other"], 800) == 800


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_script_flush_under_load(kind: str, load_processes: LoadProcesses) -> None:
    stop_event = threading.Event()

    def flush(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not stop_event.is_set():
                connection.sendall(b"SCRIPT FLUSH\r\n")
                assert connection.recv(100) == b"+OK\r\n"
                time.sleep(random.uniform(0, 0.01))  # a random time

    with RedisServer() as server:
        flushing = threading.Thread(target=flush, args=(server.port,))
        flushing.start()
        try:
            targets = [Target("key", ["3000/year"]), Target("log", ["500/year using sliding_window_log"], [1, 2])]
            callers = 50 if kind == "tasks" else 8
            history = by_key(
                load_processes.run(
                    with_unique_prefix(server.url), targets, checks=1000 // callers, callers=callers, kind=kind
                )
            )
        finally:
            stop_event.set()
            flushing.join()
        assert assert_linearizable(history["key"], 3000) == 3000
        assert assert_linearizable(history["log"], 500) == 500
        forgotten = [line for line in server.cli("INFO", "errorstats").split() if "NOSCRIPT" in line]
        assert forgotten, "no check met a server without the script"
