"""What a process knows of the rules, kept up to date behind its back.

A catalog reads its sources at the start, and from then on each in a thread of its own: every second, and at once when
the source says that something has changed. What it knows is one rule set, which is swapped as a whole, so no request
ever sees half of a change. A source that is away, or whose rules have mistakes, changes nothing: the last good rules
stay in force, and that is logged and counted. Nor does it hold up the others.

Sources are given in the order of their say: where two have a rule of the same id, or two equally specific rules for
one slot, the later source's counts (files first, then a database, whose rules were written by somebody since).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any
from weakref import ref

from headgate.errors import HeadgateError
from headgate.rules.repositories.port import Source
from headgate.rules.rule import Rule
from headgate.rules.ruleset import RuleSet
from headgate.rules.shelf import Loaded, Shelf, defaults_of, overlaid
from headgate.stores.forking import fork_safe_lock, renew_after_fork

__all__ = ["REFRESH_SECONDS", "Catalog"]

REFRESH_SECONDS = 1.0
LEAST_SECONDS = 0.01
MOST_SECONDS = 3600.0
PATIENCE = 5.0
"""Seconds that closing waits for a look that is under way."""
_log = logging.getLogger("headgate")

Bell = SimpleQueue[None]
"""What a source's thread waits for. A queue of this kind, because a signal handler may ring it at any time."""


class Catalog:
    """The rules of some sources. `current` is always one whole rule set."""

    def __init__(self, sources: Sequence[Source], refresh_seconds: float = REFRESH_SECONDS) -> None:
        self.current = RuleSet.empty()
        self.keys: Mapping[str, Mapping[str, Any]] = {}
        """The service's keys that the sources keep, by their ids. Swapped as a whole, as the rules are."""
        self.failures = 0
        """How often a source could not be read."""
        self._shelves = [Shelf(source) for source in sources]
        self._seconds = min(max(refresh_seconds, LEAST_SECONDS), MOST_SECONDS)
        self._lock = fork_safe_lock()
        self._closed = False
        self._bells: list[Bell] = []
        self._watchers: list[Thread] = []
        try:
            for shelf in self._shelves:
                loaded = shelf.read()
                if loaded is not None:
                    self._take(shelf, loaded)
        except BaseException:
            self._close_sources()
            raise
        renew_after_fork(self)
        self._watch()
        for number, shelf in enumerate(self._shelves):
            shelf.source.listen(_waker(ref(self), number))

    @property
    def problem(self) -> str | None:
        """What is wrong with the sources now; None while all can be read."""
        return "\n".join(shelf.problem for shelf in self._shelves if shelf.problem is not None) or None

    def refresh(self) -> bool:
        """Look at all sources now; whether anything was new. What cannot be read stays as it is, and is told."""
        news = [self._look(shelf) for shelf in self._shelves]
        return any(news)

    def accept_only(self, check: Callable[[Rule], None]) -> None:
        """Have every rule looked at, those known already and those to come: ConfigError for one that is of no use."""
        for shelf in self._shelves:
            for rule in shelf.known.rules.values():
                check(rule)
            shelf.checks.append(check)

    def reload(self) -> None:
        """Have everything read soon, changed or not, in the catalog's own threads. A signal handler may call it."""
        for shelf in self._shelves:
            shelf.again = True
        self.wake()

    def wake(self) -> None:
        """Something may have changed: look soon, in the catalog's own threads."""
        for bell in self._bells:
            bell.put(None)

    def close(self) -> None:
        """Stop looking, and let go of the sources. The rules known so far stay in force."""
        self._closed = True
        self.wake()
        deadline = time.monotonic() + PATIENCE
        for watcher in self._watchers:
            if watcher is not current_thread():
                watcher.join(max(deadline - time.monotonic(), 0.0))
        self._close_sources()

    def renew(self) -> None:
        """In a forked child: the threads that keep this up to date have stayed in the parent."""
        for shelf in self._shelves:
            shelf.looking = Lock()
        if not self._closed:
            self._watch()

    def _watch(self) -> None:
        self._bells = [SimpleQueue() for _ in self._shelves]
        self._watchers = [
            Thread(
                target=_keep_up,
                args=(ref(self), number, bell, self._seconds),
                name=f"headgate-rules-{number}",
                daemon=True,
            )
            for number, bell in enumerate(self._bells)
        ]
        for watcher in self._watchers:
            watcher.start()

    def _look(self, shelf: Shelf) -> bool:
        """Look at one source; whether anything was new."""
        with shelf.looking:
            before = len(shelf.known.rules)
            try:
                loaded = shelf.read()
                if loaded is not None:
                    self._take(shelf, loaded)
            except Exception as error:  # noqa: BLE001 - whatever it is, the rules that are known stay in force
                if not self._closed:
                    self._failed(shelf, error)
                return False
            if shelf.problem is not None:
                shelf.problem = None
                _log.warning("rules can be read again: %s", shelf.source.title)
            if loaded is not None:
                now = len(shelf.known.rules)
                level = logging.WARNING if before and not now else logging.INFO
                _log.log(level, "rules have changed: %s: %d before, %d now", shelf.source.title, before, now)
            return loaded is not None

    def _failed(self, shelf: Shelf, error: Exception) -> None:
        """Count it, and say it once as long as it is the same."""
        self.failures += 1
        ours = isinstance(error, HeadgateError)
        told = str(error) if ours else repr(error)
        if not told.startswith(shelf.source.title):
            told = f"{shelf.source.title}: {told}"
        if told != shelf.problem:
            shelf.problem = told
            trace = None if ours else error
            _log.error("rules could not be read, and those known so far stay in force: %s", told, exc_info=trace)

    def _take(self, shelf: Shelf, loaded: Loaded) -> None:
        """Take in what is new, and swap the rule set: both, or neither."""
        with self._lock:
            after, touched = shelf.known.after(loaded)
            known = [after if other is shelf else other.known for other in self._shelves]
            puts: list[Rule] = []
            says: dict[str, int] = {}
            deletes: list[str] = []
            for rule_id in touched:
                say = max((place for place, one in enumerate(known) if rule_id in one.rules), default=-1)
                if say < 0:
                    deletes.append(rule_id)
                else:
                    puts.append(known[say].rules[rule_id])
                    says[rule_id] = say
            self.current = self.current.edited(
                puts,
                deletes,
                says=says,
                tiers=overlaid([one.tiers for one in known]),
                plans=overlaid([one.plans for one in known]),
                defaults=defaults_of(overlaid([one.defaults for one in known])),
            )
            self.keys = overlaid([one.keys for one in known])
            shelf.known = after

    def _close_sources(self) -> None:
        for shelf in self._shelves:
            shelf.source.close()


def _waker(weak: ref[Catalog], number: int) -> Callable[[], None]:
    """What a source calls when something may have changed. It keeps no catalog alive."""

    def wake() -> None:
        catalog = weak()
        if catalog is not None:
            catalog._bells[number].put(None)

    return wake


def _keep_up(weak: ref[Catalog], number: int, bell: Bell, seconds: float) -> None:
    """A source's thread: ends when the catalog is closed, or nobody has it any more."""
    while True:
        _wait(bell, seconds)
        catalog = weak()
        if catalog is None or catalog._closed:
            return
        catalog._look(catalog._shelves[number])
        del catalog


def _wait(bell: Bell, seconds: float) -> None:
    """Until it rings or so many seconds have passed; one look answers all that rang before it."""
    try:
        bell.get(timeout=seconds)
        while True:
            bell.get_nowait()
    except Empty:
        return
