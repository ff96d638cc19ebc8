"""How rules are written to Redis: one attempt, which is one transaction.

It WATCHes the state, looks up in one script what the edits touch, asks `revise`, and sends all that comes of it between
MULTI and EXEC. Redis carries it out only if no other write has come between. What may have been carried out is never
sent twice.

A sweep, at most once an hour and as part of a write, removes records that ended more than a day ago. Each audit entry
that is added removes those older than 90 days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from headgate.errors import Invalid
from headgate.rules.repositories.port import AUDIT_DAYS, DAY_US, Actor, AuditEntry, Edit, Kind, Record
from headgate.rules.repositories.redis.layout import (
    LAYOUT,
    Keys,
    audit_fields,
    check_layout,
    encoded,
    name_of,
    read_record,
    text_of_record,
)
from headgate.rules.repositories.redis.link import Link
from headgate.rules.repositories.redis.scripts import FIND
from headgate.rules.repositories.revising import Found, Revision, expired_away, revise

__all__ = ["AUDIT_MS", "Writer"]

AUDIT_MS = AUDIT_DAYS * DAY_US // 1000
SWEEP_US = 3600 * 1_000_000
MOST_SWEPT = 1000
"""So many records are removed by one sweep; when there are more, the next write goes on."""


@dataclass(slots=True)
class _Known:
    """What a write finds."""

    revision: int
    forgotten: int
    """Up to which revision nothing is remembered after this write."""
    forget: Sequence[bytes]
    """Names of records whose changes are forgotten with this write."""
    now_us: int
    swept_us: int
    found: Mapping[tuple[Kind, str], Found]
    claimants: Mapping[str, Sequence[Record]]


class Writer:
    """Writes the records of one prefix."""

    def __init__(self, link: Link, keys: Keys, *, most_changes: int) -> None:
        self._link = link
        self._keys = keys
        self._most_changes = most_changes
        self.place = f"{link.address}, {keys.records}"
        """Where records are, for people."""

    def attempt(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        """What the port says of `write`; or Again, when nothing was written and the next attempt may do."""
        with self._link.transaction(self._keys.state) as pipeline:
            known = self._find(pipeline, edits)
            revision = revise(edits, known.found, known.claimants, known.now_us, actor)
            before = {key: found.record for key, found in known.found.items() if found.record is not None}
            before |= {(record.kind, record.id): record for held in known.claimants.values() for record in held}
            swept_us = known.swept_us
            if not 0 <= known.now_us - swept_us < SWEEP_US:
                ended, all_of_them = self._ended(pipeline, known.now_us)
                swept_us = known.now_us if all_of_them else 0
                touched = {(record.kind, record.id) for record in revision.puts}
                touched |= {(kind, record_id) for kind, record_id, _ in revision.deletes}
                away = [record for record in ended if (record.kind, record.id) not in touched]
                before |= {(record.kind, record.id): record for record in away}
                removed = expired_away(away, known.now_us)
                revision.deletes += removed.deletes
                revision.audit += removed.audit
            pipeline.multi()
            self._forget(pipeline, known)
            self._store(pipeline, known.revision + 1, revision, before)
            self._conclude(pipeline, known, revision.audit, swept_us)
            self._link.carry_out(pipeline)
            return revision.answers

    def _find(self, pipeline: Any, edits: Sequence[Edit]) -> _Known:
        names = [name_of(edit.kind, edit.id) for edit in edits]
        claims = sorted({edit.claim for edit in edits if edit.claim is not None})
        words = [self._most_changes, len(names), *names, *map(encoded, claims)]
        layout, revision, swept_us, seconds, micros, texts, versions, holders, held, forgotten, forget = pipeline.eval(
            FIND, len(self._keys), *self._keys, *words
        )
        check_layout(layout, self._keys, self._link.address)
        found: dict[tuple[Kind, str], Found] = {}
        for edit, name, text, version in zip(edits, names, texts, versions, strict=True):
            if text is not None:
                record = read_record(name, text, self.place)
                found[edit.kind, edit.id] = Found(record.version, record)
            elif version is not None:
                found[edit.kind, edit.id] = Found(int(version), None)
        claimants = {
            claim: [read_record(name, text, self.place)]
            for claim, name, text in zip(claims, holders, held, strict=True)
            if text is not None
        }
        now_us = int(seconds) * 1_000_000 + int(micros)
        return _Known(int(revision or 0), forgotten, forget, now_us, int(swept_us or 0), found, claimants)

    def _ended(self, pipeline: Any, now_us: int) -> tuple[Sequence[Record], bool]:
        """Records that ended more than a day ago, and whether these are all of them."""
        names = pipeline.zrangebyscore(self._keys.ends, "-inf", now_us - DAY_US, 0, MOST_SWEPT)
        texts = pipeline.hmget(self._keys.records, names) if names else []
        records = []
        for name, text in zip(names, texts, strict=True):
            try:
                records += [] if text is None else [read_record(name, text, self.place)]
            except Invalid:
                continue  # whoever reads it hears of it; a write of something else does not fail for it
        return records, len(names) < MOST_SWEPT

    def _forget(self, pipeline: Any, known: _Known) -> None:
        if known.forgotten > 0:
            pipeline.zremrangebyscore(self._keys.changed, "-inf", known.forgotten)
            # Whoever has seen that very revision has missed nothing, and is known by its nonce.
            pipeline.zremrangebyscore(self._keys.writes, "-inf", f"({known.forgotten}")
        if known.forget:
            pipeline.hdel(self._keys.deleted, *known.forget)

    def _store(self, pipeline: Any, number: int, revision: Revision, before: Mapping[tuple[Kind, str], Record]) -> None:
        """Records and all that is kept about them."""
        keys = self._keys
        kept = {name_of(record.kind, record.id): record for record in revision.puts}
        gone = {name_of(kind, record_id): version for kind, record_id, version in revision.deletes}
        changed = {*kept, *gone}
        free = {
            encoded(record.claim)
            for (kind, record_id), record in before.items()
            if record.claim is not None and name_of(kind, record_id) in changed
        }
        if free:
            pipeline.hdel(keys.claims, *free)
        pipeline.zrem(keys.ends, *changed)
        pipeline.zadd(keys.changed, dict.fromkeys(changed, number))
        if gone:
            pipeline.hdel(keys.records, *gone)
            pipeline.zrem(keys.names, *gone)
            pipeline.hset(keys.deleted, mapping=gone)
        if kept:
            pipeline.hset(keys.records, mapping={name: text_of_record(record, number) for name, record in kept.items()})
            pipeline.zadd(keys.names, dict.fromkeys(kept, 0))
            pipeline.hdel(keys.deleted, *kept)
        claims = {encoded(record.claim): name for name, record in kept.items() if record.claim is not None}
        if claims:
            pipeline.hset(keys.claims, mapping=claims)
        ends = {name: record.expires_us for name, record in kept.items() if record.expires_us is not None}
        if ends:
            pipeline.zadd(keys.ends, ends)

    def _conclude(self, pipeline: Any, known: _Known, audit: Sequence[AuditEntry], swept_us: int) -> None:
        """The audit log, the new revision, and word of it."""
        oldest = known.now_us // 1000 - AUDIT_MS
        for entry in audit:
            pipeline.xadd(self._keys.audit, audit_fields(entry), minid=oldest, approximate=False)
        number, nonce = known.revision + 1, token_hex(8)
        state = {
            "layout": LAYOUT,
            "revision": number,
            "nonce": nonce,
            "forgotten": known.forgotten,
            "swept_us": swept_us,
        }
        pipeline.hset(self._keys.state, mapping=state)
        pipeline.zadd(self._keys.writes, {nonce: number})
        pipeline.publish(self._keys.channel, number)
