# mypyc: compile
"""Results that are awaited later, or dropped.

A call may end before anything is awaited for it: its deadline passes, or its client resets the stream. So a coroutine
is created only when it is awaited, and `close` undoes what was charged for a result that is not awaited any more.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar, final

__all__ = ["Deferred"]

T = TypeVar("T")
R = TypeVar("R")


@final
class Deferred(Generic[T]):
    """A result of the coroutine that `start` creates. Await it at most once."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]], on_close: Callable[[], None] | None = None) -> None:
        self.start = start
        self.on_close = on_close

    def __await__(self) -> Generator[Any, Any, T]:
        self.on_close = None
        return self.start().__await__()

    def close(self) -> None:
        """It will not be awaited. Nothing happens if it was, or is closed already."""
        on_close = self.on_close
        self.on_close = None
        if on_close is not None:
            on_close()

    def then(self, finish: Callable[[T], R]) -> Deferred[R]:
        """What `finish` returns for this result."""
        return Deferred(partial(_finish, self, finish), self.close)

    def then_await(self, finish: Callable[[T], Coroutine[Any, Any, R]]) -> Deferred[R]:
        """The same of an async function."""
        return Deferred(partial(_finish_async, self, finish), self.close)


async def _finish(result: Deferred[T], finish: Callable[[T], R]) -> R:
    return finish(await result)


async def _finish_async(result: Deferred[T], finish: Callable[[T], Coroutine[Any, Any, R]]) -> R:
    return await finish(await result)
