"""Processes are killed with SIGKILL during requests: nothing is lost, counted twice or stuck."""

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

from crestgate import Limit, Limiter
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from integration.child_process import ChildProcess, wait_until
from integration.inspection import has_locked, leaked_blocks, owned_blocks
from integration.kill_programs import BRIEF, CHAIN, KINDS, RESERVED, USED

Start = Callable[..., ChildProcess]

ROUNDS = int(os.environ.get("CRESTGATE_KILL_ROUNDS", "200"))
PER_EPOCH = max(10, -(-ROUNDS // 250))
"""Rounds on the same counters."""
MAX_STALL = 5.0
"""Seconds within which the surviving processes must make progress. A stale lock would block them for ten."""


class Ledger:
    """What all workers were granted, and what is unknown because of kills; by counter."""

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()
        self.maybe_extra: Counter[str] = Counter()
        self.maybe_returned: Counter[str] = Counter()
        self.interrupted = 0  # workers killed during a request


class Worker:
    """One worker process, followed through its notes."""

    def __init__(self, fork_server: ChildProcess, folder: Path, number: int, url: str, ledger: Ledger) -> None:
        self.ledger = ledger
        pipe = folder / f"pipe-{number}"
        os.mkfifo(pipe)
        self.notes = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        arguments = {"url": url, "pipe": str(pipe), "page": str(folder / "page"), "seed": number}
        fork_server.send({"program": "kill_programs.worker", "arguments": arguments})
        self.pid: int = fork_server.receive()
        self.request = ""  # the request in progress
        self.counter = ""
        self.partial_note = b""  # an incomplete note
        self.results = 0

    def read(self, timeout: float) -> bool:
        """Read its notes; False if nothing arrives within the timeout."""
        if not select.select([self.notes], [], [], timeout)[0]:
            return False
        notes = self.partial_note + os.read(self.notes, 1 << 20)
        self.partial_note = b""
        at = 0
        while at < len(notes):
            code = chr(notes[at])
            if code in "+->!":
                self.result_noted(code)
                at += 1
            elif at + 1 < len(notes):
                self.request_noted(code, notes[at + 1])
                at += 2
            else:
                self.partial_note = notes[at:]
                break
        return at > 0

    def request_noted(self, code: str, epoch: int) -> None:
        assert not self.request
        self.request = code
        if code != "<":
            self.counter = f"{KINDS[ord(code.lower()) - ord('a')].name}:{epoch}"

    def result_noted(self, code: str) -> None:
        assert code != "!", "the store failed"
        if self.request == "<":
            self.ledger.admitted[self.counter] -= RESERVED - USED
        elif code == "+":
            self.ledger.admitted[self.counter] += 1 if self.request.islower() else RESERVED
        self.request = ""
        self.results += 1

    def assert_progress(self) -> None:
        """Assert that it gets a new result soon."""
        while self.read(0):
            pass
        results, deadline = self.results, time.monotonic() + MAX_STALL
        while self.results == results:
            assert self.read(deadline - time.monotonic()), f"worker {self.pid} is stuck"

    def read_to_end(self) -> None:
        """Read all remaining notes of a dead or stopped worker, and record the open request."""
        while self.read(MAX_STALL):
            pass
        os.close(self.notes)
        self.ledger.interrupted += bool(self.request)
        if self.request == "<":
            self.ledger.maybe_returned[self.counter] += RESERVED - USED
        elif self.request:
            self.ledger.maybe_extra[self.counter] += 1 if self.request.islower() else RESERVED


class Crew:
    """Three workers on one file: one is killed at a random time, the others continue, a new one replaces it."""

    def __init__(self, fork_server: ChildProcess, folder: Path, seed: int) -> None:
        self.fork_server = fork_server
        self.folder = folder
        self.url = f"shared://{folder / 'counters'}?max_keys={20 * ROUNDS}&timeout_ms=10000"
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        (folder / "page").write_bytes(bytes(2))
        with open(folder / "page", "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 2)
        self.started = 0
        self.workers: list[Worker] = []
        for _ in range(3):
            self.start_worker()

    def start_worker(self) -> None:
        self.workers.append(Worker(self.fork_server, self.folder, self.started, self.url, self.ledger))
        self.started += 1
        self.workers[-1].assert_progress()

    def round(self, epoch: int) -> None:
        self.page[0] = epoch
        moment = time.monotonic() + self.chance.uniform(0, 0.008)
        while time.monotonic() < moment:
            for worker in self.workers:
                worker.read(0.0005)
        victim = self.workers.pop(self.chance.randrange(3))
        os.kill(victim.pid, signal.SIGKILL)
        victim.read_to_end()
        for worker in self.workers:
            worker.assert_progress()
        self.start_worker()

    def stop(self) -> None:
        """Let all workers finish their request and exit."""
        self.page[1] = 1
        for worker in self.workers:
            worker.read_to_end()
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
    with Crew(start("kill_programs.fork_server"), tmp_path, seed=20_240_229) as crew:
        for number in range(ROUNDS):
            crew.round(number // PER_EPOCH)
        crew.stop()
    took = time.monotonic() - began
    ledger, epochs = crew.ledger, (ROUNDS - 1) // PER_EPOCH + 1
    assert ledger.interrupted > ROUNDS // 4, "most were killed during a request"
    with Limiter(crew.url) as limiter:
        for kind in KINDS:
            for epoch in range(epochs):
                counter = f"{kind.name}:{epoch}"
                recorded = ledger.admitted[counter]
                assert recorded > 0, "a round without work proves nothing"
                if kind.lasting:
                    standing = limiter.peek(counter, kind.limit)
                    used, maximum = standing.limit - standing.remaining, recorded + ledger.maybe_extra[counter]
                    assert recorded - ledger.maybe_returned[counter] <= used <= maximum, counter
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
    """A kill during a chain leaves it counted in all of its limits, or in none."""
    url = f"shared://{tmp_path / 'counters'}?max_keys=5000&timeout_ms=10000"
    chance = random.Random(20_261_116)
    fork_server = start("kill_programs.fork_server")
    pids: list[int] = []
    with Limiter(url) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        refs_at = store.locks.refs_at
        for number in range(ROUNDS + 3):
            fork_server.send(
                {"program": "kill_programs.chain_forever", "arguments": {"url": url, "keys": 20, "seed": number}}
            )
            pids.append(fork_server.receive())
            wait_until("it has begun", lambda pid=pids[-1]: has_locked(store, pid))
            time.sleep(chance.uniform(0.001, 0.02))  # a random time
            if len(pids) > 3:
                os.kill(pids.pop(chance.randrange(3)), signal.SIGKILL)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_until("it is gone", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
        totals = []
        for key in range(20):
            used = {limit: 10**6 - limiter.peek(f"key:{key}", limit, 0).remaining for limit in CHAIN}
            assert len(set(used.values())) == 1, used
            totals.append(used[CHAIN[0]])
        assert min(totals) > 0
        assert not any(store.words[refs_at : refs_at + store.table.stripes].tolist()), "nothing is left to undo"
    report(f"{ROUNDS} kills, {sum(totals):,} chains of {len(CHAIN)} limits counted, none in part")


def test_live_counter_never_looks_free(counters: Path, start: Start) -> None:
    """A kill during a write leaves the old number or the new one, never none.

    The expiry of a counter is read while another process writes it. If it were zero for an instant, a kill at that
    instant would give the counter's slot to the next new key.
    """
    child = start("kill_programs.use_forever", url=f"shared://{counters}?max_keys=50", key="key", limit="1000000/year")
    assert child.receive() == "ready"
    with Limiter(f"shared://{counters}") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        location = store.digests.locate("1000000/year", "key")
        digest, stripe = location.digest, location.stripe
        assert count_zero_reads(store, store.table.meta_at(stripe, store.table.find(stripe, digest))) == 0


def test_live_entry_never_looks_empty(counters: Path, start: Start) -> None:
    """The same for a log entry, which settlements reduce repeatedly."""
    child = start("kill_programs.settle_forever", url=f"shared://{counters}?max_keys=50", key="key")
    assert child.receive() == "ready"
    with Limiter(f"shared://{counters}") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        limit = "1000000000/year using sliding_window_log"
        location = store.digests.locate(limit, "key")
        digest, stripe = location.digest, location.stripe
        assert count_zero_reads(store, store.table.ring_at(stripe, store.table.find(stripe, digest))) == 0


def count_zero_reads(store: SharedStore, at: int) -> int:
    """How often the word at this offset reads as zero in a second, while another process writes it."""
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
