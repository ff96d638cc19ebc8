"""Forking in the middle of things."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from headgate import Limiter


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


def test_a_child_does_not_queue_behind_its_parent_s_threads() -> None:
    limiter = Limiter("memory://")
    limiter.check("k", "1/hour")
    waiting = threading.Thread(target=lambda: limiter.acquire("k", "1/hour"), daemon=True)
    waiting.start()
    while not limiter._line._waiting:
        pass
    limiter.reset("k", "1/hour")
    assert in_child(lambda: 0 if limiter.acquire("k", "1/hour", timeout=5).allowed else 1) == 0


def test_forks_and_chains_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Both take many locks; if not in the same order, checks would run into their deadline."""
    limiter = Limiter(f"shared://{tmp_path}/counters?max_keys=2000&timeout_ms=2000")
    chain = [f"{count}/hour" for count in range(100_000, 100_006)]
    stop = threading.Event()

    def check() -> None:
        while not stop.is_set():
            limiter.check(f"k{threading.get_ident()}", chain)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = [in_child(lambda: 0 if limiter.check("child", chain).reason == "ok" else 1) for _ in range(30)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 30
    assert limiter.store_failures == 0
    limiter.close()
