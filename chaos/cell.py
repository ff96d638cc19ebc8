"""Runs one cell: a store, a fault, a seed, and a load meanwhile."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.clients import Clients, Control
from chaos.control import read_stalls
from chaos.environments import Environment, create_environment
from chaos.fake_time import FakeTime
from chaos.faults import Context, Fault
from chaos.history import Operation, by_key, read_journals
from chaos.judge import Evidence, Result, judge
from chaos.matrix import FAULTS
from chaos.network import Network
from chaos.slack import read_slack
from chaos.traffic import Traffic
from crestgate import Limiter
from servers.machine import private_folder, remove

__all__ = ["run_cell"]

REST = 2.6
"""Seconds of load between two faults: enough to recover, and to be measured."""
CAPACITY = 150
READ_TIMEOUT = 10.0


def run_cell(store: str, fault_name: str, seed: int, seconds: float, keep: Path | None = None) -> Result:
    """One cell of the table. `keep`: a folder for the journals, which are removed otherwise."""
    fault = FAULTS[fault_name]
    result = Result(store, fault_name, seed, seconds)
    if reason := fault.unsupported(store):
        result.skipped = reason
        return result
    slack = read_slack()
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        folder = private_folder("chaos-run") if keep is None else keep
        if keep is None:
            stack.callback(remove, folder)
        environment = create_environment(store, network, fault.settings(store))
        stack.callback(environment.close)
        fake_time = FakeTime(folder) if fault.fakes_server_clock else None
        fault.prepare(environment, stack)
        if fake_time is not None:
            with fake_time.around():
                environment.start()
        else:
            environment.start()
        evidence = _run(stack, environment, fault, fake_time, folder, seed, seconds, result)
        return judge(result, evidence, slack)


def _run(
    stack: ExitStack,
    environment: Environment,
    fault: Fault,
    fake_time: FakeTime | None,
    folder: Path,
    seed: int,
    seconds: float,
    result: Result,
) -> Evidence:
    rng = random.Random(f"{seed} {result.store} {result.fault}")
    traffic = Traffic(CAPACITY, fault.epoch_seconds, time.monotonic_ns())
    clients = Clients(environment.network, environment.url(), traffic, seed, folder)
    clients.shared = environment.shared
    stack.callback(clients.close)
    context = Context(environment, clients, environment.network, rng, fake_time)
    windows: list[tuple[int, int]] = []
    clients.start()
    control = Control(folder)
    stack.enter_context(control)
    began = time.monotonic()
    if fault.whole_run:
        at = time.monotonic_ns()
        fault.begin(context)
        time.sleep(seconds)
        fault.end(context)
        windows.append((at, time.monotonic_ns()))
        time.sleep(REST)
    else:
        time.sleep(max(0.8, seconds * 0.05) * (0.5 + rng.random()))
        while not windows or (time.monotonic() - began + REST < seconds and not fault.once):
            at = time.monotonic_ns()
            fault.begin(context)
            time.sleep(rng.uniform(*fault.seconds))
            fault.end(context)
            windows.append((at, time.monotonic_ns()))
            time.sleep(REST)
        if fault.once:
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    finished = time.monotonic_ns()
    reports = clients.finish()
    lateness = control.lateness()
    operations = read_journals(clients.journals())
    reads: list[Operation] = []
    chains: list[list[int]] = []
    if environment.shared:
        reads, chains = _read(environment.url(READ_TIMEOUT), traffic, operations)
    stalls = {int(path.name.partition("-")[2]): read_stalls(path) for path in clients.stalls()}
    if logged := clients.logs():
        result.notes.append(logged[-300:])
    result.notes += context.notes
    return Evidence(
        operations,
        reads,
        chains,
        windows,
        context.events,
        lateness,
        stalls,
        reports,
        finished,
        CAPACITY,
        environment.counters(),
    )


def _read(url: Any, traffic: Traffic, operations: list[Operation]) -> tuple[list[Operation], list[list[int]]]:
    """The usage of every counter that does not refill, and of each limit of the chains."""
    reads, chains = [], []
    with Limiter(url, on_store_error="closed") as limiter:
        for key in sorted(by_key(operations)):
            if "flow:" in key:
                continue
            start = time.monotonic_ns()
            decision = limiter.peek(key, traffic.limits(key), 0)
            if decision.reason != "ok":
                raise RuntimeError(f"{key} cannot be read at the end: {decision}")
            end = time.monotonic_ns()
            reads.append(Operation(key, 0, start, end, True, decision.remaining))
            if key.startswith("chain:"):
                chains.append([part.limit - part.remaining for part in decision.parts])
    return reads, chains
