"""Gates: from which state each transition passes, and what a gate says afterwards."""

from __future__ import annotations

import pytest

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.gate import Gate, Gates, Status, Transition, is_gate
from crestgate.stores.port import Op, Outcome, Request
from crestgate.testing import FakeClock

NONE, ENTERING, HERE, AWAY = Status.NONE, Status.ENTERING, Status.HERE, Status.AWAY
REACHED = {NONE: [], ENTERING: [Transition.ENTER], HERE: [Transition.STAY], AWAY: [Transition.LEAVE_UNKNOWN]}
PASSES = {
    Transition.ENTER: {NONE: ENTERING},
    Transition.STAY: {NONE: HERE},
    Transition.CONFIRM: {NONE: HERE, ENTERING: HERE, HERE: HERE},
    Transition.LEAVE_UNKNOWN: {NONE: AWAY},
    Transition.LEAVE: {NONE: AWAY, ENTERING: AWAY, HERE: AWAY},
    Transition.BACK_OFF: {NONE: AWAY, ENTERING: AWAY},
    Transition.REMAIN_AWAY: {NONE: AWAY, ENTERING: AWAY, HERE: AWAY, AWAY: AWAY},
}


class Gated:
    """The gate of one counter in a memory store."""

    def __init__(self, notation: str = "10/minute") -> None:
        self.clock = FakeClock(1_700_000_000)
        self.store = MemoryStore(clock=self.clock)
        self.gate = Gate(build(Limit.parse(notation), "limit"))

    def take(self, transition: Transition) -> Outcome:
        return self.store.apply([Request(Op.TAKE, [self.gate.member("user:1", transition)])])[0][0]

    @property
    def status(self) -> Status:
        return self.gate.status(self.take(Transition.READ))


@pytest.mark.parametrize("before", list(Status))
@pytest.mark.parametrize("transition", list(PASSES))
def test_transition(transition: Transition, before: Status) -> None:
    gated = Gated()
    for step in REACHED[before]:
        gated.take(step)
    assert gated.status is before
    expected = PASSES[transition].get(before)
    assert gated.take(transition).decision.allowed is (expected is not None)
    assert gated.status is (expected or before)


def test_gate_that_left_ends_as_unknown_and_never_as_here() -> None:
    gated = Gated()
    gated.take(Transition.STAY)
    gated.clock.advance(1800)
    gated.take(Transition.LEAVE)
    seen = []
    for _ in range(80):
        seen.append(gated.status)
        gated.clock.advance(60)
    assert set(seen) == {AWAY, NONE}
    assert seen == sorted(seen, key=[AWAY, NONE].index)


def test_renewed_gate_stays_here_when_older_entries_expire() -> None:
    gated = Gated()
    gated.take(Transition.ENTER)
    gated.take(Transition.CONFIRM)
    for _ in range(10):
        gated.clock.advance(1900)
        assert gated.status is HERE
        gated.take(Transition.CONFIRM)


def test_gate_outlives_its_counter() -> None:
    assert Gated("10/minute").gate.life_us == 3_600_000_000
    assert Gated("10/day").gate.life_us == 2 * 86_400_000_000


def test_names_are_told_apart_and_bounded() -> None:
    names = [Gate(build(Limit(1, 1), name)).member("k").algorithm.name for name in ("a", "x" * 500, "x" * 501)]
    assert len(set(names)) == 3
    assert all(is_gate(name) and len(name) <= 200 for name in names)
    assert not is_gate("rule|user|*|60|/")


def test_classes_of_one_counter_share_its_gate() -> None:
    gates = Gates()
    batch, critical = (build(Limit(100, 86_400, burst), "limit") for burst in (1, 100))
    assert gates.of(batch) is gates.of(critical)
    assert gates.of(batch).life_us == 2 * 86_400 * 1_000_000
    long = build(Limit(100, 86_400, 300), "limit")
    assert gates.of(long).life_us == 6 * 86_400 * 1_000_000
