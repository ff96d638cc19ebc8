"""Waits at startup until the stores are reachable, if `server.store_wait_seconds` is set.

Services and their databases often start together. Without this, a service that is first ends with an error and is
started again by its supervisor, with growing delays. The wait is bounded and logged, and a signal to stop ends it at
once: the stores are tried in a thread, because connecting may block for seconds.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

from crestgate.config.settings import Settings
from crestgate.errors import CrestgateError, StoreError
from crestgate.limiter.limiter import Limiter
from crestgate.rules.storage.factory import open_repository
from crestgate.service.observability.health import PROBE_ID

__all__ = ["await_stores", "reach_stores"]

RETRY_SECONDS = 1.0
LOG_SECONDS = 10.0
"""Between two messages about the same problem."""
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name))
_log = logging.getLogger("crestgate")


def reach_stores(settings: Settings) -> None:
    """Read from the rule database, connect to all stores, and close them. StoreError if one is unreachable; of the two
    stores of a migration one is enough."""
    assert settings.rules_store is not None
    with closing(open_repository(settings.rules_store)) as repository, Limiter(settings.store):
        repository.get("rule", PROBE_ID)


def await_stores(
    settings: Settings,
    reach: Callable[[Settings], None] = reach_stores,
    retry_seconds: float = RETRY_SECONDS,
) -> bool:
    """Wait until all stores are reachable; False if a signal to stop came first. StoreError if they are not within
    `server.store_wait_seconds`, ConfigError at once if they never will be."""
    wait = _Wait(settings, reach, retry_seconds)
    with _on_stop_signal(wait.stop):
        return wait.run()


class _Wait:
    """One wait: a thread tries, and the main thread waits for its result or a signal."""

    def __init__(self, settings: Settings, reach: Callable[[Settings], None], retry_seconds: float) -> None:
        self._settings = settings
        self._reach = reach
        self._retry_seconds = retry_seconds
        self._seconds = settings.server.store_wait_seconds
        self._stopped = False
        self._over = threading.Event()
        self._error: CrestgateError | None = None

    def run(self) -> bool:
        threading.Thread(target=self._try, name="crestgate-store-wait", daemon=True).start()
        self._over.wait()
        if self._stopped:
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Safe in a signal handler."""
        self._stopped = True
        self._over.set()

    def _try(self) -> None:
        try:
            self._retry()
        except CrestgateError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the main thread waits for a result, whatever it is
            self._error = StoreError(f"a store failed: {type(error).__name__}: {error}")
        finally:
            self._over.set()

    def _retry(self) -> None:
        started = time.monotonic()
        logged, logged_at = "", 0.0
        while True:
            try:
                self._reach(self._settings)
                break
            except StoreError as error:
                waited = time.monotonic() - started
                if waited + self._retry_seconds > self._seconds:
                    raise StoreError(f"{error}; waited {waited:.0f} s for it (server.store_wait_seconds)") from None
                if str(error) != logged or waited - logged_at >= LOG_SECONDS:
                    logged, logged_at = str(error), waited
                    _log.warning("store unreachable, waiting up to %d s for it: %s", self._seconds - waited, error)
            if self._over.wait(self._retry_seconds):
                return
        if logged:
            _log.info("all stores are reachable, after %d s", time.monotonic() - started)


@contextmanager
def _on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    def handle(_: int, __: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
