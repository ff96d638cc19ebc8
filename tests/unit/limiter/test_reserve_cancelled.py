"""Reservations that are cancelled or released."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.limiter import loop_driver
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Outcome, Request
from crestgate.testing import FakeClock
from slow_store import SlowStore

LIMIT = "1000/minute using sliding_window_log"
CANCELLATIONS = [
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
]


class Failed(Exception):
    """The work failed."""


@pytest.fixture
def limiter() -> Limiter:
    return Limiter("memory://", clock=FakeClock(1_700_000_000))


def mixed() -> BaseException:
    return BaseExceptionGroup("several tasks", [Failed(), asyncio.CancelledError()])


@pytest.mark.parametrize("error", [*CANCELLATIONS, mixed], ids=lambda kind: kind.__qualname__)
def test_cancellation_keeps_the_charge(limiter: Limiter, error: Callable[[], BaseException]) -> None:
    raised = error()
    with pytest.raises(type(raised)), limiter.reserve("k", LIMIT, cost=800):
        raise raised
    assert limiter.peek("k", LIMIT).remaining == 200


@pytest.mark.parametrize("error", [Failed(), TimeoutError(), ExceptionGroup("several tasks", [Failed()])], ids=repr)
def test_exception_gives_the_charge_back(limiter: Limiter, error: Exception) -> None:
    with pytest.raises(type(error)), limiter.reserve("k", LIMIT, cost=800):
        raise error
    assert limiter.peek("k", LIMIT).remaining == 1000


def test_closed_generator_keeps_the_charge(limiter: Limiter) -> None:
    def body() -> Iterator[bytes]:
        with limiter.reserve("k", LIMIT, cost=800) as reservation:
            yield b"first"
            yield b"second"
            reservation.settle(2)

    response = body()
    next(response)
    response.close()  # type: ignore[attr-defined]  # as a WSGI server does when the client hangs up
    assert limiter.peek("k", LIMIT).remaining == 200


def test_settling_in_finally_charges_partial_use(limiter: Limiter) -> None:
    def body() -> Iterator[bytes]:
        used = 0
        with limiter.reserve("k", LIMIT, cost=800) as reservation:
            try:
                for _ in range(5):
                    used += 100
                    yield b"part"
            finally:
                reservation.settle(used)

    response = body()
    next(response)
    next(response)
    response.close()  # type: ignore[attr-defined]
    assert limiter.peek("k", LIMIT).remaining == 800


def test_async_cancellation_keeps_the_charge() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://", clock=FakeClock(1_700_000_000))

        async def work() -> None:
            async with limiter.reserve("k", LIMIT, cost=800):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter.peek("k", LIMIT)).remaining == 200

        async def body() -> AsyncIterator[bytes]:
            async with limiter.reserve("k", LIMIT, cost=100):
                yield b"first"
                yield b"second"

        response = body()
        await anext(response)
        await response.aclose()  # type: ignore[attr-defined]
        assert (await limiter.peek("k", LIMIT)).remaining == 100

    asyncio.run(main())


def test_release_gives_everything_back(limiter: Limiter) -> None:
    with limiter.reserve("k", [LIMIT, "900/hour"], cost=800) as reservation:
        reservation.release()
        assert limiter.peek("k", LIMIT).remaining == 1000
    assert limiter.peek("k", "900/hour").remaining == 900
    limiter.reserve("k", LIMIT, cost=1000).release()
    assert limiter.peek("k", LIMIT).remaining == 1000


def test_cancelled_caller_may_release() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://", clock=FakeClock(1_700_000_000))

        async def work() -> None:
            async with limiter.reserve("k", LIMIT, cost=800) as reservation:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await reservation.release()
                    raise

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter.peek("k", LIMIT)).remaining == 1000
        with pytest.raises(RuntimeError, match="take the reservation first"):
            await limiter.reserve("k", LIMIT).release()

    asyncio.run(main())


def test_reservation_ends_once(limiter: Limiter) -> None:
    with limiter.reserve("k", LIMIT, cost=800) as settled:
        settled.settle(300)
        with pytest.raises(RuntimeError, match="was settled already"):
            settled.release()
    with limiter.reserve("k", LIMIT, cost=200) as released:
        released.release()
        for again in (released.release, lambda: released.settle(100)):
            with pytest.raises(RuntimeError, match="was released already"):
                again()
    with limiter.reserve("k", LIMIT, cost=100) as charged:
        pass
    for late in (charged.release, lambda: charged.settle(0)):
        with pytest.raises(RuntimeError, match="ended with its block, and stays charged"):
            late()
    assert limiter.peek("k", LIMIT).remaining == 600


def test_release_of_an_uncharged_reservation_does_nothing() -> None:
    class Away(SlowStore):
        def call(self, batch: Sequence[Request], deadline: float) -> list[list[Outcome]]:
            self.note(batch, deadline)
            raise StoreError("away")

    store = Away()
    with Limiter(store).reserve("k", LIMIT, cost=800) as reservation:
        assert reservation.decision.reason == "fail_open"
        reservation.release()
    assert store.batches == [["k"]]


async def reached(store: SlowStore, calls: int) -> None:
    while len(store.batches) < calls:
        await asyncio.sleep(0)


@pytest.mark.parametrize("in_queue", [True, False])
def test_cancelled_while_taking_leaves_nothing_charged(in_queue: bool) -> None:
    async def main() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        other = asyncio.create_task(limiter.check("other", LIMIT)) if in_queue else None
        if in_queue:
            await reached(store, 1)

        async def work() -> None:
            async with limiter.reserve("k", LIMIT, cost=800):
                pytest.fail("never entered")

        task = asyncio.create_task(work())
        if in_queue:
            await asyncio.sleep(0)
        else:
            await reached(store, 1)
        task.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.answer_all()
        if other is not None:
            await other
        assert store.used("k", LIMIT) == 0

    asyncio.run(main())


@pytest.mark.parametrize(("actual", "used"), [(900, 900), (300, 300), (None, 0)])
@pytest.mark.parametrize("in_queue", [True, False])
def test_cancelled_while_settling_settles_once(actual: int | None, used: int, in_queue: bool) -> None:
    async def main() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        inside = asyncio.Event()
        go_on = asyncio.Event()

        async def work() -> None:
            async with limiter.reserve("k", LIMIT, cost=800) as reservation:
                inside.set()
                await go_on.wait()
                await (reservation.release() if actual is None else reservation.settle(actual))

        task = asyncio.create_task(work())
        await reached(store, 1)
        store.answer()
        await inside.wait()
        other = asyncio.create_task(limiter.check("other", LIMIT)) if in_queue else None
        if in_queue:
            await reached(store, 2)
        go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await task
        if other is not None:
            await other
        assert store.used("k", LIMIT) == used

    asyncio.run(main())


class BusyStore:
    """A local store that another process holds locked while `busy` is set."""

    waits = True
    timeout = 5.0

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.inner = MemoryStore(clock=self.clock)
        self.busy = False
        self.refused = 0
        self.apply = self.inner.apply

    def apply_within(self, batch: Sequence[Request], _: float) -> list[list[Outcome]] | None:
        if self.busy:
            self.refused += 1
            return None
        return self.inner.apply(batch)

    def watch(self, batch: Sequence[Request]) -> Callable[[], bool]:
        deadline = time.monotonic() + self.timeout
        return lambda: time.monotonic() >= deadline

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(("actual", "used"), [(900, 900), (300, 300), (None, 0)])
@pytest.mark.parametrize("closes", [True, False])
def test_cancelled_settlement_still_reaches_a_busy_store(
    monkeypatch: pytest.MonkeyPatch, actual: int | None, used: int, closes: bool
) -> None:
    monkeypatch.setattr(loop_driver, "LocalStore", BusyStore)

    async def main() -> None:
        store = BusyStore()
        limiter = AsyncLimiter(store)
        entered = limiter.reserve("k", LIMIT, cost=800)
        async with entered as reservation:
            store.busy = True
            ending = reservation.release() if actual is None else reservation.settle(actual)
            task = asyncio.create_task(ending)
            while not store.refused:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.busy = False
        if closes:
            await limiter.aclose()
        else:
            while Limiter(store.inner).peek("k", LIMIT).remaining != 1000 - used:
                await asyncio.sleep(0.001)
        assert Limiter(store.inner).peek("k", LIMIT).remaining == 1000 - used

    asyncio.run(asyncio.wait_for(main(), 30))


def test_settlement_that_times_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_driver, "LocalStore", BusyStore)

    async def main() -> None:
        store = BusyStore()
        store.timeout = 0.01
        limiter = AsyncLimiter(store)
        async with limiter.reserve("k", LIMIT, cost=800) as reservation:
            store.busy = True
            task = asyncio.create_task(reservation.settle(300))
            while not store.refused:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await limiter.aclose()
        assert limiter.store_failures == 1

    asyncio.run(asyncio.wait_for(main(), 30))
