"""Request context of the admin API: the worker's dependencies, and the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from crestgate.core.store_names import unknown_store
from crestgate.errors import ConflictError, Problem, ReadOnlyError, ValidationError
from crestgate.rules.editor import Editor
from crestgate.rules.port import Kind
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.service.context import CallContext
from crestgate.service.dependencies import Dependencies
from crestgate.service.observability.health import Health
from crestgate.stores.remote_store import RemoteStore

__all__ = ["AdminContext", "ContextDep", "EditorDep", "call_context_of"]


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The dependencies of this worker, as the admin API uses them."""

    dependencies: Dependencies
    now_us: Callable[[], int]
    health: Health = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "health", Health(self.dependencies.limiter, self.dependencies.repository))

    def rules(self) -> RuleSet:
        """The rules in force, refreshed now: a write through another worker a moment ago must be visible here. It waits
        for the database, so call it in a thread."""
        self.dependencies.catalog.refresh()
        return self.dependencies.catalog.current

    def check_store(self, rule: Rule) -> None:
        """ValidationError if a rule names a store that this service does not have: it could not be loaded."""
        if rule.store is None:
            return
        store = self.dependencies.limiter.store
        names = store.store_names() if isinstance(store, RemoteStore) else ()
        if rule.store not in names:
            raise ValidationError([Problem("store", unknown_store(rule.store, names))])

    def check_absent(self, kind: Kind, record_id: str, known: bool) -> None:
        """ConflictError if a file has a record of this name, which a new one would silently override."""
        if known and self._is_only_in_file(kind, record_id):
            raise ConflictError(
                f"{kind} {record_id!r} is already defined in a file: change it there, or use another name"
            )

    def check_writable(self, kind: Kind, record_id: str, known: bool) -> None:
        """ReadOnlyError if the record exists only in a file."""
        if known and self._is_only_in_file(kind, record_id):
            raise ReadOnlyError(f"{kind} {record_id!r} is defined in a file, which is read-only here: change it there")

    def _is_only_in_file(self, kind: Kind, record_id: str) -> bool:
        return self.dependencies.repository.get(kind, record_id) is None


def call_context_of(request: Request) -> CallContext:
    """The caller, as authenticated before the admin API was called."""
    call: CallContext = request.scope["crestgate"]
    return call


async def _context(request: Request) -> Any:
    return request.app.state.context


async def _editor(request: Request) -> Any:
    context: AdminContext = request.app.state.context
    return context.dependencies.editor(call_context_of(request).actor)


ContextDep = Annotated[AdminContext, Depends(_context)]
EditorDep = Annotated[Editor, Depends(_editor)]
"""Writes in the name of the caller. Its methods wait, so call them in a thread."""
