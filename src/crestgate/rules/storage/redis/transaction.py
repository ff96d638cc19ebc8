"""One attempt to write rules to Redis: a WATCH/MULTI/EXEC transaction.

It WATCHes the state, reads in one script what the edits touch, calls `plan_write`, and sends the plan between MULTI and
EXEC. Redis executes it only if there was no other write in between. What may have been executed is never sent twice.

A sweep, at most once an hour and as part of a write, removes records that expired more than a day ago. Each new audit
entry removes those older than 90 days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crestgate.databases.shared_redis_client import SharedRedisClient
from crestgate.errors import ValidationError
from crestgate.rules.port import AUDIT_DAYS, DAY_US, Actor, AuditEntry, Edit, Kind, Record
from crestgate.rules.storage.redis.layout import (
    LAYOUT,
    Keys,
    audit_fields,
    check_layout,
    encoded,
    name_of,
    read_record,
    text_of_record,
)
from crestgate.rules.storage.redis.scripts import FIND
from crestgate.rules.storage.seen_nonces import create_nonce
from crestgate.rules.storage.write_rules import StoredState, WritePlan, plan_expiry, plan_write

__all__ = ["AUDIT_MS", "Writer"]

AUDIT_MS = AUDIT_DAYS * DAY_US // 1000
SWEEP_US = 3600 * 1_000_000
MAX_SWEPT = 1000
"""Records that one sweep removes; if there are more, the next write continues."""


@dataclass(slots=True)
class _WriteState:
    """The state before a write."""

    revision: int
    compacted: int
    """Up to which revision changes are compacted after this write."""
    forget: Sequence[bytes]
    """Names of records whose changes are compacted with this write."""
    now_us: int
    swept_us: int
    stored: Mapping[tuple[Kind, str], StoredState]
    holders: Mapping[str, Sequence[Record]]


class Writer:
    """Writes the records of one prefix."""

    def __init__(self, redis: SharedRedisClient, keys: Keys, *, max_changes: int) -> None:
        self._redis = redis
        self._keys = keys
        self._max_changes = max_changes
        self.location = f"{redis.address}, {keys.records}"
        """The location of the records, for messages."""

    def attempt(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        """As the port's `write`; or RetryableRedisError when nothing was written and a retry may succeed."""
        with self._redis.transaction(self._keys.state) as pipeline:
            known = self._find(pipeline, edits)
            plan = plan_write(edits, known.stored, known.holders, known.now_us, actor)
            before = {key: state.record for key, state in known.stored.items() if state.record is not None}
            before |= {(record.kind, record.id): record for held in known.holders.values() for record in held}
            swept_us = known.swept_us
            if not 0 <= known.now_us - swept_us < SWEEP_US:
                expired, complete = self._expired(pipeline, known.now_us)
                swept_us = known.now_us if complete else 0
                touched = {(record.kind, record.id) for record in plan.puts}
                touched |= {(kind, record_id) for kind, record_id, _ in plan.deletes}
                removable = [record for record in expired if (record.kind, record.id) not in touched]
                before |= {(record.kind, record.id): record for record in removable}
                removed = plan_expiry(removable, known.now_us)
                plan.deletes += removed.deletes
                plan.audit += removed.audit
            pipeline.multi()
            self._forget(pipeline, known)
            self._store(pipeline, known.revision + 1, plan, before)
            self._conclude(pipeline, known, plan.audit, swept_us)
            self._redis.execute(pipeline)
            return plan.results

    def _find(self, pipeline: Any, edits: Sequence[Edit]) -> _WriteState:
        names = [name_of(edit.kind, edit.id) for edit in edits]
        claims = sorted({edit.unique_key for edit in edits if edit.unique_key is not None})
        words = [self._max_changes, len(names), *names, *map(encoded, claims)]
        layout, revision, swept_us, seconds, micros, texts, versions, holders, held, compacted, forget = pipeline.eval(
            FIND, len(self._keys), *self._keys, *words
        )
        check_layout(layout, self._keys, self._redis.address)
        stored: dict[tuple[Kind, str], StoredState] = {}
        for edit, name, text, version in zip(edits, names, texts, versions, strict=True):
            if text is not None:
                try:
                    record = read_record(name, text, self.location)
                except ValidationError:
                    if edit.body is not None:
                        raise
                    record = Record(edit.kind, edit.id, 0, {}, 0, 0)  # what cannot be read can be deleted
                stored[edit.kind, edit.id] = StoredState(record.version, record)
            elif version is not None:
                stored[edit.kind, edit.id] = StoredState(int(version), None)
        holding = {
            unique_key: read_record(name, text, self.location)
            for unique_key, name, text in zip(claims, holders, held, strict=True)
            if text is not None
        }
        # The claim of a record that could not be read when it was deleted may be left over.
        by_claim = {claim: [record] for claim, record in holding.items() if record.unique_key == claim}
        now_us = int(seconds) * 1_000_000 + int(micros)
        return _WriteState(int(revision or 0), compacted, forget, now_us, int(swept_us or 0), stored, by_claim)

    def _expired(self, pipeline: Any, now_us: int) -> tuple[Sequence[Record], bool]:
        """Records that expired more than a day ago, and whether these are all of them."""
        names = pipeline.zrangebyscore(self._keys.ends, "-inf", now_us - DAY_US, 0, MAX_SWEPT)
        texts = pipeline.hmget(self._keys.records, names) if names else []
        records = []
        for name, text in zip(names, texts, strict=True):
            try:
                records += [] if text is None else [read_record(name, text, self.location)]
            except ValidationError:
                continue  # readers report it; other writes do not fail because of it
        return records, len(names) < MAX_SWEPT

    def _forget(self, pipeline: Any, known: _WriteState) -> None:
        if known.compacted > 0:
            pipeline.zremrangebyscore(self._keys.changed, "-inf", known.compacted)
            # A reader of exactly that revision has missed nothing, and is recognised by its nonce.
            pipeline.zremrangebyscore(self._keys.writes, "-inf", f"({known.compacted}")
        if known.forget:
            pipeline.hdel(self._keys.deleted, *known.forget)

    def _store(self, pipeline: Any, number: int, plan: WritePlan, before: Mapping[tuple[Kind, str], Record]) -> None:
        """Write the records and their indexes."""
        keys = self._keys
        stored_records = {name_of(record.kind, record.id): record for record in plan.puts}
        deleted_versions = {name_of(kind, record_id): version for kind, record_id, version in plan.deletes}
        changed = {*stored_records, *deleted_versions}
        freed_claims = {
            encoded(record.unique_key)
            for (kind, record_id), record in before.items()
            if record.unique_key is not None and name_of(kind, record_id) in changed
        }
        if freed_claims:
            pipeline.hdel(keys.claims, *freed_claims)
        pipeline.zrem(keys.ends, *changed)
        pipeline.zadd(keys.changed, dict.fromkeys(changed, number))
        if deleted_versions:
            pipeline.hdel(keys.records, *deleted_versions)
            pipeline.zrem(keys.names, *deleted_versions)
            pipeline.hset(keys.deleted, mapping=deleted_versions)
        if stored_records:
            pipeline.hset(
                keys.records, mapping={name: text_of_record(record, number) for name, record in stored_records.items()}
            )
            pipeline.zadd(keys.names, dict.fromkeys(stored_records, 0))
            pipeline.hdel(keys.deleted, *stored_records)
        claims = {
            encoded(record.unique_key): name for name, record in stored_records.items() if record.unique_key is not None
        }
        if claims:
            pipeline.hset(keys.claims, mapping=claims)
        ends = {name: record.expires_us for name, record in stored_records.items() if record.expires_us is not None}
        if ends:
            pipeline.zadd(keys.ends, ends)

    def _conclude(self, pipeline: Any, known: _WriteState, audit: Sequence[AuditEntry], swept_us: int) -> None:
        """Write the audit log and the new revision, and publish it."""
        oldest = known.now_us // 1000 - AUDIT_MS
        for entry in audit:
            pipeline.xadd(self._keys.audit, audit_fields(entry), minid=oldest, approximate=False)
        number, nonce = known.revision + 1, create_nonce()
        state = {
            "layout": LAYOUT,
            "revision": number,
            "nonce": nonce,
            "compacted": known.compacted,
            "swept_us": swept_us,
        }
        pipeline.hset(self._keys.state, mapping=state)
        pipeline.zadd(self._keys.writes, {nonce: number})
        pipeline.publish(self._keys.channel, number)
