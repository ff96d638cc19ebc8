"""The programs of the rule tests: one that reads rules as a limiter does, and one that configures clients."""

from __future__ import annotations

import threading
import time

from crestgate import Limiter, RequestContext
from crestgate.locks import open_locks
from crestgate.rules.compat.clients import ClientLimit
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.rules.storage.factory import open_repository
from integration.child_main import hear, say

__all__ = ["configure", "watch"]

CONTEXT = RequestContext(user="alice", path="/binding/0")


def watch(config: str, rules: int) -> None:
    """Ask for the same request all the time, and write down when its limit changes and whether a rule set is torn."""
    limiter = Limiter.from_config(config)
    over = threading.Event()
    seen: list[tuple[int, float]] = []
    torn = 0

    def until_told() -> None:
        hear()
        over.set()

    threading.Thread(target=until_told, daemon=True).start()
    say("ready")
    last = -1
    while not over.is_set():
        limit = limiter.peek_request(CONTEXT).limit
        if limit != last:
            seen.append((limit, time.monotonic()))
            last = limit
        known = limiter.catalog.current.rules
        if len({known[f"binding-{n}"].limit for n in range(rules)}) != 1:
            torn += 1
        time.sleep(0.005)
    limiter.close()
    say({"seen": seen, "torn": torn})


def configure(url: str, client: str, first: int, times: int) -> None:
    """Configure one client again and again, each time with a number of its own in all of its limits."""
    repository = open_repository(url)
    editor = Editor(repository, Actor(f"writer-{first}"), locks=open_locks(url))
    say("ready")
    hear()
    for number in range(first, first + times):
        names = (("DEFAULT", "GLOBAL", "SEC"), ("API", "/web/test", "HOUR"), ("METHOD", "PUT", "MIN"))
        editor.configure_client(client, [ClientLimit(client, *name, number) for name in names])
    repository.close()
    say("done")
