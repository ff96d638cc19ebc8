"""Rule repository in Redis or Valkey: a server, a master found by Sentinel, or a cluster. layout.py has the keys.

A write is one transaction (see transaction.py), and a read is one script, so no reader ever sees half of a write.

The last 10,000 writes, and the last 10,000 records that they changed (and all changes of the last write), are stored
for `changes`; a reader with an older revision gets everything. Versions of deleted records are stored as long.

A promoted replica may lack the last writes: they are lost, and their revisions are assigned again to other writes. So
each write also has a nonce (see seen_nonces.py).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from crestgate.databases.redis_client import open_client
from crestgate.databases.shared_redis_client import OpenClient, RetryableRedisError, SharedRedisClient
from crestgate.errors import StoreError, ValidationError
from crestgate.rules.port import (
    Actor,
    AuditEntry,
    AuditQuery,
    Changes,
    Edit,
    Kind,
    Record,
    UnreadableRecord,
)
from crestgate.rules.storage.redis.layout import (
    Keys,
    audit_fields,
    check_layout,
    encoded,
    lenient_name,
    name_of,
    parse_audit_id,
    read_audit,
    read_record,
)
from crestgate.rules.storage.redis.notifications import RedisChangeListener
from crestgate.rules.storage.redis.scripts import APPEND_AUDIT_SCRIPT, CHANGES, LIST, PART, PURGE_AUDIT_SCRIPT, REPLACED
from crestgate.rules.storage.redis.transaction import AUDIT_MS, Writer
from crestgate.rules.storage.seen_nonces import MAX_WRITES, SeenNonces
from crestgate.runtime.backoff import poll
from crestgate.runtime.url_options import Options

__all__ = ["RedisRepository", "open_redis_repository"]

TIMEOUT_MS = 5000
POOL_SIZE = 4
MIN_PAGE, MAX_PAGE = 100, 1000
"""Audit entries fetched at a time: the query may not match all of them."""
SLACK_MS = 600_000
"""An entry's position in the stream has the time when it was added; its `at_us`, when its write began, which is at most
the longest timeout earlier. If a server's clock is set back by more, queries by time miss entries meanwhile."""


def open_redis_repository(options: Options) -> RedisRepository:
    """The rules of a URL. Connects immediately, so that a wrong URL fails now."""
    timeout = options.timeout_ms(TIMEOUT_MS) / 1000
    prefix, pool_size = options.prefix(), options.pool_size() or POOL_SIZE
    return RedisRepository(lambda: open_client(options, timeout), prefix=prefix, timeout=timeout, pool_size=pool_size)


class RedisRepository:
    """The repository port, on Redis."""

    def __init__(
        self,
        open_client: OpenClient,
        *,
        prefix: str,
        timeout: float = TIMEOUT_MS / 1000,
        pool_size: int = POOL_SIZE,
        max_changes: int = MAX_WRITES,
    ) -> None:
        self.keys = Keys.of(prefix)
        self._redis = SharedRedisClient(open_client, timeout=timeout, max_connections=pool_size)
        self._listener = RedisChangeListener(open_client, self.keys.channel)
        self._writer = Writer(self._redis, self.keys, max_changes=max_changes)
        self._seen = SeenNonces()

    @property
    def title(self) -> str:
        return self._redis.address

    # -- reading ------------------------------------------------------------------------------------------------------

    def changes(self, since: int) -> Changes | None:
        seen = self._seen.get(since)
        layout, revision, nonce, *new = self._reply(self._script(CHANGES, since, seen or ""), (3, 5))
        check_layout(layout, self.keys, self.title)
        if not isinstance(revision, int):
            raise self._malformed("its revision is not a number")
        if nonce is not None and not (isinstance(nonce, bytes) and nonce.isascii()):
            raise self._malformed("its nonce is not text")
        changes = None
        if new:
            extent, found = new
            texts = self._pairs(found)
            deleted = [lenient_name(name) for name, text in texts if text is None]
            records, unreadable = self._split(texts)
            changes = Changes(revision, extent != PART, records, deleted, extent == REPLACED, unreadable)
        # Only now: else, after an error, the next call would find nothing new.
        self._seen.remember(revision, None if nonce is None else nonce.decode())
        return changes

    def get(self, kind: Kind, record_id: str) -> Record | None:
        name = name_of(kind, record_id)
        with self._redis.client() as client:
            text = client.hget(self.keys.records, name)
        return None if text is None else read_record(name, text, self._writer.location)

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        first = b"[" + name_of(kind, prefix)
        if after and encoded(after) >= encoded(prefix):
            first = b"(" + name_of(kind, after)
        behind = b"(" + name_of(kind, prefix) + b"\xff"  # a byte that UTF-8 never has
        layout, found = self._reply(self._script(LIST, first, behind, max(limit, 0)), (2,))
        check_layout(layout, self.keys, self.title)
        return self._records(self._pairs(found))

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        self._redis.check_open()
        ends = [] if query.before is None else [parse_audit_id(query.before)]
        if query.until_us is not None:
            ends.append((query.until_us // 1000 + SLACK_MS, 0))
        end = min(ends, default=None)
        first = max((query.since_us or 0) // 1000 - SLACK_MS, 0)
        size = min(max(query.limit, MIN_PAGE), MAX_PAGE)
        entries: builtins.list[AuditEntry] = []
        while len(entries) < query.limit and (end is None or end > (0, 0)):
            last = "+" if end is None else f"({end[0]}-{end[1]}"
            with self._redis.client() as client:
                page = client.xrevrange(self.keys.audit, last, first, size)
            found = [read_audit(location, fields, f"{self.title}, {self.keys.audit}") for location, fields in page]
            entries += [entry for entry in found if _matches(entry, query)]
            if len(page) < size:
                break
            end = parse_audit_id(found[-1].id)
        return entries[: max(query.limit, 0)]

    def listen(self, wake: Callable[[], None]) -> None:
        self._redis.check_open()
        self._listener.add(wake)

    def close(self) -> None:
        self._listener.close()
        self._redis.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        self._redis.check_open()
        if not edits:
            return ()
        reasons = [""]

        def attempt() -> Sequence[Record | None] | None:
            try:
                return self._writer.attempt(edits, actor)
            except RetryableRedisError as conflict:
                reasons[0] = str(conflict)
                return None

        results = poll(attempt, self._redis.timeout)
        if results is None:
            waited = f"within {self._redis.timeout:g} s"
            raise StoreError(f"{self.title}: nothing could be written {waited}: {reasons[0]}")
        return results

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        words: builtins.list[str | bytes] = []
        for subject in subjects:
            fields = audit_fields(AuditEntry(0, actor.name, actor.address, action, subject))
            del fields["at_us"]  # set by the script
            words += [word for pair in fields.items() for word in pair]
        self._script(APPEND_AUDIT_SCRIPT, AUDIT_MS // 1000, len(subjects), *words, writes=True)

    def purge(self) -> None:
        """Trim the audit log. Expired records are removed by the next write."""
        self._script(PURGE_AUDIT_SCRIPT, AUDIT_MS // 1000, writes=True)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _script(self, script: str, *words: Any, writes: bool = False) -> Any:
        with self._redis.client(writes=writes) as client:
            return client.eval(script, len(self.keys), *self.keys, *words)

    def _reply(self, reply: Any, sizes: tuple[int, ...]) -> Any:
        """The reply of a script; StoreError unless it is a list of one of these sizes that begins with a layout."""
        if not isinstance(reply, list) or len(reply) not in sizes or not isinstance(reply[0], bytes | None):
            raise self._malformed("unexpected reply of a script")
        return reply

    def _pairs(self, found: Any) -> Sequence[tuple[bytes, bytes | None]]:
        """Pairs of names and texts, which alternate in the reply."""
        if not isinstance(found, list) or len(found) % 2:
            raise self._malformed("its records are not pairs")
        names, texts = found[::2], found[1::2]
        if not all(isinstance(name, bytes) for name in names) or not all(isinstance(t, bytes | None) for t in texts):
            raise self._malformed("its records are not text")
        return list(zip(names, texts, strict=True))

    def _malformed(self, problem: str) -> StoreError:
        return StoreError(f"{self.title}: malformed reply: {problem}")

    def _records(self, texts: Iterable[tuple[bytes, bytes | None]]) -> Sequence[Record]:
        """All of them, or ValidationError with all that cannot be read."""
        records, unreadable = self._split(texts)
        if unreadable:
            raise ValidationError([problem for one in unreadable for problem in one.problems])
        return records

    def _split(
        self, texts: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[Sequence[Record], Sequence[UnreadableRecord]]:
        """The records, and those that cannot be read."""
        records: builtins.list[Record] = []
        unreadable: builtins.list[UnreadableRecord] = []
        for name, text in texts:
            try:
                records += [] if text is None else [read_record(name, text, self._writer.location)]
            except ValidationError as invalid:
                unreadable.append(UnreadableRecord(*lenient_name(name), invalid.problems))
        return records, unreadable


def _matches(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        query.actor in (None, entry.actor)
        and query.subject in (None, entry.subject)
        and (query.since_us is None or entry.at_us >= query.since_us)
        and (query.until_us is None or entry.at_us < query.until_us)
    )
