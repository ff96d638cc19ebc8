"""The first page of the benchmarks: what users get, then ratios, then the floor, then targets.

It is written from the summaries of all parts, each from its own latest run, so every figure comes from a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.aims import Aim
from benchmarks.formatting import in_times, table, targets_table
from benchmarks.summaries import OFFERS
from benchmarks.summary import Floor, Offer, Ratio, Summary

__all__ = ["DETAILS", "draw", "write"]


class Detail(NamedTuple):
    """A page with all figures of a part."""

    file: str
    title: str


DETAILS = {
    "machine": Detail("benchmarks-machine", "within a machine: memory, shared memory, bytes per key"),
    "network": Detail("benchmarks-network", "Redis, MariaDB, PostgreSQL and SQLite"),
    "service": Detail("benchmarks-service", "the service over HTTP"),
    "rpc": Detail("benchmarks-rpc", "the service over gRPC, and gRPC servers for Python"),
    "resp": Detail("benchmarks-resp", "the service for Redis clients"),
    "latency": Detail("benchmarks-latency", "latency at fixed rates"),
    "peers_services": Detail("benchmarks-peers", "beside rate limit services in other languages"),
    "growth": Detail("benchmarks-growth", "more keys, limits, rules, callers, processes, workers"),
    "frameworks": Detail("benchmarks-frameworks", "web frameworks"),
    "imports": Detail("benchmarks-imports", "what an import costs"),
    "leases": Detail("benchmarks-leases", "leases of limits"),
}

OPENING = """\
What Crestgate decides, how fast, and beside what. Everything is measured by `make bench` on one machine with {cores}
cores; absolute figures are that machine's, and ratios carry further. A figure such as 9.1 (8.2–9.9) is a median of
ratios within a round, in which all take turns, with the 10th and the 90th percentile over the rounds."""

OFFER = """\
Decisions a second, and what one takes. “Per core” is one process or one worker; “per machine” as many of them as there
are cores, which for the service share these cores with the clients. Each process counts for itself in `memory://`; all
processes of a machine share their counters in `shared://`; all machines do in a Redis or a database. Latencies of the
library in memory are the time of a call; with Redis and databases those of callers who never pause, and of the service
those at half of its capacity, from the time that a request should have been sent. Those of batches are of a service
that is asked as fast as it answers."""

NOT_YET = "Not measured yet: `make bench` writes this."

RATIOS = "How many times as much as others, in the same run: the fastest one where there are several."

FLOORS = "What a check costs beside the least that its way to the answer can cost, with nothing to decide."


def write(summaries: Mapping[str, Summary], cores: str, pages: Path) -> str:
    """`pages` is the folder of the detail pages: only those that exist are linked."""
    parts = ["# Benchmarks", OPENING.format(cores=cores)]
    quick = [name for name, one in summaries.items() if one.quick]
    if quick:
        parts.append(f"**Quick trials with few and short rounds, to be measured again: {', '.join(quick)}.**")
    sections: list[tuple[str, Iterable[str]]] = [
        ("What it means for you", [OFFER, _offers(summaries)]),
        ("Beside others", [RATIOS, _ratios(summaries)]),
        ("Beside the least that is possible", [FLOORS, _floors(summaries)]),
        ("Targets, met or missed", _targets(summaries)),
    ]
    for heading, texts in sections:
        parts += [f"## {heading}", *(texts if summaries else [NOT_YET])]
    parts += ["## All figures", _details(summaries, pages)]
    return "\n\n".join(parts) + "\n"


def draw(summaries: Mapping[str, Summary], path: Path) -> None:
    """Every target that is a ratio, with what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "crestgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    from benchmarks.network.picture import targets

    aims = [aim for aim in _aims(summaries) if aim.is_ratio]
    drawing, axes = plt.subplots(figsize=(10, 0.3 * (len(aims) + 3)), facecolor="white", layout="constrained")
    targets(axes, aims)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _offers(summaries: Mapping[str, Summary]) -> str:
    merged: dict[str, dict[str, float]] = {}
    for summary in summaries.values():
        for offer in summary.offers:
            merged.setdefault(offer.what, {}).update(_known(offer))
    rows = []
    for what in OFFERS:
        if what in merged:
            one = merged[what]
            rates = [f"{one[name]:,.0f}" if name in one else "" for name in ("per_core", "per_machine")]
            rows.append([what, *rates, _latency(one)])
    return table(["", "per core", "per machine", "p50 / p99"], rows)


def _known(offer: Offer) -> dict[str, float]:
    fields = {"per_core": offer.per_core, "per_machine": offer.per_machine, "p50": offer.p50, "p99": offer.p99}
    return {name: value for name, value in fields.items() if value is not None}


def _latency(one: Mapping[str, float]) -> str:
    return " / ".join(_time(one[name]) for name in ("p50", "p99") if name in one)


def _time(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms" if microseconds >= 100 else f"{microseconds:.2f} µs"


def _ratios(summaries: Mapping[str, Summary]) -> str:
    found: list[Ratio] = [ratio for summary in summaries.values() for ratio in summary.ratios]
    return table(["Crestgate", "beside", "times"], [[one.what, one.beside, in_times(one.measured)] for one in found])


def _floors(summaries: Mapping[str, Summary]) -> str:
    found: list[Floor] = [floor for summary in summaries.values() for floor in summary.floors]
    return table(
        ["Crestgate", "takes", "beside", "times"], [[one.what, one.ours, one.least, one.times] for one in found]
    )


def _aims(summaries: Mapping[str, Summary]) -> list[Aim]:
    return [aim for summary in summaries.values() for aim in summary.aims]


def _targets(summaries: Mapping[str, Summary]) -> Iterable[str]:
    aims = _aims(summaries)
    missed = [aim for aim in aims if not aim.met]
    yield f"Of {len(aims)} targets, {len(aims) - len(missed)} are met and {len(missed)} missed."
    yield targets_table([*missed, *(aim for aim in aims if aim.met)])
    yield "![Targets, and what was measured](benchmarks.svg)"
    gaps = [" ".join(gap.split()) for summary in summaries.values() for gap in summary.gaps]
    if gaps:
        yield "Not measured:\n\n" + "\n".join(f"- {gap}" for gap in gaps)


def _details(summaries: Mapping[str, Summary], pages: Path) -> str:
    rows = []
    for name, detail in DETAILS.items():
        if (pages / f"{detail.file}.md").exists():
            one = summaries.get(name)
            run = [one.date, one.load] if one else ["", ""]
            rows.append([f"[{detail.title}]({detail.file}.md)", *run])
    return table(["page", "measured", "load before"], rows)
