"""The files with descriptors: one, or those of a folder, each a domain. All are read, and all mistakes in them told, in
one go, whether at start, for a check or when a file has changed.

A folder stands for its *.yaml and *.yml files in the order of their names; hidden ones and folders in it are left out.
So a mounted ConfigMap is read as it is: its files are links by way of a hidden one, which is switched when it changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.envoy.limits import Domains
from headgate.envoy.reading import TEXTS, read_domain
from headgate.envoy.travelling import Row, packed, unpacked
from headgate.envoy.tree import Node
from headgate.errors import Problem
from headgate.reading.document import Document, read_document, stamp_of
from headgate.reading.fields import Problems, kind_of
from headgate.reading.traces import Seen

__all__ = ["DescriptorFiles", "look", "read_descriptor_files"]

ENDINGS = (".yaml", ".yml")


@dataclass(slots=True)
class DescriptorFiles:
    """What the files say, and by what a change of them is noticed."""

    path: str
    domains: Domains = field(default_factory=lambda: Domains({}))
    """Of no use when there are problems."""
    problems: list[Problem] = field(default_factory=list)
    """As one meets them on the way through the files."""
    seen: dict[str, Seen] = field(default_factory=dict)
    """The path and every file that was read, as they were then."""
    digests: dict[str, bytes | None] = field(default_factory=dict)
    """Every file that was read, and its contents in short."""

    def __reduce__(self) -> tuple[object, ...]:
        """Settings travel to every worker, and these with them."""
        return _arrived, (self.path, packed(self.domains), self.problems, self.seen, self.digests)


def _arrived(
    path: str,
    rows: Sequence[Row],
    problems: list[Problem],
    seen: dict[str, Seen],
    digests: dict[str, bytes | None],
) -> DescriptorFiles:
    return DescriptorFiles(path, unpacked(rows), problems, seen, digests)


def read_descriptor_files(path: str) -> DescriptorFiles:
    """Read a file, or the files of a folder. What is wrong with them is in `problems`."""
    files = DescriptorFiles(path)
    seen = files.seen[path] = look(path)
    if seen is None:
        files.problems.append(Problem("", "there is no such file or folder: make it, or mend the path", path))
    if seen == ():
        message = "there is no *.yaml or *.yml file in this folder: put one there for each domain, or mend the path"
        files.problems.append(Problem("", message, path))
    roots: dict[str, Node] = {}
    homes: dict[str, str] = {}
    names = [os.path.join(path, name) for name in seen] if isinstance(seen, tuple) else [path] if seen else []
    for name in names:
        document = read_document(name, TEXTS)
        files.seen[name] = document.stamp
        files.digests[name] = document.digest
        files.problems += document.problems
        problems = Problems()
        root = read_domain(document, problems)
        if root is not None and root.shown in homes:
            problems.add("domain", _again(root.shown, homes[root.shown]))
        elif root is not None:
            homes[root.shown] = name
            roots[root.shown] = root
        files.problems += _placed(problems, document)
    if not files.problems:
        files.domains = Domains(roots)
    return files


def look(path: str) -> Seen:
    """What a path leads to now, without reading it."""
    try:
        with os.scandir(path) as entries:
            found = [entry.name for entry in entries if entry.name.endswith(ENDINGS) and not _is_left_out(entry)]
    except (OSError, ValueError):  # no folder, in nearly all cases
        return stamp_of(path)
    return tuple(sorted(found))


def _is_left_out(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".") or entry.is_dir()


def _placed(problems: Problems, document: Document) -> list[Problem]:
    return sorted(map(document.place, problems.found), key=lambda problem: problem.line or 0)


def _again(domain: str, home: str) -> str:
    return f"{kind_of(domain)} is the domain of {home} too: put all of its descriptors into one file"
