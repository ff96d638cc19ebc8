"""Time that processes wait for a processor: it is due to the other processes of the machine, not to an attack."""

from __future__ import annotations

import os

__all__ = ["RunDelay"]


class RunDelay:
    """How long this process and those that serve it were runnable, and did not run. Linux counts it for the main
    thread of each; elsewhere it is 0."""

    def __init__(self, pids: list[int]) -> None:
        self._files: list[int] = []
        for pid in (os.getpid(), *pids):
            try:
                self._files.append(os.open(f"/proc/{pid}/schedstat", os.O_RDONLY))
            except OSError:
                pass
        self._before = self._read()

    def start(self) -> None:
        """Count from now on."""
        self._before = self._read()

    def seconds(self) -> float:
        """The longest delay of one process since then. Delays of two overlap in part, so they are not added up."""
        return max((after - before for before, after in zip(self._before, self._read(), strict=True)), default=0) / 1e9

    def _read(self) -> list[int]:
        """In nanoseconds, in total."""
        return [self._delay(file) for file in self._files]

    @staticmethod
    def _delay(file: int) -> int:
        try:
            return int(os.pread(file, 100, 0).split()[1])
        except (OSError, IndexError):  # the process has ended
            return 0
