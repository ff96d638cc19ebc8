"""What a process knows of the rules, kept up to date behind its back.

A catalog reads its sources at the start, and from then on in a thread of its own: every second, and at once when a
source says that something has changed. What it knows is one rule set, which is swapped as a whole, so no request ever
sees half of a change. A source that is away, or whose rules have mistakes, changes nothing: the last good rules stay
in force, and that is logged and counted.

Sources are given in the order of their say: where two have a rule of the same id, or two equally specific rules for
one slot, the later source's counts (files first, then a database, whose rules were written by somebody since). If
that one has an end, the other has the slot again from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Event, Thread, current_thread
from weakref import ref

from headgate.errors import HeadgateError, StoreClosed
from headgate.rules.repositories.port import Source
from headgate.rules.rule import Rule
from headgate.rules.ruleset import RuleSet
from headgate.rules.shelf import Loaded, Shelf, defaults_of, overlaid
from headgate.stores.forking import fork_safe_lock, renew_after_fork

__all__ = ["REFRESH_SECONDS", "Catalog"]

REFRESH_SECONDS = 1.0
_log = logging.getLogger("headgate")


class Catalog:
    """The rules of some sources. `current` is always one whole rule set."""

    def __init__(self, sources: Sequence[Source], refresh_seconds: float = REFRESH_SECONDS) -> None:
        self.current = RuleSet.empty()
        self.failures = 0
        """How often a source could not be read."""
        self.problem: str | None = None
        """What is wrong with a source now; None while all can be read."""
        self._shelves = [Shelf(source) for source in sources]
        self._refresh_seconds = refresh_seconds
        self._lock = fork_safe_lock()
        self._closed = False
        self._woken = Event()
        self._watcher: Thread | None = None
        try:
            self._update([(shelf, shelf.read()) for shelf in self._shelves])
        except BaseException:
            self._close_sources()
            raise
        renew_after_fork(self)
        self._listen()

    def refresh(self) -> bool:
        """Look at all sources now; whether anything was new. What cannot be read stays as it is, and is told."""
        with self._lock:
            news: list[tuple[Shelf, Loaded | None]] = []
            problems: list[str] = []
            for shelf in self._shelves:
                try:
                    news.append((shelf, shelf.read()))
                except StoreClosed:
                    if not self._closed:
                        raise
                except HeadgateError as error:
                    problems.append(f"{shelf.source.title}: {error}")
            self._note(problems)
            return self._update(news)

    def accept_only(self, check: Callable[[Rule], None]) -> None:
        """Have every rule looked at, those known already and those to come: ConfigError for one that is of no use."""
        for rule in self.current.rules.values():
            check(rule)
        for shelf in self._shelves:
            shelf.check = check

    def reload(self) -> None:
        """Have all sources read again within a second, changed or not. Only sets a mark, so a signal handler may."""
        for shelf in self._shelves:
            shelf.again = True

    def wake(self) -> None:
        """Something may have changed: look soon, in the catalog's own thread."""
        self._woken.set()

    def close(self) -> None:
        """Stop looking, and let go of the sources. The rules known so far stay in force."""
        self._closed = True
        self._woken.set()
        watcher = self._watcher
        if watcher is not None and watcher is not current_thread():
            watcher.join(5)
        self._close_sources()

    def renew(self) -> None:
        """In a forked child: the thread that keeps this up to date has stayed in the parent."""
        self._woken = Event()
        if not self._closed:
            self._watch()

    def _listen(self) -> None:
        weak = ref(self)

        def wake() -> None:
            catalog = weak()
            if catalog is not None:
                catalog.wake()

        for shelf in self._shelves:
            shelf.source.listen(wake)
        self._watch()

    def _watch(self) -> None:
        self._watcher = Thread(
            target=_keep_up, args=(ref(self), self._woken, self._refresh_seconds), name="headgate-rules", daemon=True
        )
        self._watcher.start()

    def _note(self, problems: list[str]) -> None:
        told = "\n".join(problems) or None
        self.failures += len(problems)
        if told is not None and told != self.problem:
            _log.error("rules could not be read, and those known so far stay in force: %s", told)
        elif told is None and self.problem is not None:
            _log.warning("rules can be read again")
        self.problem = told

    def _update(self, news: Sequence[tuple[Shelf, Loaded | None]]) -> bool:
        """Put what is new on the shelves, and swap the rule set if that changes it."""
        touched: set[str] = set()
        for shelf, loaded in news:
            if loaded is not None:
                touched |= shelf.put(loaded)
        if not any(loaded is not None for _, loaded in news):
            return False
        # What a rule's place was, or is, may now be another's.
        claims = {claim for shelf in self._shelves for claim in shelf.moved}
        touched |= {shelf.claims[claim] for shelf in self._shelves for claim in claims if claim in shelf.claims}
        puts, deletes = [], []
        for rule_id in touched:
            rule = self._effective(rule_id)
            if rule is None:
                deletes.append(rule_id)
            else:
                puts.append(rule)
        self.current = self.current.edited(
            puts,
            deletes,
            tiers=overlaid([shelf.tiers for shelf in self._shelves]),
            plans=overlaid([shelf.plans for shelf in self._shelves]),
            defaults=defaults_of(overlaid([shelf.defaults for shelf in self._shelves])),
        )
        return True

    def _effective(self, rule_id: str) -> Rule | None:
        """The rule of this id that counts, if any does."""
        for place in range(len(self._shelves) - 1, -1, -1):
            rule = self._shelves[place].rules.get(rule_id)
            if rule is None:
                continue
            for later in self._shelves[place + 1 :]:
                rival = later.claims.get(rule.claim) if rule.claim is not None else None
                if rival is not None and not _outlasts(rule, later.rules[rival]):
                    _log.warning(
                        "rule %r of %s gives way to the equally specific rule %r of %s",
                        *(rule_id, self._shelves[place].source.title, rival, later.source.title),
                    )
                    return None
            return rule
        return None

    def _close_sources(self) -> None:
        for shelf in self._shelves:
            shelf.source.close()


def _outlasts(rule: Rule, rival: Rule) -> bool:
    """Whether a rule is still there when an equally specific one has ended, to which it gives way until then."""
    return rule.expires_us is not None and rival.expires_us is not None and rule.expires_us > rival.expires_us


def _keep_up(weak: ref[Catalog], woken: Event, refresh_seconds: float) -> None:
    """The catalog's thread: ends when it is closed, or nobody has it any more."""
    while True:
        woken.wait(refresh_seconds)
        woken.clear()
        catalog = weak()
        if catalog is None or catalog._closed:
            return
        try:
            catalog.refresh()
        except StoreClosed:
            return
        except Exception:  # noqa: BLE001 - whatever it is, tomorrow's rules may be read again
            _log.exception("the rules could not be looked at; those known so far stay in force")
        del catalog
