"""A store whose driver can only wait: on an event loop its calls are made by a few threads.

A hop to a thread and back costs tens of microseconds. It is paid once for a batch, not once for a check, because
concurrent checks leave together; so one blocking driver serves both worlds, and there is no second one to keep in
step with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import final

from headgate.errors import StoreClosed, StoreError
from headgate.stores.forking import fork_safe_lock, renew_after_fork
from headgate.stores.port import Done, Replies, Request
from headgate.stores.records import check_kept
from headgate.stores.remote import RemoteStore

__all__ = ["ThreadedStore"]


class ThreadedStore(RemoteStore):
    """Gives a store that has `connect` and `call` their counterparts for event loops."""

    def __init__(self, title: str) -> None:
        self.threads = _Threads(title)

    async def connect_async(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.threads.pool(self.lanes), self.connect)

    def begin(self, batch: Sequence[Request], deadline: float, done: Done) -> None:
        check_kept(batch)  # here, where whoever asked hears of it
        loop = asyncio.get_running_loop()
        waiting = _Waiting(loop, done, self.threads.title)
        waiting.timer = loop.call_later(max(deadline - time.monotonic(), 0.0), waiting.give_up)

        def work() -> None:
            if waiting.over:
                return  # given up before a thread was free: nothing was asked
            answer: Replies | StoreError
            try:
                answer = self.call(batch, deadline)
            except StoreError as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                answer = StoreError(f"{type(error).__name__}: {error}")
                answer.__cause__ = error
            waiting.tell(answer)

        try:
            self.threads.pool(self.lanes).submit(work)
        except StoreClosed as error:
            waiting.tell(error)
        except RuntimeError as error:  # the interpreter is shutting down
            waiting.tell(StoreError(str(error)))

    def close(self) -> None:
        self.threads.close()


@final
class _Waiting:
    """Whoever waits for one batch on a loop: told once, by its deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Done, title: str) -> None:
        self.title = title
        self.loop = loop
        self.done = done
        self.over = False
        self.timer: asyncio.TimerHandle | None = None

    def tell(self, answer: Replies | StoreError) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self.loop.call_soon_threadsafe(self.finish, answer)

    def finish(self, answer: Replies | StoreError) -> None:
        """On the loop."""
        if self.over:
            return  # a late answer
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        self.done(answer)

    def give_up(self) -> None:
        self.finish(StoreError(f"{self.title}: no answer in time; the requests may have been counted"))


@final
class _Threads:
    """The threads of one store, made when they are first needed, and anew in a forked child."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lock = fork_safe_lock()
        self.executor: ThreadPoolExecutor | None = None
        self.closed = False
        renew_after_fork(self)

    def pool(self, size: int) -> ThreadPoolExecutor:
        with self.lock:
            if self.closed:
                raise StoreClosed(f"{self.title}: this store is closed")
            if self.executor is None:
                self.executor = ThreadPoolExecutor(size, thread_name_prefix=self.title)
            return self.executor

    def renew(self) -> None:
        self.executor = None  # its threads stayed with the parent

    def close(self) -> None:
        """What is under way comes to its end by its deadline; nobody waits for it here."""
        with self.lock:
            self.closed = True
            executor, self.executor = self.executor, None
        if executor is not None:
            executor.shutdown(wait=False)
