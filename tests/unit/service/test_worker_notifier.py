"""Workers of one node ring at each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from crestgate.service.node import WorkerNotifier


def test_notification_reaches_the_others_and_not_the_sender(tmp_path: Path) -> None:
    async def run() -> list[int]:
        workers = [WorkerNotifier(str(tmp_path), number) for number in range(3)]
        heard: list[int] = []
        both = asyncio.Event()

        def hear(number: int) -> None:
            heard.append(number)
            if len(heard) == 2:
                both.set()

        for number, worker in enumerate(workers):
            worker.listen(lambda number=number: hear(number))  # type: ignore[misc]  # a default binds it
        workers[1].notify()
        await asyncio.wait_for(both.wait(), 10)
        for worker in workers:
            worker.close()
        return sorted(heard)

    assert asyncio.run(run()) == [0, 2]


def test_socket_of_a_dead_worker_is_ignored(tmp_path: Path) -> None:
    async def run() -> bool:
        first, second = WorkerNotifier(str(tmp_path), 0), WorkerNotifier(str(tmp_path), 1)
        second.close()  # its socket is still in the folder, as after a kill
        first.notify()
        another = WorkerNotifier(str(tmp_path), 1)
        heard = asyncio.Event()
        another.listen(heard.set)
        for _ in range(1000):  # more than it can hear before it listens
            first.notify()
        await asyncio.wait_for(heard.wait(), 10)
        first.close()
        another.close()
        return heard.is_set()

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
