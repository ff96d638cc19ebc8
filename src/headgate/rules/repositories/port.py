"""The port: what a place that keeps rules does, and what it promises.

It keeps *records*: a kind (`rule`, `tier`, `plan`, `default`, `key`), an id, and a body of plain data, which is none of
its business. Every write has a *revision*, a number that grows by one with each write of this prefix; every record has
the revision of its last change and a *version*, which counts its own changes. And it keeps the audit log.

Atomicity   A write is all of its edits, their audit entries and the new revision, or nothing. `changes` sees a write
            whole or not at all. What an edit may do is decided by `revise`, in one place for all repositories.
Order       Writes come one after another: whoever has seen a revision has seen all before it.
Optimism    An edit says which version it has seen; if that is no longer the last, nothing is written: `Stale`.
Claims      At most one record has a claim, unless the others have ended: `Conflict`.
Clock       Moments are those of the database or the server, in microseconds since the epoch.
Retention   Audit entries are kept for 90 days. What has ended is removed a day later, with an audit entry.
Errors      StoreError when the other side is away or fails; it says when it is not known whether it has written.
            Invalid, with the place, when what is kept cannot be read.
Threads     All methods may be called from any thread, and after a fork. They wait, so an event loop calls them in a
            thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

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
    "Reloads",
    "Repository",
    "Source",
]

Kind = Literal["rule", "tier", "plan", "default", "key"]
"""A rule; a user's tier, by the user; a plan, by its name; what applies where nothing else is said (see records.py); a
key of the service, by its id: its body has a digest or a secret, which the audit log never shows."""
DAY_US = 24 * 3600 * 1_000_000
AUDIT_DAYS = 90


@dataclass(frozen=True, slots=True)
class Record:
    """Something that is kept, as it stands."""

    kind: Kind
    id: str
    version: int
    """1 when it is made, one more with each change; goes on when it is made again after it was deleted."""
    body: Mapping[str, Any]
    created_us: int
    updated_us: int
    claim: str | None = None
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """One thing to write. A `body` of None deletes."""

    kind: Kind
    id: str
    body: Mapping[str, Any] | None
    expected: int | None = None
    """The version that it must have: 0 for none yet, None for whichever."""
    claim: str | None = None
    """What no other record may have at the same time."""
    expires_us: int | None = None
    """From when on its claim is void, and a day later the record is removed."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new since a revision."""

    revision: int
    complete: bool
    """Whether these are all records there are (and all others are gone), or only those that changed."""
    records: Sequence[Record]
    deleted: Sequence[tuple[Kind, str]] = ()


@dataclass(frozen=True, slots=True)
class Actor:
    """Who writes, and from where."""

    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to what, when, from where; how it was before, and after."""

    at_us: int
    actor: str
    address: str
    action: str
    """`create`, `update`, `delete`, `expire` (by Headgate itself). Of what is done to counters two entries: before
    it is tried `reset requested`, and then `reset`, or `reset failed`; likewise `charge` and `give_back`."""
    subject: str
    """The kind and the id: `rule:orders-per-user`, `tier:alice`; for a reset, whatever was reset."""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    id: str = ""
    """Its place in the log, in the words of whoever keeps it: a later entry of one repository has a greater one,
    compared by length and then as text. Empty until it is kept."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries to show, the newest first."""

    actor: str | None = None
    subject: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    before: str | None = None
    """Only entries older than the one of this id: the next page."""
    limit: int = 100


class Source(Protocol):
    """The reading half: what a catalog needs of a place that keeps rules."""

    @property
    def title(self) -> str:
        """What it is and where, for messages; without any password."""

    def changes(self, since: int) -> Changes | None:
        """What is new since this revision (0: everything there is); None when nothing is."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on whenever something may have changed, as far as this place can tell by itself.

        What is missed meanwhile (a connection was lost) is made up for by one call when listening goes on.
        """

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""


@runtime_checkable
class Reloads(Protocol):
    """A source that looks at its files only when they seem to have changed, and can be told to look all the same."""

    def reload(self) -> None:
        """Read again at the next `changes`. Only sets a mark, so a signal handler may call it."""


class Lookup(Protocol):
    """What can be asked for single records."""

    def get(self, kind: Kind, record_id: str) -> Record | None:
        """One record, as it stands."""

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        """Records in the order of their ids (as UTF-8 bytes), those whose id begins with `prefix`, from behind
        `after` on."""


class Repository(Source, Lookup, Protocol):
    """All of it. A repository that cannot be written to raises ReadOnly."""

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        """Write all of the edits, or none: the records as they stand afterwards, None where one was deleted."""

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        """Add audit entries for something that was done elsewhere, such as the reset of counters: one for each of its
        subjects, all of them or none."""

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Entries of the audit log, the newest first."""
