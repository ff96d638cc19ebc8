"""One turn: wrk calls one server for some seconds, and reports the rate and the latencies.

The turns of the frameworks use it, too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import child

__all__ = ["CONNECTIONS", "MISSING", "Answered", "ask", "ask_with", "is_there", "version"]

CONNECTIONS = 32
SCRIPT = Path(__file__).with_name("requests.lua")
PATIENCE_SECONDS = 30
MISSING = """\
The service and the frameworks are measured with wrk, which is not installed here. `make bench` installs it where there
is apt-get (apt-get install wrk); elsewhere install it, or run the other parts one by one: --only machine, network,
rpc, latency, peers_services, resp or imports."""


@dataclass(frozen=True)
class Answered:
    """The result of wrk. Latencies are in microseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float


def is_there() -> bool:
    return shutil.which("wrk") is not None


def version() -> str:
    output = subprocess.run(["wrk", "--version"], capture_output=True, text=True, check=False, timeout=10)
    found = re.search(r"\d+(\.\d+)+", output.stdout + output.stderr)
    return found[0] if found else "unknown"


def ask(url: str, bodies: Path, seconds: int, *, token: str = "", fresh: str = "") -> Answered:
    """Send the bodies in rotation. RuntimeError unless all responses are successful."""
    return ask_with(SCRIPT, url, seconds, CONNECTIONS, (str(bodies), token or "-", fresh or "-"))


def ask_with(script: Path, url: str, seconds: int, connections: int, arguments: Sequence[str] = ()) -> Answered:
    """Send the requests of a script, which prints its result in the last line, as requests.lua does."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url, "--", *arguments]
    with child(command, folder=script.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        written, _ = process.communicate(timeout=seconds + PATIENCE_SECONDS)
    lines = written.decode(errors="replace").splitlines()
    if process.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise RuntimeError("\n".join([f"wrk could not ask {url}:", *lines[-5:]]))
    output: dict[str, Any] = json.loads(lines[-1])
    if output["refused"] or output["lost"] or not output["requests"]:
        raise RuntimeError(
            f"of {output['requests']} requests to {url}, {output['refused']} were refused and {output['lost']} lost: "
            "such figures mean nothing"
        )
    return Answered(output["requests"], output["microseconds"] / 1e6, output["p50"], output["p99"])
