"""Load processes: they check, from tasks or threads, and record the decisions.

A worker takes orders one after another, so that eight interpreters are started once and not for every test. For each
order it opens a limiter of its own, says that it is ready, begins when told to, and leaves its history in a file.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from crestgate import AsyncLimiter, Decision, Limiter
from crestgate.core.decision import combine
from crestgate.stores.port import Member, Op, Request
from integration.child_main import receive, send
from integration.network.history import Check, write

__all__ = ["Target", "work"]


class Target(NamedTuple):
    """What is checked: a key under limits, with one of these costs."""

    key: str
    limits: list[str]
    costs: Sequence[int] = (1,)
    others: Sequence[str] = ()
    """Further keys, which make one chain with the first."""


class Load:
    """An order: which targets are checked, by how many callers, how often and how fast."""

    def __init__(
        self,
        url: str,
        targets: list[list[Any]],
        callers: int,
        checks: int | None,
        pause: float,
        policy: str,
        seed: int,
        file: str,
    ) -> None:
        self.url = url
        self.targets = [Target(*target) for target in targets]
        self.callers = callers
        self.checks = checks
        self.pause = pause
        self.policy: Any = policy
        self.seed = seed
        self.file = file
        self.history: list[Check] = []
        self.over = threading.Event()
        """Set when the test says that it is enough, if the order says nothing of how many checks to make."""

    def wait_for_the_end(self) -> None:
        receive()
        self.over.set()

    def steps(self, caller: int) -> Iterator[tuple[Target, int, float]]:
        """What this caller does: a target, a cost, and how long to pause afterwards."""
        chance = random.Random(f"{self.seed} {caller}")
        made = 0
        while not self.over.is_set():
            targets = self.targets[caller :: self.callers] if len(self.targets) > self.callers else self.targets
            for target in chance.sample(targets, len(targets)):
                if made == self.checks or self.over.is_set():
                    return
                made += 1
                yield target, chance.choice(target.costs), self.pause * 2 * chance.random()

    def note(self, target: Target, cost: int, start: float, decision: Decision) -> None:
        end = time.monotonic()
        seen = decision.allowed, decision.remaining, decision.reason
        self.history.append(Check(target.key, cost, start, end, *seen))


async def check(limiter: AsyncLimiter, target: Target, cost: int) -> Decision:
    if not target.others:
        return await limiter.check(target.key, target.limits, cost)
    # Chains over several subjects are made of rules; here they are asked for as rules will ask.
    bound = limiter.resolve(target.limits)
    keys = (target.key, *target.others)
    members = [Member(key, algorithm, cost) for key in keys for algorithm in bound.algorithms]
    outcomes = (await limiter.apply([Request(Op.TAKE, members)]))[0]
    return combine(tuple(o.decision for o in outcomes), all(o.decision.allowed for o in outcomes))


async def with_tasks(load: Load) -> None:
    async with AsyncLimiter(load.url, on_store_error=load.policy) as limiter:

        async def caller(number: int) -> None:
            for target, cost, pause in load.steps(number):
                start = time.monotonic()
                load.note(target, cost, start, await check(limiter, target, cost))
                await asyncio.sleep(pause)

        send("ready")
        receive()
        if load.checks is None:
            threading.Thread(target=load.wait_for_the_end).start()
        await asyncio.gather(*map(caller, range(load.callers)))


def with_threads(load: Load) -> None:
    with Limiter(load.url, on_store_error=load.policy) as limiter:

        def caller(number: int) -> None:
            for target, cost, pause in load.steps(number):
                start = time.monotonic()
                load.note(target, cost, start, limiter.check(target.key, target.limits, cost))
                time.sleep(pause)

        send("ready")
        receive()
        threads = [threading.Thread(target=caller, args=(number,)) for number in range(load.callers)]
        for thread in threads:
            thread.start()
        if load.checks is None:
            load.wait_for_the_end()
        for thread in threads:
            thread.join()


def work() -> None:
    """Take orders until there are no more."""
    while (order := receive()) is not None:
        kind = order.pop("kind")
        load = Load(**order)
        try:
            if kind == "tasks":
                asyncio.run(with_tasks(load))
            else:
                with_threads(load)
        except Exception:  # noqa: BLE001 - the test must hear of it
            send(traceback.format_exc())
            continue
        with suppress(OSError):  # the test may have gone
            write(load.file, load.history)
        send("done")
