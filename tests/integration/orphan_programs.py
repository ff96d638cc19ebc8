"""Child programs of the fork tests on SQLite: one forks and exits, so that its child is left with the file, as after
daemonising; another uses the same file meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from crestgate import Limiter
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.rules.rule import Rule
from crestgate.rules.storage.factory import open_repository
from integration.child_main import receive, send

__all__ = ["count", "count_as_orphan", "write", "write_as_orphan"]

LIMIT = "100/hour using fixed_window"


def run_as_orphan(prepare: Callable[[], object], handle: Callable[[object], object]) -> None:
    """Call `prepare`, fork, call it in the child too, and exit. The child then handles messages until end of input."""
    prepare()
    read_end, write_end = os.pipe()
    if os.fork():
        os.read(read_end, 1)
        os._exit(0)
    prepare()
    os.write(write_end, b".")
    send("alone")
    while (message := receive()) is not None:
        send(handle(message))
    os._exit(0)


def admitted(limiter: Limiter, times: int) -> int:
    return sum(limiter.check("key", LIMIT).allowed for _ in range(times))


def count_as_orphan(url: str) -> None:
    limiter = Limiter(url)
    run_as_orphan(lambda: limiter.peek("key", LIMIT), lambda times: admitted(limiter, int(str(times))))


def count(url: str, times: int) -> None:
    with Limiter(url) as limiter:
        send(admitted(limiter, times))


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
    """The child writes a rule, and sends the limit it has loaded for a rule that others change."""
    config = Path(folder) / "crestgate.yaml"
    config.write_text(f"rules_store: '{url}'\n")
    limiter = Limiter.from_config(str(config))
    source = limiter.catalog.states[1].source
    editor = Editor(source, Actor("orphan"))  # type: ignore[arg-type]  # the second source is the database

    def handle(name: object) -> int:
        editor.create(rule(str(name), 1))
        limiter.catalog.refresh()
        return limiter.catalog.current.rules["theirs"].limit

    run_as_orphan(limiter.catalog.refresh, handle)


def write(url: str, limit: int) -> None:
    """Change a shared rule, and send the ids of all rules."""
    repository = open_repository(url)
    editor = Editor(repository, Actor("other"))
    if limit == 1:
        editor.create(rule("theirs", limit))
    else:
        editor.replace(rule("theirs", limit))
    rule_ids = sorted(each.rule_id for each in editor.rules())
    repository.close()
    send(rule_ids)
