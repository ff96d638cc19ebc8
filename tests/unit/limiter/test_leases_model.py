"""Several processes with leases of one counter, in any order: what they admit together stays within the bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate import Limit, Limiter
from crestgate.limiter.reservation import Hold
from crestgate.stores.port import Op
from fake_server import FakeServer, ServerClient

KEY = "key"


@dataclass
class Fleet:
    """Processes that share a counter, and when each unit was admitted, by the server's clock."""

    limit: Limit
    offsets: list[float]
    server: FakeServer = field(default_factory=FakeServer)
    admitted: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = [ServerClient(self.server, offset) for offset in self.offsets]
        self.limiters = [Limiter(store) for store in self.stores]
        self.held: list[tuple[int, Hold]] = []

    def advance(self, seconds: float) -> None:
        self.server.clock.advance(seconds)
        for store in self.stores:
            store.clock.advance(seconds)

    def check(self, process: int, cost: int) -> None:
        decision = self.limiters[process].check(KEY, self.limit, cost)
        if decision.allowed and decision.reason == "ok":
            self.admitted.append((self.server.clock.ticks(), cost))

    def reserve(self, process: int, cost: int) -> None:
        limiter = self.limiters[process]
        hold = limiter.take_hold(limiter.prepare(Op.TAKE, KEY, self.limit, cost))
        if hold.decision.allowed and hold.is_charged:
            self.admitted.append((self.server.clock.ticks(), cost))
            self.held.append((len(self.admitted) - 1, hold))

    def release(self, process: int) -> None:
        """Another process than the one that reserved may do it. What was given back was not used, from the start."""
        if self.held:
            index, hold = self.held.pop(0)
            request = hold.release()
            if request is not None:
                self.limiters[process].apply([request])
                self.admitted[index] = (self.admitted[index][0], 0)

    def crash(self, process: int) -> None:
        """A new process takes its place, and knows nothing."""
        old = self.stores[process]
        self.stores[process] = ServerClient(self.server)
        self.stores[process].clock = old.clock
        self.limiters[process] = Limiter(self.stores[process])

    def lose_answer(self, process: int) -> None:
        self.stores[process].lost = 1

    def sweep(self, process: int) -> None:
        sweeper = self.limiters[process].backend.lease_sweeper
        if sweeper is not None:
            sweeper.sweep()


Step = tuple[str, int, int]
"""What happens, in which process, and a number."""
PROCESS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("check"), PROCESS, st.integers(1, 4)),
    st.tuples(st.just("warm_up"), PROCESS, st.integers(10, 40)),
    st.tuples(st.just("reserve"), PROCESS, st.integers(1, 20)),
    st.tuples(st.just("release"), PROCESS, st.just(0)),
    st.tuples(st.just("crash"), PROCESS, st.just(0)),
    st.tuples(st.just("lose_answer"), PROCESS, st.just(0)),
    st.tuples(st.just("sweep"), PROCESS, st.just(0)),
    st.tuples(st.just("pause"), st.just(0), st.sampled_from([10, 50, 100, 200, 400, 700, 1500])),
)
PAUSES = st.tuples(st.just("pause"), st.just(0), st.sampled_from([10, 30, 60, 100, 200, 400, 700]))


@st.composite
def rounds(draw: st.DrawFn) -> list[Step]:
    """One process takes slices; later, after anything else, all of them take what they can."""
    steps = [("warm_up", draw(PROCESS), draw(st.integers(5, 40))), *draw(st.lists(STEPS, max_size=4)), draw(PAUSES)]
    if draw(st.booleans()):
        steps = [("reserve", draw(PROCESS), 20), *steps[:-1], ("release", draw(PROCESS), 0), steps[-1]]
    order = draw(st.permutations([0, 1, 2]))
    return [*steps, *[("rush", process, draw(st.sampled_from([10, 200]))) for process in order]]


STEP_LISTS = st.lists(rounds(), min_size=1, max_size=4).map(lambda parts: [step for part in parts for step in part])
OFFSETS = st.lists(st.sampled_from([0.0, 0.3, -0.7, 5.0, -30.0]), min_size=3, max_size=3)


RATES = st.sampled_from([(100, 1, 30), (200, 1, 60), (400, 1, 100), (50, 1, 100)])
"""Count, period and burst."""


def run(fleet: Fleet, steps: list[Step], releases: bool) -> None:
    for step, process, number in steps:
        fleet.advance(0.001)
        if step == "pause":
            fleet.advance(number / 1000)
        elif step == "check":
            fleet.check(process, number)
        elif step in ("warm_up", "rush"):
            for _ in range(number):
                fleet.advance(0.0015 if step == "warm_up" else 0.00002)
                fleet.check(process, 1)
        elif step == "reserve":
            fleet.reserve(process, number)
        elif step == "release":
            if releases:
                fleet.release(process)
        else:
            getattr(fleet, step)(process)


@settings(max_examples=60, deadline=None)
@given(STEP_LISTS, OFFSETS, st.sampled_from([20, 60, 200]))
def test_windows_are_never_exceeded(steps: list[Step], offsets: list[float], count: int) -> None:
    fleet = Fleet(Limit(count, 1, algorithm="fixed_window", lease=True), offsets)
    run(fleet, steps, releases=True)
    by_window: dict[int, int] = {}
    for at, cost in fleet.admitted:
        by_window[at // 1_000_000] = by_window.get(at // 1_000_000, 0) + cost
    assert all(units <= count for units in by_window.values()), by_window


@settings(max_examples=60, deadline=None)
@given(STEP_LISTS, OFFSETS, RATES, st.booleans())
def test_buckets_are_never_exceeded(
    steps: list[Step], offsets: list[float], numbers: tuple[int, int, int], gcra: bool
) -> None:
    count, period, burst = numbers
    limit = Limit(count, period, burst=burst, algorithm="gcra" if gcra else "token_bucket", lease=True)
    fleet = Fleet(limit, offsets)
    run(fleet, steps, releases=False)
    admitted = fleet.admitted
    for i, (start, _) in enumerate(admitted):
        units = 0
        for end, cost in admitted[i:]:
            units += cost
            assert units * period * 1_000_000 <= burst * period * 1_000_000 + (end - start) * count


@settings(max_examples=40, deadline=None)
@given(STEP_LISTS, st.sampled_from(["fixed_window", "token_bucket", "gcra"]))
def test_what_is_not_used_comes_back(steps: list[Step], algorithm: str) -> None:
    """In the same window: so the pauses are short, the window is long, and nobody crashes."""
    limit = Limit(50, 3_600 if algorithm == "fixed_window" else 1, algorithm=algorithm, lease=True)
    fleet = Fleet(limit, [0.0, 0.0, 0.0])
    kept = [step for step in steps if step[0] in ("check", "warm_up", "pause", "sweep")]
    run(fleet, kept, releases=False)
    fleet.advance(1.0)
    for process in range(3):
        fleet.sweep(process)
    used = sum(cost for _, cost in fleet.admitted) if algorithm == "fixed_window" else 0
    assert Limiter(ServerClient(fleet.server)).peek(KEY, limit).remaining == 50 - used


@settings(max_examples=50, deadline=None)
@given(STEP_LISTS, OFFSETS, RATES)
def test_given_back_units_of_buckets_are_not_admitted_twice(
    steps: list[Step], offsets: list[float], numbers: tuple[int, int, int]
) -> None:
    """From the moment of the last give-back on, the bound holds for what was admitted after it."""
    count, period, burst = numbers
    limit = Limit(count, period, burst=burst, algorithm="token_bucket", lease=True)
    fleet = Fleet(limit, offsets)
    run(fleet, steps, releases=True)
    admitted = [(at, cost) for at, cost in fleet.admitted if cost]
    for i, (start, _) in enumerate(admitted):
        units = 0
        for end, cost in admitted[i:]:
            units += cost
            assert units * period * 1_000_000 <= burst * period * 1_000_000 + (end - start) * count
