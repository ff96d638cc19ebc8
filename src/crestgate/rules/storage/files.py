"""Read-only repository of the rules in files, which are reloaded when they change.

Files with errors raise on every call until they are corrected. Until then there is no new revision, and readers keep
the last one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from crestgate.errors import ReadOnlyError, ValidationError
from crestgate.loader.file_reloader import FileReloader
from crestgate.loader.overlay import Variable
from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Changes, Edit, Kind, Record
from crestgate.rules.storage.rule_files import INCLUDE, RuleFiles, path_state, read_rule_files

__all__ = ["FileRepository"]


class FileRepository:
    """The rules in a main file and in those it includes, in rule files, or in folders of them."""

    def __init__(
        self, paths: str | Sequence[str], variables: Sequence[Variable] = (), files: RuleFiles | None = None
    ) -> None:
        """`variables` of the environment override the first file; `files` are the files if they are already read."""
        self._paths = [paths] if isinstance(paths, str) else list(paths)
        # Absolute: a program may change its working directory.
        absolute = [os.path.abspath(path) for path in self._paths]
        absolute_variables = [_with_absolute_paths(variable) for variable in variables]
        self._files = FileReloader(lambda: read_rule_files(absolute, absolute_variables)[0], path_state, files)
        self._index: tuple[int, dict[Kind, dict[str, Record]]] = (0, {})
        """The records of one revision, by kind and id."""

    @property
    def title(self) -> str:
        return f"the rules in {', '.join(self._paths)}" if self._paths else "the rules in the environment"

    def changes(self, since: int) -> Changes | None:
        """All records, if they differ from those at this revision. ValidationError while the files are invalid."""
        self._files.refresh()
        revision, files = self._files.latest()
        if since == revision or files is None:
            return None
        return Changes(revision, True, files.records, atomic=True)

    def reload(self) -> None:
        """Read the files at the next `changes`, whether or not they seem to have changed. Takes no lock: a signal
        handler may call it."""
        self._files.force()

    def listen(self, wake: Callable[[], None]) -> None:
        """Files do not notify: `changes` checks them."""

    def get(self, kind: Kind, record_id: str) -> Record | None:
        return self._by_id(kind).get(record_id)

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        records = self._by_id(kind)
        names = [name for name in records if name.startswith(prefix) and _bytes(name) > _bytes(after)]
        return [records[name] for name in sorted(names, key=_bytes)[:limit]]

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        raise self._read_only()

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        raise self._read_only()

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        return []

    def purge(self) -> None:
        """Nothing is stored."""

    def close(self) -> None:
        """Nothing is held open."""

    def _by_id(self, kind: Kind) -> dict[str, Record]:
        """The records of the last valid files, by id."""
        try:
            self._files.refresh()
        except ValidationError:
            if not self._files.latest()[0]:
                raise
        revision, files = self._files.latest()
        indexed_revision, by_kind = self._index
        if files is not None and indexed_revision != revision:
            by_kind = {}
            for record in files.records:
                by_kind.setdefault(record.kind, {})[record.id] = record
            self._index = revision, by_kind
        return by_kind.get(kind, {})

    def _read_only(self) -> ReadOnlyError:
        if not self._paths:
            return ReadOnlyError("these rules are set by the environment and are read-only: change the variables")
        return ReadOnlyError(f"{self.title} are read-only: edit the file, which is reloaded when it changes")


def _with_absolute_paths(variable: Variable) -> Variable:
    if variable.path != (INCLUDE,):
        return variable
    paths = variable.value if isinstance(variable.value, list) else [variable.value]
    return variable._replace(value=[os.path.abspath(path) if isinstance(path, str) else path for path in paths])


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
