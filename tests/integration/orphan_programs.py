"""The programs of the fork tests on SQLite: one that is set up, forks and goes, so that its child is left alone with
the file, as after daemonising; and another that uses the same file meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from crestgate import Limiter
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.rules.rule import Rule
from crestgate.rules.storage.factory import open_repository
from integration.child_main import hear, say

__all__ = ["count", "count_as_orphan", "write", "write_as_orphan"]

LIMIT = "100/hour using fixed_window"


def orphaned(first: Callable[[], object], then: Callable[[object], object]) -> None:
    """Do something, fork, do it in the child too, and go. The child then does as it is told until nobody tells it."""
    first()
    reading, writing = os.pipe()
    if os.fork():
        os.read(reading, 1)
        os._exit(0)
    first()
    os.write(writing, b".")
    say("alone")
    while (word := hear()) is not None:
        say(then(word))
    os._exit(0)


def admitted(limiter: Limiter, times: int) -> int:
    return sum(limiter.check("key", LIMIT).allowed for _ in range(times))


def count_as_orphan(url: str) -> None:
    limiter = Limiter(url)
    orphaned(lambda: limiter.peek("key", LIMIT), lambda times: admitted(limiter, int(str(times))))


def count(url: str, times: int) -> None:
    with Limiter(url) as limiter:
        say(admitted(limiter, times))


def rule(rule_id: str, limit: int) -> Rule:
    return Rule.read(
        {
            "rule_id": rule_id,
            "dimension": "ip",
            "endpoint_pattern": f"/{rule_id}",
            "limit": limit,
            "window_seconds": 60,
        }
    )


def write_as_orphan(url: str, folder: str) -> None:
    """The child writes a rule, and says which limit it knows of the one that others change."""
    config = Path(folder) / "crestgate.yaml"
    config.write_text(f"rules_store: '{url}'\n")
    limiter = Limiter.from_config(str(config))
    source = limiter.catalog.states[1].source
    editor = Editor(source, Actor("orphan"))  # type: ignore[arg-type]  # the second source is the database

    def then(name: object) -> int:
        editor.create(rule(str(name), 1))
        limiter.catalog.refresh()
        return limiter.catalog.current.rules["theirs"].limit

    orphaned(limiter.catalog.refresh, then)


def write(url: str, limit: int) -> None:
    """Change a rule that all know, and say what there is."""
    repository = open_repository(url)
    editor = Editor(repository, Actor("other"))
    if limit == 1:
        editor.create(rule("theirs", limit))
    else:
        editor.replace(rule("theirs", limit))
    found = sorted(found.rule_id for found in editor.rules())
    repository.close()
    say(found)
