"""Redis pub/sub: a thread with a connection of its own that subscribes to the channel of a prefix.

In a cluster any node will do, because messages are broadcast to all of them. Whenever the subscription is established,
at the start and after a lost connection, changes may have been missed, so the callbacks are called once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from redis import RedisCluster
from redis.exceptions import ConnectionError as LostError

from crestgate.databases.shared_redis_client import OpenClient
from crestgate.runtime.fork_safety import renew_after_fork

__all__ = ["RedisChangeListener"]

STEP = 0.2
"""Seconds between two checks of whether the thread is to stop."""
QUIET_STEPS = 25
"""After so many silent steps the server gets a PING; after as many more the connection counts as lost."""
MIN_BACKOFF = 0.1
MAX_BACKOFF = 2.0
CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for the thread, which may be connecting, with a timeout of its own."""
_log = logging.getLogger("crestgate")


class RedisChangeListener:
    """Calls every `wake` callback after a change. The thread starts with the first callback, also in a forked child."""

    def __init__(self, open_client: OpenClient, channel: str, *, quiet_steps: int = QUIET_STEPS) -> None:
        self._open = open_client
        self._quiet_steps = quiet_steps
        self._channel = channel
        self._wakes: tuple[Callable[[], None], ...] = ()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._inherited: list[Any] = []
        renew_after_fork(self)

    def add(self, wake: Callable[[], None]) -> None:
        self._wakes = (*self._wakes, wake)
        if self._thread is None:
            self._start()

    def renew(self) -> None:
        """In a forked child: the thread and the connection are the parent's; the socket is closed here silently."""
        stopped = self._stopped.is_set()
        self._stopped = threading.Event()
        if self._connection is not None:
            self._connection.disconnect()
            self._inherited.append(self._connection)
            self._connection = None
        if stopped:
            self._stopped.set()
        elif self._thread is not None:
            self._start()

    def close(self) -> None:
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self._stopped,), name="crestgate-rules", daemon=True)
        self._thread.start()

    def _run(self, stopped: threading.Event) -> None:
        backoff, logged = MIN_BACKOFF, False
        while not stopped.is_set():
            try:
                for _ in self._messages(stopped):
                    backoff, logged = MIN_BACKOFF, False
                    self._call(stopped)
            except Exception as error:  # noqa: BLE001 - no reply of a server may end this thread
                if not logged and not stopped.is_set():
                    _log.warning("Redis: rule notifications lost, polling until they are back: %s", error)
                logged = True
            stopped.wait(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)

    def _messages(self, stopped: threading.Event) -> Any:
        """Subscribe, and yield for every message, until stopped."""
        client: Any
        client, _ = self._open()
        try:
            node = client
            if isinstance(client, RedisCluster):
                node = client.get_redis_connection(client.get_random_node())  # type: ignore[no-untyped-call]  # redis-py's
            self._connection = connection = node.connection_pool.get_connection()
            connection.send_command("SUBSCRIBE", self._channel)
            quiet, pinged = 0, False
            while not stopped.is_set():
                if connection.can_read(timeout=STEP):
                    reply = connection.read_response()
                    if not isinstance(reply, list) or not reply:
                        raise LostError("unexpected reply to SUBSCRIBE")
                    kind = reply[0]
                    quiet, pinged = 0, False
                    if kind in (b"subscribe", b"message"):
                        yield kind
                    continue
                quiet += 1
                if quiet == self._quiet_steps:
                    if pinged:
                        raise LostError("the server no longer responds")
                    connection.send_command("PING")
                    quiet, pinged = 0, True
        finally:
            self._drop(client)

    def _drop(self, client: Any) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        client.close()

    def _call(self, stopped: threading.Event) -> None:
        for wake in self._wakes:
            if stopped.is_set():
                return
            try:
                wake()
            except Exception:  # noqa: BLE001 - the other callbacks are called all the same
                _log.exception("rule change callback failed")
