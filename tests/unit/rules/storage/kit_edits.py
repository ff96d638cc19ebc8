"""Short ways to write to a repository and to look into it, for its tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Edit, Kind, Record, Repository

__all__ = [
    "ALICE",
    "BOB",
    "PATIENCE",
    "SECOND",
    "Opener",
    "edit",
    "encoded",
    "everything",
    "ids",
    "in_a_child",
    "place",
    "put",
    "revision_of",
    "subjects",
    "told",
]

Opener = Callable[[str], Repository]
ALICE = Actor("alice", "192.0.2.1")
BOB = Actor("bob", "2001:db8::1")
PATIENCE = 20.0
"""Seconds until something that must happen is taken not to: tests share two cores."""
SECOND = 1_000_000


def edit(
    record_id: str,
    body: Mapping[str, Any] | None,
    *,
    expected: int | None = None,
    unique_key: str | None = None,
    expires_us: int | None = None,
) -> Edit:
    """An edit of a rule."""
    return Edit("rule", record_id, body, expected, unique_key, expires_us)


def put(
    repository: Repository,
    record_id: str,
    body: Mapping[str, Any],
    *,
    kind: Kind = "rule",
    actor: Actor = ALICE,
    expected: int | None = None,
    unique_key: str | None = None,
    expires_us: int | None = None,
) -> Record:
    """Write one record; how it stands afterwards."""
    (record,) = repository.write([Edit(kind, record_id, body, expected, unique_key, expires_us)], actor)
    assert record is not None
    return record


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def revision_of(repository: Repository) -> int:
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision


def everything(repository: Repository) -> tuple[object, ...]:
    """All that can be seen of it."""
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision, list(repository.list("rule")), list(repository.audit(AuditQuery(limit=10_000)))


def told(entry: AuditEntry) -> tuple[str, str, str, str]:
    return entry.actor, entry.address, entry.action, entry.subject


def place(entry: AuditEntry) -> tuple[int, str]:
    return len(entry.id), entry.id


def subjects(repository: Repository, **query: Any) -> list[str]:
    return [entry.subject for entry in repository.audit(AuditQuery(**query))]


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def in_a_child(work: Callable[[], None]) -> int:
    """Run it in a forked process; 0 if it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
