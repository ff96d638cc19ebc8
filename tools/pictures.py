"""Draws the pictures of docs/algorithms.md and README.md, with the library itself on virtual time.

    python -m tools.pictures            writes docs/*.svg
    python -m tools.pictures --check    fails if they would change

The traffic is seeded, and no clock is read, so the pictures are the same wherever they are made. They are SVG with
colours for light and dark, and no fonts or scripts of their own.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from crestgate import Limiter  # noqa: E402 - found by the line above
from crestgate.testing import FakeClock  # noqa: E402

ALGORITHMS = [
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
]
COUNT, PERIOD = 20, 10
SECONDS = 60
STYLE = """<style>
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f; }
  .name { font-weight: 600; } .small { font-size: 11px; fill: #57606a; }
  .grid { stroke: #d0d7de; }
  .allowed { fill: #1f77b4; } .denied { fill: #e8a33d; } .late { stroke: #8250df; fill: none; }
  .error { fill: #c4432b; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9da7b1; } .grid { stroke: #3d444d; }
    .allowed { fill: #58a6ff; } .denied { fill: #d29922; } .late { stroke: #bc8cff; } .error { fill: #ff7b72; }
  }
</style>"""


STYLE_OF_LINES = "<style>.apart { stroke: #d1801f; } .together { stroke: #1f77b4; }</style>"


def opening(width: int, height: int, label: str) -> str:
    """The first lines of a picture, with what it says to those who cannot see it."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">\n{STYLE}'


# -- one traffic pattern through all algorithms -----------------------------------------------------------------------


def pattern() -> list[float]:
    """The times of requests: a trickle, a burst at the end of a window, one just after it, and a long overload."""
    chance = random.Random(18)
    times = [chance.uniform(0, SECONDS) for _ in range(45)]
    times += [chance.uniform(19, 20) for _ in range(20)]
    times += [chance.uniform(20, 21) for _ in range(20)]
    times += [chance.uniform(35, 50) for _ in range(75)]
    return sorted(round(time, 6) for time in times)


@dataclass(frozen=True)
class Run:
    allowed: list[float]
    denied: list[float]
    released: list[float]
    """When admitted requests go on: later than they came, for a leaky bucket."""


def run(algorithm: str, times: Iterable[float]) -> Run:
    """What a limit of each algorithm makes of the same requests."""
    clock = FakeClock(0)
    limit = f"{COUNT}/{PERIOD} seconds using {algorithm}"
    result = Run([], [], [])
    with Limiter("memory://", clock=clock) as limiter:
        for time in times:
            clock.advance(time - clock.now())
            decision = limiter.check("user:42", limit)
            (result.allowed if decision.allowed else result.denied).append(time)
            if decision.allowed:
                result.released.append(time + decision.delay)
    return result


def most_in_a_period(times: list[float]) -> int:
    """The most requests in any span of one period."""
    most = start = 0
    for end, time in enumerate(times):
        while time - times[start] >= PERIOD:
            start += 1
        most = max(most, end - start + 1)
    return most


def bars(
    counts: Counter[int], below: Counter[int], kind: str, left: int, base: int, wide: float, high: float
) -> Iterator[str]:
    for second, count in sorted(counts.items()):
        x, y = left + second * wide, base - (below[second] + count) * high
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide - 1.5:.1f}" height="{count * high:.1f}"/>'


def traffic_picture() -> str:
    left, wide, row, high = 190, 10.5, 92, 3.0
    width = int(left + SECONDS * wide + 20)
    height = 70 + row * len(ALGORITHMS) + 34
    times = pattern()
    lines = [
        opening(width, height, f"{len(times)} requests through six algorithms at {COUNT} per {PERIOD} seconds"),
        f'<text x="10" y="20" class="name">{len(times)} requests in {SECONDS} s, limit {COUNT}/{PERIOD} s</text>',
        '<rect class="allowed" x="10" y="34" width="12" height="12"/><text x="27" y="45">admitted</text>',
        '<rect class="denied" x="105" y="34" width="12" height="12"/><text x="122" y="45">denied</text>',
        '<path class="late" stroke-width="2" d="M190 40h14"/><text x="210" y="45">leaves the leaky bucket</text>',
        f'<text x="{width - 20}" y="45" text-anchor="end" class="small">requests per second</text>',
    ]
    for number, algorithm in enumerate(ALGORITHMS):
        base = 60 + row * (number + 1)
        result = run(algorithm, times)
        allowed, denied = (Counter(int(time) for time in group) for group in (result.allowed, result.denied))
        for second in range(0, SECONDS + 1, PERIOD):
            x = left + second * wide - 0.75
            lines.append(f'<path class="grid" d="M{x:.1f} {base - row + 14}V{base}"/>')
        lines.append(f'<path class="grid" d="M{left} {base + 0.5}H{left + SECONDS * wide:.1f}"/>')
        lines += bars(allowed, Counter(), "allowed", left, base, wide, high)
        lines += bars(denied, allowed, "denied", left, base, wide, high)
        if algorithm == "leaky_bucket":
            out = Counter(int(time) for time in result.released)
            points = [f"{left + second * wide:.1f} {base - out[second] * high:.1f}" for second in range(SECONDS)]
            steps = " ".join(f"L{point} h{wide}" for point in points)
            lines.append(f'<path class="late" stroke-width="1.5" d="M{left} {base} {steps}"/>')
        lines.append(f'<text x="10" y="{base - 44}" class="name">{algorithm}</text>')
        lines.append(f'<text x="10" y="{base - 27}" class="small">{len(result.allowed)} admitted</text>')
        most = most_in_a_period(result.allowed)
        lines.append(f'<text x="10" y="{base - 12}" class="small">at most {most} in any {PERIOD} s</text>')
    base = 60 + row * len(ALGORITHMS)
    lines += [
        f'<text x="{left + second * wide:.1f}" y="{base + 18}" text-anchor="middle" class="small">{second} s</text>'
        for second in range(0, SECONDS + 1, PERIOD)
    ]
    return "\n".join([*lines, "</svg>", ""])


# -- the error of the sliding window counter --------------------------------------------------------------------------

SOURCES = 400
TRACE_SECONDS = 600
LIMIT = 60
WINDOW = 60


@dataclass
class Errors:
    """How decisions of the counter differ from the exact ones."""

    requests: int = 0
    wrongly_allowed: int = 0
    wrongly_denied: int = 0

    @property
    def wrong(self) -> int:
        return self.wrongly_allowed + self.wrongly_denied

    def share(self) -> str:
        return f"{100 * self.wrong / self.requests:.3f} %"


def trace(seed: int, burstiness: float) -> list[tuple[float, int]]:
    """Requests of many sources: most far below the limit, one in a hundred around it; some arrivals are bursts."""
    chance = random.Random(seed)
    requests = []
    for source in range(SOURCES):
        rate = chance.lognormvariate(-2.6, 1.0) if chance.random() < 0.99 else chance.uniform(0.8, 3.0)
        time = 0.0
        while (time := time + chance.expovariate(rate)) < TRACE_SECONDS:
            size = chance.randint(2, 10) if chance.random() < burstiness else 1
            requests += [(round(time + chance.uniform(0, 0.5), 6), source) for _ in range(size)]
    return sorted(requests)


def measure(seed: int, burstiness: float) -> Errors:
    """Both judge each request by what was requested before, allowed or not, as Cloudflare's count does.

    A counter with a limit beyond reach counts all requests; what is counted says what a limit of LIMIT would decide.
    """
    errors = Errors()
    clock = FakeClock(0)
    beyond = 1_000_000
    counter = f"{beyond}/{WINDOW} seconds using sliding_window_counter"
    log = f"{beyond}/{WINDOW} seconds using sliding_window_log"
    with Limiter("memory://", clock=clock) as limiter:
        estimated, exact = limiter.bind(counter), limiter.bind(log)
        for time, source in trace(seed, burstiness):
            clock.advance(time - clock.now())
            key = f"ip:{source}"
            would = beyond - estimated.check(key).remaining <= LIMIT
            should = beyond - exact.check(key).remaining <= LIMIT
            errors.requests += 1
            errors.wrongly_allowed += would and not should
            errors.wrongly_denied += should and not would
    return errors


SEEDS = range(1, 4)
KINDS = [("even traffic", 0.0), ("1 arrival in 10 a burst", 0.1), ("1 arrival in 3 a burst", 0.33)]


def measurements() -> list[tuple[str, list[Errors]]]:
    return [(name, [measure(seed, burstiness) for seed in SEEDS]) for name, burstiness in KINDS]


def error_picture(measured: list[tuple[str, list[Errors]]]) -> str:
    left, row, width = 175, 34, 760
    rows = [(name, _sum(runs), [100 * one.wrong / one.requests for one in runs]) for name, runs in measured]
    most = max(max(shares) for _, _, shares in rows)
    scale = (width - left - 215) / most
    height = 74 + row * (len(rows) + 1)
    lines = [
        opening(
            width, height, "Share of requests that the sliding window counter decides otherwise than the exact log"
        ),
        '<text x="10" y="20" class="name">Requests that the sliding window counter decides otherwise</text>',
        f'<text x="10" y="40" class="small">{SOURCES:,} sources, limit {LIMIT}/minute, {TRACE_SECONDS // 60} minutes, '
        f"{len(SEEDS)} seeds: bar = all, dots = each</text>",
    ]
    for number, (name, total, shares) in enumerate(rows):
        y = 56 + row * number
        share = 100 * total.wrong / total.requests
        lines.append(f'<text x="10" y="{y + 15}">{name}</text>')
        lines.append(f'<rect class="allowed" x="{left}" y="{y}" width="{share * scale:.1f}" height="20"/>')
        lines += [f'<circle class="error" cx="{left + one * scale:.1f}" cy="{y + 10}" r="3"/>' for one in shares]
        text = f"{share:.3f} % of {total.requests:,}"
        lines.append(f'<text x="{left + max(*shares, share) * scale + 12:.1f}" y="{y + 15}">{text}</text>')
    y = 56 + row * len(rows)
    lines.append(f'<text x="10" y="{y + 15}">Cloudflare, 2017</text>')
    lines.append(f'<rect class="denied" x="{left}" y="{y}" width="{max(1.5, 0.003 * scale):.1f}" height="20"/>')
    lines.append(f'<text x="{left + 14}" y="{y + 15}">0.003 % of 400 million: their figure, on their traffic</text>')
    return "\n".join([*lines, "</svg>", ""])


def _sum(runs: list[Errors]) -> Errors:
    return Errors(
        *(sum(getattr(one, name) for one in runs) for name in ("requests", "wrongly_allowed", "wrongly_denied"))
    )


# -- several workers, one limit: what examples/demo.py shows live -----------------------------------------------------

WORKERS = 4
WORKERS_LIMIT = "50/minute using sliding_window_log"


def admitted_by_workers(stores: list[str], times: list[float]) -> list[int]:
    """How many requests were admitted in all after each, if each goes to one of several workers."""
    chance = random.Random(4)
    clock = FakeClock(0)
    limiters = [Limiter(store, clock=clock) for store in stores]
    admitted, total = [], 0
    for time in times:
        clock.advance(time - clock.now())
        total += chance.choice(limiters).check("user:42", WORKERS_LIMIT).allowed
        admitted.append(total)
    for limiter in limiters:
        limiter.close()
    return admitted


def workers_picture() -> str:
    chance = random.Random(50)
    times = sorted(round(chance.uniform(0, 60), 6) for _ in range(300))
    with tempfile.TemporaryDirectory() as folder:
        together = admitted_by_workers([f"shared://{folder}/counters?max_keys=1000"] * WORKERS, times)
    apart = admitted_by_workers(["memory://"] * WORKERS, times)
    left, top, width, height, right = 46, 48, 760, 300, 190
    x = (width - left - right) / 60
    y = (height - top - 40) / max(apart)
    base = height - 40

    def line(kind: str, admitted: list[int]) -> str:
        steps = " ".join(
            f"H{left + time * x:.1f} V{base - count * y:.1f}" for time, count in zip(times, admitted, strict=True)
        )
        return f'<path class="{kind}" fill="none" stroke-width="2.5" d="M{left} {base} {steps} H{left + 60 * x:.1f}"/>'

    end = left + 60 * x + 8
    lines = [
        opening(
            width,
            height,
            f"Four workers: counters of their own admit {apart[-1]}, one shared counter admits {together[-1]}",
        ),
        STYLE_OF_LINES,
        f'<text x="10" y="22" class="name">{len(times)} requests of one user to {WORKERS} workers, limit 50/minute: '
        "how many are admitted</text>",
        *(
            f'<path class="grid" d="M{left} {base - count * y:.1f}H{left + 60 * x:.1f}"/>'
            f'<text x="{left - 6}" y="{base - count * y + 4:.1f}" text-anchor="end" class="small">{count}</text>'
            for count in range(0, max(apart) + 1, 50)
        ),
        *(
            f'<text x="{left + second * x:.1f}" y="{base + 18}" text-anchor="middle" class="small">{second} s</text>'
            for second in range(0, 61, 10)
        ),
        line("apart", apart),
        line("together", together),
        f'<text x="{end:.1f}" y="{base - apart[-1] * y + 4:.1f}" class="name">{apart[-1]}</text>',
        f'<text x="{end:.1f}" y="{base - apart[-1] * y + 22:.1f}" class="small">each counts for itself</text>',
        f'<text x="{end:.1f}" y="{base - together[-1] * y + 4:.1f}" class="name">{together[-1]}</text>',
        f'<text x="{end:.1f}" y="{base - together[-1] * y + 22:.1f}" class="small">Limiter("shared://myapp")</text>',
    ]
    return "\n".join([*lines, "</svg>", ""])


def pictures() -> dict[str, str]:
    measured = measurements()
    for name, runs in measured:
        total = _sum(runs)
        print(
            f"{name}: {total.share()} of {total.requests} wrong: "
            f"{total.wrongly_allowed} allowed, {total.wrongly_denied} denied"
        )
    return {
        "algorithms-traffic.svg": traffic_picture(),
        "algorithms-error.svg": error_picture(measured),
        "workers.svg": workers_picture(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of the pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture would change")
    check = parser.parse_args().check
    for name, text in pictures().items():
        path = ROOT / "docs" / name
        if check and path.read_text() != text:
            sys.exit(f"docs/{name} would change: run `make pictures`")
        path.write_text(text)


if __name__ == "__main__":
    main()
