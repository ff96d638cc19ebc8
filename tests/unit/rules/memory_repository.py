"""An in-memory repository on a fake clock: the port and nothing else.

Writes are validated by `revise`, as in every repository.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crestgate.errors import StoreClosedError
from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Changes, Edit, Kind, Record
from crestgate.rules.storage.write_rules import StoredState, plan_write
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.testing import FakeClock

__all__ = ["MemoryRepository"]


class MemoryRepository:
    """Records in a dictionary."""

    title = "memory of the test"

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = FakeClock(1_700_000_000) if clock is None else clock
        self.revision = 0
        self.records: dict[tuple[Kind, str], Record] = {}
        self.entries: list[AuditEntry] = []
        self.before_write: Callable[[], object] | None = None
        """Called once, between the read and the write of a writer, to simulate a concurrent write."""
        self._versions: dict[tuple[Kind, str], int] = {}
        self._changed: dict[tuple[Kind, str], int] = {}
        self._listeners: list[Callable[[], None]] = []
        self._lock = fork_safe_lock()
        self._closed = False

    def changes(self, since: int) -> Changes | None:
        with self._lock:
            self._open()
            if since == self.revision and since:
                return None
            new = [name for name, at in self._changed.items() if at > since]
            alive = [self.records[name] for name in new if name in self.records]
            deleted = [name for name in new if name not in self.records]
            return Changes(self.revision, since == 0, alive, [] if since == 0 else deleted)

    def listen(self, wake: Callable[[], None]) -> None:
        self._open()
        self._listeners.append(wake)

    def close(self) -> None:
        self._closed = True

    def get(self, kind: Kind, record_id: str) -> Record | None:
        self._open()
        return self.records.get((kind, record_id))

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        self._open()
        found = [r for (of, name), r in self.records.items() if of == kind and name.startswith(prefix) and name > after]
        return sorted(found, key=lambda record: record.id)[:limit]

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        between, self.before_write = self.before_write, None
        if between is not None:
            between()
        with self._lock:
            self._open()
            found = {name: StoredState(version, self.records.get(name)) for name, version in self._versions.items()}
            holders: dict[str, list[Record]] = {}
            for record in self.records.values():
                if record.unique_key is not None:
                    holders.setdefault(record.unique_key, []).append(record)
            revision = plan_write(edits, found, holders, self.clock.ticks(), actor)
            self.revision += 1
            for kind, record_id, version in revision.deletes:
                self.records.pop((kind, record_id), None)
                self._versions[kind, record_id] = version
                self._changed[kind, record_id] = self.revision
            for record in revision.puts:
                name = record.kind, record.id
                self.records[name] = record
                self._versions[name] = record.version
                self._changed[name] = self.revision
            self.entries += revision.audit
        for wake in self._listeners:
            wake()
        return revision.results

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        self._open()
        self.entries += [AuditEntry(self.clock.ticks(), actor.name, actor.address, action, one) for one in subjects]

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        self._open()
        return [
            entry
            for entry in reversed(self.entries)
            if query.actor in (None, entry.actor) and query.subject in (None, entry.subject)
        ][: query.limit]

    def purge(self) -> None:
        self._open()

    def _open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.title} was closed")
