"""Sources for the tests of catalogs: in memory, and failing, hanging or emptied when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Changes, Edit
from crestgate.rules.records import edit_of
from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import NOW_US, context_of, rules_of
from unit.rules.memory_repository import MemoryRepository

__all__ = [
    "ALICE",
    "NEVER",
    "PATIENCE",
    "Book",
    "Emptied",
    "Hanging",
    "NoMemory",
    "catalog_of",
    "chosen",
    "ids",
    "told_of",
    "until",
]

ALICE = Actor("alice")
PATIENCE = 20.0
NEVER = 3600.0
"""Seconds between looks: so long that only what is asked for happens."""


class Book(MemoryRepository):
    """A source that can be told to fail, and counts what is asked of it."""

    def __init__(self, title: str = "the book", *, tells: bool = False) -> None:
        super().__init__()
        self.title = title
        self.tells = tells
        self.error: Exception | None = None
        self.reloads = 0
        self.looks = 0
        self.closed = 0

    def changes(self, since: int) -> Changes | None:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return super().changes(since)

    def listen(self, wake: Callable[[], None]) -> None:
        if self.tells:
            super().listen(wake)

    def reload(self) -> None:
        self.reloads += 1

    def close(self) -> None:
        self.closed += 1

    def put(self, text: str) -> None:
        self.write([edit_of(rule) for rule in rules_of(text)], ALICE)

    def delete(self, *rule_ids: str) -> None:
        self.write([Edit("rule", rule_id, None) for rule_id in rule_ids], ALICE)


class Emptied(Book):
    """What is left of a database that was emptied."""

    def changes(self, since: int) -> Changes | None:
        return Changes(0, True, ()) if since else None


class Hanging(Book):
    """A source whose looks take as long as somebody wants."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.hang, self.hanging = Event(), Event()
        self.hang.set()

    def changes(self, since: int) -> Changes | None:
        if not self.hang.is_set():
            self.hanging.set()
        assert self.hang.wait(PATIENCE)
        return super().changes(since)


class NoMemory:
    """A rule set at the wrong moment."""

    def edited(self, *given: object, **more: object) -> RuleSet:
        raise MemoryError


@contextmanager
def catalog_of(*books: Book, refresh_seconds: float = NEVER) -> Iterator[Catalog]:
    catalog = Catalog(books, refresh_seconds)
    try:
        yield catalog
    finally:
        catalog.close()


def until(happened: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Another thread is to do it, in real time."""
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def ids(catalog: Catalog) -> list[str]:
    return sorted(catalog.current.rules)


def told_of(catalog: Catalog) -> str:
    """What is wrong now: asked anew each time, as another call may have changed it."""
    return catalog.problem or ""


def chosen(catalog: Catalog, text: str) -> list[str]:
    return [entry.rule.rule_id for _, entry in catalog.current.resolve(context_of(text), NOW_US)]
