"""Participants are killed with SIGKILL in the middle of their work: nothing is lost, doubled or stuck."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

from crestgate import Limit, Limiter
from crestgate.cli import version
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from integration.child_process import Child, until
from integration.crash_points import SCENARIOS, Scenario, moments, opened, used
from integration.inspection import has_locked, leaked_blocks, owned_blocks
from integration.kill_programs import BRIEF, CHAIN, KINDS, RESERVED, USED

Start = Callable[..., Child]

ROUNDS = int(os.environ.get("CRESTGATE_KILL_ROUNDS", "200"))
PER_EPOCH = max(10, -(-ROUNDS // 250))
"""Rounds on the same counters."""
AT_ONCE = 5.0
"""Seconds within which whoever is alive must have gone on. A lock that stays taken holds them up for ten."""


class Books:
    """What all workers together were granted, and what is not known of those that were killed; by counter."""

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()
        self.perhaps_more: Counter[str] = Counter()
        self.perhaps_less: Counter[str] = Counter()
        self.interrupted = 0  # workers that were killed in the middle of a request


class Worker:
    """One participant, as its notes tell of it."""

    def __init__(self, nursery: Child, folder: Path, number: int, url: str, books: Books) -> None:
        self.books = books
        pipe = folder / f"pipe-{number}"
        os.mkfifo(pipe)
        self.notes = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        arguments = {"url": url, "pipe": str(pipe), "page": str(folder / "page"), "seed": number}
        nursery.say({"program": "kill_programs.worker", "arguments": arguments})
        self.pid: int = nursery.hear()
        self.request = ""  # what it is about to do
        self.counter = ""
        self.half = b""  # of a note that has not all come yet
        self.answers = 0

    def read(self, patience: float) -> bool:
        """Take in what it has noted; False when nothing new has come within so many seconds."""
        if not select.select([self.notes], [], [], patience)[0]:
            return False
        notes = self.half + os.read(self.notes, 1 << 20)
        self.half = b""
        at = 0
        while at < len(notes):
            code = chr(notes[at])
            if code in "+->!":
                self.answered(code)
                at += 1
            elif at + 1 < len(notes):
                self.asks(code, notes[at + 1])
                at += 2
            else:
                self.half = notes[at:]
                break
        return at > 0

    def asks(self, code: str, epoch: int) -> None:
        assert not self.request
        self.request = code
        if code != "<":
            self.counter = f"{KINDS[ord(code.lower()) - ord('a')].name}:{epoch}"

    def answered(self, code: str) -> None:
        assert code != "!", "the store failed"
        if self.request == "<":
            self.books.admitted[self.counter] -= RESERVED - USED
        elif code == "+":
            self.books.admitted[self.counter] += 1 if self.request.islower() else RESERVED
        self.request = ""
        self.answers += 1

    def goes_on(self) -> None:
        """It answers something new, soon."""
        while self.read(0):
            pass
        answers, deadline = self.answers, time.monotonic() + AT_ONCE
        while self.answers == answers:
            assert self.read(deadline - time.monotonic()), f"worker {self.pid} is stuck"

    def ends(self) -> None:
        """Read all it has noted before it died or stopped, and what follows from it."""
        while self.read(AT_ONCE):
            pass
        os.close(self.notes)
        self.books.interrupted += bool(self.request)
        if self.request == "<":
            self.books.perhaps_less[self.counter] += RESERVED - USED
        elif self.request:
            self.books.perhaps_more[self.counter] += 1 if self.request.islower() else RESERVED


class Crew:
    """Three workers on one file: one is killed at a random moment, the others go on, a new one takes its place."""

    def __init__(self, nursery: Child, folder: Path, seed: int) -> None:
        self.nursery = nursery
        self.folder = folder
        self.url = f"shared://{folder / 'counters'}?max_keys={20 * ROUNDS}&timeout_ms=10000"
        self.chance = random.Random(seed)
        self.books = Books()
        (folder / "page").write_bytes(bytes(2))
        with open(folder / "page", "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 2)
        self.hired = 0
        self.workers: list[Worker] = []
        for _ in range(3):
            self.hire()

    def hire(self) -> None:
        self.workers.append(Worker(self.nursery, self.folder, self.hired, self.url, self.books))
        self.hired += 1
        self.workers[-1].goes_on()

    def round(self, epoch: int) -> None:
        self.page[0] = epoch
        moment = time.monotonic() + self.chance.uniform(0, 0.008)
        while time.monotonic() < moment:
            for worker in self.workers:
                worker.read(0.0005)
        victim = self.workers.pop(self.chance.randrange(3))
        os.kill(victim.pid, signal.SIGKILL)
        victim.ends()
        for worker in self.workers:
            worker.goes_on()
        self.hire()

    def stop(self) -> None:
        """All finish what they are at."""
        self.page[1] = 1
        for worker in self.workers:
            worker.ends()
        self.workers.clear()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        self.page.close()


def test_random_kills(tmp_path: Path, start: Start) -> None:
    began = time.monotonic()
    with Crew(start("kill_programs.nursery"), tmp_path, seed=20_240_229) as crew:
        for number in range(ROUNDS):
            crew.round(number // PER_EPOCH)
        crew.stop()
    took = time.monotonic() - began
    books, epochs = crew.books, (ROUNDS - 1) // PER_EPOCH + 1
    assert books.interrupted > ROUNDS // 4, "most were killed in the middle of a request"
    with Limiter(crew.url) as limiter:
        for kind in KINDS:
            for epoch in range(epochs):
                counter = f"{kind.name}:{epoch}"
                recorded = books.admitted[counter]
                assert recorded > 0, "a round without work proves nothing"
                if kind.lasting:
                    standing = limiter.peek(counter, kind.limit)
                    used, maximum = standing.limit - standing.remaining, recorded + books.perhaps_more[counter]
                    assert recorded - books.perhaps_less[counter] <= used <= maximum, counter
                else:
                    limit = Limit.parse(kind.limit)
                    assert recorded <= limit.count * (took / limit.period + 1)
        store = limiter.store
        assert isinstance(store, SharedStore)
        assert len(leaked_blocks(store)) <= ROUNDS // 10
    later = FakeClock(time.time() + 10)
    with Limiter(crew.url, clock=later) as limiter:
        for epoch in range(epochs):
            assert limiter.peek(f"{BRIEF.name}:{epoch}", BRIEF.limit).remaining == Limit.parse(BRIEF.limit).count
            for kind in KINDS:
                limiter.reset(f"{kind.name}:{epoch}", kind.limit)
        store = limiter.store
        assert isinstance(store, SharedStore)
        assert len(owned_blocks(store)) <= ROUNDS // 40, "a forgotten log leaves no block behind"


def test_chains_are_whole_after_kills(tmp_path: Path, start: Start, report: Callable[[str], None]) -> None:
    """Whoever is killed in the middle of a chain has counted it in all of its limits, or in none."""
    url = f"shared://{tmp_path / 'counters'}?max_keys=5000&timeout_ms=10000"
    chance = random.Random(20_261_116)
    nursery = start("kill_programs.nursery")
    pids: list[int] = []
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        refs_at = store.locks.refs_at
        for number in range(ROUNDS + 3):
            nursery.say(
                {"program": "kill_programs.chain_for_ever", "arguments": {"url": url, "keys": 20, "seed": number}}
            )
            pids.append(nursery.hear())
            until("it has begun", lambda pid=pids[-1]: has_locked(store, pid))
            time.sleep(chance.uniform(0.001, 0.02))  # the random moment
            if len(pids) > 3:
                os.kill(pids.pop(chance.randrange(3)), signal.SIGKILL)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            until("it is gone", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
        totals = []
        for key in range(20):
            used = {limit: 10**6 - limiter.peek(f"key:{key}", limit, 0).remaining for limit in CHAIN}
            assert len(set(used.values())) == 1, used
            totals.append(used[CHAIN[0]])
        assert min(totals) > 0
        assert not any(store.words[refs_at : refs_at + store.table.stripes].tolist()), "nothing is left to be undone"
    report(f"{ROUNDS} kills, {sum(totals):,} chains of {len(CHAIN)} limits counted, none in part")


def test_live_counter_never_looks_free(counters: Path, start: Start) -> None:
    """Whoever is killed in the middle of a write leaves the old number or the new one, never none.

    The expiry of a counter that is in use is looked at while another process writes it; were it zero for an instant,
    a kill at that instant would hand the counter's slot to the next newcomer.
    """
    child = start("kill_programs.use_for_ever", url=f"shared://{counters}?max_keys=50", key="key", limit="1000000/year")
    assert child.hear() == "ready"
    with Limiter(f"shared://{counters}") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        digest, stripe = store.digests.locate("1000000/year", "key")
        assert seen_as_zero(store, store.table.meta_at(stripe, store.table.find(stripe, digest))) == 0


def test_live_entry_never_looks_empty(counters: Path, start: Start) -> None:
    """The same for the entry of a log, from which a settlement takes something back again and again."""
    child = start("kill_programs.settle_for_ever", url=f"shared://{counters}?max_keys=50", key="key")
    assert child.hear() == "ready"
    with Limiter(f"shared://{counters}") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        limit = "1000000000/year using sliding_window_log"
        digest, stripe = store.digests.locate(limit, "key")
        assert seen_as_zero(store, store.table.ring_at(stripe, store.table.find(stripe, digest))) == 0


def seen_as_zero(store: SharedStore, at: int) -> int:
    """How often the word at this offset is seen to be zero in a second, while another process writes it."""
    zeros = 0
    with memoryview(store.memory) as view, view.cast("q") as words:
        position = at // 8
        assert words[position]
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            for _ in range(10_000):
                if not words[position]:
                    zeros += 1
    return zeros


@pytest.mark.parametrize("name", SCENARIOS)
def test_kill_at_every_line(name: str, tmp_path: Path) -> None:
    """Wherever somebody is killed, the request was counted or not, and whoever comes next is killed there too."""
    if "compiled" in version():
        pytest.skip("compiled code has no lines to stop at; the uncompiled build is stopped at all of them")
    scenario = SCENARIOS[name]
    path = tmp_path / "counters"
    clock = FakeClock(1_700_000_000)
    with Limiter(f"shared://{path}?max_keys=50", clock=clock) as limiter:
        scenario.prepare(limiter, clock)
    now = clock.now() + scenario.later
    prepared = path.read_bytes()
    before = seen(path, prepared, now, scenario)
    first = moments(path, prepared, now, scenario.act)
    after = seen(path, first[-1], now, scenario)
    assert len(first) > 2
    for victim in first:
        left = seen(path, victim, now, scenario)
        if scenario.chained:
            assert left in (before, after), "a part of the chain"
        for i, (key, _) in enumerate(scenario.watched):
            allowed = {before[i], after[i]} | ({0} if key in scenario.evicted[:1] else set())
            if scenario.reserves:
                # Two requests, and of the second a part may have been done: what is given back in pieces.
                allowed |= set(range(after[i], before[i] + scenario.reserves + 1))
            assert left[i] in allowed, key
        for second in moments(path, victim, now, scenario.act):
            in_the_end = seen(path, second, now, scenario)
            for i, (key, _) in enumerate(scenario.watched):
                least = 0 if key in scenario.evicted else min(left[i], after[i])
                maximum = max(before[i], after[i], left[i]) + max(scenario.reserves, 1)
                assert least <= in_the_end[i] <= maximum, key


def seen(path: Path, content: bytes, now: float, scenario: Scenario) -> list[int]:
    """What is used, as the next participant finds it, who can go on and finds the blocks in order."""
    path.write_bytes(content)
    limiter, _ = opened(path, now)
    found = used(limiter, scenario)
    for key, limit in scenario.watched:
        assert limiter.check(key, limit).reason == "ok"
    store = limiter.store
    assert isinstance(store, SharedStore)
    assert len(leaked_blocks(store)) <= scenario.leaks
    limiter.close()
    return found
