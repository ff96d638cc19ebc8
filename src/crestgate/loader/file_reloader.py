"""Contents of configuration files, reloaded when the files change.

Changes are detected by stamps (inode, size and times of each file, names in each folder), whether a file was edited in
place, replaced by another, or a symbolic link in its path was switched. File systems have a time resolution of some
milliseconds, and two edits within it leave one stamp: so the first check after a load compares the bytes, too.

Invalid files are an error on every refresh until they change, without being read again; the last valid contents stay.
Loading may take seconds, so no lock is held meanwhile; of two concurrent loads the later one wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from crestgate.errors import Problem, ValidationError
from crestgate.loader.document import Stamp, digest_of
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["FileContents", "FileReloader", "PathState"]

PathState = Stamp | tuple[str, ...] | None
"""A file's stamp, the names in a folder, or None for a path that does not exist."""

V = TypeVar("V")


class FileContents(Protocol):
    """The result of one load."""

    @property
    def problems(self) -> Sequence[Problem]: ...

    @property
    def states(self) -> Mapping[str, PathState]:
        """The state of every file and folder at the time of the load."""

    @property
    def digests(self) -> Mapping[str, bytes | None]:
        """Digests of the contents of every file that was read."""


F = TypeVar("F", bound=FileContents)


class FileReloader(Generic[F]):
    """The latest valid contents of some files. `state` returns the state of a path without reading it."""

    def __init__(self, read: Callable[[], F], state: Callable[[str], PathState], contents: F | None = None) -> None:
        """`contents` is the result of an earlier load, if any."""
        self._read = read
        self._state = state
        self._lock = fork_safe_lock()
        self._forced = False
        self._started = self._finished = 0
        """Numbers of the last load that was started, and of the last one whose result was used."""
        self._states: dict[str, PathState] = {}
        self._digests: dict[str, bytes | None] = {}
        self._bytes_compared = False
        self._failure: ValidationError | None = None
        self._latest: tuple[int, F | None] = (0, None)
        if contents is not None:
            self._started = self._finished = 1
            self._use(contents)

    def force(self) -> None:
        """Load at the next refresh, changed or not. Takes no lock: a signal handler may call it."""
        self._forced = True

    def refresh(self) -> bool:
        """Load the files if they have changed; whether their bytes have. ValidationError while they are invalid."""
        changed = self._refresh()
        failure = self._failure
        if failure is not None:
            raise ValidationError(failure.problems)
        return changed

    def latest(self) -> tuple[int, F | None]:
        """The revision and contents of the last valid load; 0 and None before the first. Revisions count up."""
        return self._latest

    def _refresh(self) -> bool:
        with self._lock:
            forced, self._forced = self._forced, False
            if self._finished and not forced and not self._changed():
                return False
            self._started += 1
            number = self._started
        try:
            contents = self._read()
        except BaseException:
            self._forced = True
            raise
        with self._lock:
            if number < self._finished:
                return False
            self._finished = number
            return self._use(contents)

    def _changed(self) -> bool:
        if any(self._state(path) != state for path, state in self._states.items()):
            return True
        if self._bytes_compared:
            return False
        self._bytes_compared = True
        return any(digest_of(path) != digest for path, digest in self._digests.items())

    def _use(self, contents: F) -> bool:
        before = None if self._failure is not None else self._digests
        self._states = _absolute(contents.states)
        self._digests = _absolute(contents.digests)
        self._bytes_compared = False
        self._failure = ValidationError(contents.problems) if contents.problems else None
        if self._failure is None:
            self._latest = (self._latest[0] + 1, contents)
        return self._digests != before


def _absolute(by_path: Mapping[str, V]) -> dict[str, V]:
    """By absolute paths: a program may change its working directory."""
    return {os.path.abspath(path): value for path, value in by_path.items()}
