"""Several processes configure one client at once: its limits are always those of one of them, and every write is in
the audit log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from crestgate.rules.port import AuditEntry, AuditQuery, Repository
from crestgate.rules.storage.factory import open_repository
from integration.child_process import Child
from integration.rules.repositories import KINDS, repository_url

PROCESSES = 4
TIMES = 50
LIMITS = 3
CLIENT = "client-7"


@pytest.mark.parametrize("kind", KINDS)
def test_writers_never_mix_and_lose_no_audit_entry(kind: str, request: pytest.FixtureRequest) -> None:
    url = repository_url(kind, request)
    repository = open_repository(url)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                Child("rules.rule_programs.configure", url=url, client=CLIENT, first=1000 * (n + 1), times=TIMES)
            )
            for n in range(PROCESSES)
        ]
        for writer in writers:
            assert writer.hear() == "ready"
        for writer in writers:
            writer.say("go")
        looks = 0
        while any(writer.silent(0.0) for writer in writers):
            looks += _look(repository)
        for writer in writers:
            assert writer.finish() == "done"
    _look(repository)
    assert looks > PROCESSES  # somebody has looked while they wrote
    entries = _all(repository)
    assert len(entries) == PROCESSES * TIMES * LIMITS
    _follow(entries)
    repository.close()


def _look(repository: Repository) -> int:
    """The client's limits as they stand: all of one writing."""
    changes = repository.changes(0)
    if changes is None or not changes.records:
        return 0
    assert len(changes.records) == LIMITS
    assert len({_number(record.body) for record in changes.records}) == 1
    return 1


def _number(body: Any) -> int:
    number: int = body["limit"]
    return number


def _all(repository: Repository) -> list[AuditEntry]:
    """The whole audit log, page by page, the oldest first."""
    entries: list[AuditEntry] = []
    page = repository.audit(AuditQuery(limit=100))
    while page:
        entries.extend(page)
        page = repository.audit(AuditQuery(limit=100, before=page[-1].id))
    return entries[::-1]


def _follow(entries: list[AuditEntry]) -> None:
    """Each entry begins where the one before it ended, and each number was written once for each limit."""
    last: dict[str, Any] = {}
    written: set[tuple[str, int]] = set()
    for entry in entries:
        assert entry.before == last.get(entry.subject)
        assert entry.after is not None
        last[entry.subject] = entry.after
        written.add((entry.subject, _number(entry.after)))
        assert entry.actor == f"writer-{_number(entry.after) // 1000 * 1000}"
    assert len(written) == PROCESSES * TIMES * LIMITS
