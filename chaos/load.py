"""A client process: threads or event loops that call a limiter and write down each call. Run as `python -m chaos.load`.

It opens its limiter, says "ready", starts at "go" and goes on until "stop"; then it closes the limiter and reports what
it has more of than before. "fork" forks it in the middle of its work: the child uses the same limiter for some calls.
"clock 60" sets its wall clock ahead by so many seconds, "clock -60" back.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos import shifted_clock  # before the limiter
from chaos.control import start_thread
from chaos.history import Journal
from chaos.traffic import RESERVED, USED, Step, Traffic
from crestgate import AsyncLimiter, Decision, Limiter, RateLimitExceeded

__all__ = ["counts"]

MAX_SECONDS = 900.0
FORKED_CALLS = 12
STUCK_SECONDS = 10.0
Result = tuple[bool, int | None, str]


def counts() -> dict[str, int]:
    """Open files and threads of this process."""
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


class Client:
    """The calls of one process."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.url: Any = task["url"]
        self.number: int = task["number"]
        self.kind: str = task["kind"]
        self.callers: int = task["callers"]
        self.pause: float = task["pause"]
        self.policy: Any = task["policy"]
        self.seed: int = task["seed"]
        self.reads_itself: bool = task["reads_itself"]
        self.traffic = Traffic(**task["traffic"])
        self.path: str = task["journal"]
        self.stalls: str = task["stalls"]
        self.journal = Journal(self.path, self.number)
        self.stopping = threading.Event()
        self.errors: list[str] = []
        self.limiters: list[Any] = []
        self.forks = 0

    def begin(self, step: Step) -> int:
        return self.journal.begin(step.changes, time.monotonic_ns())

    def end(self, call: int, results: Sequence[Result]) -> None:
        self.journal.end(call, time.monotonic_ns(), results)

    def settled(self, limiter: Any, key: str, before: int, call: int) -> None:
        """A settlement is known to have been made only if no call of this limiter failed meanwhile."""
        lost = limiter.store_failures != before
        self.end(call, [(True, None, "fail_open" if lost else "ok")])

    def call(self, limiter: Limiter, step: Step) -> None:
        call = self.begin(step)
        key, limits, cost = step.items[0]
        if step.kind == "check":
            self.end(call, [result(limiter.check(key, limits, cost))])
        elif step.kind == "batch":
            self.end(call, [result(decision) for decision in limiter.check_many(step.items)])
        else:
            try:
                reservation = limiter.reserve(key, limits, cost)
            except RateLimitExceeded as error:
                self.end(call, [result(error.decision)])
                return
            self.end(call, [result(reservation.decision)])
            if reservation.decision.reason == "ok":
                call, before = self.begin(give_back(key)), limiter.store_failures
                reservation.settle(USED)
                self.settled(limiter, key, before, call)

    async def call_async(self, limiter: AsyncLimiter, step: Step) -> None:
        call = self.begin(step)
        key, limits, cost = step.items[0]
        if step.kind == "check":
            self.end(call, [result(await limiter.check(key, limits, cost))])
        elif step.kind == "batch":
            self.end(call, [result(decision) for decision in await limiter.check_many(step.items)])
        else:
            try:
                async with limiter.reserve(key, limits, cost) as reservation:
                    self.end(call, [result(reservation.decision)])
                    if reservation.decision.reason == "ok":
                        call, before = self.begin(give_back(key)), limiter.store_failures
                        await reservation.settle(USED)
                        self.settled(limiter, key, before, call)
            except RateLimitExceeded as error:
                self.end(call, [result(error.decision)])

    def work(self, limiter: Limiter, caller: str) -> None:
        rng = random.Random(f"{self.seed} {self.number} {caller}")
        try:
            while not self.stopping.is_set():
                self.call(limiter, self.traffic.step(rng, time.monotonic_ns()))
                self.stopping.wait(2 * self.pause * rng.random())
        except BaseException:  # noqa: BLE001 - reported: no call may raise
            self.errors.append(traceback.format_exc())

    async def work_async(self, limiter: AsyncLimiter, caller: str) -> None:
        rng = random.Random(f"{self.seed} {self.number} {caller}")
        try:
            while not self.stopping.is_set():
                await self.call_async(limiter, self.traffic.step(rng, time.monotonic_ns()))
                await asyncio.sleep(2 * self.pause * rng.random())
        except BaseException:  # noqa: BLE001 - reported: no call may raise
            self.errors.append(traceback.format_exc())

    def run_loop(self, loop: int, limiter: AsyncLimiter) -> None:
        async def main() -> None:
            await limiter.connect()
            share = self.callers // 2
            await asyncio.gather(*(self.work_async(limiter, f"{loop}.{number}") for number in range(share)))
            await limiter.aclose()

        asyncio.run(main())

    def threads(self) -> list[threading.Thread]:
        """The callers; limiters are opened now, so that a server that is away is seen before the load begins."""
        if self.kind == "threads":
            limiter = Limiter(self.url, on_store_error=self.policy)
            self.limiters = [limiter]
            return [
                threading.Thread(target=self.work, args=(limiter, str(number)), daemon=True)
                for number in range(self.callers)
            ]
        self.limiters = [AsyncLimiter(self.url, on_store_error=self.policy) for _ in range(2)]
        return [
            threading.Thread(target=self.run_loop, args=(number, limiter), daemon=True)
            for number, limiter in enumerate(self.limiters)
        ]

    def fork(self) -> str | None:
        """Fork now, wherever the callers are; the error of the child, if there is one."""
        self.forks += 1
        path = f"{self.path}.fork{self.forks}"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                number = self.number * 1000 + self.forks
                self.journal = Journal(path, number)
                start_thread(str(Path(self.stalls).with_name(f"stalls-{number}")))  # the parent's is not here
                if self.reads_itself:  # the child has a copy of the counters, and goes its own way
                    self.traffic = replace(self.traffic, scope=f"c{self.number}.{self.forks}.")
                self.use_after_fork()
                code = 0
            except BaseException:  # noqa: BLE001 - printed; this process exits in any case
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        deadline = time.monotonic() + STUCK_SECONDS + 5
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return None if status == 0 else f"a forked child ended with {status}"
            time.sleep(0.005)
        os.kill(pid, signal.SIGUSR1)  # it prints where it is
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "a forked child was stuck"

    def use_after_fork(self) -> None:
        rng = random.Random(f"{self.seed} {self.number} fork {self.forks}")
        limiter = self.limiters[0]
        steps = [self.traffic.step(rng, time.monotonic_ns()) for _ in range(FORKED_CALLS)]
        if self.kind == "threads":
            for step in steps:
                self.call(limiter, step)
            return

        async def main() -> None:
            for step in steps:
                await self.call_async(limiter, step)

        asyncio.run(main())

    def read(self, limiter: Limiter) -> None:
        """The counters of a store that only this process sees, as the last operations on them."""
        keys = {key for line in Path(self.path).read_text().splitlines() for key in keys_of(line)}
        for key in sorted(key for key in keys if "flow:" not in key):
            call = self.journal.begin([(key, 0)], time.monotonic_ns())
            self.end(call, [result(limiter.peek(key, self.traffic.limits(key), 0))])


def keys_of(line: str) -> list[str]:
    kind, _, _, _, items = json.loads(line)
    return [key for key, _ in items] if kind == "b" else []


def give_back(key: str) -> Step:
    return Step("settle", [(key, [], USED - RESERVED)])


def result(decision: Decision) -> Result:
    return decision.allowed, decision.remaining, decision.reason


def send(message: object) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def main() -> None:
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    faulthandler.register(signal.SIGUSR1)
    task = json.loads(sys.argv[1])
    with Limiter(task["url"], on_store_error="closed") as limiter:  # what is imported and opened once for all
        limiter.check("warm", "1/second")
    client = Client(task)
    start_thread(task["stalls"])
    before = counts()
    threads = client.threads()
    send("ready")
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        if line.strip() == "fork":
            error = client.fork()
            if error:
                client.errors.append(error)
            send("forked")
        elif line.startswith("clock "):
            shifted_clock.step(int(line.split()[1]))
        else:
            break
    client.stopping.set()
    for thread in threads:
        thread.join(STUCK_SECONDS)
    stuck = sum(thread.is_alive() for thread in threads)
    if client.kind == "threads":
        if client.reads_itself:
            client.read(client.limiters[0])
        client.limiters[0].close()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and counts() != before:
        time.sleep(0.01)  # a thread that has been told to end needs its turn
    send({"before": before, "after": counts(), "stuck": stuck, "errors": client.errors[:5]})


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
