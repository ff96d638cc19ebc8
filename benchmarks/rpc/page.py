"""The section about gRPC: tables with every figure of the run, their meaning, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.formatting import in_times, milliseconds, table
from benchmarks.rpc.entry import GRPCLIB, ONE, OURS, PYVOY, THREADS
from benchmarks.rpc.messages import PLENTY, VALUES
from benchmarks.rpc.results import Measured, Outcome, Results

__all__ = ["targets", "write"]

TITLE = "# Benchmarks of gRPC"
TRANSPORT = Path(__file__).parents[2] / "src" / "crestgate" / "service" / "grpc" / "transport"

OPENING = """\
Envoy's `ShouldRateLimit` and Crestgate's own `CheckRateLimit`, answered by `crestgate serve` with one worker and asked
by h2load without a pause, on {connections} connections with {calls} calls under way on each: proxies have a
connection for each of their threads, and many calls on it. Beside them are bare echoes: the least that each gRPC
server for Python can do, which is to read a `RateLimitRequest` with protobuf, and to serialize a `RateLimitResponse`
that is there and send it back. Every server has one and the same processor core to itself while it is its turn, and
h2load another. A figure such as 0.74 (0.70–0.77) is again a median of the ratios within a round, with the 10th and
the 90th percentile over the rounds."""

ECHOES = """\
“÷ grpcio” here and elsewhere is beside grpcio's server for asyncio, on whichever of the two event loops was faster
here. Processor time is that of all processes of a server for a call, and so is the memory, at the end of the run."""

SERVICE = f"""\
{VALUES:,} users in turn, each with a limit of {PLENTY:,} an hour for every descriptor. One descriptor names the user;
the second of two has two entries, a path and the user. `CheckRateLimit` names a user, an endpoint and a method, and
one rule applies. Counters are in the process's own memory (`store: memory://`), or in shared memory, as they are by
default. “÷ echo” is beside the echo on the same listener."""

ONE_CALL = """\
Many calls on a connection often come, and can be answered, in one piece. Here they never do: {connections}
connections with one call at a time on each."""

WHY = """\
Python has several gRPC servers, and this project has written one more. That needs a reason.

- grpcio, the usual one, answered {bare:,.0f} calls a second here with one core and without doing anything, and
  {threads:,.0f} with threads. The limiter decides many times as many, so nearly all of a call would be spent on
  carrying it. Its asyncio server has a thread of its own for the network, and hands every call over.
- grpclib has HTTP/2 in Python (`h2`), and answered {grpclib:,.0f}.
- pyvoy runs ASGI applications inside Envoy, and answered {pyvoy:,.0f}. But the application is then inside: an Envoy,
  {pyvoy_mb:.0f} MB with all that is loaded, is the process, with its own sockets, signals and way to end. Either all
  of the service moves into it, where by pyvoy's own documentation there are no several workers, and no platform that
  Envoy is not made for; or gRPC and HTTP are two processes, and counters in `memory://` are no longer the same for
  both. And it is a young project with few maintainers.
- The listener of our own answered {ours:,.0f}: {times} times grpcio's. It is on the event loop of the worker, beside
  HTTP; both ask the same limiter, count into the same metrics and end in the same way. A call that can be decided at
  once is answered while its bytes are read, without a task or a thread, and what came in one read is answered in one
  write.

What it costs: some {lines:,} lines of HTTP/2 that have to be kept right. They speak no more of it than gRPC needs. They
are tested with h2spec (`make h2spec`: 130 of its 145 cases pass; for the others, `tests/integration/service/h2spec.py`
says why they differ), with an independent implementation (`h2`) and with grpcio's and grpclib's clients as peers, and
by fuzzing. grpcio is not needed to run the service."""

REACH = """\
Our echo takes {echo:.1f} µs of a processor. Finding the limits of a request, deciding, counting, and saying what is
left in a status and in headers takes {takes:.1f} µs more in memory. Beside the fastest server of others, pyvoy, whose
echo does nothing of that, `ShouldRateLimit` answers {times} times as many calls. [Beside services in other
languages](benchmarks-peers.md) it has a page of its own, with targets."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. The service called itself “{build}”.
- Every server is a child process on loopback, and so are the service and its supervisor; all are started before the
  first turn, and idle while it is not theirs. All are bound to one core, and h2load, with one thread, to what is left
  of the {cores}.
- The echoes are in `benchmarks/rpc/echoes.py`, each as its documentation says: grpcio with its defaults, and with
  threads with ten of them; grpclib on uvloop; pyvoy with its defaults, which are uvloop and one worker. All have the
  same protobuf (upb). The service remembers what requests meant by their bytes, and does not read them again.
- A turn is one run of h2load of {turn} s, with new connections. In each round everybody has one, and who begins
  changes; a whole round is run before the first that counts. Rounds that count: {rounds}.
- h2load sends the bytes of a file, which it reads anew for every call. Meanwhile the file is written over, with one
  user after another a fraction of a millisecond apart; a few calls in a row are the same user's.
- Nothing is denied. Before and after all turns grpcio's client makes a call of each kind, whose answer must be right;
  in the turns all calls must be answered with 200, those of echoes with all the bytes of the answer; and afterwards
  the service's own metrics must have counted every call that h2load saw answered, all of them allowed.
- It took {seconds:.0f} seconds."""

NOT_SAID = """\
What this does not say: a service with several workers answers more, and so would several processes of each echo.
Latencies are those of a server that is asked as fast as it answers: their median is little more than the calls under
way divided by the rate."""


def write(results: Results) -> str:
    proxies, single = results.outcomes
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is Crestgate in plain Python.**")
    parts.append(OPENING.format(connections=proxies.connections, calls=proxies.calls))
    parts.append("![Calls per second of gRPC servers](benchmarks-rpc.svg)")
    parts += ["## Beside the floor", targets(results), _reach(proxies)]
    parts += ["## Bare echoes", ECHOES, _echoes(results, proxies)]
    parts += ["## The service beside the echoes", SERVICE, _service(proxies)]
    parts += ["## One call on each connection", ONE_CALL.format(connections=single.connections), _all(single)]
    parts += ["## Why the listener is our own", _why(results), "## How gRPC was measured", _method(results), NOT_SAID]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    """There are none here: what a call costs beside the least that it can cost."""
    outcome = results.outcomes[0]
    rows = []
    for one in (outcome.of(entry) for entry in ONE):
        rows.append([one.entry.label, in_times(one.ratio(outcome.ours)), in_times(one.ratio(outcome.bare))])
    return table(["calls/s", "÷ our echo", "÷ grpcio's echo"], rows)


def _reach(outcome: Outcome) -> str:
    echo, one = outcome.ours.median("processor"), outcome.of(ONE[0])
    return REACH.format(
        echo=echo,
        takes=one.median("processor") - echo,
        times=in_times(one.ratio(outcome.of(PYVOY))),
    )


def _echoes(results: Results, outcome: Outcome) -> str:
    rows = []
    for one in outcome.measured:
        if one.entry.is_echo:
            over = "" if one is outcome.bare else in_times(one.ratio(outcome.bare))
            rows.append([*_first(one), over, *_last(one), f"{results.megabytes[one.entry.served]:.0f}"])
    return table(["echo", "calls/s", "÷ grpcio", "p50 / p99 ms", "processor, µs", "memory, MB"], rows)


def _service(outcome: Outcome) -> str:
    measurements = [outcome.ours, *(one for one in outcome.measured if not one.entry.is_echo)]
    return _beside(outcome, measurements)


def _all(outcome: Outcome) -> str:
    return _beside(outcome, outcome.measured)


def _beside(outcome: Outcome, measurements: Sequence[Measured]) -> str:
    rows = []
    for one in measurements:
        over = "" if one is outcome.ours else in_times(one.ratio(outcome.ours))
        bare = "" if one is outcome.bare else in_times(one.ratio(outcome.bare))
        rows.append([*_first(one), over, bare, *_last(one)])
    return table(["", "calls/s", "÷ echo", "÷ grpcio", "p50 / p99 ms", "processor, µs"], rows)


def _first(one: Measured) -> list[str]:
    name = f"echo: {one.entry.label}" if one.entry.is_echo else one.entry.label
    return [name, f"{one.median('per_second'):,.0f}"]


def _last(one: Measured) -> list[str]:
    return [milliseconds(one.median("p50"), one.median("p99")), f"{one.median('processor'):.1f}"]


def _why(results: Results) -> str:
    outcome = results.outcomes[0]

    def rate(one: Measured) -> float:
        return one.median("per_second")

    return WHY.format(
        bare=rate(outcome.bare),
        threads=rate(outcome.of(THREADS)),
        grpclib=rate(outcome.of(GRPCLIB)),
        pyvoy=rate(outcome.of(PYVOY)),
        pyvoy_mb=results.megabytes[PYVOY.served],
        ours=rate(outcome.of(OURS)),
        times=in_times(outcome.ours.ratio(outcome.bare)),
        lines=_transport_lines(),
    )


def _transport_lines() -> int:
    """The lines of the HTTP/2 listener, rounded to hundreds."""
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in TRANSPORT.glob("*.py"))
    return round(lines, -2)


def _method(results: Results) -> str:
    return METHOD.format(
        date=results.date,
        machine=", ".join(f"{name}: {value}" for name, value in results.machine.items()),
        versions=", ".join(f"{name} {version}" for name, version in results.versions.items()),
        build=results.build,
        cores=results.machine["cores"],
        turn=results.turn_seconds,
        rounds=results.rounds,
        seconds=results.seconds,
    )
