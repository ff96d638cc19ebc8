"""Runs requests of several instances step by step in random order, on virtual time, with faults between any two steps.

Each instance has settings of its own, which change at any time. Every call to a store may fail before or after it was
executed, and every request may be dropped half-way, as if its process had been killed.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass

import naive

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.multi_node import Round, RoundResults
from crestgate.stores.port import BatchOutcomes, Member, Op, PartialStoreError, Request
from crestgate.testing import FakeClock

__all__ = ["Instances"]

START = 1_700_000_000
MAX_SECONDS = 4
"""Longer than any request lives: its deadline is over then."""


@dataclass
class Running:
    """A request on its way, and the next round of it."""

    rounds: Generator[Round, RoundResults, BatchOutcomes]
    round: Round
    cost: int
    started: int


class Instances:
    """Several instances over the same two stores, and what they admitted of one key under one limit."""

    def __init__(self, algorithm: Algorithm, seed: int, instances: int, faults: float) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock(START)
        self.stores = [MemoryStore(clock=self.clock), MemoryStore(clock=self.clock)]
        self.instances = [MigratingStore(self.stores[0], self.stores[1], Share(percent=0)) for _ in range(instances)]
        self.algorithm = algorithm
        self.faults = faults
        self.running: list[Running] = []
        self.admitted: list[tuple[int, int]] = []
        """(microseconds, cost) of each."""
        self.denied = 0
        self.failed = 0

    def set_percent(self, percent: float, instance: int | None = None) -> None:
        for number, store in enumerate(self.instances):
            if instance is None or instance == number:
                store.share = Share(percent=percent)

    def start(self, cost: int = 1) -> None:
        store = self.random.choice(self.instances)
        rounds = store.rounds([Request(Op.TAKE, [Member("user:1", self.algorithm, cost)])])
        self.running.append(Running(rounds, next(rounds), cost, self.clock.ticks()))

    def step(self) -> None:
        """Execute one round of one request."""
        one = self.random.choice(self.running)
        if self.clock.ticks() - one.started > MAX_SECONDS * 1_000_000 or self.random.random() < self.faults / 4:
            self.running.remove(one)  # dropped as it is
            return
        results = {node: self._execute(node, requests) for node, requests in one.round.items()}
        try:
            one.round = one.rounds.send(results)
        except StopIteration as finished:
            self.running.remove(one)
            ((outcome,),) = finished.value
            if outcome.decision.allowed:
                self.admitted.append((outcome.tick * self.algorithm.tick, one.cost))
            else:
                self.denied += 1
        except PartialStoreError:
            self.running.remove(one)
            self.failed += 1

    def finish(self) -> None:
        while self.running:
            self.step()

    def _execute(self, node: int, requests: list[Request]) -> BatchOutcomes | StoreError:
        fault = self.random.random()
        if fault < self.faults / 2:
            return StoreError("not sent")
        outcomes = self.stores[node].apply(requests)
        return StoreError("sent, but no reply") if fault < self.faults else outcomes

    def beyond_limit(self) -> list[tuple[int, int]]:
        """What was admitted, and one counter alone would not have admitted. The model decides."""
        limit = self.algorithm.limit
        model = naive.Naive(limit.algorithm, limit.count, limit.period_us, limit.burst)
        return [(tick, cost) for tick, cost in sorted(self.admitted) if not model.take(tick, cost).allowed]
