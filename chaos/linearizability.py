"""Is there one order of the operations on a counter that explains every result? (Wing and Gong; as in Porcupine.)

An order is right if each operation takes effect within its interval and if a plain counter, asked in that order, gives
each result: allowed if `used + cost <= capacity`, with `remaining = capacity - used` afterwards. The counters that are
checked so do not refill within a run (their period is a year), so all algorithms are this counter.

The search takes a next operation among those that none must precede, and goes back when it is stuck. Visited pairs of
(operations in order so far, usage) are not searched again. Three reductions, which change no verdict, keep it short:

- An operation that changes nothing and has the right result now is taken at once: later, it is only harder to place.
- Operations with an unknown result may take effect at any time after their start, once, or never. Of those with the
  same change, only the one that started first is tried: whenever another can be used, it can.
- A usage that a decided operation found, and that cannot come again, is not left before that operation is in order.

`Jump` is what a fault does to the counter itself: a server that was killed forgets, a replica that takes over lacks the
last admissions. It may happen once within its interval, and leaves any usage from `low` up to the one it found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from chaos.history import FOREVER, Operation

__all__ = ["Jump", "Verdict", "check_counter"]

MAX_STATES = 3_000_000
"""Visited pairs after which the search gives up; it says so, and the cell fails."""


class Verdict(Enum):
    """Whether an order was found."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Jump:
    """A fault may set the usage back once, to `low` or more."""

    start: int
    end: int
    low: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    """What is in order so far, and the usage that results. Equal states have the same future."""

    first: int
    """All decided operations before this one are in order,"""
    window: int
    """and of those from it on, these: bit 0 is `first`."""
    unknown: tuple[int, ...]
    """How many of each kind of unknown operations have taken effect."""
    jumped: int
    used: int


class _Search:
    def __init__(self, operations: Sequence[Operation], capacity: int, jumps: Sequence[Jump]) -> None:
        self.capacity = capacity
        self.jumps = jumps
        ordered = sorted(operations, key=lambda operation: operation.start)
        self.decided = [operation for operation in ordered if operation.known]
        self.found = [self.usage_found(operation) for operation in self.decided]
        self.changes = sorted({operation.change for operation in ordered if not operation.known and operation.change})
        self.starts = [
            [operation.start for operation in ordered if not operation.known and operation.change == change]
            for change in self.changes
        ]
        self.only_up = not jumps and all(operation.change >= 0 for operation in ordered)
        self.needs: dict[int, int] = {}
        """By usage: the last decided operation that found it and changed it."""
        for number, operation in enumerate(self.decided):
            if self.found[number] is not None and operation.allowed and operation.change:
                self.needs[self.found[number] or 0] = number

    def usage_found(self, operation: Operation) -> int | None:
        """The usage that a decided operation must have found, by its result."""
        if operation.remaining is None:
            return None
        return self.capacity - operation.remaining - (operation.change if operation.allowed else 0)

    def run(self) -> Verdict:
        visited: set[_State] = set()
        start = self.take_reads(_State(0, 0, (0,) * len(self.changes), 0, 0))
        stack = [(start, self.choices(start))]
        while stack:
            state, choices = stack[-1]
            if state.first == len(self.decided):
                return Verdict.LINEARIZABLE
            choice = next(choices, None)
            if choice is None:
                stack.pop()
                continue
            following = self.take_reads(choice)
            if following in visited:
                continue
            if len(visited) >= MAX_STATES:
                return Verdict.UNDECIDED
            visited.add(following)
            stack.append((following, self.choices(following)))
        return Verdict.VIOLATED

    def next_up(self, state: _State) -> tuple[list[int], int]:
        """The decided operations that none must precede, and the earliest end of those that are not in order."""
        soonest_end = FOREVER
        found = []
        window = state.window
        for number in range(state.first, len(self.decided)):
            operation = self.decided[number]
            if operation.start > soonest_end:
                break
            if not window & 1:
                found.append(number)
                soonest_end = min(soonest_end, operation.end)
            window >>= 1
        return [number for number in found if self.decided[number].start <= soonest_end], soonest_end

    def take_reads(self, state: _State) -> _State:
        """Put all decided operations that change nothing, and saw this state, in order."""
        while True:
            taken = [
                number
                for number in self.next_up(state)[0]
                if not (self.decided[number].allowed and self.decided[number].change)
                and self.explains(number, state.used)
            ]
            if not taken:
                return state
            for number in taken:
                state = self.put(state, number, state.used)

    def put(self, state: _State, number: int, used: int) -> _State:
        """This decided operation is in order, too."""
        first, window = state.first, state.window | 1 << (number - state.first)
        while window & 1:
            first, window = first + 1, window >> 1
        return replace(state, first=first, window=window, used=used)

    def explains(self, number: int, used: int) -> bool:
        """Whether a counter with this usage gives this result."""
        operation = self.decided[number]
        fits = operation.change <= 0 or used + operation.change <= self.capacity
        return fits is operation.allowed and self.found[number] in (None, used)

    def choices(self, state: _State) -> Iterator[_State]:
        """What can come next."""
        numbers, soonest_end = self.next_up(state)
        for number in numbers:
            operation = self.decided[number]
            if operation.allowed and operation.change and self.explains(number, state.used):
                yield self.put(state, number, max(0, state.used + operation.change))
        if not self.must_wait(state):
            for kind, change in enumerate(self.changes):
                count = state.unknown[kind]
                possible = count < len(self.starts[kind]) and self.starts[kind][count] <= soonest_end
                if possible and (change < 0 or state.used + change <= self.capacity):
                    counts = (*state.unknown[:kind], count + 1, *state.unknown[kind + 1 :])
                    yield replace(state, unknown=counts, used=max(0, state.used + change))
        for index, jump in enumerate(self.jumps):
            if not state.jumped >> index & 1 and jump.start <= soonest_end and self.latest_start(state) <= jump.end:
                for low in self.targets(state, jump):
                    yield replace(state, jumped=state.jumped | 1 << index, used=low)

    def must_wait(self, state: _State) -> bool:
        """Whether a decided operation needs exactly this usage, which will not come again."""
        number = self.needs.get(state.used)
        if not self.only_up or number is None or number < state.first:
            return False
        return not state.window >> (number - state.first) & 1

    def latest_start(self, state: _State) -> int:
        """The latest start of what is in order."""
        last = state.first + state.window.bit_length() - 1
        latest = self.decided[last].start if last >= 0 else 0
        for starts, count in zip(self.starts, state.unknown, strict=True):
            latest = max(latest, starts[count - 1] if count else 0)
        return latest

    def targets(self, state: _State, jump: Jump) -> list[int]:
        """Where a jump may lead: to a usage that a pending result needs, since others explain no more."""
        wanted = {jump.low}
        for number in range(state.first, len(self.decided)):
            found = self.found[number]
            if found is not None and not state.window >> (number - state.first) & 1:
                wanted.add(found)
        return sorted((low for low in wanted if jump.low <= low < state.used), reverse=True)


def check_counter(operations: Sequence[Operation], capacity: int, jumps: Sequence[Jump] = ()) -> Verdict:
    """Whether the history of one counter, empty at first, is linearizable."""
    return _Search(operations, capacity, jumps).run()
