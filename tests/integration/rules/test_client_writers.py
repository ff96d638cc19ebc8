"""Several processes configure one client concurrently: its limits always come from one write, and every write is in
the audit log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from crestgate.rules.port import AuditEntry, AuditQuery, Repository
from crestgate.rules.storage.factory import open_repository
from integration.child_process import ChildProcess
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
                ChildProcess("rules.rule_programs.configure", url=url, client=CLIENT, first=1000 * (n + 1), times=TIMES)
            )
            for n in range(PROCESSES)
        ]
        for writer in writers:
            assert writer.receive() == "ready"
        for writer in writers:
            writer.send("go")
        reads = 0
        while any(writer.is_silent(0.0) for writer in writers):
            reads += _assert_consistent(repository)
        for writer in writers:
            assert writer.finish() == "done"
    _assert_consistent(repository)
    assert reads > PROCESSES  # some reads happened during the writes
    entries = _audit_log(repository)
    assert len(entries) == PROCESSES * TIMES * LIMITS
    _assert_complete(entries)
    repository.close()


def _assert_consistent(repository: Repository) -> int:
    """Assert that the client's current limits come from one write."""
    changes = repository.changes(0)
    if changes is None or not changes.records:
        return 0
    assert len(changes.records) == LIMITS
    assert len({_limit_number(record.body) for record in changes.records}) == 1
    return 1


def _limit_number(body: Any) -> int:
    number: int = body["limit"]
    return number


def _audit_log(repository: Repository) -> list[AuditEntry]:
    """The whole audit log, page by page, the oldest first."""
    entries: list[AuditEntry] = []
    page = repository.audit(AuditQuery(limit=100))
    while page:
        entries.extend(page)
        page = repository.audit(AuditQuery(limit=100, before=page[-1].id))
    return entries[::-1]


def _assert_complete(entries: list[AuditEntry]) -> None:
    """Assert that each entry continues the previous one, and that each number was written once for each limit."""
    last: dict[str, Any] = {}
    written: set[tuple[str, int]] = set()
    for entry in entries:
        assert entry.before == last.get(entry.subject)
        assert entry.after is not None
        last[entry.subject] = entry.after
        written.add((entry.subject, _limit_number(entry.after)))
        assert entry.actor == f"writer-{_limit_number(entry.after) // 1000 * 1000}"
    assert len(written) == PROCESSES * TIMES * LIMITS
