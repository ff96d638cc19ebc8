"""Per-process rule cache, refreshed by background threads.

A catalog reads its sources at the start, and from then on each in a thread of its own: every second, and immediately
when the source notifies of a change. The rules are one rule set, which is swapped as a whole, so no request ever sees
half of a change. A source that is unavailable, or a file with an error, changes nothing: the previous rules stay in
force, and the failure is logged and counted. It does not delay the other sources. A record of a database that cannot be
used (`unreadable`) keeps its last valid version, is logged and counted, and does not keep the others out.

Sources are given in ascending precedence: where two have a rule of the same id, or two equally specific rules for one
slot, the later source wins (files first, then a database).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from crestgate.loader.background_refresh import REFRESH_SECONDS, BackgroundRefresh, Reloaded, ReloadMessages, close_all
from crestgate.rules.port import Source, UnreadableRecord
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.source_state import Loaded, SourceSnapshot, SourceState, defaults_of, overlay
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["REFRESH_SECONDS", "Catalog", "summarise"]

MIN_SECONDS = 0.01
MAX_SECONDS = 3600.0
MAX_NAMED = 10
"""Unreadable records that a message names."""
RELOAD_MESSAGES = ReloadMessages(
    "rule reload failed, keeping the previous rules: %s",
    "rule reload recovered: %s",
    "rules reloaded: %s: %d before, %d now",
)
_log = logging.getLogger("crestgate")


class Catalog:
    """The rules of some sources. `current` is always one whole rule set."""

    def __init__(self, sources: Sequence[Source], refresh_seconds: float = REFRESH_SECONDS) -> None:
        self.current = RuleSet.empty()
        self.keys: Mapping[str, Mapping[str, Any]] = {}
        """The service's API keys that the sources store, by id. Swapped as a whole, as the rules are."""
        self.states = [SourceState(source) for source in sources]
        self._lock = fork_safe_lock()
        seconds = min(max(refresh_seconds, MIN_SECONDS), MAX_SECONDS)
        self._refreshes = [
            BackgroundRefresh(
                self,
                partial(_load, state),
                messages=RELOAD_MESSAGES,
                title=state.source.title,
                seconds=seconds,
                thread_name=f"crestgate-rules-{number}",
            )
            for number, state in enumerate(self.states)
        ]
        try:
            for state in self.states:
                self.load(state)
        except BaseException:
            self._close_sources()
            raise
        for state, refresh in zip(self.states, self._refreshes, strict=True):
            refresh.start()
            state.source.listen(refresh.weak_wake())

    @property
    def failures(self) -> int:
        """Number of failed reads, over all sources."""
        return sum(refresh.failures for refresh in self._refreshes)

    @property
    def problem(self) -> str | None:
        """The current errors of all sources; None while everything can be read."""
        return "\n".join(text for text in (self.reload_problem, summarise(self.unreadable)) if text) or None

    @property
    def reload_problem(self) -> str | None:
        """The sources that cannot be read at all, and why."""
        return "\n".join(refresh.problem for refresh in self._refreshes if refresh.problem is not None) or None

    @property
    def unreadable(self) -> list[UnreadableRecord]:
        """Stored records that cannot be used; their last valid versions stay in force, if there were any."""
        return [one for state in self.states for one in state.snapshot.unreadable.values()]

    def refresh(self) -> bool:
        """Refresh all sources now; whether anything was new. Errors are logged, and the previous rules stay."""
        changed = [refresh.refresh() for refresh in self._refreshes]
        return any(changed)

    def accept_only(self, check: Callable[[Rule], None]) -> None:
        """Validate all rules with this check, now and in later loads. It raises ConfigError to refuse a rule."""
        for state in self.states:
            for rule in state.snapshot.rules.values():
                check(rule)
            state.checks.append(check)

    def reload(self) -> None:
        """Reload everything soon, changed or not, in the background threads. A signal handler may call it."""
        for state in self.states:
            state.full_reload = True
        self.wake()

    def wake(self) -> None:
        """Something may have changed: refresh soon, in the background threads."""
        for refresh in self._refreshes:
            refresh.wake()

    def close(self) -> None:
        """End the threads, and close the sources. The current rules stay in force."""
        close_all(self._refreshes)
        self._close_sources()

    def load(self, state: SourceState) -> Reloaded | None:
        """Apply the changes of one source, if any."""
        before = len(state.snapshot.rules)
        loaded = state.read()
        if loaded is None:
            return None
        earlier = state.snapshot
        revision = earlier.revision
        self._apply(state, loaded)
        _log_unreadable(state, earlier)
        if loaded.replaced and revision:
            _log.warning(
                "rule history replaced, all rules were read again: %s: revision %d that was read is gone, "
                "by a failover or a restored backup",
                state.source.title,
                revision,
            )
        if _only_keys_differ(earlier, state.snapshot):
            _log.info("API keys changed: %s", state.source.title)
            return Reloaded(0, 0)  # nothing to say about rules
        return Reloaded(before, len(state.snapshot.rules))

    def _apply(self, state: SourceState, loaded: Loaded) -> None:
        """Update the snapshot of the source and swap the rule set: both, or neither."""
        with self._lock:
            after, touched = state.snapshot.after(loaded)
            snapshots = [after if other is state else other.snapshot for other in self.states]
            puts: list[Rule] = []
            precedence: dict[str, int] = {}
            deletes: list[str] = []
            for rule_id in touched:
                source = max((index for index, one in enumerate(snapshots) if rule_id in one.rules), default=-1)
                if source < 0:
                    deletes.append(rule_id)
                else:
                    puts.append(snapshots[source].rules[rule_id])
                    precedence[rule_id] = source
            self.current = self.current.edited(
                puts,
                deletes,
                precedence=precedence,
                tiers=overlay([one.tiers for one in snapshots]),
                plans=overlay([one.plans for one in snapshots]),
                defaults=defaults_of(overlay([one.defaults for one in snapshots])),
            )
            self.keys = overlay([one.keys for one in snapshots])
            state.snapshot = after

    def _close_sources(self) -> None:
        for state in self.states:
            state.source.close()


def summarise(unreadable: Sequence[UnreadableRecord]) -> str:
    """Records that cannot be used, one to a line; not all of them if there are many."""
    lines = [str(one) for one in unreadable[:MAX_NAMED]]
    if len(unreadable) > MAX_NAMED:
        lines.append(f"and {len(unreadable) - MAX_NAMED:,} more")
    return "\n".join(lines)


def _log_unreadable(state: SourceState, earlier: SourceSnapshot) -> None:
    """Log the records that can no longer be used, or again. A record is logged once for each new problem."""
    later, title = state.snapshot, state.source.title
    if later.unreadable == earlier.unreadable:
        return
    bad = [name for name, one in later.unreadable.items() if earlier.unreadable.get(name) != one]
    for name in bad[:MAX_NAMED]:
        if later.valid_version(name):
            _log.error("stored rule cannot be used, keeping its last valid version: %s", _located(title, later, name))
        else:
            _log.error("stored rule cannot be used, it is not in force: %s", _located(title, later, name))
    if len(bad) > MAX_NAMED:
        _log.error("stored rules cannot be used: %s: %d more", title, len(bad) - MAX_NAMED)
    good = [
        f"{kind} {record_id!r}" for kind, record_id in earlier.unreadable if (kind, record_id) not in later.unreadable
    ]
    if good:
        more = f" and {len(good) - MAX_NAMED:,} more" if len(good) > MAX_NAMED else ""
        names = ", ".join(good[:MAX_NAMED]) + more
        _log.warning("stored rules can be used again, or were deleted: %s: %s", title, names)


def _only_keys_differ(earlier: SourceSnapshot, later: SourceSnapshot) -> bool:
    """Whether API keys were created, changed or revoked, and nothing else."""
    return earlier.keys != later.keys and all(
        getattr(earlier, name) == getattr(later, name) for name in ("rules", "tiers", "plans", "defaults", "unreadable")
    )


def _located(title: str, snapshot: SourceSnapshot, name: tuple[str, str]) -> str:
    text = str(snapshot.unreadable[name])
    return text if text.startswith(title) else f"{title}: {text}"


def _load(state: SourceState, catalog: Catalog) -> Reloaded | None:
    return catalog.load(state)
