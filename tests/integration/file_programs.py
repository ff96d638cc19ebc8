"""Programs that open a file of counters, together or one after another."""

from __future__ import annotations

import os
import resource
import signal

from crestgate import CrestgateError, Limiter
from crestgate.stores.shared import SharedStore
from integration.child_main import hear, say

__all__ = ["check", "fill", "open_small", "stay"]


def check(url: str, limit: str, times: int, wait: bool) -> None:
    """Check one key so many times; says what is used then. With `wait`, opens the file when told to."""
    if wait:
        say("ready")
        hear()
    with Limiter(url, on_store_error="closed") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        for _ in range(times):
            assert limiter.check("key", limit).reason == "ok"
        if wait:
            say("checked")
            hear()
        standing = limiter.peek("key", limit)
        say({"used": standing.limit - standing.remaining, "salt": store.geometry.salt.hex()})


def stay(url: str, limit: str) -> None:
    """Open a file, and check whenever told to, in this process and in a forked child; ends when told nothing more."""
    with Limiter(url, on_store_error="closed") as limiter:
        say("ready")
        while hear() is not None:
            here = limiter.check("key", limit)
            pid = os.fork()
            if pid == 0:
                try:
                    there = limiter.check("key", limit)
                    say([here.reason, here.remaining, there.reason, there.remaining])
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)


def open_small(url: str, max_bytes: int) -> None:
    """Open a file where files may not be larger than so many bytes; says what was wrong."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    try:
        Limiter(url)
    except CrestgateError as error:
        say(f"{type(error).__name__}: {error}")
    else:
        say("opened")


def fill(url: str, keys: int) -> None:
    """Put many counters into a file, and logs; says how often the store failed, if it is still there to say so."""
    try:
        limiter = Limiter(url, on_store_error="closed")
    except CrestgateError as error:
        say(f"{type(error).__name__}: {error}")
        return
    failed = 0
    for i in range(keys):
        limit = "5/year using sliding_window_log" if i % 2 else "5/year"
        failed += limiter.check(f"key:{i}", limit).reason not in ("ok", "limited")
    say(f"{failed} of {keys} failed")
