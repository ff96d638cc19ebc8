"""Rules in files, as a repository that is read and never written to: people edit the files.

Whether anything has changed is told by stamps (see reading/traces.py). A new stamp has the files read, whether they
were edited in place, replaced by another file, or a link on the way to them was switched.

Files that cannot be used are an error, every time somebody asks, until they change; they are not read again for it.
Until they are mended there is no new revision, and whoever has the last one keeps it.

Many rules take seconds to read, and no lock is held meanwhile: neither who asks for what stands nor a fork waits.
Should two threads read at once, what the later one has read is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from headgate.errors import Invalid, ReadOnly
from headgate.reading.traces import Traces
from headgate.reading.variables import Variable
from headgate.rules.repositories.port import Actor, AuditEntry, AuditQuery, Changes, Edit, Kind, Record
from headgate.rules.rule_files import INCLUDE, RuleFiles, look, read_rule_files
from headgate.stores.forking import fork_safe_lock

__all__ = ["FileRepository"]


class FileRepository:
    """The rules in a main file and in those it includes, in rule files, or in folders of them."""

    def __init__(
        self, paths: str | Sequence[str], variables: Sequence[Variable] = (), files: RuleFiles | None = None
    ) -> None:
        """`variables` are the environment's share of the first file; `files`, what was read already, if it was."""
        self._named = [paths] if isinstance(paths, str) else list(paths)
        # A program may go to another folder; its files stay where they are.
        self._paths = [os.path.abspath(path) for path in self._named]
        self._variables = [_anchored(variable) for variable in variables]
        self._lock = fork_safe_lock()
        self._traces = Traces()
        self._forced = False
        self._begun = self._taken = 0 if files is None else 1
        """Readings are numbered: the last that was begun, and the last whose outcome was taken."""
        self._failure: Invalid | None = None
        self._revision = 0
        self._records: dict[Kind, dict[str, Record]] = {}
        if files is not None:
            self._take(files)

    @property
    def title(self) -> str:
        return f"the rules in {', '.join(self._named)}" if self._named else "the rules in the environment"

    def changes(self, since: int) -> Changes | None:
        """All records, if they are others than at this revision. Invalid, as long as the files cannot be used."""
        self._refresh()
        with self._lock:
            if self._failure is not None:
                raise Invalid(self._failure.problems)
            if since == self._revision:
                return None
            records = [record for kind in self._records.values() for record in kind.values()]
            return Changes(self._revision, True, records)

    def reload(self) -> None:
        """Have the files read when they are asked for next, whether or not they seem to have changed. Takes no lock:
        a signal's handler may call it."""
        self._forced = True

    def listen(self, wake: Callable[[], None]) -> None:
        """Files do not tell: they are looked at when `changes` is asked."""

    def get(self, kind: Kind, record_id: str) -> Record | None:
        return self._standing(kind).get(record_id)

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        records = self._standing(kind)
        names = [name for name in records if name.startswith(prefix) and _bytes(name) > _bytes(after)]
        return [records[name] for name in sorted(names, key=_bytes)[:limit]]

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        raise self._read_only()

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        raise self._read_only()

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        return []

    def close(self) -> None:
        """Nothing is held open."""

    def _standing(self, kind: Kind) -> dict[str, Record]:
        """What stands: the last that could be used."""
        self._refresh()
        with self._lock:
            if self._failure is not None and not self._revision:
                raise Invalid(self._failure.problems)
            return self._records.get(kind, {})

    def _refresh(self) -> None:
        with self._lock:
            forced, self._forced = self._forced, False
            if self._taken and not forced and not self._traces.changed(look):
                return
            self._begun += 1
            number = self._begun
        try:
            files, _ = read_rule_files(self._paths, self._variables)
        except BaseException:
            self._forced = True
            raise
        with self._lock:
            if number > self._taken:
                self._taken = number
                self._take(files)

    def _take(self, files: RuleFiles) -> None:
        self._traces.take(files.seen, files.digests)
        if files.problems:
            self._failure = Invalid(files.problems)
            return
        self._failure = None
        self._revision += 1
        records: dict[Kind, dict[str, Record]] = {}
        for record in files.records:
            records.setdefault(record.kind, {})[record.id] = record
        self._records = records

    def _read_only(self) -> ReadOnly:
        if not self._named:
            return ReadOnly("these rules are set by the environment and cannot be written: change the variables")
        return ReadOnly(
            f"{self.title} cannot be written from here: edit the file, which is read again as soon as it changes"
        )


def _anchored(variable: Variable) -> Variable:
    if variable.path != (INCLUDE,):
        return variable
    paths = variable.value if isinstance(variable.value, list) else [variable.value]
    return variable._replace(value=[os.path.abspath(path) if isinstance(path, str) else path for path in paths])


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
