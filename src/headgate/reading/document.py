"""A YAML or JSON file as plain data that remembers on which line everything is written.

Mistakes in the file itself (what is no YAML, a field that is written twice) are in `problems`, so that reading goes
on and tells all mistakes of all files at once. Mistakes in what the data says are found by others, who name the field
by the way to it; `place` adds the file and the line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from headgate.errors import Problem
from headgate.reading.parsing import Place, parse

__all__ = ["MOST_BYTES", "Document", "Stamp", "digest_of", "read_document", "stamp_of"]

MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stamp:
    """By what a file that was changed or replaced is told without reading it."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class Document:
    """What a file says."""

    file: str
    """Its path; empty where there is no file, and all that is said comes from the environment."""
    data: Any = field(repr=False)  # there may be a password in it
    """Mappings, lists, text, numbers, true, false and None. An empty mapping for an empty file, and for one that
    cannot be read, which `problems` tells."""
    problems: tuple[Problem, ...] = ()
    root: Place = 1
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The ways to what was not written in the file but in an environment variable, and the variable's name."""
    stamp: Stamp | None = None
    digest: bytes | None = None
    """Of the bytes that were read; None if there were none to read."""

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The line of every value, by the way to it. Made when it is asked for: only mistakes need it."""
        found: dict[str, int] = {}
        todo: list[tuple[str, Place]] = [("", self.root)]
        while todo:
            way, place = todo.pop()
            line, below = place if isinstance(place, tuple) else (place, None)
            found[way] = line
            if isinstance(below, dict):
                todo.extend((f"{way}.{key}" if way else key, inner) for key, inner in below.items())
            elif below is not None:
                todo.extend((f"{way}[{position}]", inner) for position, inner in enumerate(below))
        return found

    def place(self, problem: Problem) -> Problem:
        """The problem with its file and line: those of its field, else of the nearest that holds it."""
        ways = [problem.field]
        while ways[-1]:
            ways.append(ways[-1][: max(ways[-1].rfind("."), ways[-1].rfind("["), 0)])
        for way in ways:  # a variable comes before the file, with all that is in it
            if way in self.variables:
                return problem._replace(file=self.variables[way], line=None)
        if not self.file:
            return problem
        line = next((self.places[way] for way in ways if way in self.places), None)
        return problem._replace(file=self.file, line=line)


def read_document(path: str, texts: re.Pattern[str] | None = None) -> Document:
    """Read a file; `texts` is as in `parse`. It never fails because of the file: `problems` says what is wrong with it.

    ConfigError, when the package that reads YAML is not installed.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            stamp = _stamp(found)
            content = file.read(MOST_BYTES + 1) if stat.S_ISREG(found.st_mode) else None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        return Document(path, {}, (_unreadable(path, error),), stamp=stamp_of(path))
    if content is None:
        return _refused(path, "is no ordinary file: save what it holds as one, and name that", stamp)
    digest = sha256(content).digest()
    if len(content) > MOST_BYTES:
        message = f"is larger than {MOST_BYTES // 2**20} MB: split it, and name the parts under 'include'"
        return _refused(path, message, stamp, digest)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        shown = f"the byte 0x{content[error.start]:02x} is no UTF-8: save the file as UTF-8"
        return _refused(path, shown, stamp, digest, line)
    parsed = parse(text, texts)
    problems = tuple(problem._replace(file=path) for problem in parsed.problems)
    return Document(
        path, {} if parsed.data is None else parsed.data, problems, parsed.place, stamp=stamp, digest=digest
    )


def stamp_of(path: str) -> Stamp | None:
    """What a path leads to now, links followed; None when it leads to nothing."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def digest_of(path: str) -> bytes | None:
    """The digest of a file as it is now, as `Document.digest` has it; None if it cannot be read."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return sha256(file.read(MOST_BYTES + 1)).digest()
    except (OSError, ValueError):
        return None


def _without_waiting(path: str, flags: int) -> int:
    """Opening a named pipe would wait for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _refused(
    path: str, message: str, stamp: Stamp | None, digest: bytes | None = None, line: int | None = None
) -> Document:
    return Document(path, {}, (Problem("", message, path, line),), stamp=stamp, digest=digest)


def _unreadable(path: str, error: OSError | ValueError) -> Problem:
    if isinstance(error, FileNotFoundError):
        message = "there is no such file: write its path as seen from here, or make it"
    elif isinstance(error, IsADirectoryError):
        message = "is a folder: name a file in it"
    elif isinstance(error, PermissionError):
        message = "may not be read: give this process leave to read it"
    else:
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return Problem("", message, path)
