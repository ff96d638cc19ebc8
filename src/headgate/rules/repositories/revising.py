"""What a write may do: decided here, once, for every repository.

A repository fetches what the edits touch, asks `revise`, and stores what it says, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import Conflict, NotFound, Stale
from headgate.rules.repositories.port import Actor, AuditEntry, Edit, Kind, Record

__all__ = ["Found", "Revision", "expired_away", "revise"]

HEADGATE = Actor("headgate")
"""Who removes what has ended."""
UNTOLD: Mapping[Kind, frozenset[str]] = {"key": frozenset(["digest", "secret"])}
"""Fields that stay out of the audit log: it is read by many, and a digest is the next best thing to the secret."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record as a write finds it, alive or only remembered (deleted, but its version goes on)."""

    version: int
    record: Record | None


@dataclass(slots=True)
class Revision:
    """What a write stores."""

    puts: list[Record] = field(default_factory=list)
    deletes: list[tuple[Kind, str, int]] = field(default_factory=list)
    """Kind, id, and the version under which it is remembered."""
    audit: list[AuditEntry] = field(default_factory=list)
    answers: list[Record | None] = field(default_factory=list)


def revise(
    edits: Sequence[Edit],
    found: Mapping[tuple[Kind, str], Found],
    claimants: Mapping[str, Sequence[Record]],
    now_us: int,
    actor: Actor,
) -> Revision:
    """What comes of the edits, or NotFound, Stale or Conflict.

    `found` has every record that the edits name and that exists or once did; `claimants`, for every claim of the
    edits, the living records that have it.
    """
    revision = Revision()
    named = {(edit.kind, edit.id) for edit in edits}
    if len(named) < len(edits):
        raise Conflict("a write names one record twice: write each once")
    claimed: dict[str, str] = {}
    for edit in edits:
        before = found.get((edit.kind, edit.id), Found(0, None))
        _check(edit, before)
        if edit.body is None:
            _delete(revision, edit.kind, edit.id, before, now_us, actor, "delete")
            revision.answers.append(None)
            continue
        if edit.claim is not None:
            if edit.claim in claimed:
                raise _taken(edit, claimed[edit.claim])
            claimed[edit.claim] = edit.id
            for rival in claimants.get(edit.claim, ()):
                if (rival.kind, rival.id) in named:
                    continue  # is written anew by this same write, or deleted
                if rival.expires_us is None or rival.expires_us > now_us:
                    raise _taken(edit, rival.id)
                _delete(revision, rival.kind, rival.id, Found(rival.version, rival), now_us, HEADGATE, "expire")
        revision.answers.append(_put(revision, edit, before, now_us, actor))
    return revision


def expired_away(records: Sequence[Record], now_us: int) -> Revision:
    """What removes records that have ended."""
    revision = Revision()
    for record in records:
        _delete(revision, record.kind, record.id, Found(record.version, record), now_us, HEADGATE, "expire")
    return revision


def _check(edit: Edit, before: Found) -> None:
    what = f"{edit.kind} {edit.id!r}"
    if before.record is None and (edit.body is None or (edit.expected or 0) > 0):
        raise NotFound(f"there is no {what}")
    if edit.expected is None or before.record is None or edit.expected == before.version:
        return
    if edit.expected == 0:
        raise Conflict(f"{what} exists already: change it, or take another name")
    raise Stale(
        f"{what} was changed by somebody else: version {edit.expected} was read, and it is at {before.version} now; "
        "read it again"
    )


def _put(revision: Revision, edit: Edit, before: Found, now_us: int, actor: Actor) -> Record:
    old = before.record
    body = edit.body or {}
    created_us = old.created_us if old is not None else now_us
    record = Record(edit.kind, edit.id, before.version + 1, body, created_us, now_us, edit.claim, edit.expires_us)
    revision.puts.append(record)
    revision.audit.append(
        AuditEntry(
            now_us,
            actor.name,
            actor.address,
            "create" if old is None else "update",
            f"{edit.kind}:{edit.id}",
            _told(edit.kind, old.body) if old is not None else None,
            _told(edit.kind, body),
        )
    )
    return record


def _delete(
    revision: Revision, kind: Kind, record_id: str, before: Found, now_us: int, actor: Actor, action: str
) -> None:
    revision.deletes.append((kind, record_id, before.version))
    old = _told(kind, before.record.body) if before.record is not None else None
    entry = AuditEntry(now_us, actor.name, actor.address, action, f"{kind}:{record_id}", old, None)
    revision.audit.append(entry)


def _told(kind: Kind, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body as the audit log shows it."""
    untold = UNTOLD.get(kind)
    return body if untold is None else {name: value for name, value in body.items() if name not in untold}


def _taken(edit: Edit, other: str) -> Conflict:
    return Conflict(
        f"{edit.kind} {edit.id!r} would be as specific as {edit.kind} {other!r} in the same slot (dimension, "
        "endpoint_pattern, method, window_seconds): change that one, or give one of them an identifier, a tier or an "
        "expires_at"
    )
