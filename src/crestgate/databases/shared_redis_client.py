"""Redis client that threads share, with bounded waits, StoreError for its errors, and a new client after a fork.

The constructor connects. A forked child opens a new client when it first needs one, and never touches its parent's:
redis-py's pools take locks, even to detect a fork, and a fork may have left them locked.

In a cluster the client is reopened after a connection was lost or a slot has moved, and so learns the new topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any

from redis import Redis, RedisCluster
from redis import exceptions as redis_errors

from crestgate.databases.redis_client import FAILURES, describe_error, node_for_key, release_pipeline
from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.fork_safety import renew_after_fork

__all__ = ["OpenClient", "RetryableRedisError", "SharedRedisClient"]

MAYBE_WRITTEN = "; the outcome of the write is unknown"
OpenClient = Callable[[], tuple[Redis | RedisCluster, str]]
"""Opens a client; also its address for error messages."""
_LOST = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.WatchError,
    redis_errors.RedisClusterException,
    OSError,
)
"""Also WatchError, which redis-py raises for a connection that was lost while it watched a key."""
_REDIRECTED = (redis_errors.AskError, redis_errors.ClusterDownError, redis_errors.TryAgainError)
"""The node of a cluster does not, or not yet, have the slot. (MOVED is an AskError too.)"""


class RetryableRedisError(Exception):
    """Nothing was written, and a retry may succeed."""


class SharedRedisClient:
    """A client for any number of threads; `max_connections` use it at a time, the others wait up to the timeout."""

    def __init__(self, open_client: OpenClient, *, timeout: float, max_connections: int) -> None:
        self._open = open_client
        self._max_connections = max_connections
        self._slots = BoundedSemaphore(max_connections)
        self._inherited: list[Any] = []
        self.timeout = timeout
        self.closed = False
        client, self.address = open_client()
        self._client: Any = client  # untyped: redis-py's types mix sync and async replies
        with self.errors():
            client.ping()
        renew_after_fork(self)

    def renew(self) -> None:
        if self._client is not None:
            self._inherited.append(self._client)  # kept alive: its destructor would close it, which takes locks
        self._client = None
        self._slots = BoundedSemaphore(self._max_connections)

    @contextmanager
    def client(self, *, writes: bool = False) -> Iterator[Any]:
        """The client, for one command. If it writes, errors say that the outcome is unknown."""
        self.check_open()
        with self._slot(), self.errors(MAYBE_WRITTEN if writes else ""):
            client = self._get()
            try:
                yield client
            except _LOST:
                self._forget(client)
                raise

    @contextmanager
    def transaction(self, key: str) -> Iterator[Any]:
        """A pipeline that watches this key, on the node that has it. Commands after `multi()` are sent by `execute`.
        May raise RetryableRedisError."""
        self.check_open()
        with self._slot(), self.errors():
            client = self._get()
            pipeline: Any = None
            try:
                pipeline = node_for_key(client, key).pipeline(transaction=True)
                pipeline.watch(key)
                yield pipeline
            except _REDIRECTED as error:
                raise self._redirected(error) from None
            except _LOST:
                self._forget(client)
                raise
            finally:
                if pipeline is not None:
                    release_pipeline(pipeline)

    def execute(self, pipeline: Any) -> None:
        """Send the commands, once. RetryableRedisError if another client has changed the watched key."""
        # If the connection is lost while this flag is set, redis-py raises a WatchError, as if nothing was written, and
        # reconnects to send UNWATCH. The server unwatches at EXEC in any case.
        pipeline.watching = False
        with self.errors(MAYBE_WRITTEN):
            try:
                pipeline.execute()
            except redis_errors.WatchError:
                raise RetryableRedisError("too many concurrent writes") from None
            except _REDIRECTED as error:  # refused before EXEC
                raise self._redirected(error) from None
            except _LOST:
                self._forget(self._client)
                raise

    def close(self) -> None:
        self.closed = True
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(f"{self.address}: the client is closed; open it again")

    @contextmanager
    def errors(self, suffix: str = "") -> Iterator[None]:
        """Map redis-py's errors to StoreError."""
        try:
            yield
        except FAILURES as error:
            lost = error.__context__ if isinstance(error, redis_errors.WatchError) else None
            replied = isinstance(error, redis_errors.ResponseError)
            raise StoreError(f"{self.address}: {describe_error(lost or error)}{'' if replied else suffix}") from None

    @contextmanager
    def _slot(self) -> Iterator[None]:
        slots = self._slots
        if not slots.acquire(timeout=self.timeout):
            raise StoreError(
                f"{self.address}: none of the {self._max_connections} connections was free within {self.timeout:g} s; "
                "raise pool_size if this happens often"
            )
        try:
            yield
        finally:
            slots.release()

    def _get(self) -> Any:
        client = self._client
        if client is None:
            client, _ = self._open()
            self._client = client
        return client

    def _forget(self, client: Any) -> None:
        if isinstance(client, RedisCluster) and self._client is client:
            self._client = None

    def _redirected(self, error: redis_errors.ResponseError) -> RetryableRedisError:
        if isinstance(error, redis_errors.MovedError | redis_errors.ClusterDownError):
            self._forget(self._client)
        return RetryableRedisError(str(error))
