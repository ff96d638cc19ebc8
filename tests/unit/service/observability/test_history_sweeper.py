"""The usage history is swept soon after the start, and then periodically."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crestgate.errors import StoreClosedError, StoreError
from crestgate.history.factory import open_history
from crestgate.history.port import History
from crestgate.service import composition
from crestgate.service.composition import Service
from crestgate.service.observability import history_sweeper
from crestgate.service.observability.history_sweeper import sweep_history

DAY_US = 86_400_000_000
SOON = (0.0, 0.0)


class Sweeps:
    """A history that only records sweeps."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.times: list[int] = []

    def sweep(self, now_us: int) -> None:
        self.times.append(now_us)
        error = self.errors.pop(0)
        if error is not None:
            raise error


def test_sweeps_again_after_a_failure_and_ends_with_the_history(caplog: pytest.LogCaptureFixture) -> None:
    sweeps = Sweeps(None, StoreError("away"), ZeroDivisionError(), None, StoreClosedError("closed"))
    asyncio.run(asyncio.wait_for(sweep_history(cast(History, sweeps), SOON, SOON), 30))
    assert len(sweeps.times) == 5
    assert [record.levelname for record in caplog.records if "sweep" in record.message] == ["WARNING", "ERROR"]


def test_first_sweep_runs_soon_after_the_start() -> None:
    assert 0 < history_sweeper.FIRST_DELAY_SECONDS[0] < history_sweeper.FIRST_DELAY_SECONDS[1] <= 60
    assert history_sweeper.INTERVAL_SECONDS[0] > 60


@pytest.mark.parametrize(("worker", "swept"), [(0, True), (1, False)])
def test_one_worker_sweeps_while_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: int, swept: bool
) -> None:
    """Expired minutes are deleted as soon as the first worker has started."""
    for coroutine in (history_sweeper.sweep_history, history_sweeper.purge_rules):
        monkeypatch.setattr(coroutine, "__defaults__", (SOON, (3600.0, 3600.0)))
    monkeypatch.setattr(composition, "PUBLISH_SECONDS", 0.001)
    now_us = time.time_ns() // 1000
    history = open_history(f"sqlite:///{tmp_path / 'usage.db'}")
    history.add(now_us - 40 * DAY_US, {"rule": (1, 0, 0)}, {})
    rounds = purges = 0

    def purge() -> None:
        nonlocal purges
        purges += 1

    async def main() -> None:
        class Publisher:
            async def publish(self, _: int) -> None:
                nonlocal rounds
                rounds += 1

        parts = SimpleNamespace(
            history=history,
            worker_snapshots=SimpleNamespace(worker=worker),
            repository=SimpleNamespace(purge=purge),
            limiter=SimpleNamespace(reservations=SimpleNamespace(open_existing=lambda: None)),
        )
        made: Any = None
        service = Service(cast(Any, parts), made, made, cast(Any, Publisher()), made, made, None)
        keeping = asyncio.create_task(service.run_background())
        while not rounds or (swept and (history.usage(0, now_us, "minute") or not purges)):
            await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert bool(history.usage(0, now_us, "minute")) is not swept
    assert purges == swept
    history.close()


def test_closing_the_history_ends_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crestgate.history.sql.SWEEP_BATCH", 1)
    history = open_history(f"sqlite:///{tmp_path / 'usage.db'}")
    for minute in range(5):
        history.add(minute * 60_000_000, {"rule": (1, 0, 0), "other": (1, 0, 0)}, {})
    bites = threading.Event()
    write = history._transactions.write  # type: ignore[attr-defined]

    def closing(action: Any) -> Any:
        done = write(action)
        if not bites.is_set():
            bites.set()
            history.close()
        return done

    monkeypatch.setattr(history._transactions, "write", closing)  # type: ignore[attr-defined]
    with pytest.raises(StoreClosedError):
        history.sweep(time.time_ns() // 1000)
