"""One contender in its own process, which is idle until its turn.

The order comes as JSON in the first argument: an entry, and the seconds of a turn. Each line of standard input starts a
turn; the driver (rounds.py) decides when.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any, NoReturn

from benchmarks.network import bare, classic, load, ours, peers
from benchmarks.network.entry import Contender, Entry

__all__: list[str] = []

ON_A_LOOP: dict[str, Callable[[Entry], Awaitable[Contender]]] = {
    "crestgate": ours.batched,
    "crestgate leased": ours.leased,
    "crestgate one by one": ours.one_by_one,
    "limits": peers.limits,
    "limits on coredis": peers.limits_on_coredis,
    "throttled-py": peers.throttled,
    "pyrate-limiter": peers.pyrate,
    "bare": bare.bare,
}
ON_THREADS: dict[str, Callable[[Entry], Contender]] = {
    "crestgate": ours.batched_threads,
    "crestgate one by one": ours.one_by_one_threads,
    "bare": bare.bare_threads,
    "classic": classic.classic,
}


def main() -> NoReturn:
    order = json.loads(sys.argv[1])
    try:
        take_part(Entry(**order["entry"]), order["seconds"])
    except BaseException as error:  # noqa: BLE001 - the driver decides what a contender that fails means
        send({"error": reason(error)})
    os._exit(0)  # some have threads or connections that would block a normal exit


def send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def take_part(entry: Entry, seconds: float) -> None:
    """A turn for each line."""
    keys = cycle([f"user:{number}" for number in range(entry.keys)])
    if entry.load == "threads":
        contender = ON_THREADS[entry.library](entry)
    else:
        loop = new_loop(entry)
        contender = loop.run_until_complete(_create(entry))

    def turn(number: int) -> load.Turn:
        if entry.load == "threads":
            return load.threads(contender, keys, entry.callers, seconds)
        if entry.load == "tasks":
            return loop.run_until_complete(load.tasks(contender, keys, entry.callers, seconds))
        return loop.run_until_complete(load.arrivals(contender, keys, entry.callers, seconds, number))

    send({"ready": True})
    for number, _ in enumerate(sys.stdin):
        done = turn(number)
        if contender.failures():
            raise RuntimeError(f"{contender.failures()} checks were not answered by the store")
        send({"turn": done._asdict()})


async def _create(entry: Entry) -> Contender:
    return await ON_A_LOOP[entry.library](entry)


def new_loop(entry: Entry) -> asyncio.AbstractEventLoop:
    if entry.loop == "asyncio":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


if __name__ == "__main__":
    main()
