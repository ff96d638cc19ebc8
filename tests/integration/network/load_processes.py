"""Several load processes on one store, and their joint history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType

from integration.child_process import ChildProcess
from integration.network.history import Check, read
from integration.network.workers import Target

__all__ = ["LoadProcesses", "with_options"]


class LoadProcesses:
    """Worker processes, started once and used by many tests."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self.folder = folder
        self.numbers = count()
        self.files: list[Path] = []
        self.stack = ExitStack()
        self.children: list[ChildProcess] = []
        self.busy = True

    def ensure_idle(self) -> None:
        """Restart the processes if they are busy, as after a failed test."""
        if self.busy:
            self.stack.close()
            self.children = [self.stack.enter_context(ChildProcess("network.workers.work")) for _ in range(self.size)]
            self.busy = False

    def run(
        self,
        url: str,
        targets: Sequence[Target],
        *,
        checks: int,
        callers: int = 50,
        kind: str = "tasks",
        pause: float = 0.0,
        meanwhile: Callable[[], object] | None = None,
        size: int | None = None,
    ) -> list[Check]:
        """The history of so many checks by each caller of each process. A store error fails the test."""
        workers = self.children[:size]
        self.begin(url, targets, callers=callers, checks=checks, kind=kind, pause=pause, workers=workers)
        if meanwhile is not None:
            meanwhile()
        history = self.histories(workers)
        assert len(history) == len(workers) * callers * checks
        assert {check.reason for check in history} <= {"ok", "limited"}
        return history

    def begin(
        self,
        url: str,
        targets: Sequence[Target],
        *,
        callers: int,
        checks: int | None = None,
        kind: str = "tasks",
        pause: float = 0.0,
        policy: str = "closed",
        workers: Sequence[ChildProcess] | None = None,
    ) -> None:
        """Start a load: so many checks by each caller, or until `end`."""
        self.busy = True
        workers = self.children if workers is None else workers
        self.files = [self.folder / f"history-{next(self.numbers)}" for _ in workers]
        for seed, (child, file) in enumerate(zip(workers, self.files, strict=True)):
            task = {"url": url, "targets": targets, "callers": callers, "checks": checks, "pause": pause}
            child.send({**task, "kind": kind, "policy": policy, "seed": seed, "file": str(file)})
        expect_message(workers, "ready")
        for child in workers:
            child.send("go")

    def end(self) -> list[Check]:
        """Stop the load; returns its history."""
        for child in self.children:
            child.send("enough")
        return self.histories(self.children)

    def histories(self, workers: Sequence[ChildProcess]) -> list[Check]:
        expect_message(workers, "done")
        self.busy = False
        return [check for file in self.files for check in read(file)]

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()


def expect_message(workers: Sequence[ChildProcess], message: str) -> None:
    for child in workers:
        reply = child.receive()
        assert reply == message, reply


def with_options(url: str, **options: object) -> str:
    """A store URL with further options."""
    text = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{text}"
