"""What every call of the control plane has at hand: the parts of this worker, and who is calling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from headgate.errors import Conflict, ReadOnly
from headgate.rules.editor import Editor
from headgate.rules.repositories.port import Kind
from headgate.rules.ruleset import RuleSet
from headgate.service.parts import Parts, Visit

__all__ = ["Desk", "TheDesk", "TheEditor", "visit_of"]


@dataclass(frozen=True, slots=True)
class Desk:
    """The parts of this worker, as the control plane uses them."""

    parts: Parts
    now_us: Callable[[], int]

    def rules(self) -> RuleSet:
        """The rules that are in force, looked up now: another worker may have written a moment ago, and whoever wrote
        there expects to read it here. It waits for the database, so it is called in a thread."""
        self.parts.catalog.refresh()
        return self.parts.catalog.current

    def take_over(self) -> None:
        """What was just written is in force here from now on, and a moment later in the other workers of this node."""
        self.parts.neighbours.ring()
        self.parts.catalog.refresh()

    def check_absent(self, kind: Kind, record_id: str, known: bool) -> None:
        """Conflict if a file has something of this name: who writes one anew would displace it unknowingly."""
        if known and self._in_file(kind, record_id):
            raise Conflict(f"{kind} {record_id!r} is written in a file already: change it there, or take another name")

    def check_writable(self, kind: Kind, record_id: str, known: bool) -> None:
        """ReadOnly if something is known, but only from a file."""
        if known and self._in_file(kind, record_id):
            raise ReadOnly(f"{kind} {record_id!r} is written in a file, which is read only from here: change it there")

    def _in_file(self, kind: Kind, record_id: str) -> bool:
        return self.parts.repository.get(kind, record_id) is None


def visit_of(request: Request) -> Visit:
    """Who calls. There is nobody unless the guard has run, and then nothing is answered."""
    visit: Visit = request.scope["headgate"]
    return visit


async def _desk(request: Request) -> Any:
    return request.app.state.desk


async def _editor(request: Request) -> Any:
    desk: Desk = request.app.state.desk
    return desk.parts.editor(visit_of(request).actor)


TheDesk = Annotated[Desk, Depends(_desk)]
TheEditor = Annotated[Editor, Depends(_editor)]
"""Writes in the name of whoever calls. Its methods wait, so they are called in a thread."""
