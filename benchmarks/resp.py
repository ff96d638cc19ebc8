"""The RESP part of the page: `CL.THROTTLE` at the service, beside the same limit as a script in a real Redis.

redis-benchmark sends both from the other core: 50 connections, with several calls under way on each. The servers take
turns in rounds, and what counts is the ratio within a round.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import environments, machine
from benchmarks.children import environment
from benchmarks.formatting import table
from benchmarks.private_servers import private_server, server_version
from benchmarks.service import serving
from benchmarks.service.entry import SETTINGS

__all__ = ["RespResults", "measure", "targets", "write"]

TITLE = "# Benchmarks of RESP"
ROUNDS, CALLS = 9, 200_000
CONNECTIONS, PIPELINED, KEYS = 50, 16, 10_000
REDIS = "EVALSHA, Redis"
SERVICES: dict[str, dict[str, Any]] = {"CL.THROTTLE, memory": {"store": "memory://"}, "CL.THROTTLE, shared memory": {}}
LIMIT = ("99999", "100000", "60")
"""max_burst, count and period: nearly all calls are allowed, as in most traffic."""
SCRIPT = """
local burst, count, period = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = period * 1000000 / count
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + interval
local early = full - now - (burst + 1) * interval
if early > 0 then
    return {1, burst + 1, 0, math.ceil(early / 1000000), math.ceil((full - interval - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {0, burst + 1, math.floor(-early / interval), -1, math.ceil((full - now) / 1000000)}
"""
"""GCRA in as few steps as it can be written in, with the answers of CL.THROTTLE."""
_RATE = re.compile(r'^"[^"]*","([\d.]+)"', re.MULTILINE)


@dataclass(frozen=True)
class RespResults:
    """Calls per second of each server in each round."""

    date: str
    machine: dict[str, str]
    redis: str
    build: str
    rates: dict[str, list[float]]


def measure(root: Path, quick: bool) -> RespResults:
    described = machine.described()
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    cores = sorted(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {name: [] for name in (*SERVICES, REDIS)}
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as temporary,
    ):
        os.sched_setaffinity(0, {cores[0]})  # which the servers inherit
        stack.callback(os.sched_setaffinity, 0, set(cores))
        commands = {REDIS: _redis(stack)}
        for number, (name, settings) in enumerate(SERVICES.items()):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            commands[name] = _service(stack, environments.python(root, build), folder, settings)
        os.sched_setaffinity(0, set(cores[1:]) or {cores[0]})
        for turn in range(-1, 2 if quick else ROUNDS):  # the first is not counted
            names = list(rates)
            begin = turn % len(names)
            for name in names[begin:] + names[:begin]:
                rate = _call(*commands[name], calls=CALLS // 10 if quick else CALLS)
                if turn >= 0:
                    rates[name].append(rate)
    return RespResults(machine.today(), described, server_version("redis"), builds[build], rates)


def write(results: RespResults) -> str:
    described = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    return "\n\n".join(
        [
            TITLE,
            "What one core decides when [Redis clients](resp.md) call the service, beside the same limit as a script "
            "in a real Redis on the same core.",
            targets(results),
            f"{CONNECTIONS} connections with {PIPELINED} calls under way on each, {KEYS:,} keys under a limit that "
            f"allows all, {CALLS:,} calls a turn, sent by redis-benchmark from another core. Medians of "
            f"{len(results.rates[REDIS])} rounds, in which the servers take turns; in brackets the lowest "
            "and the highest. The script is GCRA in as few steps as it can be written "
            "in, and answers what `CL.THROTTLE` does; it is in benchmarks/resp.py.",
            f"{results.build}, one worker; Redis {results.redis}. {results.date}. {described}.",
        ]
    )


def targets(results: RespResults) -> str:
    bare = results.rates[REDIS]
    rows = []
    for name, rates in results.rates.items():
        ratios = sorted(mine / theirs for mine, theirs in zip(rates, bare, strict=True))
        reached = "met" if median(ratios) >= 1 else "**missed**"
        rows.append(
            [
                name,
                f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})",
                f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})",
                "" if name == REDIS else f"1: {reached}",
            ]
        )
    return table(["calls", "per second", "of Redis", "at least"], rows)


Command = tuple[int, list[str]]
"""A port, and what is sent to it."""


def _redis(stack: ExitStack) -> Command:
    port = int(stack.enter_context(private_server("redis")).rpartition(":")[2].partition("/")[0])
    loaded = _run(["redis-cli", "-p", str(port), "SCRIPT", "LOAD", SCRIPT]).strip()
    return port, ["EVALSHA", loaded, "1", "key:__rand_int__", *LIMIT]


def _service(stack: ExitStack, python: Path, folder: Path, settings: dict[str, Any]) -> Command:
    port = serving.free_port()
    server = {"server": SETTINGS["server"] | {"resp": f"127.0.0.1:{port}"}}  # with a node limit that is not reached
    stack.enter_context(serving.service(python, 1, folder, settings | server))
    return port, ["CL.THROTTLE", "key:__rand_int__", *LIMIT]


def _call(port: int, command: list[str], calls: int) -> float:
    """The calls per second of one turn."""
    options = ["-c", str(CONNECTIONS), "-P", str(PIPELINED), "-n", str(calls), "-r", str(KEYS), "--csv"]
    output = _run(["redis-benchmark", "-p", str(port), *options, *command])
    rate = _RATE.findall(output)
    if not rate:
        raise RuntimeError(f"redis-benchmark said: {output}")
    return float(rate[-1])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:8])}: {done.stderr or done.stdout}")
    return done.stdout
