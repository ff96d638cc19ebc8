"""Webhook for events, delivered by one thread, so that no check ever waits for it.

An event is a JSON object. Events are delivered one at a time, in order, with a few attempts each. If they arrive faster
than the receiver accepts them, up to `MAX_PENDING` wait; the rest is dropped and counted. Redirects are not followed.
The URL may contain a secret, so log lines show only its host.
"""

from __future__ import annotations

import json
import logging
import threading
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import Full, Queue
from typing import Any
from urllib.parse import unquote, urlsplit

from crestgate.errors import ConfigError

__all__ = ["Webhook"]

MAX_PENDING = 1_000
TIMEOUT_SECONDS = 5.0
RETRY_DELAYS = (0.5, 2.0)
"""Seconds before the second and the third attempt."""
CLOSE_TIMEOUT_SECONDS = 2.0
"""How long a worker that stops waits for pending events."""
_log = logging.getLogger("crestgate")


class Webhook:
    """Posts events. Nothing is sent before `start`, which must be called in the process that sends them."""

    def __init__(
        self, url: str, *, max_pending: int = MAX_PENDING, retry_delays: tuple[float, ...] = RETRY_DELAYS
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("pressure.webhook must be a URL such as https://example.com/pressure")
        self.dropped = 0
        """Events that were not delivered: the queue was full, or all attempts failed."""
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "crestgate"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._retry_delays = retry_delays
        self._pending: Queue[bytes | None] = Queue(max_pending)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Webhook at {self._host}>"

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="crestgate-webhook", daemon=True)
            self._thread.start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Queue an event. Never blocks."""
        body = json.dumps({**event, "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}).encode()
        try:
            self._pending.put_nowait(body)
        except Full:
            self.dropped += 1

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Deliver pending events, within `timeout` seconds, and stop."""
        if self._thread is None:
            return
        try:
            self._pending.put(None, timeout=timeout)
            self._thread.join(timeout)
        except Full:
            pass
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            body = self._pending.get()
            if body is None:
                return
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        """Post one event, with retries."""
        problem = ""
        for delay in (*self._retry_delays, None):
            try:
                status = self._post(body)
            except (OSError, HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if 200 <= status < 300:
                    return
                problem = f"status {status}"
                if 400 <= status < 500 and status not in (408, 429):  # a retry would fail, too
                    break
            if delay is None or self._stopping.wait(delay):
                break
        self.dropped += 1
        _log.warning("cannot deliver a pressure event to %s: %s", self._host, problem)

    def _post(self, body: bytes) -> int:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", self._target, body, self._headers)
            return connection.getresponse().status
        finally:
            connection.close()
