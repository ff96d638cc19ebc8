"""Pages of the audit log: outcomes, not requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.rules.audit_log import outcomes, read_audit
from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Repository
from crestgate.rules.storage.factory import open_repository

ACTOR = Actor("key:ops")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = open_repository(f"sqlite:///{tmp_path / 'rules.db'}")
    for action in ("reset requested", "reset", "reset requested", "reset failed"):
        repository.note(ACTOR, action, "user:1")
    repository.note(ACTOR, "reset requested", "user:2")
    return repository


def actions(entries: list[AuditEntry]) -> list[tuple[str, str]]:
    return [(entry.action, entry.subject) for entry in entries]


def test_requests_with_an_outcome_are_left_out(repository: Repository) -> None:
    entries, following = read_audit(repository, AuditQuery())
    assert actions(entries) == [("reset requested", "user:2"), ("reset failed", "user:1"), ("reset", "user:1")]
    assert following is None


def test_all_entries_on_request(repository: Repository) -> None:
    entries, _ = read_audit(repository, AuditQuery(), requests=True)
    assert len(entries) == 5


def test_pages_continue_where_the_last_one_ended(repository: Repository) -> None:
    first, following = read_audit(repository, AuditQuery(limit=3))
    assert actions(first) == [("reset requested", "user:2"), ("reset failed", "user:1")]
    assert following is not None
    second, last = read_audit(repository, AuditQuery(limit=3, before=following))
    assert actions(second) == [("reset", "user:1")]
    assert last is None


def test_outcomes_of_others_do_not_hide_a_request() -> None:
    entries = [
        AuditEntry(3, "key:a", "", "reset", "user:1"),
        AuditEntry(2, "key:b", "", "reset requested", "user:1"),
        AuditEntry(1, "key:a", "", "charge requested", "user:1"),
    ]
    assert outcomes(entries) == entries
