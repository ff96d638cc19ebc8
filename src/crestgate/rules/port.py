"""The port of rule storage: the operations and guarantees of every repository.

It stores *records*: a kind (`rule`, `tier`, `plan`, `default`, `key`), an id, and a body of plain data, which it does
not interpret. Every write has a *revision*, incremented by each write of this prefix; every record has the revision of
its last change, and a *version*, which counts its own changes. It also stores the audit log.

Atomicity   A write is all of its edits, their audit entries and the new revision, or nothing. `changes` sees a write
            whole or not at all. `plan_write` decides what an edit may do, in one place for all repositories.
Order       Writes are serialized: a reader that has seen a revision has seen all before it. A failover or a restored
            backup may lose the last writes, and assign their revisions again: a reader of one gets everything.
Versions    An edit names the version that it has seen; StaleVersionError, and nothing is written, if it has changed.
Uniqueness  At most one record has a unique key, unless the others have expired: ConflictError.
Clock       Timestamps are those of the database or the server, in microseconds since the epoch.
Retention   Audit entries are kept for 90 days. Expired records are removed a day later, with an audit entry.
Errors      StoreError when the database is unreachable or fails; it says when the outcome of a write is unknown.
            ValidationError, with the location, when what is stored cannot be read; `changes` returns the others, and
            lists what cannot be read.
Threads     All methods may be called from any thread, and after a fork. They block, so an event loop calls them in a
            thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from crestgate.errors import Problem
from crestgate.rules.timestamps import format_timestamp

__all__ = [
    "AUDIT_DAYS",
    "DAY_US",
    "Actor",
    "AuditEntry",
    "AuditQuery",
    "Changes",
    "Edit",
    "Kind",
    "Lookup",
    "Record",
    "Reloadable",
    "Repository",
    "Source",
    "UnreadableRecord",
]

Kind = Literal["rule", "tier", "plan", "default", "key"]
"""A rule; a user's tier, by the user; a plan, by its name; a default (see records.py); an API key of the service,
by its id: its body has a digest or a secret, which the audit log never shows."""
DAY_US = 24 * 3600 * 1_000_000
AUDIT_DAYS = 90


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record."""

    kind: Kind
    id: str
    version: int
    """1 when it is created, incremented by each change; continued when it is created again after a deletion."""
    body: Mapping[str, Any]
    created_us: int
    updated_us: int
    unique_key: str | None = None
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """One record to write. A `body` of None deletes it."""

    kind: Kind
    id: str
    body: Mapping[str, Any] | None
    expected: int | None = None
    """The version that it must have: 0 for a new record, None for any."""
    unique_key: str | None = None
    """No other record may have it at the same time."""
    expires_us: int | None = None
    """When it expires: from then on its unique key is free. The record is removed a day later."""


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A stored record that cannot be read or used: corrupt, invalid, or written by a newer Crestgate."""

    kind: str
    """Any text: a newer Crestgate may have kinds of its own."""
    id: str
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        """All problems on one line."""
        return "; ".join(map(str, self.problems))


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since a revision."""

    revision: int
    complete: bool
    """Whether these are all records (and all others are deleted), or only those that changed."""
    records: Sequence[Record]
    deleted: Sequence[tuple[Kind, str]] = ()
    replaced: bool = False
    """Whether the reader's revision is not in this history: a failover or a restored backup has lost writes."""
    unreadable: Sequence[UnreadableRecord] = ()
    """Records that have changed and cannot be read; not in `records`."""
    atomic: bool = False
    """Whether the records are used all or none, as those of files are: an error may be in what others depend on."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a write, and its address."""

    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action: its actor, address, time and subject, and the record before and after it."""

    at_us: int
    actor: str
    address: str
    action: str
    """`create`, `update`, `delete`, `expire` (by Crestgate itself). Actions on counters have two entries: `reset
    requested` before it is tried, then `reset` or `reset failed`; likewise `charge`, `give_back`, `settle`
    and `release`."""
    subject: str
    """The kind and the id: `rule:orders-per-user`, `tier:alice`; for a reset, the subject of the counters."""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    id: str = ""
    """Its position in the log, in the repository's own format: a later entry of one repository has a greater one,
    compared by length and then as text. Empty until it is stored."""

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "at": format_timestamp(self.at_us),
            "actor": self.actor,
            "address": self.address,
            "action": self.action,
            "subject": self.subject,
            "before": None if self.before is None else dict(self.before),
            "after": None if self.after is None else dict(self.after),
        }


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Filter and page of audit entries, the newest first."""

    actor: str | None = None
    subject: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    before: str | None = None
    """Only entries older than the one of this id: the next page."""
    limit: int = 100


class Source(Protocol):
    """The read interface of a repository, for catalogs."""

    @property
    def title(self) -> str:
        """Its type and location, for messages; without any password."""

    def changes(self, since: int) -> Changes | None:
        """The changes since this revision (0: everything); None if there are none."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever something may have changed, if the repository supports notifications.

        After a lost connection it is called once, because changes may have been missed.
        """

    def close(self) -> None:
        """Close files and connections. Idempotent."""


@runtime_checkable
class Reloadable(Protocol):
    """A source that reads its files only when they seem to have changed, and can be forced to read them."""

    def reload(self) -> None:
        """Read again at the next `changes`. Only sets a flag, so a signal handler may call it."""


class Lookup(Protocol):
    """Access to single records."""

    def get(self, kind: Kind, record_id: str) -> Record | None:
        """One record, or None."""

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        """Records in the order of their ids (as UTF-8 bytes), with ids that begin with `prefix` and come
        after `after`."""


class Repository(Source, Lookup, Protocol):
    """A source that can be written to; a read-only one raises ReadOnlyError."""

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        """Write all of the edits, or none: the records after the write, None where one was deleted."""

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        """Add audit entries for an action outside of this repository, such as a reset of counters: one for each
        subject, all or none."""

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Entries of the audit log, the newest first."""

    def purge(self) -> None:
        """Delete what is no longer retained. Writes do so, too: this is for a repository that is seldom written to."""
