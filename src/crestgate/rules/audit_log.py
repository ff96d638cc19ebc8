"""Pages of the audit log that show what happened, not what was tried.

An action on counters is noted before it is tried, so that none is unrecorded, and again with its outcome. A reader
wants the outcome. A request without one stays: whoever made it was killed, and nobody knows what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crestgate.rules.port import AuditEntry, AuditQuery, Repository

__all__ = ["outcomes", "read_audit"]

_REQUESTED = " requested"


def read_audit(
    repository: Repository, query: AuditQuery, *, requests: bool = False
) -> tuple[list[AuditEntry], str | None]:
    """One page, the newest first, and the id to continue before; None if it is the last.

    Without `requests`, a page may have fewer entries than `query.limit`. A request stays if its outcome is on the page
    before.
    """
    found = repository.audit(replace(query, limit=query.limit + 1))
    page = found[: query.limit]
    following = page[-1].id if page and len(found) > query.limit else None
    return list(page) if requests else outcomes(page), following


def outcomes(entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """The entries, the newest first, without requests whose outcome is among them."""
    known: dict[tuple[str, str, str], int] = {}
    shown = []
    for entry in entries:
        action = entry.action.removesuffix(_REQUESTED).removesuffix(" failed")
        name = (entry.actor, entry.subject, action)
        if not entry.action.endswith(_REQUESTED):
            known[name] = known.get(name, 0) + 1
        elif known.get(name, 0):
            known[name] -= 1
            continue
        shown.append(entry)
    return shown
