"""Per-process rule cache, refreshed by background threads.

A catalog reads its sources at the start, and from then on each in a thread of its own: every second, and immediately
when the source notifies of a change. The rules are one rule set, which is swapped as a whole, so no request ever sees
half of a change. A source that is unavailable, or whose rules are invalid, changes nothing: the previous rules stay in
force, and the failure is logged and counted. It does not delay the other sources.

Sources are given in ascending precedence: where two have a rule of the same id, or two equally specific rules for one
slot, the later source wins (files first, then a database).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from crestgate.loader.background_refresh import REFRESH_SECONDS, BackgroundRefresh, Reloaded, ReloadMessages, close_all
from crestgate.rules.port import Source
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.source_state import Loaded, SourceState, defaults_of, overlay
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["REFRESH_SECONDS", "Catalog"]

MIN_SECONDS = 0.01
MAX_SECONDS = 3600.0
RELOAD_MESSAGES = ReloadMessages(
    "rule reload failed, keeping the previous rules: %s",
    "rule reload recovered: %s",
    "rules reloaded: %s: %d before, %d now",
)


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
        """The current errors of all sources; None while all can be read."""
        return "\n".join(refresh.problem for refresh in self._refreshes if refresh.problem is not None) or None

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
        self._apply(state, loaded)
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


def _load(state: SourceState, catalog: Catalog) -> Reloaded | None:
    return catalog.load(state)
