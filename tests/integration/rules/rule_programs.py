"""Child programs of the rule tests: one reads rules as a limiter does, one configures clients."""

from __future__ import annotations

import threading
import time

from crestgate import Limiter, RequestContext
from crestgate.errors import StaleVersionError
from crestgate.locks import open_locks
from crestgate.rules.compat.clients import ClientLimit
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.rules.storage.factory import open_repository
from integration.child_main import receive, send

__all__ = ["configure", "watch"]

CONTEXT = RequestContext(user="alice", path="/binding/0")


def watch(config: str, rules: int) -> None:
    """Poll one request, and record when its limit changes and how often a rule set is torn. `lag` is how late a thread
    of this process woke up at worst: the machine may be busy."""
    limiter = Limiter.from_config(config)
    stop_event = threading.Event()
    seen: list[tuple[int, float]] = []
    torn = 0
    lag = 0.0

    def wait_for_message() -> None:
        receive()
        stop_event.set()

    def measure_lag() -> None:
        nonlocal lag
        while not stop_event.is_set():
            began = time.monotonic()
            time.sleep(0.05)
            lag = max(lag, time.monotonic() - began - 0.05)

    threading.Thread(target=wait_for_message, daemon=True).start()
    threading.Thread(target=measure_lag, daemon=True).start()
    send("ready")
    last = -1
    while not stop_event.is_set():
        limit = limiter.peek_request(CONTEXT).limit
        if limit != last:
            seen.append((limit, time.monotonic()))
            last = limit
        rules_by_id = limiter.catalog.current.rules
        if len({rules_by_id[f"binding-{n}"].limit for n in range(rules)}) != 1:
            torn += 1
        time.sleep(0.005)
    limiter.close()
    send({"seen": seen, "torn": torn, "lag": lag})


def configure(url: str, client: str, first: int, times: int) -> None:
    """Configure one client repeatedly, each time with a new number in all of its limits."""
    repository = open_repository(url)
    editor = Editor(repository, Actor(f"writer-{first}"), locks=open_locks(url))
    send("ready")
    receive()
    for number in range(first, first + times):
        names = (("DEFAULT", "GLOBAL", "SEC"), ("API", "/web/test", "HOUR"), ("METHOD", "PUT", "MIN"))
        _configure(editor, client, [ClientLimit(client, *name, number) for name in names])
    repository.close()
    send("done")


def _configure(editor: Editor, client: str, limits: list[ClientLimit]) -> None:
    """As the error says: try again. Four writers that never pause may keep the lock from one for its five seconds."""
    while True:
        try:
            editor.configure_client(client, limits)
            return
        except StaleVersionError as error:
            if "was not free within" not in str(error):
                raise
