"""What the tests of editors look at: what is there, what was written down, and which rule wins."""

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
    """The audit log, the oldest first."""
    return [(entry.action, entry.subject) for entry in reversed(repository.audit(AuditQuery()))]


def winner(repository: MemoryRepository, **context: Any) -> Rule:
    """The rule that wins, as whoever reads the repository finds it."""
    catalog = Catalog([Unclosed(repository)], 3600)
    try:
        (_, entry), *others = catalog.current.resolve(RequestContext(**context), repository.clock.ticks())
        assert not others
        return entry.rule
    finally:
        catalog.close()


class Unclosed:
    """A source that others go on using."""

    def __init__(self, repository: MemoryRepository) -> None:
        self.title = repository.title
        self.changes = repository.changes
        self.listen = repository.listen

    def close(self) -> None:
        pass
