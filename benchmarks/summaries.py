"""What each part tells the front page: from the results of a part to its summary."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks import figures, page
from benchmarks.candidates import ALGORITHMS
from benchmarks.formatting import in_times
from benchmarks.frameworks.results import Results as FrameworkResults
from benchmarks.growth import results as growth_results
from benchmarks.latency import results as latency_results
from benchmarks.network import results as network_results
from benchmarks.peer_services import results as peer_results
from benchmarks.resp import REDIS as REDIS_SCRIPT
from benchmarks.resp import RespResults
from benchmarks.rpc.entry import ONE, OURS
from benchmarks.rpc.results import Results as RpcResults
from benchmarks.service import results as service_results
from benchmarks.service.entry import BATCH
from benchmarks.summary import Floor, Offer, Ratio, Summary

__all__ = ["OFFERS", "frameworks", "growth", "latency", "machine", "network", "peers", "resp", "rpc", "service"]

IN_MEMORY, IN_SHARED = "library, `memory://`", "library, `shared://`"
IN_REDIS, IN_REDIS_MANY = "library, Redis, 100 asyncio callers", "library, Redis, 1,000 asyncio callers"
IN_REDIS_LEASED = "library, Redis, 100 asyncio callers, with leases"
IN_MARIADB, IN_POSTGRESQL = "library, MariaDB, 100 asyncio callers", "library, PostgreSQL, 100 asyncio callers"
BATCHES = f"service over HTTP, batches of {BATCH}, shared memory"
SERVED = {
    (protocol, store): f"service over {name}, {where}"
    for protocol, name in (("grpc", "gRPC"), ("http", "HTTP"))
    for store, where in (("memory", "`memory://`"), ("shared", "shared memory"), ("redis", "Redis"))
} | {("http", "mariadb"): "service over HTTP, MariaDB with full durability"}
OFFERS = (
    IN_MEMORY,
    IN_SHARED,
    IN_REDIS,
    IN_REDIS_MANY,
    IN_REDIS_LEASED,
    IN_MARIADB,
    IN_POSTGRESQL,
    *SERVED.values(),
    BATCHES,
)
"""In the order of the page."""


def machine(results: figures.Results) -> Summary:
    build = results.builds[0]
    offers, ratios = [], []
    form = "object" if build.has_forms else "bound"
    for contests, what, name in ((build.admitted, IN_MEMORY, "memory"), (build.shared, IN_SHARED, "shared memory")):
        wanted = form if name == "memory" else "bound"
        found = {one.algorithm: one for one in contests if one.form == wanted}
        if "token_bucket" in found:
            taken = found["token_bucket"].microseconds
            offers.append(Offer(what, per_core=1e6 / taken, p50=taken))
        for algorithm in ALGORITHMS:
            if algorithm in found:
                fastest = found[algorithm].fastest
                beside = fastest.library if name == "memory" else f"{fastest.library}, {fastest.algorithm}, Redis"
                ratios.append(Ratio(f"library, {name}, {algorithm}", beside, fastest.times))
    for other in results.builds[1:]:
        ratios += [
            Ratio(f"library in plain Python, memory, {one.algorithm}", one.fastest.library, one.fastest.times)
            for one in other.admitted
        ]
    floors = []
    if offers and build.empty_call:
        taken = offers[0].p50 or 0.0
        times = f"{taken / build.empty_call:.1f}"
        floors.append(
            Floor("a check in memory", f"{taken:.2f} µs", f"an empty call of Python, {build.empty_call:.3f} µs", times)
        )
    return _summary(results, build.version, offers=offers, ratios=ratios, floors=floors, aims=page.aims(results))


def network(results: network_results.Results) -> Summary:
    outcomes = results.outcomes
    offers, ratios, floors = [], [], []
    places = (
        ("redis", "Crestgate token_bucket", IN_REDIS),
        ("1,000 callers", "Crestgate", IN_REDIS_MANY),
        ("redis", "Crestgate with leases", IN_REDIS_LEASED),
        ("mariadb", "Crestgate, 100 tasks", IN_MARIADB),
        ("postgresql", "Crestgate, 100 tasks", IN_POSTGRESQL),
    )
    for name, label, what in places:
        if name in outcomes and outcomes[name].has(label):
            outcome = outcomes[name]
            one = outcome[label]
            p50, p99 = one.median("p50"), one.median("p99")
            offers.append(Offer(what, per_core=one.median("per_second"), p50=p50, p99=p99))
            best = outcome.over_best(one, outcome.peers or outcome.transactions)
            if best is not None:
                ratios.append(Ratio(what, best[0].entry.label, best[1]))
    if "sequence" in outcomes:
        outcome = outcomes["sequence"]
        for more, how in (("", "one thread"), (", async", "one asyncio task")):
            ours, bare = outcome[f"Crestgate{more}"], outcome[f"redis-py{more}"]
            texts = (f"{one.median('p50'):,.0f} µs" for one in (ours, bare))
            mine, its = texts
            times = in_times(outcome.ratio(ours, bare, "p50"))
            floors.append(Floor(f"a check in Redis, {how}", mine, f"a bare EVALSHA, {its}", times))
    build = results.versions.get("crestgate", "")
    return _summary(
        results,
        build,
        offers=offers,
        ratios=ratios,
        floors=floors,
        aims=network_results.aims(results),
        gaps=results.left_out,
    )


def service(results: service_results.Results) -> Summary:
    offers, floors = [], []
    for outcome in results.outcomes:
        for one in outcome.side_by_side[1:]:
            if one.entry.decisions > 1:
                p50, p99 = one.median("p50"), one.median("p99")
                kept = {"p50": p50, "p99": p99} if outcome.workers == 1 else {}
                share = {"per_core": one.decisions} if outcome.workers == 1 else {"per_machine": one.decisions}
                offers.append(Offer(BATCHES, **share, **kept))
        if outcome.workers == 1:
            ours, echo = outcome.plain, outcome.echo
            mine, its = (f"{one.median('processor'):.1f} µs" for one in (ours, echo))
            times = in_times(outcome.ratio(ours, echo, "processor"))
            floors.append(Floor("a check over HTTP", mine, f"an echo on uvicorn, {its}", times))
    return _summary(results, results.build, offers=offers, floors=floors, aims=service_results.aims(results))


def rpc(results: RpcResults) -> Summary:
    outcome = results.outcomes[0]
    echo = outcome.of(OURS)
    floors = []
    for one in (outcome.of(entry) for entry in ONE):
        ours, its = one.median("processor"), echo.median("processor")
        pairs = zip(one.turns, echo.turns, strict=True)
        times = figures.spread([mine.processor / bare.processor for mine, bare in pairs])
        floors.append(
            Floor(one.entry.label, f"{ours:.1f} µs", f"an echo on the same listener, {its:.1f} µs", in_times(times))
        )
    return _summary(results, results.build, floors=floors)


def resp(results: RespResults) -> Summary:
    floors = []
    bare = results.rates[REDIS_SCRIPT]
    for name, rates in results.rates.items():
        if name != REDIS_SCRIPT:
            ratios = figures.spread([its / mine for mine, its in zip(rates, bare, strict=True)])
            mine, its = (f"{1e6 / median(one):.1f} µs" for one in (rates, bare))
            floors.append(Floor(name, mine, f"the same as a script in Redis, {its}", in_times(ratios)))
    return _summary(results, results.build, floors=floors)


def latency(results: latency_results.Results) -> Summary:
    offers = [
        Offer(
            SERVED[one.entry.protocol, one.entry.store],
            per_core=one.capacity,
            p50=one.latency("50 %", 0.5),
            p99=one.latency("50 %", 0.99),
        )
        for one in results.measured
    ]
    aims = latency_results.aims(results)
    return _summary(results, results.build, offers=offers, aims=aims, gaps=results.left_out)


def growth(results: growth_results.Results) -> Summary:
    """What all cores together do, where there are as many processes or workers."""
    cores = results.machine["cores"]
    offers = []
    for store, what in (("memory", IN_MEMORY), ("shared", IN_SHARED)):
        turns = results.processes.get(store, {}).get(cores)
        if turns:
            offers.append(Offer(what, per_machine=median(turn["per_second"] for turn in turns)))
    for protocol, counts in results.workers.items():
        if cores in counts:
            rate = median(turn.per_second for turn in counts[cores])
            offers.append(Offer(SERVED[protocol, "shared"], per_machine=rate))
    aims = [aim for aim in growth_results.aims(results) if "keys" in aim.what]
    return _summary(results, results.build, offers=offers, aims=aims)


def peers(results: peer_results.Results) -> Summary:
    ratios = [
        Ratio(
            f"service over gRPC, per core, {peer_results.named(one.keys)}",
            one.entry.label,
            results.ours(one.entry.store, one.keys).per_core(one),
        )
        for one in results.measured
        if one.entry.served != "crestgate"
    ]
    aims = peer_results.aims(results)
    return _summary(results, results.build, ratios=ratios, aims=aims, gaps=results.left_out)


def frameworks(results: FrameworkResults) -> Summary:
    ratios = []
    for one in results.ours("memory", "shared"):
        ratios.append(Ratio(f"FastAPI, {one.entry.label.partition(': ')[2]}", "no limits", one.ratio(results.bare)))
    for peer in results.peers("redis"):
        ours = results.ours("redis")[0]
        what = f"FastAPI, {ours.entry.label.partition(': ')[2]}"
        ratios.append(Ratio(what, f"{peer.entry.library}, {peer.entry.integration}", ours.ratio(peer)))
    return _summary(results, results.build, ratios=ratios)


def _summary(results: Any, build: str, **lists: Any) -> Summary:
    load = results.machine["load when the run began"]
    return Summary(results.date, build, load, getattr(results, "quick", False), **lists)
