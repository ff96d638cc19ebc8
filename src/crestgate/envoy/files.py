"""Reads descriptor files: one file, or all files of a folder, each a domain. All problems are reported together.

A folder means its *.yaml and *.yml files, sorted by name, without hidden files and subfolders. So a mounted ConfigMap
works: its files are links through a hidden folder, which is switched when it changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from crestgate.envoy.descriptor_tree import DescriptorNode
from crestgate.envoy.matcher import Domains
from crestgate.envoy.serialization import Row, pack_domains, unpack_domains
from crestgate.envoy.yaml_reader import TEXTS, read_domain
from crestgate.errors import Problem
from crestgate.loader.document import Document, read_document, stamp_of
from crestgate.loader.fields import Problems, describe
from crestgate.loader.file_reloader import PathState

__all__ = ["DescriptorFiles", "path_state", "read_descriptor_files"]

ENDINGS = (".yaml", ".yml")


@dataclass(slots=True)
class DescriptorFiles:
    """The domains of the files, and the states by which changes are detected."""

    path: str
    domains: Domains = field(default_factory=lambda: Domains({}))
    """Empty if there are problems."""
    problems: list[Problem] = field(default_factory=list)
    """In the order of the files."""
    states: dict[str, PathState] = field(default_factory=dict)
    """States of the path and of every file when they were read."""
    digests: dict[str, bytes | None] = field(default_factory=dict)
    """Digest of each file that was read."""

    def __reduce__(self) -> tuple[object, ...]:
        """Settings are pickled for every worker."""
        return _unpickle, (self.path, pack_domains(self.domains), self.problems, self.states, self.digests)


def _unpickle(
    path: str,
    rows: Sequence[Row],
    problems: list[Problem],
    states: dict[str, PathState],
    digests: dict[str, bytes | None],
) -> DescriptorFiles:
    return DescriptorFiles(path, unpack_domains(rows), problems, states, digests)


def read_descriptor_files(path: str) -> DescriptorFiles:
    """Read a file, or the files of a folder. Errors are in `problems`."""
    files = DescriptorFiles(path)
    state = files.states[path] = path_state(path)
    if state is None:
        files.problems.append(Problem("", "there is no such file or folder: create it, or correct the path", path))
    if state == ():
        message = "there is no *.yaml or *.yml file in this folder: add one for each domain, or correct the path"
        files.problems.append(Problem("", message, path))
    roots: dict[str, DescriptorNode] = {}
    files_by_domain: dict[str, str] = {}
    names = [os.path.join(path, name) for name in state] if isinstance(state, tuple) else [path] if state else []
    for name in names:
        document = read_document(name, TEXTS)
        files.states[name] = document.stamp
        files.digests[name] = document.digest
        files.problems += document.problems
        problems = Problems()
        root = read_domain(document, problems)
        if root is not None and root.label in files_by_domain:
            problems.add("domain", _duplicate_domain(root.label, files_by_domain[root.label]))
        elif root is not None:
            files_by_domain[root.label] = name
            roots[root.label] = root
        files.problems += _located(problems, document)
    if not files.problems:
        files.domains = Domains(roots)
    return files


def path_state(path: str) -> PathState:
    """The state of a path now, without reading it."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(ENDINGS) and not _is_ignored(entry)]
    except (OSError, ValueError):  # usually not a folder
        return stamp_of(path)
    return tuple(sorted(names))


def _is_ignored(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".") or entry.is_dir()


def _located(problems: Problems, document: Document) -> list[Problem]:
    return sorted(map(document.locate, problems.entries), key=lambda problem: problem.line or 0)


def _duplicate_domain(domain: str, other: str) -> str:
    return f"{describe(domain)} is the domain of {other} too: put all of its descriptors into one file"
