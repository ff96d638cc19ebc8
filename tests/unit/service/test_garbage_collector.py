"""A worker's garbage collector runs seldom; that of a program which uses the library is its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARY = """
import asyncio, gc
before = gc.get_threshold()
from crestgate import AsyncLimiter, Limiter
with Limiter("memory://") as limiter:
    assert limiter.check("a", "5/minute").allowed
async def check():
    async with AsyncLimiter("memory://") as limiter:
        assert (await limiter.check("a", "5/minute")).allowed
asyncio.run(check())
assert (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()) == (before, 0, True)
"""
WORKER = """
import gc
before = gc.get_threshold()
import crestgate.service.worker
from crestgate.service.garbage_collector import THRESHOLD, configure_garbage_collector
assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
configure_garbage_collector()
assert gc.get_threshold() == (THRESHOLD, *before[1:])
assert gc.get_freeze_count() > 50_000
assert gc.isenabled()
class Cycle:
    alive = 0
    def __init__(self):
        Cycle.alive += 1
        self.itself = self
    def __del__(self):
        Cycle.alive -= 1
most = 0
for _ in range(10 * THRESHOLD):
    Cycle()
    most = max(most, Cycle.alive)
assert most <= THRESHOLD + 100
"""


@pytest.mark.parametrize("program", [LIBRARY, WORKER])
def test_only_a_worker_configures_the_garbage_collector(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
