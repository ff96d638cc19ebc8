"""Forking while other threads wait or hold locks."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from statistics import median

from crestgate import Limiter
from crestgate.runtime.fork_safety import MAX_WAIT


def in_child(work: object) -> int:
    """Run `work` in a forked child; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert callable(work)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forked_child_does_not_wait_behind_the_parents_threads() -> None:
    limiter = Limiter("memory://")
    limiter.check("k", "1/hour")
    waiting = threading.Thread(target=lambda: limiter.acquire("k", "1/hour"), daemon=True)
    waiting.start()
    while not limiter.wait_queue.waiting:
        pass
    limiter.reset("k", "1/hour")
    assert in_child(lambda: 0 if limiter.acquire("k", "1/hour", timeout=5).allowed else 1) == 0


def test_forks_and_chains_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Both take many locks. If not in the same order, each fork would wait for MAX_WAIT, and checks for the forks.

    The timeout is one that a busy machine does not reach: three threads share the interpreter with the forks."""
    limiter = Limiter(f"shared://{tmp_path}/counters?max_keys=2000&timeout_ms=30000")
    chain = [f"{count}/hour" for count in range(100_000, 100_006)]
    stop = threading.Event()

    def check() -> None:
        while not stop.is_set():
            limiter.check(f"k{threading.get_ident()}", chain)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes: list[int] = []
    forks: list[float] = []
    for _ in range(30):
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if limiter.check("child", chain).reason == "ok" else 1
            finally:
                os._exit(code)
        forks.append(time.monotonic() - started)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 30
    assert median(forks) < MAX_WAIT
    assert limiter.store_failures == 0
    limiter.close()
