"""Queries for tests of editors: rule ids, the audit log, and the winning rule."""

from __future__ import annotations

from typing import Any

from crestgate.core.context import RequestContext
from crestgate.rules.catalog import Catalog
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.rule import Rule
from unit.rules.memory_repository import MemoryRepository

__all__ = ["ALICE", "audit_log", "ids", "winner"]

ALICE = Actor("alice", "192.0.2.1")


def ids(editor: Editor) -> list[str]:
    return [rule.rule_id for rule in editor.rules()]


def audit_log(repository: MemoryRepository) -> list[tuple[str, str]]:
    """The audit log, oldest first."""
    return [(entry.action, entry.subject) for entry in reversed(repository.audit(AuditQuery()))]


def winner(repository: MemoryRepository, **context: Any) -> Rule:
    """The rule that wins, as resolved by a catalog of the repository."""
    catalog = Catalog([Unclosed(repository)], 3600)
    try:
        (_, entry), *others = catalog.current.resolve(RequestContext(**context), repository.clock.ticks())
        assert not others
        return entry.rule
    finally:
        catalog.close()


class Unclosed:
    """A source that is not closed with the catalog, because others use it."""

    def __init__(self, repository: MemoryRepository) -> None:
        self.title = repository.title
        self.changes = repository.changes
        self.listen = repository.listen

    def close(self) -> None:
        pass
