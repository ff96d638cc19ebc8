"""A day of traffic on virtual time, on the memory store and rules: nothing grows, and every bound holds."""

from __future__ import annotations

import gc
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from chaos.load import counts
from crestgate import Limiter, RequestContext
from crestgate.testing import FakeClock

__all__ = ["MAX_KEYS", "resident_bytes", "virtual_day"]

MAX_KEYS = 2000
STEP = 0.5
"""Virtual seconds between two requests of the crowd, on average."""
CONFIG = """\
store: memory://?max_keys=2000
rules:
  - {rule_id: per-user, name: Per user, dimension: user, identifier: '*', limit: 20, window_seconds: 60}
  - {rule_id: per-day, name: Per day, dimension: user, identifier: '*', limit: 300, window_seconds: 86400,
     algorithm: fixed_window}
  - {rule_id: per-address, name: Per address, dimension: ip, identifier: '*', endpoint_pattern: /orders/*, limit: 5,
     window_seconds: 10, algorithm: token_bucket}
"""
START = 1_700_006_400
"""The beginning of a day."""


def resident_bytes(pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def virtual_day(hours: int = 24, seed: int = 1) -> list[dict[str, Any]]:
    """Samples per virtual hour: memory, fds, threads, and what was admitted."""
    rng = random.Random(seed)
    clock = FakeClock(START)
    samples = []
    with tempfile.TemporaryDirectory(prefix="crestgate-chaos-") as folder:
        file = Path(folder) / "crestgate.yaml"
        file.write_text(CONFIG)
        with Limiter.from_config(file, environ={}, clock=clock) as limiter:
            steady: Counter[str] = Counter()
            for hour in range(hours):
                end = START + 3600 * (hour + 1)
                while clock.now() < end:
                    clock.advance(rng.expovariate(1 / STEP))
                    if clock.now() >= START + 3600 * hours:
                        break  # another day, with another window
                    stranger = RequestContext(
                        ip=f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}",
                        user=f"u{rng.randrange(10**9)}",
                        path=f"/orders/{rng.randrange(10**6)}",
                    )
                    limiter.check_request(stranger)
                    for _ in range(2):
                        user = f"steady{rng.randrange(8)}"
                        steady[user] += limiter.check_request(RequestContext(user=user, path="/")).allowed
                gc.collect()
                samples.append({**counts(), "bytes": resident_bytes(), "admitted": max(steady.values())})
    return samples
