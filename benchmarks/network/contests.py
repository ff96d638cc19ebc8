"""The comparisons and their duration: eight contests, each on its own private servers, one after another.

Together they take about four minutes. A turn is long enough for hundreds of checks of the slowest contender, or
for thousands of the others, and as short as that allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from benchmarks.candidates import ALGORITHMS, REDIS_PEERS
from benchmarks.network.entry import Entry
from benchmarks.network.rounds import Pace

__all__ = [
    "CONTESTS",
    "Contest",
    "database",
    "light_load",
    "mariadb",
    "one_key",
    "redis",
    "sequence",
    "thousand_callers",
]

THREADS = 64
LIGHT = 100
"""Arrivals in a second: far below what anybody can do."""


class Contest(NamedTuple):
    """One comparison: its name, the server it needs, who takes part given the server's URL, and the real pace."""

    name: str
    server: str
    entries: Callable[[str], list[Entry]]
    pace: Pace


def redis(url: str) -> list[Entry]:
    """All contenders with a hundred callers on a thousand keys."""
    default = Entry("Crestgate", "crestgate", url)
    ours = [replace(default, label=f"Crestgate {name}", algorithm=name) for name in ALGORITHMS]
    theirs = [Entry(f"{library} {name}", library, url, name) for library, name in REDIS_PEERS]
    return [
        *ours,
        replace(default, label="Crestgate plain Python", build="pure"),
        replace(default, label="Crestgate on uvloop", loop="uvloop"),
        replace(default, label="Crestgate with leases", library="crestgate leased"),
        replace(default, label="Crestgate one by one", library="crestgate one by one"),
        *theirs,
        Entry("limits on coredis fixed_window", "limits on coredis", url, "fixed_window"),
        Entry("pyrate-limiter gcra", "pyrate-limiter", url, "gcra"),
        Entry("pyrate-limiter sliding_window_log", "pyrate-limiter", url, "sliding_window_log"),
    ]


def one_key(url: str) -> list[Entry]:
    """The same on one contended key, and Crestgate once more on a thousand."""
    default = Entry("Crestgate, 1,000 keys", "crestgate", url)
    leased = replace(default, label="Crestgate with leases", library="crestgate leased")
    return [default, *[replace(entry, keys=1) for entry in (*_fastest(url), leased)]]


def thousand_callers(url: str) -> list[Entry]:
    entries = _fastest(url)
    on_uvloop = replace(entries[0], label="Crestgate on uvloop", loop="uvloop")
    return [replace(entry, callers=1000) for entry in [*entries, on_uvloop]]


def sequence(url: str) -> list[Entry]:
    """One caller that waits for each answer."""
    ours = Entry("Crestgate", "crestgate", url, load="threads", callers=1)
    bare = replace(ours, label="redis-py", library="bare")
    pairs = [(one, replace(one, label=f"{one.label}, async", load="tasks")) for one in (ours, bare)]
    return [entry for pair in pairs for entry in pair]


def light_load(url: str) -> list[Entry]:
    ours = Entry("Crestgate", "crestgate", url, load="arrivals", callers=LIGHT)
    return [ours, replace(ours, label="Crestgate one by one", library="crestgate one by one")]


def database(url: str) -> list[Entry]:
    """Crestgate with all its callers, and the contenders with a transaction for every check."""
    ours = Entry("Crestgate, 100 tasks", "crestgate", url)
    crowd = replace(ours, label="crowd", load="threads", callers=THREADS)
    return [
        ours,
        replace(ours, label="Crestgate, 1,000 tasks", callers=1000),
        replace(crowd, label=f"Crestgate, {THREADS} threads"),
        replace(crowd, label=f"Crestgate one by one, {THREADS} threads", library="crestgate one by one"),
        replace(crowd, label=f"one transaction per check, {THREADS} threads", library="classic"),
        replace(crowd, label="one transaction per check, 16 threads", library="classic", callers=16),
    ]


def mariadb(url: str) -> list[Entry]:
    return [Entry("Crestgate, 100 tasks, one key", "crestgate", url, keys=1), *database(url)]


def sqlite(url: str) -> list[Entry]:
    """There is one writer at a time, so several callers are not faster."""
    ours = Entry("Crestgate, 100 tasks", "crestgate", url)
    return [
        ours,
        replace(ours, label=f"Crestgate, {THREADS} threads", load="threads", callers=THREADS),
        Entry("one transaction per check, 1 thread", "classic", url, load="threads", callers=1),
    ]


def _fastest(url: str) -> list[Entry]:
    """Crestgate with its defaults, and the fastest variant of each other library."""
    return [
        Entry("Crestgate", "crestgate", url),
        Entry("limits fixed_window", "limits", url, "fixed_window"),
        Entry("limits on coredis fixed_window", "limits on coredis", url, "fixed_window"),
        Entry("throttled-py fixed_window", "throttled-py", url, "fixed_window"),
        Entry("pyrate-limiter gcra", "pyrate-limiter", url, "gcra"),
    ]


CONTESTS = (
    Contest("redis", "redis", redis, Pace(7, 0.3)),
    Contest("one key", "redis", one_key, Pace(7, 0.3)),
    Contest("1,000 callers", "redis", thousand_callers, Pace(6, 0.4)),
    Contest("sequence", "redis", sequence, Pace(60, 0.08)),
    Contest("light load", "redis", light_load, Pace(5, 2.0)),
    Contest("mariadb", "mariadb", mariadb, Pace(7, 0.6)),
    Contest("postgresql", "postgresql", database, Pace(6, 0.5)),
    Contest("sqlite", "sqlite", sqlite, Pace(6, 0.5)),
)
