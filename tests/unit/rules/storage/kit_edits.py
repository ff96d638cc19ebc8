"""Helpers that write to a repository and read its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Edit, Kind, Record, Repository

__all__ = [
    "ALICE",
    "BOB",
    "SECOND",
    "TIMEOUT",
    "Opener",
    "edit",
    "encoded",
    "ids",
    "put",
    "revision_of",
    "run_in_child",
    "sort_key",
    "subjects",
    "summary",
    "visible_state",
]

Opener = Callable[[str], Repository]
ALICE = Actor("alice", "192.0.2.1")
BOB = Actor("bob", "2001:db8::1")
TIMEOUT = 20.0
"""Seconds to wait before a test fails: tests share two cores."""
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
    """Write one record; returns it as stored."""
    (record,) = repository.write([Edit(kind, record_id, body, expected, unique_key, expires_us)], actor)
    assert record is not None
    return record


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def revision_of(repository: Repository) -> int:
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision


def visible_state(repository: Repository) -> tuple[object, ...]:
    """The whole visible state of a repository."""
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision, list(repository.list("rule")), list(repository.audit(AuditQuery(limit=10_000)))


def summary(entry: AuditEntry) -> tuple[str, str, str, str]:
    return entry.actor, entry.address, entry.action, entry.subject


def sort_key(entry: AuditEntry) -> tuple[int, str]:
    return len(entry.id), entry.id


def subjects(repository: Repository, **query: Any) -> list[str]:
    return [entry.subject for entry in repository.audit(AuditQuery(**query))]


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def run_in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
