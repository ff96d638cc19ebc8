"""Steps of the wall clock of one process, by libfaketime. Monotonic clocks run on.

The offset is in a file, which the library reads again every second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import glob
from pathlib import Path

__all__ = ["FakeTime", "library"]

CACHED_SECONDS = 1.0


def library() -> str | None:
    """The library for programs with threads, if it is installed (Debian: faketime)."""
    found = sorted(glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class FakeTime:
    """The clock of the processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        folder.chmod(0o755)  # a server may run as another user
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of the real one, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.replace(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        path = library()
        assert path is not None
        return {
            "LD_PRELOAD": path,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(int(CACHED_SECONDS)),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @contextmanager
    def around(self) -> Iterator[None]:
        """What is started in this block has this clock."""
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name in self.environment:
                os.environ.pop(name, None)
                if name in before:
                    os.environ[name] = before[name]
