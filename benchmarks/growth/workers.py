"""The service with 1 to 8 workers: all of them run, and wrk (HTTP) or h2load (gRPC) asks one of them at a time."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.latency.entry import requests_of, settings
from benchmarks.rpc import h2load
from benchmarks.rpc.entry import LIMITS_FILE, limits
from benchmarks.rpc.messages import SHOULD
from benchmarks.service import serving, wrk
from benchmarks.service.entry import CHECK, bodies
from benchmarks.service.serving import Server

__all__ = ["WORKERS", "WorkersTurn", "held"]

WORKERS = (1, 2, 4, 8)
CONNECTIONS, CALLS = 16, 8
"""Of gRPC: enough connections that every worker gets some."""


@dataclass(frozen=True)
class WorkersTurn:
    """Calls per second, the processor time of all workers for one, and their resident memory together."""

    per_second: float
    processor: float
    megabytes: float


def held(python: Path, rounds: int, seconds: int) -> dict[str, dict[str, list[WorkersTurn]]]:
    """Turns by protocol and number of workers."""
    found: dict[str, dict[str, list[WorkersTurn]]] = {
        protocol: {str(count): [] for count in WORKERS} for protocol in ("http", "grpc")
    }
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as temporary:
        load = _Load(Path(temporary), seconds)
        with ExitStack() as stack:
            servers = {count: load.started(stack, python, count) for count in WORKERS}
            for done in range(rounds + 1):  # the first does not count
                counts = list(WORKERS)
                begin = done % len(counts)
                for count in counts[begin:] + counts[:begin]:
                    for protocol, turns in found.items():
                        turn = load.turn(protocol, *servers[count])
                        if done:
                            turns[str(count)].append(turn)
    return found


class _Load:
    """What is sent, and the folder that it is in."""

    def __init__(self, folder: Path, seconds: int) -> None:
        self.folder = folder
        self.seconds = seconds
        self.bodies = folder / "bodies.txt"
        self.bodies.write_text("".join(f"{body}\n" for body in bodies("rule")))
        self.messages = requests_of("grpc")

    def started(self, stack: ExitStack, python: Path, count: int) -> tuple[Server, int]:
        folder = self.folder / str(count)
        folder.mkdir()
        (folder / LIMITS_FILE).write_text(json.dumps(limits()))  # which is YAML, too
        port = serving.free_port()
        return stack.enter_context(serving.service(python, count, folder, settings(""), grpc_port=port)), port

    def turn(self, protocol: str, server: Server, port: int) -> WorkersTurn:
        used = server.processor_seconds()
        if protocol == "http":
            answered = wrk.ask(server.url(CHECK), self.bodies, self.seconds)
            calls, rate = answered.requests, answered.requests / answered.seconds
        else:
            url = f"http://127.0.0.1:{port}{SHOULD}"
            asked = h2load.ask(url, self.messages, self.folder, self.seconds, CONNECTIONS, CALLS)
            calls, rate = asked.calls, asked.per_second
        used = server.processor_seconds() - used
        return WorkersTurn(rate, used * 1e6 / calls, server.resident_megabytes())
