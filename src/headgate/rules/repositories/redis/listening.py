"""Hears of changes: a thread with a connection of its own that subscribes to the channel of a prefix.

In a cluster any node will do, because a message is passed on to all of them. Whenever the subscription stands, at the
start and after the connection was lost, something may have been missed, and whoever listens is woken once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from redis import RedisCluster
from redis.exceptions import ConnectionError as LostError

from headgate.rules.repositories.redis.link import OpenClient
from headgate.stores.forking import renew_after_fork

__all__ = ["Listener"]

STEP = 0.2
"""Seconds after which the thread looks whether it is to end."""
QUIET_STEPS = 25
"""After so many steps without a word the server is asked whether it is there; after as many more it is not."""
FIRST_NAP = 0.1
LONGEST_NAP = 2.0
PATIENCE = 1.0
"""Seconds to wait for the thread at the end; it may be connecting, which has a timeout of its own."""
_log = logging.getLogger("headgate")


class Listener:
    """Calls every `wake` that it was given. Starts with the first, also in a forked child."""

    def __init__(self, open_client: OpenClient, channel: str, *, quiet_steps: int = QUIET_STEPS) -> None:
        self._open = open_client
        self._quiet_steps = quiet_steps
        self._channel = channel
        self._wakes: tuple[Callable[[], None], ...] = ()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._inherited: list[Any] = []
        renew_after_fork(self)

    def add(self, wake: Callable[[], None]) -> None:
        self._wakes = (*self._wakes, wake)
        if self._thread is None:
            self._start()

    def renew(self) -> None:
        """In a child: the thread is the parent's. The connection is too, and is closed here without a word."""
        ended = self._ended.is_set()
        self._ended = threading.Event()
        if self._connection is not None:
            self._connection.disconnect()
            self._inherited.append(self._connection)
            self._connection = None
        if ended:
            self._ended.set()
        elif self._thread is not None:
            self._start()

    def close(self) -> None:
        self._ended.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="headgate-rules", daemon=True)
        self._thread.start()

    def _run(self, ended: threading.Event) -> None:
        nap, told = FIRST_NAP, False
        while not ended.is_set():
            try:
                for _ in self._words(ended):
                    nap, told = FIRST_NAP, False
                    self._call(ended)
            except Exception as error:  # noqa: BLE001 - whatever a server says must not end this thread
                if not told and not ended.is_set():
                    _log.warning("changes of rules are not announced until Redis is back: %s", error)
                told = True
            ended.wait(nap)
            nap = min(nap * 2, LONGEST_NAP)

    def _words(self, ended: threading.Event) -> Any:
        """Subscribe, and yield whenever the server says anything that matters, until the end."""
        client: Any
        client, _ = self._open()
        try:
            node = client
            if isinstance(client, RedisCluster):
                node = client.get_redis_connection(client.get_random_node())  # type: ignore[no-untyped-call]  # redis-py's
            self._connection = connection = node.connection_pool.get_connection()
            connection.send_command("SUBSCRIBE", self._channel)
            quiet, asked = 0, False
            while not ended.is_set():
                if connection.can_read(timeout=STEP):
                    reply = connection.read_response()
                    if not isinstance(reply, list) or not reply:
                        raise LostError("what it says is not a message")
                    kind = reply[0]
                    quiet, asked = 0, False
                    if kind in (b"subscribe", b"message"):
                        yield kind
                    continue
                quiet += 1
                if quiet == self._quiet_steps:
                    if asked:
                        raise LostError("the server no longer answers")
                    connection.send_command("PING")
                    quiet, asked = 0, True
        finally:
            self._drop(client)

    def _drop(self, client: Any) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        client.close()

    def _call(self, ended: threading.Event) -> None:
        for wake in self._wakes:
            if ended.is_set():
                return
            try:
                wake()
            except Exception:  # noqa: BLE001 - theirs, and the others are to be woken all the same
                _log.exception("whoever listens for changes of rules failed")
