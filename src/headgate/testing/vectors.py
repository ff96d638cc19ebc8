"""Replay recorded calls against a store and compare every answer.

A sequence is one counter: the limit it starts under, and calls at given times with the answers expected. The format
is a JSON object a line; `tests/vectors/vectors.jsonl` in Headgate's repository holds several hundred of them, made
by a model that shares no code with the library. Any store whose clock can be driven can be held against them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

from headgate.core.algorithms import Algorithm, build
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.stores.port import Member, Op, Outcome, Request, Store
from headgate.testing.clock import FakeClock

__all__ = ["differences", "read_vectors"]

KEY = "vector"


def read_vectors(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The sequences of a vectors file."""
    for line in lines:
        if line.strip():
            yield json.loads(line)


def differences(sequence: dict[str, Any], make_store: Callable[[FakeClock], Store]) -> list[str]:
    """What a store answers otherwise than the sequence expects; nothing when it agrees with all of it."""
    clock = FakeClock()
    store = make_store(clock)
    algorithm = _algorithm(sequence["limit"])
    taken: dict[int, tuple[Algorithm, int, int]] = {}
    wrong = []
    for number, call in enumerate(sequence["calls"]):
        op = call["op"]
        if op == "limit":
            algorithm = _algorithm(call["limit"])
            continue
        clock.advance((call["at"] - clock.ticks()) / 1_000_000)
        if op in ("take", "peek"):
            outcome = _ask(store, Op(op), Member(KEY, algorithm, call["cost"]))
            taken[number] = algorithm, outcome.tick, call["cost"]
            if (got := _numbers(outcome.decision)) != (wanted := _wanted(call["expect"])):
                wrong.append(f"{sequence['name']}, call {number} {call}: expected {wanted}, got {got}")
        elif op == "reset":
            _ask(store, Op.RESET, Member(KEY, algorithm, 0))
        elif op == "charge":
            _ask(store, Op.CHARGE, Member(KEY, algorithm, call["cost"]))
        else:
            taker, tick, cost = taken[call["take"]]
            if taker.shape == algorithm.shape:
                _ask(store, Op.GIVE_BACK, Member(KEY, algorithm, cost, True, tick, call["amount"]))
    store.close()
    return wrong


def _ask(store: Store, op: Op, member: Member) -> Outcome:
    return store.apply([Request(op, [member])])[0][0]


def _algorithm(limit: dict[str, Any]) -> Algorithm:
    burst = limit["burst"] if limit["count"] else None
    return build(Limit(limit["count"], limit["period_us"] / 1_000_000, burst, limit["algorithm"]), "vectors")


def _wanted(expect: dict[str, Any]) -> tuple[object, ...]:
    delay = round(float(Fraction(expect["delay_us"])) / 1_000_000, 9)
    retry = expect["retry_us"]
    return expect["allowed"], expect["limit"], expect["remaining"], retry, expect["reset_us"], delay, expect["reason"]


def _numbers(decision: Decision) -> tuple[object, ...]:
    # The whole microseconds behind retry_after and reset_after: seconds as floats lose some beyond 285 years.
    times = 0 if decision.allowed else decision._wait, decision._reset
    return decision.allowed, decision.limit, decision.remaining, *times, round(decision.delay, 9), decision.reason
