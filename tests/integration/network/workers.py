"""Load processes: they check, from tasks or threads, and record the decisions.

A worker runs tasks one after another, so that eight interpreters are started once and not for every test. For each
task it opens its own limiter, sends "ready", starts on a message, and writes its history to a file.
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
from stalls import Stalls

__all__ = ["Target", "work"]


class Target(NamedTuple):
    """What is checked: a key under limits, with one of these costs."""

    key: str
    limits: list[str]
    costs: Sequence[int] = (1,)
    others: Sequence[str] = ()
    """Further keys, which make one chain with the first."""


class Load:
    """A task: which targets are checked, by how many callers, how often and how fast."""

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
        stalls: Stalls,
    ) -> None:
        self.url = url
        self.targets = [Target(*target) for target in targets]
        self.callers = callers
        self.checks = checks
        self.pause = pause
        self.policy: Any = policy
        self.seed = seed
        self.file = file
        self.stalls = stalls
        self.history: list[Check] = []
        self.stop_event = threading.Event()
        """Set when the test stops the load, if the task has no number of checks."""

    def wait_for_stop(self) -> None:
        receive()
        self.stop_event.set()

    def steps(self, caller: int) -> Iterator[tuple[Target, int, float]]:
        """The steps of a caller: a target, a cost, and the pause afterwards."""
        chance = random.Random(f"{self.seed} {caller}")
        sent = 0
        while not self.stop_event.is_set():
            targets = self.targets[caller :: self.callers] if len(self.targets) > self.callers else self.targets
            for target in chance.sample(targets, len(targets)):
                if sent == self.checks or self.stop_event.is_set():
                    return
                sent += 1
                yield target, chance.choice(target.costs), self.pause * 2 * chance.random()

    def record(self, target: Target, cost: int, start: float, decision: Decision) -> None:
        end = time.monotonic()
        outcome = decision.allowed, decision.remaining, decision.reason
        self.history.append(Check(target.key, cost, start, end, *outcome, self.stalls.within(start, end)))


async def check(limiter: AsyncLimiter, target: Target, cost: int) -> Decision:
    if not target.others:
        return await limiter.check(target.key, target.limits, cost)
    # Chains over several subjects come from rules; this sends them as rules do.
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
                load.record(target, cost, start, await check(limiter, target, cost))
                await asyncio.sleep(pause)

        send("ready")
        receive()
        if load.checks is None:
            threading.Thread(target=load.wait_for_stop).start()
        await asyncio.gather(*map(caller, range(load.callers)))


def with_threads(load: Load) -> None:
    with Limiter(load.url, on_store_error=load.policy) as limiter:

        def caller(number: int) -> None:
            for target, cost, pause in load.steps(number):
                start = time.monotonic()
                load.record(target, cost, start, limiter.check(target.key, target.limits, cost))
                time.sleep(pause)

        send("ready")
        receive()
        threads = [threading.Thread(target=caller, args=(number,)) for number in range(load.callers)]
        for thread in threads:
            thread.start()
        if load.checks is None:
            load.wait_for_stop()
        for thread in threads:
            thread.join()


def work() -> None:
    """Run tasks until end of input."""
    with Stalls() as stalls:
        while (task := receive()) is not None:
            work_on(task, stalls)


def work_on(task: dict[str, Any], stalls: Stalls) -> None:
    kind = task.pop("kind")
    load = Load(**task, stalls=stalls)
    try:
        if kind == "tasks":
            asyncio.run(with_tasks(load))
        else:
            with_threads(load)
    except Exception:  # noqa: BLE001 - sent to the test
        send(traceback.format_exc())
        return
    with suppress(OSError):  # the test may have ended
        write(load.file, load.history)
    send("done")
