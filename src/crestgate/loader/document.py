"""YAML and JSON files as plain data with line numbers.

Errors in the file itself (invalid YAML, duplicate keys) are in `problems`, so that the errors of all files can be
reported together. Errors in the data are found by its readers, which name the field by its path; `locate` adds the file
and the line.
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

from crestgate.errors import Problem
from crestgate.loader.parser import LineTree, parse

__all__ = ["MAX_BYTES", "Document", "Stamp", "digest_of", "read_document", "stamp_of"]

MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies a version of a file without reading it."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class Document:
    """The contents of a file."""

    file: str
    """Its path; empty if there is no file, and all settings come from the environment."""
    data: Any = field(repr=False)  # may contain a password
    """Mappings, lists, text, numbers, true, false and None. An empty mapping for an empty file, and for one that
    cannot be read."""
    problems: tuple[Problem, ...] = ()
    root: LineTree = 1
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Names of the environment variables that set fields, by path."""
    stamp: Stamp | None = None
    digest: bytes | None = None
    """Of the bytes; None if the file could not be read."""

    @cached_property
    def lines(self) -> Mapping[str, int]:
        """The line of every value, by its path. Computed on demand: only problems need it."""
        lines: dict[str, int] = {}
        todo: list[tuple[str, LineTree]] = [("", self.root)]
        while todo:
            path, node = todo.pop()
            line, below = node if isinstance(node, tuple) else (node, None)
            lines[path] = line
            if isinstance(below, dict):
                todo.extend((f"{path}.{key}" if path else key, inner) for key, inner in below.items())
            elif below is not None:
                todo.extend((f"{path}[{index}]", inner) for index, inner in enumerate(below))
        return lines

    def locate(self, problem: Problem) -> Problem:
        """The problem with its file and line: those of its field, else of the nearest enclosing one."""
        paths = [problem.field]
        while paths[-1]:
            paths.append(paths[-1][: max(paths[-1].rfind("."), paths[-1].rfind("["), 0)])
        for path in paths:  # a variable overrides the file, including nested fields
            if path in self.variables:
                return problem._replace(file=self.variables[path], line=None)
        if not self.file:
            return problem
        line = next((self.lines[path] for path in paths if path in self.lines), None)
        return problem._replace(file=self.file, line=line)


def read_document(path: str, texts: re.Pattern[str] | None = None) -> Document:
    """Read a file; `texts` is as in `parse`. Errors in the file are not raised: see `problems`.

    ConfigError if PyYAML is not installed.
    """
    try:
        with open(path, "rb", opener=_nonblocking) as file:
            status = os.fstat(file.fileno())
            stamp = _stamp(status)
            content = file.read(MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        return Document(path, {}, (_unreadable(path, error),), stamp=stamp_of(path))
    if content is None:
        return _invalid(path, "is not a regular file: save its contents as one, and name that", stamp)
    digest = sha256(content).digest()
    if len(content) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 2**20} MB: split it, and name the parts under 'include'"
        return _invalid(path, message, stamp, digest)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"the byte 0x{content[error.start]:02x} is not UTF-8: save the file as UTF-8"
        return _invalid(path, message, stamp, digest, line)
    parsed = parse(text, texts)
    problems = tuple(problem._replace(file=path) for problem in parsed.problems)
    return Document(
        path, {} if parsed.data is None else parsed.data, problems, parsed.lines, stamp=stamp, digest=digest
    )


def stamp_of(path: str) -> Stamp | None:
    """The current stamp of a path, following links; None if it does not exist."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def digest_of(path: str) -> bytes | None:
    """The current digest of a file, as `Document.digest`; None if it cannot be read."""
    try:
        with open(path, "rb", opener=_nonblocking) as file:
            return sha256(file.read(MAX_BYTES + 1)).digest()
    except (OSError, ValueError):
        return None


def _nonblocking(path: str, flags: int) -> int:
    """Opening a named pipe would block otherwise."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _invalid(
    path: str, message: str, stamp: Stamp | None, digest: bytes | None = None, line: int | None = None
) -> Document:
    return Document(path, {}, (Problem("", message, path, line),), stamp=stamp, digest=digest)


def _unreadable(path: str, error: OSError | ValueError) -> Problem:
    if isinstance(error, FileNotFoundError):
        message = "there is no such file: correct the path, or create the file"
    elif isinstance(error, IsADirectoryError):
        message = "is a folder: name a file in it"
    elif isinstance(error, PermissionError):
        message = "permission denied: give this process read permission"
    else:
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return Problem("", message, path)
