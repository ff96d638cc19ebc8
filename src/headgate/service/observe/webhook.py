"""Events posted to somebody's URL, by one thread, so that no check ever waits for it.

An event is a JSON object. They are sent one at a time, in order, each with a few tries; when the other side is slower
than they come, up to `MOST_WAITING` wait and the others are dropped and counted. Redirects are not followed: where it
goes is what was configured. The URL may hold a secret, so no message shows more of it than the server.
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

from headgate.errors import ConfigError

__all__ = ["Webhook"]

MOST_WAITING = 1_000
TIMEOUT_SECONDS = 5.0
PAUSES = (0.5, 2.0)
"""Seconds before the second and the third try."""
PATIENCE_SECONDS = 2.0
"""How long a worker that stops waits for what is still to be sent."""
_log = logging.getLogger("headgate")


class Webhook:
    """Posts events. Nothing is sent before `start`, which is for the process that has the events."""

    def __init__(self, url: str, *, most_waiting: int = MOST_WAITING, pauses: tuple[float, ...] = PAUSES) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("pressure.webhook must be a URL such as https://example.com/pressure")
        self.dropped = 0
        """How many events were not posted: there was no room for them, or no try succeeded."""
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "headgate"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._pauses = pauses
        self._waiting: Queue[bytes | None] = Queue(most_waiting)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Webhook at {self._host}>"

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headgate-webhook", daemon=True)
            self._thread.start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Have an event posted soon. Never waits."""
        body = json.dumps({**event, "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}).encode()
        try:
            self._waiting.put_nowait(body)
        except Full:
            self.dropped += 1

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        """Send what waits, for a moment, and stop."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=patience)
            self._thread.join(patience)
        except Full:
            pass
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            body = self._waiting.get()
            if body is None:
                return
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        """Post one event, in as many tries as it may have."""
        problem = ""
        for pause in (*self._pauses, None):
            try:
                status = self._post(body)
            except (OSError, HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if 200 <= status < 300:
                    return
                problem = f"it answered {status}"
                if 400 <= status < 500 and status not in (408, 429):  # it will say the same again
                    break
            if pause is None or self._stopping.wait(pause):
                break
        self.dropped += 1
        _log.warning("a pressure event could not be posted to %s: %s", self._host, problem)

    def _post(self, body: bytes) -> int:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", self._target, body, self._headers)
            return connection.getresponse().status
        finally:
            connection.close()
