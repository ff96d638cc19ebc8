"""The connection to Redis of a rule repository: who may use it, what its errors become, and what a fork does to it.

A forked child opens a client of its own when it first needs one, and never touches its parent's: redis-py's pools take
locks, also to find out that they were forked, and a fork may have left them locked.

In a cluster the client is opened anew after a connection was lost or a slot has moved, and so learns who has it now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any

from redis import Redis, RedisCluster
from redis import exceptions as theirs

from headgate.errors import StoreClosed, StoreError
from headgate.locks.redis_pipeline import FAILURES, let_go, node_of, told
from headgate.stores.forking import renew_after_fork

__all__ = ["Again", "Link", "OpenClient"]

DOUBT = "; whether it has written is not known"
OpenClient = Callable[[], tuple[Redis | RedisCluster, str]]
"""Opens a client, and says what to call the place in errors."""
_LOST = (theirs.ConnectionError, theirs.TimeoutError, theirs.WatchError, theirs.RedisClusterException, OSError)
"""Also a WatchError: redis-py's other name for a connection that was lost while it watched something."""
_ELSEWHERE = (theirs.AskError, theirs.ClusterDownError, theirs.TryAgainError)
"""A cluster's node says that it is not, or not yet, the one to ask. (MOVED is an AskError too.)"""


class Again(Exception):  # noqa: N818 - says what to do
    """Nothing was written, for a reason that may be gone at the next try."""


class Link:
    """A client for any number of threads, of which so many use it at a time. The others wait, up to the timeout."""

    def __init__(self, open_client: OpenClient, *, timeout: float, most: int) -> None:
        self._open = open_client
        self._most = most
        self._turns = BoundedSemaphore(most)
        self._inherited: list[Any] = []
        self.timeout = timeout
        self.closed = False
        client, self.address = open_client()
        self._client: Any = client  # whose types tell sync and async answers apart only at run time
        with self.errors():
            client.ping()
        renew_after_fork(self)

    def renew(self) -> None:
        if self._client is not None:
            self._inherited.append(self._client)  # kept, because letting go of it would close it, which takes locks
        self._client = None
        self._turns = BoundedSemaphore(self._most)

    @contextmanager
    def client(self, *, writes: bool = False) -> Iterator[Any]:
        """The client, for one command. If it writes, an error says that it may have."""
        self.check_open()
        with self._turn(), self.errors(DOUBT if writes else ""):
            client = self._get()
            try:
                yield client
            except _LOST:
                self._forget(client)
                raise

    @contextmanager
    def transaction(self, key: str) -> Iterator[Any]:
        """A pipeline that watches this key, on the node that has it. What it collects after `multi()` is sent by
        `carry_out`. May raise Again."""
        self.check_open()
        with self._turn(), self.errors():
            client = self._get()
            pipeline: Any = None
            try:
                pipeline = node_of(client, key).pipeline(transaction=True)
                pipeline.watch(key)
                yield pipeline
            except _ELSEWHERE as error:
                raise self._elsewhere(error) from None
            except _LOST:
                self._forget(client)
                raise
            finally:
                if pipeline is not None:
                    let_go(pipeline)

    def carry_out(self, pipeline: Any) -> None:
        """Send it all, once. Again if somebody else has written what was watched."""
        # redis-py looks at this flag when the connection is lost: it would call that a WatchError, as if nothing had
        # been done, and connect anew to say UNWATCH. The server forgets what was watched at EXEC, whatever comes of it.
        pipeline.watching = False
        with self.errors(DOUBT):
            try:
                pipeline.execute()
            except theirs.WatchError:
                raise Again("others were writing all the time") from None
            except _ELSEWHERE as error:  # said before EXEC, which was then refused
                raise self._elsewhere(error) from None
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
            raise StoreClosed(f"{self.address}: these rules were closed; open them again")

    @contextmanager
    def errors(self, doubt: str = "") -> Iterator[None]:
        """Errors of Redis become ours."""
        try:
            yield
        except FAILURES as error:
            lost = error.__context__ if isinstance(error, theirs.WatchError) else None
            answered = isinstance(error, theirs.ResponseError)
            raise StoreError(f"{self.address}: {told(lost or error)}{'' if answered else doubt}") from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        turns = self._turns
        if not turns.acquire(timeout=self.timeout):
            raise StoreError(
                f"{self.address}: none of the {self._most} connections was free within {self.timeout:g} s; raise "
                "pool_size if this happens often"
            )
        try:
            yield
        finally:
            turns.release()

    def _get(self) -> Any:
        client = self._client
        if client is None:
            client, _ = self._open()
            self._client = client
        return client

    def _forget(self, client: Any) -> None:
        if isinstance(client, RedisCluster) and self._client is client:
            self._client = None

    def _elsewhere(self, error: theirs.ResponseError) -> Again:
        if isinstance(error, theirs.MovedError | theirs.ClusterDownError):
            self._forget(self._client)
        return Again(str(error))
