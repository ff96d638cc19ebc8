"""Rule sources for tests of catalogs: in memory, and failing, hanging or emptied on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Changes, Edit, UnreadableRecord
from crestgate.rules.records import edit_of
from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import NOW_US, context_of, rules_of
from unit.rules.memory_repository import MemoryRepository

__all__ = [
    "ALICE",
    "NEVER",
    "TIMEOUT",
    "EmptiedSource",
    "FailingRuleSet",
    "FakeSource",
    "HangingSource",
    "catalog_of",
    "chosen",
    "ids",
    "problem_of",
    "until",
]

ALICE = Actor("alice")
TIMEOUT = 20.0
NEVER = 3600.0
"""Seconds between polls: so long that only explicit refreshes happen."""


class FakeSource(MemoryRepository):
    """A source that fails with `error`, and counts calls."""

    def __init__(self, title: str = "the source", *, notifies: bool = False) -> None:
        super().__init__()
        self.title = title
        self.notifies = notifies
        self.error: Exception | None = None
        self.atomic = False
        self.unreadable: list[UnreadableRecord] = []
        self.reloads = 0
        self.polls = 0
        self.closed = 0

    def changes(self, since: int) -> Changes | None:
        self.polls += 1
        if self.error is not None:
            raise self.error
        changes = super().changes(since)
        return changes if changes is None else replace(changes, atomic=self.atomic, unreadable=self.unreadable)

    def listen(self, wake: Callable[[], None]) -> None:
        if self.notifies:
            super().listen(wake)

    def reload(self) -> None:
        self.reloads += 1

    def close(self) -> None:
        self.closed += 1

    def put(self, text: str) -> None:
        self.write([edit_of(rule) for rule in rules_of(text)], ALICE)

    def delete(self, *rule_ids: str) -> None:
        self.write([Edit("rule", rule_id, None) for rule_id in rule_ids], ALICE)


class EmptiedSource(FakeSource):
    """A database that was emptied."""

    def changes(self, since: int) -> Changes | None:
        return Changes(0, True, ()) if since else None


class HangingSource(FakeSource):
    """A source whose polls wait until `hang` is set."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.hang, self.hanging = Event(), Event()
        self.hang.set()

    def changes(self, since: int) -> Changes | None:
        if not self.hang.is_set():
            self.hanging.set()
        assert self.hang.wait(TIMEOUT)
        return super().changes(since)


class FailingRuleSet:
    """A rule set whose update runs out of memory."""

    def edited(self, *given: object, **more: object) -> RuleSet:
        raise MemoryError


@contextmanager
def catalog_of(*sources: FakeSource, refresh_seconds: float = NEVER) -> Iterator[Catalog]:
    catalog = Catalog(sources, refresh_seconds)
    try:
        yield catalog
    finally:
        catalog.close()


def until(condition: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Wait in real time for another thread."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.001)


def ids(catalog: Catalog) -> list[str]:
    return sorted(catalog.current.rules)


def problem_of(catalog: Catalog) -> str:
    """The current problem. A function, so that type checkers do not narrow the attribute."""
    return catalog.problem or ""


def chosen(catalog: Catalog, text: str) -> list[str]:
    return [entry.rule.rule_id for _, entry in catalog.current.resolve(context_of(text), NOW_US)]
