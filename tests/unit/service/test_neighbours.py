"""Workers of one node ring at each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.service.neighbours import Neighbours


def test_who_rings_is_heard_by_the_others_and_not_by_itself(tmp_path: Path) -> None:
    async def run() -> list[int]:
        workers = [Neighbours(str(tmp_path), number) for number in range(3)]
        heard: list[int] = []
        both = asyncio.Event()

        def hear(number: int) -> None:
            heard.append(number)
            if len(heard) == 2:
                both.set()

        for number, worker in enumerate(workers):
            worker.listen(lambda number=number: hear(number))  # type: ignore[misc]  # a default binds it
        workers[1].ring()
        await asyncio.wait_for(both.wait(), 10)
        for worker in workers:
            worker.close()
        return sorted(heard)

    assert asyncio.run(run()) == [0, 2]


def test_a_worker_that_died_is_in_nobodys_way(tmp_path: Path) -> None:
    async def run() -> bool:
        first, second = Neighbours(str(tmp_path), 0), Neighbours(str(tmp_path), 1)
        second.close()  # its socket is still in the folder, as after a kill
        first.ring()
        another = Neighbours(str(tmp_path), 1)
        heard = asyncio.Event()
        another.listen(heard.set)
        for _ in range(1000):  # more than it can hear before it listens
            first.ring()
        await asyncio.wait_for(heard.wait(), 10)
        first.close()
        another.close()
        return heard.is_set()

    assert asyncio.run(run())


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    alone = Neighbours(str(folder), 0)
    for name in folder.iterdir():
        name.unlink()
    folder.rmdir()
    alone.ring()
    alone.close()
