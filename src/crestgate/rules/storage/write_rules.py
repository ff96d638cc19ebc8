"""Write checks that all repositories share: versions, unique keys, audit entries.

A repository fetches what the edits touch, calls `plan_write`, and stores the plan, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crestgate.errors import ConflictError, NotFoundError, StaleVersionError
from crestgate.rules.port import Actor, AuditEntry, Edit, Kind, Record

__all__ = ["StoredState", "WritePlan", "plan_expiry", "plan_write"]

CRESTGATE = Actor("crestgate")
"""The actor that removes expired records."""
NOT_AUDITED: Mapping[Kind, frozenset[str]] = {"key": frozenset(["digest", "secret", "ended"])}
"""Fields that are not in the audit log: a digest is nearly as sensitive as the secret, and log-outs are a long list."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A record before a write; None if it is deleted, and only its version is known."""

    version: int
    record: Record | None


@dataclass(slots=True)
class WritePlan:
    """The records, deletions and audit entries of a write, and its result."""

    puts: list[Record] = field(default_factory=list)
    deletes: list[tuple[Kind, str, int]] = field(default_factory=list)
    """Kind, id, and the last version."""
    audit: list[AuditEntry] = field(default_factory=list)
    results: list[Record | None] = field(default_factory=list)


def plan_write(
    edits: Sequence[Edit],
    stored: Mapping[tuple[Kind, str], StoredState],
    holders: Mapping[str, Sequence[Record]],
    now_us: int,
    actor: Actor,
) -> WritePlan:
    """The plan of a write; or NotFoundError, StaleVersionError or ConflictError.

    `stored` has every record that the edits name and that exists or existed; `holders`, for every unique key of the
    edits, the records that have it.
    """
    plan = WritePlan()
    named = {(edit.kind, edit.id) for edit in edits}
    if len(named) < len(edits):
        raise ConflictError("one write has the same record twice: write each once")
    taken: dict[str, str] = {}
    for edit in edits:
        before = stored.get((edit.kind, edit.id), StoredState(0, None))
        _check(edit, before)
        if edit.body is None:
            _delete(plan, edit.kind, edit.id, before, now_us, actor, "delete")
            plan.results.append(None)
            continue
        if edit.unique_key is not None:
            if edit.unique_key in taken:
                raise _taken(edit, taken[edit.unique_key])
            taken[edit.unique_key] = edit.id
            for rival in holders.get(edit.unique_key, ()):
                if (rival.kind, rival.id) in named:
                    continue  # replaced or deleted by the same write
                if rival.expires_us is None or rival.expires_us > now_us:
                    raise _taken(edit, rival.id)
                _delete(plan, rival.kind, rival.id, StoredState(rival.version, rival), now_us, CRESTGATE, "expire")
        plan.results.append(_put(plan, edit, before, now_us, actor))
    return plan


def plan_expiry(records: Sequence[Record], now_us: int) -> WritePlan:
    """The plan that removes expired records."""
    plan = WritePlan()
    for record in records:
        _delete(plan, record.kind, record.id, StoredState(record.version, record), now_us, CRESTGATE, "expire")
    return plan


def _check(edit: Edit, before: StoredState) -> None:
    what = f"{edit.kind} {edit.id!r}"
    if before.record is None and (edit.body is None or (edit.expected or 0) > 0):
        raise NotFoundError(f"there is no {what}")
    if edit.expected is None or before.record is None or edit.expected == before.version:
        return
    if edit.expected == 0:
        raise ConflictError(f"{what} already exists: change it, or use another name")
    raise StaleVersionError(
        f"{what} was changed meanwhile: version {edit.expected} was read, it is at {before.version} now; read it again"
    )


def _put(plan: WritePlan, edit: Edit, before: StoredState, now_us: int, actor: Actor) -> Record:
    old = before.record
    body = edit.body or {}
    created_us = old.created_us if old is not None else now_us
    record = Record(edit.kind, edit.id, before.version + 1, body, created_us, now_us, edit.unique_key, edit.expires_us)
    plan.puts.append(record)
    plan.audit.append(
        AuditEntry(
            now_us,
            actor.name,
            actor.address,
            "create" if old is None else "update",
            f"{edit.kind}:{edit.id}",
            _audited(edit.kind, old.body) if old is not None else None,
            _audited(edit.kind, body),
        )
    )
    return record


def _delete(
    plan: WritePlan, kind: Kind, record_id: str, before: StoredState, now_us: int, actor: Actor, action: str
) -> None:
    plan.deletes.append((kind, record_id, before.version))
    old = _audited(kind, before.record.body) if before.record is not None else None
    entry = AuditEntry(now_us, actor.name, actor.address, action, f"{kind}:{record_id}", old, None)
    plan.audit.append(entry)


def _audited(kind: Kind, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body without the fields that the audit log must not have."""
    hidden = NOT_AUDITED.get(kind)
    return body if hidden is None else {name: value for name, value in body.items() if name not in hidden}


def _taken(edit: Edit, other: str) -> ConflictError:
    return ConflictError(
        f"{edit.kind} {edit.id!r} would be as specific as {edit.kind} {other!r} in the same slot (dimension, "
        "endpoint_pattern, method, window_seconds): change that one, or give one of them an identifier, a tier or an "
        "expires_at"
    )
