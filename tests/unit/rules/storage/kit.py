"""Contract of repositories (see crestgate.rules.port), as tests that every repository's test class inherits.

Subclass `RepositoryKit` in a test file and define its missing fixture, `opener`:

    class TestMyRepository(RepositoryKit):
        notifies = True

        @pytest.fixture
        def opener(self) -> Iterator[Opener]:
            with ExitStack() as stack:
                def open_one(prefix: str) -> Repository:
                    return stack.enter_context(closing(MyRepository(URL, prefix=prefix)))

                yield open_one

Opening one prefix twice gives the same repository, as seen by two processes. Each test has its own prefix,
and the fixture `repository` is the repository of that prefix. `notifies` is whether `listen` wakes its caller when
another process writes. (Import the kit as `unit.rules.storage.kit`; pytest does not collect this file itself.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from crestgate.errors import ConflictError, StaleVersionError, StoreClosedError
from crestgate.rules.port import AuditQuery, Repository
from unit.rules.storage.kit_edits import ALICE, TIMEOUT, Opener, edit, ids, put, revision_of, run_in_child
from unit.rules.storage.kit_reading import ReadingKit
from unit.rules.storage.kit_writing import WritingKit

__all__ = ["ALICE", "TIMEOUT", "Opener", "RepositoryKit", "edit", "ids", "put", "revision_of", "run_in_child"]

_numbers = count()


class RepositoryKit(WritingKit, ReadingKit):
    """Tests with one caller, in the base classes, and with many. A subclass defines how a repository is opened."""

    notifies = False

    @pytest.fixture
    def opener(self) -> Opener:
        """Opens repositories by prefix; they are closed after the test."""
        raise NotImplementedError("define how a repository is opened")

    @pytest.fixture
    def prefix(self) -> str:
        return f"test-{os.getpid()}-{next(_numbers)}"

    @pytest.fixture
    def repository(self, opener: Opener, prefix: str) -> Repository:
        return opener(prefix)

    # -- concurrency ------------------------------------------------------------------------------------------------

    def test_concurrent_writers_are_serialized(self, opener: Opener, prefix: str) -> None:
        workers, rounds = 4, 12
        repositories = [opener(prefix), opener(prefix)]

        def work(worker: int) -> None:
            repository = repositories[worker % 2]
            for n in range(rounds):
                put(repository, f"own-{worker}", {"n": n})
                while True:
                    found = repository.get("rule", "shared")
                    body = {"n": found.body["n"] + 1 if found else 1}
                    try:
                        put(repository, "shared", body, expected=found.version if found else 0)
                    except (StaleVersionError, ConflictError):
                        continue
                    break

        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(work, n) for n in range(workers)]:
                future.result()
        shared = repositories[0].get("rule", "shared")
        assert shared is not None
        assert (shared.version, shared.body) == (workers * rounds, {"n": workers * rounds}), "no update was lost"
        assert revision_of(repositories[0]) == 2 * workers * rounds
        entries = repositories[1].audit(AuditQuery(limit=1000))
        assert len(entries) == 2 * workers * rounds, "no audit entry was lost"
        counts = [entry.after["n"] for entry in entries if entry.subject == "rule:shared" and entry.after]
        assert counts == list(range(workers * rounds, 0, -1))

    def test_writes_are_visible_atomically(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        names = [f"r{n}" for n in range(5)]
        writer.write([edit(name, {"n": 0}) for name in names], ALICE)
        done = threading.Event()

        def write() -> None:
            try:
                for n in range(1, 60):
                    rewritten = names[n % 5]
                    writer.write([edit(f"extra{n % 2}", {"n": n}), *(edit(name, {"n": n}) for name in names)], ALICE)
                    writer.write([edit(f"extra{n % 2}", None), edit(rewritten, {"n": n})], ALICE)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            held: dict[str, Any] = {}
            revision = reads = 0
            while True:
                last = done.is_set()
                changes = reader.changes(revision)
                if changes is not None:
                    reads += 1
                    assert changes.revision > revision
                    assert changes.complete == (revision == 0)
                    revision = changes.revision
                    for _, name in changes.deleted:
                        held.pop(name, None)
                    held.update({record.id: record.body["n"] for record in changes.records})
                    rounds = {held[name] for name in names}
                    assert len(rounds) == 1, f"revision {revision} is torn: {held}"
                    extra = {name for name in held if name.startswith("extra")}
                    assert len(extra) == (1 if revision % 2 == 0 else 0), f"revision {revision} is torn: {held}"
                elif last:
                    break
            writing.result()
        assert revision == 1 + 2 * 59
        assert reads > 1

    # -- listening, forking, closing --------------------------------------------------------------------------------

    def test_listening(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        woken = threading.Semaphore(0)
        reader.listen(lambda: woken.release())
        if not self.notifies:
            put(writer, "r", {})
            assert reader.changes(0) is not None, "polling finds it anyway"
            return
        for n in range(3):
            while woken.acquire(blocking=False):
                pass
            revision = put(writer, "r", {"n": n}).version
            assert woken.acquire(timeout=TIMEOUT)
            assert revision_of(reader) == revision
        reader.close()

    def test_forked_child_and_parent_can_write(self, repository: Repository) -> None:
        put(repository, "before", {"n": 1})

        def child() -> None:
            found = repository.get("rule", "before")
            assert found is not None
            put(repository, "child", {"n": 2})
            assert ids(repository.list("rule")) == ["before", "child"]

        assert run_in_child(child) == 0
        put(repository, "parent", {"n": 3})
        assert ids(repository.list("rule")) == ["before", "child", "parent"]
        assert run_in_child(repository.close) == 0
        assert put(repository, "parent", {"n": 4}).version == 2, "a child closes only its own connections"

    def test_closed(self, repository: Repository) -> None:
        put(repository, "r", {})
        repository.close()
        repository.close()
        uses: list[Callable[[], object]] = [
            lambda: repository.get("rule", "r"),
            lambda: repository.list("rule"),
            lambda: repository.changes(0),
            lambda: repository.write([edit("r", {})], ALICE),
            lambda: repository.note(ALICE, "reset", "x"),
            lambda: repository.audit(AuditQuery()),
            lambda: repository.listen(lambda: None),
        ]
        for use in uses:
            with pytest.raises(StoreClosedError):
                use()
