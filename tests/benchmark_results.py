"""Small results of every part of the benchmarks, for tests of what is written from them."""

from __future__ import annotations

from typing import Any

from benchmarks import figures, summaries, summary
from benchmarks.candidates import ALGORITHMS, Setup
from benchmarks.figures import Spread
from benchmarks.frameworks import results as frameworks_results
from benchmarks.frameworks.entry import ENTRIES as APPLICATIONS
from benchmarks.growth import results as growth_results
from benchmarks.growth.rule_sets import SIZES
from benchmarks.growth.workers import WorkersTurn
from benchmarks.latency import results as latency_results
from benchmarks.latency.entry import ENTRIES as LATENCY_ENTRIES
from benchmarks.latency.histogram import bucket_counts
from benchmarks.network import results as network_results
from benchmarks.network.contests import CONTESTS
from benchmarks.network.load import Turn as NetworkTurn
from benchmarks.peer_services import results as peers_results
from benchmarks.peer_services.entry import ENTRIES as PEERS
from benchmarks.peer_services.install import NOT_PACKAGED
from benchmarks.rpc import results as rpc_results
from benchmarks.rpc.entry import CONTESTS as RPC_CONTESTS
from benchmarks.service import results as service_results
from benchmarks.service.entry import CONTESTS as SERVICE_CONTESTS

__all__ = [
    "BUILD",
    "all_summaries",
    "frameworks_run",
    "growth_run",
    "latency_run",
    "machine_results",
    "network_run",
    "peers_run",
    "rpc_run",
    "service_run",
]

MACHINE = {"processor": "a processor", "cores": "2", "flush": "0.1 ms", "load when the run began": "0.50"}
RUN: dict[str, Any] = {"quick": False, "date": "2026-01-02", "machine": MACHINE}
BUILD = "crestgate 1.0 (compiled)"
ROUNDS = 3


def machine_results() -> figures.Results:
    """A check takes 1 µs (an object 2, a text 3), denied 4, a peer 36, in shared memory 2 and in Redis 100."""
    times: dict[Setup, list[float] | str] = {}

    def contests(amount: int, ours: dict[str, float]) -> list[figures.Contest]:
        found = []
        for algorithm in ALGORITHMS:
            for form, taken in ours.items():
                mine = Setup("crestgate", algorithm, "memory://", amount, "minute", form)
                peer = Setup("limits", algorithm, "memory://", amount, "minute")
                times.update({mine: [taken * 1000] * ROUNDS, peer: [36_000.0] * ROUNDS})
                one = figures.contest(mine, [peer], times)
                assert one is not None
                found.append(one)
        return found

    shared = [figures.Contest(name, ROUNDS, 2.0, [_peer("fixed_window", 50.0)]) for name in ALGORITHMS]
    build = figures.Build(
        "compiled",
        BUILD,
        admitted=contests(1_000_000, {"bound": 1.0, "object": 2.0, "text": 3.0}),
        denied=contests(1, {"bound": 4.0, "object": 4.0, "text": 8.0}),
        shared=shared,
        bytes_per_key=dict.fromkeys(ALGORITHMS, 200.0),
        empty_call=0.05,
    )
    peers = {name: {"limits": 400.0} for name in ALGORITHMS}
    return figures.Results(
        versions={}, builds=[build], peers_bytes_per_key=peers, keys_for_bytes=1_000, left_out=[], **RUN
    )


def _peer(algorithm: str, times: float) -> figures.Peer:
    return figures.Peer("throttled-py", algorithm, 100.0, Spread(times, times, times))


def network_run() -> network_results.Results:
    """Crestgate answers 90,000 a second, everybody else 10,000, and each takes 1 ms."""
    outcomes = {}
    for contest in CONTESTS:
        measured = [
            network_results.Measured(
                entry,
                [
                    NetworkTurn(
                        90_000.0 if entry.library in ("crestgate", "crestgate leased") else 10_000.0, 1000.0, 2000.0
                    )
                ]
                * ROUNDS,
            )
            for entry in contest.entries("redis://127.0.0.1")
        ]
        outcomes[contest.name] = network_results.Outcome(contest.name, measured, ROUNDS, 1.0)
    return network_results.Results(versions={"crestgate": "1.0"}, outcomes=outcomes, left_out=[], seconds=1.0, **RUN)


def service_run() -> service_results.Results:
    turns = [service_results.Turn(2_000.0, 1000.0, 2000.0, 500.0)] * ROUNDS
    outcomes = [
        service_results.Outcome(
            contest.workers, [service_results.Measured(entry, turns) for entry in contest.entries], ROUNDS, 1
        )
        for contest in SERVICE_CONTESTS
    ]
    counting = dict.fromkeys(("rule", "key", "publishing"), [1.0] * ROUNDS)
    return service_results.Results(versions={}, build=BUILD, outcomes=outcomes, counting=counting, seconds=1.0, **RUN)


def rpc_run() -> rpc_results.Results:
    turns = [service_results.Turn(2_000.0, 1000.0, 2000.0, 50.0)] * ROUNDS
    outcomes = [
        rpc_results.Outcome(
            contest.connections, contest.calls, [rpc_results.Measured(entry, turns) for entry in contest.entries]
        )
        for contest in RPC_CONTESTS
    ]
    megabytes = {entry.served: 50.0 for contest in RPC_CONTESTS for entry in contest.entries}
    return rpc_results.Results(
        versions={},
        build=BUILD,
        outcomes=outcomes,
        megabytes=megabytes,
        rounds=ROUNDS,
        turn_seconds=1,
        seconds=1.0,
        **RUN,
    )


def latency_run() -> latency_results.Results:
    turns = [latency_results.Turn(8_000.0, 60.0, bucket_counts([1_000.0] * 99 + [4_000.0]), 100.0)] * ROUNDS
    measured = [
        latency_results.Measured(entry, turns, dict.fromkeys(("10 %", "50 %", "80 %"), turns))
        for entry in LATENCY_ENTRIES
    ]
    return latency_results.Results(
        versions={},
        build=BUILD,
        measured=measured,
        rounds=ROUNDS,
        turn_seconds=1.0,
        seconds=1.0,
        left_out=["HTTP, tape: too slow"],
        **RUN,
    )


def peers_run(*, installed: bool = True) -> peers_results.Results:
    """Crestgate takes 20 µs for a call, others 80; at light load ratelimit takes half of our time to answer."""

    def turn(served: str) -> latency_results.Turn:
        taken = 500.0 if served == "ratelimit" else 1_000.0
        return latency_results.Turn(9_000.0, 20.0 if served == "crestgate" else 80.0, bucket_counts([taken] * 100), 1.0)

    measured = [
        peers_results.Measured(entry, keys, [turn(entry.served)] * ROUNDS, [turn(entry.served)] * ROUNDS)
        for keys in (1, 10_000)
        for entry in PEERS
        if installed or entry.served == "crestgate"
    ]
    return peers_results.Results(
        versions={},
        build=BUILD,
        measured=measured,
        rounds=ROUNDS,
        turn_seconds=1.0,
        seconds=1.0,
        left_out=[NOT_PACKAGED],
        **RUN,
    )


def growth_run(*, last: float = 2.2) -> growth_results.Results:
    """From one key to a million, a dict takes twice as long, and a check `last` times."""
    keys = {
        "memory": {
            "crestgate": {"1": [1.0] * ROUNDS, "1000000": [last] * ROUNDS},
            "dict": {"1": [0.1] * ROUNDS, "1000000": [0.2] * ROUNDS},
        }
    }
    chain = {"memory": {"crestgate": {"1": [1.0] * ROUNDS, "8": [3.0] * ROUNDS}}}
    rules = {
        "resolving": {str(size): {"us": 5.0, "ratio": 1.5, "low": 1.0, "high": 2.0} for size in SIZES},
        "loading": {"sqlite": {"seconds": 9.0, "megabytes": 300.0, "change_ms": 38.0}},
    }
    crowds = {str(count): [{"per_second": count * 1e6, "processor": 1.0}] * ROUNDS for count in (1, 2)}
    workers = {
        protocol: {str(count): [WorkersTurn(count * 1e4, 50.0, count * 100.0)] * ROUNDS for count in (1, 2)}
        for protocol in ("http", "grpc")
    }
    return growth_results.Results(
        build=BUILD,
        keys=keys,
        chain=chain,
        rules=rules,
        callers=network_run().outcomes["redis"],
        processes={"memory": crowds, "shared": crowds},
        workers=workers,
        seconds=1.0,
        **RUN,
    )


def frameworks_run() -> frameworks_results.Results:
    turns = [frameworks_results.Turn(9_000.0, 1000.0, 2000.0, 100.0, 1.0, 10.0)] * ROUNDS
    measured = [frameworks_results.Measured(entry, turns) for entry in APPLICATIONS]
    return frameworks_results.Results(
        versions={}, build=BUILD, measured=measured, rounds=ROUNDS, turn_seconds=1, seconds=1.0, **RUN
    )


def all_summaries() -> dict[str, summary.Summary]:
    return {
        "machine": summaries.machine(machine_results()),
        "network": summaries.network(network_run()),
        "service": summaries.service(service_run()),
        "rpc": summaries.rpc(rpc_run()),
        "latency": summaries.latency(latency_run()),
        "peers_services": summaries.peers(peers_run()),
        "growth": summaries.growth(growth_run()),
        "frameworks": summaries.frameworks(frameworks_run()),
    }
