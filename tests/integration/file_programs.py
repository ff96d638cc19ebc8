"""Child programs that open a counter file, concurrently or one after another."""

from __future__ import annotations

import os
import resource
import signal

from crestgate import CrestgateError, Limiter
from crestgate.stores.shared import SharedStore
from integration.child_main import receive, send

__all__ = ["check", "check_on_request", "fill", "open_small"]


def check(url: str, limit: str, times: int, wait: bool) -> None:
    """Check one key so many times; sends the usage. With `wait`, opens the file on a message."""
    if wait:
        send("ready")
        receive()
    with Limiter(url, on_store_error="closed") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        for _ in range(times):
            assert limiter.check("key", limit).reason == "ok"
        if wait:
            send("checked")
            receive()
        state = limiter.peek("key", limit)
        send({"used": state.limit - state.remaining, "salt": store.geometry.salt.hex()})


def check_on_request(url: str, limit: str) -> None:
    """Open a file, and for each message check in this process and in a forked child."""
    with Limiter(url, on_store_error="closed") as limiter:
        send("ready")
        while receive() is not None:
            parent = limiter.check("key", limit)
            pid = os.fork()
            if pid == 0:
                try:
                    child = limiter.check("key", limit)
                    send([parent.reason, parent.remaining, child.reason, child.remaining])
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)


def open_small(url: str, max_bytes: int) -> None:
    """Open a file under a file size limit; sends the error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    try:
        Limiter(url)
    except CrestgateError as error:
        send(f"{type(error).__name__}: {error}")
    else:
        send("opened")


def fill(url: str, keys: int) -> None:
    """Fill a file with counters and logs; sends how often the store failed, if the process survives."""
    try:
        limiter = Limiter(url, on_store_error="closed")
    except CrestgateError as error:
        send(f"{type(error).__name__}: {error}")
        return
    failed = 0
    for i in range(keys):
        limit = "5/year using sliding_window_log" if i % 2 else "5/year"
        failed += limiter.check(f"key:{i}", limit).reason not in ("ok", "limited")
    send(f"{failed} of {keys} failed")
