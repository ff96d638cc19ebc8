"""Workers of one node notify each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from crestgate.service.node import WorkerNotifier


def test_notification_reaches_the_others_and_not_the_sender(tmp_path: Path) -> None:
    async def run() -> list[int]:
        workers = [WorkerNotifier(str(tmp_path), number) for number in range(3)]
        received: list[int] = []
        both = asyncio.Event()

        def receive(number: int) -> None:
            received.append(number)
            if len(received) == 2:
                both.set()

        for number, worker in enumerate(workers):
            worker.listen(lambda number=number: receive(number))  # type: ignore[misc]  # a default binds it
        workers[1].notify()
        await asyncio.wait_for(both.wait(), 10)
        for worker in workers:
            worker.close()
        return sorted(received)

    assert asyncio.run(run()) == [0, 2]


def test_socket_of_a_dead_worker_is_ignored(tmp_path: Path) -> None:
    async def run() -> bool:
        first, second = WorkerNotifier(str(tmp_path), 0), WorkerNotifier(str(tmp_path), 1)
        second.close()  # its socket is still in the folder, as after a kill
        first.notify()
        another = WorkerNotifier(str(tmp_path), 1)
        notified = asyncio.Event()
        another.listen(notified.set)
        for _ in range(1000):  # more than its socket buffer holds before it listens
            first.notify()
        await asyncio.wait_for(notified.wait(), 10)
        first.close()
        another.close()
        return notified.is_set()

    assert asyncio.run(run())


def test_notify_without_the_directory_does_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    alone = WorkerNotifier(str(folder), 0)
    for name in folder.iterdir():
        name.unlink()
    folder.rmdir()
    alone.notify()
    alone.close()
