"""One turn: h2load calls one server for some seconds, and reports the rate and the latencies.

It sends the content of a file, which it reads again for every call. So the file is overwritten meanwhile, every
fraction of a millisecond, with the requests of one user after another.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import quantiles

from benchmarks.children import child

__all__ = ["MISSING", "Answered", "ask", "is_there", "version"]

PATIENCE_SECONDS = 30
PAUSE_SECONDS = 0.0002
"""Between two users."""
HEADERS = ("content-type: application/grpc", "te: trailers")
MISSING = """\
gRPC is measured with h2load, which is not installed here. `make bench` installs it where there is apt-get (apt-get
install nghttp2-client); elsewhere install it, or run the other parts one by one: --only machine, network, service,
latency, peers_services, frameworks, resp or imports."""
_RATE = re.compile(r"finished in [^,]+, ([\d.]+) req/s")
_REQUESTS = re.compile(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_GOOD = re.compile(r"status codes: (\d+) 2xx")
_DATA = re.compile(r"\((\d+)\) data")


@dataclass(frozen=True)
class Answered:
    """The result of h2load. Latencies are in microseconds."""

    calls: int
    per_second: float
    p50: float
    p99: float
    data_bytes: int
    """Of all messages. A call that is refused has none, and has HTTP's status 200 all the same."""


def is_there() -> bool:
    return shutil.which("h2load") is not None


def version() -> str:
    output = subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=True, timeout=10)
    return output.stdout.strip().rpartition("/")[2]


def ask(url: str, bodies: Sequence[bytes], folder: Path, seconds: int, connections: int, calls: int) -> Answered:
    """Send the bodies, which all have the same length. RuntimeError unless all responses are successful."""
    body, log = folder / "body", folder / "calls.tsv"
    body.write_bytes(bodies[0])
    log.unlink(missing_ok=True)  # h2load would append to it
    command = ["h2load", "-p", "h2c", "-c", f"{connections}", "-m", f"{calls}", "-D", f"{seconds}"]
    command += [part for header in HEADERS for part in ("-H", header)]
    command += ["-d", str(body), "--log-file", str(log), url]
    with child(command, folder=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        _rewrite(body, bodies, process, time.monotonic() + seconds + PATIENCE_SECONDS)
        written, _ = process.communicate(timeout=PATIENCE_SECONDS)
    output = written.decode(errors="replace")
    rate, requests, good, data = (found.search(output) for found in (_RATE, _REQUESTS, _GOOD, _DATA))
    if process.returncode != 0 or not (rate and requests and good and data):
        raise RuntimeError("\n".join([f"h2load could not ask {url}:", *output.splitlines()[-8:]]))
    done, succeeded, *lost = (int(number) for number in requests.groups())
    if not done or succeeded != done or any(lost) or int(good[1]) < done:
        raise RuntimeError(f"not all calls to {url} were answered: {requests[0]}; such figures mean nothing")
    took = [int(line.split(b"\t")[2]) for line in log.read_bytes().splitlines()]
    hundredths = quantiles(took, n=100, method="inclusive")
    return Answered(done, float(rate[1]), hundredths[49], hundredths[98], int(data[1]))


def _rewrite(file: Path, bodies: Sequence[bytes], process: subprocess.Popen[bytes], deadline: float) -> None:
    """Write one body after another, until h2load has exited."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        for body in cycle(bodies):
            os.pwrite(descriptor, body, 0)
            time.sleep(PAUSE_SECONDS)
            if process.poll() is not None or time.monotonic() > deadline:
                return
    finally:
        os.close(descriptor)
