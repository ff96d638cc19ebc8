"""Locks on real servers, with processes that are stopped and killed while they hold one."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crestgate.errors import LeaseLostError, StoreClosedError, StoreError
from crestgate.locks import Lease, open_locks
from crestgate.locks.file import FileLocks
from crestgate.locks.redis import RECORD_TTL_MS
from integration.child_process import ChildProcess, is_stopped, wait_until
from integration.lock_programs import create_values_table, read, write
from servers.redis import RedisServer

KINDS = ["file", "sqlite", "redis_server", "mariadb", "postgres"]
TOPOLOGIES = ["redis_sentinels", "redis_cluster"]
SHORT = 0.2
"""Seconds of a lease that should expire."""
LONG = 60.0
LOCKS_PAGE = Path(__file__).parents[2] / "docs" / "locks.md"
_numbers = itertools.count()


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """A URL of locks of this kind that no other test uses."""
    prefix = f"?prefix=locks-{os.getpid()}-{next(_numbers)}"
    if kind in ("file", "sqlite"):
        folder = request.getfixturevalue("tmp_path")
        return f"file://{folder}/locks{prefix}" if kind == "file" else f"sqlite:///{folder}/locks.db{prefix}"
    return f"{request.getfixturevalue(kind).url}{prefix}"


@pytest.fixture(params=KINDS + TOPOLOGIES)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def locks(url: str) -> Iterator[Any]:
    with open_locks(url) as locks:
        create_values_table(locks)
        yield locks


@pytest.fixture(scope="module")
def workers() -> Iterator[list[ChildProcess]]:
    """Four processes that run tasks."""
    with ExitStack() as stack:
        yield [stack.enter_context(ChildProcess("lock_programs.serve")) for _ in range(4)]


@pytest.fixture
def name() -> str:
    """The name of a lock and of the value written under it."""
    return f"client-{os.getpid()}-{next(_numbers)}"


def write_guarded(locks: Any, lease: Lease, name: str, value: int) -> None:
    with locks.guarded(lease) as transaction:
        write(locks, transaction, name, value)


# -- several processes ------------------------------------------------------------------------------------------------


def test_no_increment_is_lost(url: str, locks: Any, name: str, workers: list[ChildProcess]) -> None:
    for worker in workers:
        worker.send({"task": "add", "url": url, "name": name, "times": 50})
    versions = [version for worker in workers for version in worker.receive()]
    assert read(locks, name) == 200
    assert len(set(versions)) == 200


def stop_holder(worker: ChildProcess, url: str, name: str, *, inside: bool) -> int:
    """Let the worker take a lock and stop it before or during its guarded write; return the lock's version."""
    worker.send({"task": "write_on_signal", "url": url, "name": name, "lease": SHORT, "value": 1, "inside": inside})
    version: int = worker.receive()
    worker.signal(signal.SIGSTOP)
    wait_until("the holder is stopped", lambda: is_stopped(worker.pid))
    return version


def resume_holder(worker: ChildProcess) -> str:
    """Resume a stopped holder; return the outcome of its write. It then releases its lock."""
    worker.send("write")
    worker.signal(signal.SIGCONT)
    return str(worker.receive())


def test_stopped_holder_cannot_overwrite(url: str, locks: Any, name: str, workers: list[ChildProcess]) -> None:
    version = stop_holder(workers[0], url, name, inside=False)
    with locks.hold(name, wait=20, lease=LONG) as lease:
        assert lease.version > version
        write_guarded(locks, lease, name, 2)
        assert resume_holder(workers[0]) == "LeaseLostError"
        assert read(locks, name) == 2
        # Its release has not released our lock.
        with pytest.raises(TimeoutError), locks.hold(name, wait=0):
            pass
        write_guarded(locks, lease, name, 3)
    assert read(locks, name) == 3


@pytest.mark.parametrize(
    ("kind", "outcome"), [("redis_server", "LeaseLostError"), ("mariadb", "StoreError"), ("postgres", "StoreError")]
)
def test_holder_stopped_during_its_write(
    kind: str, outcome: str, name: str, workers: list[ChildProcess], request: pytest.FixtureRequest
) -> None:
    """It locks the row for the timeout at most; Redis writes everything at the end and locks nothing."""
    url = url_of(kind, request) + "&timeout_ms=1000"
    with open_locks(url) as locks:
        create_values_table(locks)
        version = stop_holder(workers[0], url, name, inside=True)
        with locks.hold(name, wait=20, lease=LONG) as lease:
            assert lease.version > version
            write_guarded(locks, lease, name, 2)
            assert resume_holder(workers[0]) == outcome
            assert read(locks, name) == 2


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_lock_of_a_killed_process_becomes_free(url: str, locks: Any, name: str) -> None:
    with ChildProcess("lock_programs.serve") as worker:
        worker.send({"task": "write_on_signal", "url": url, "name": name, "lease": 0.5, "value": 1, "inside": False})
        version = worker.receive()
        with pytest.raises(TimeoutError), locks.hold(name, wait=0):
            pass
        worker.kill()
    with locks.hold(name, wait=20) as lease:
        assert lease.version > version
        write_guarded(locks, lease, name, 2)
    assert read(locks, name) == 2


def test_forked_child_has_its_own_connections(locks: Any, name: str) -> None:
    def add(times: int) -> None:
        for _ in range(times):
            with locks.hold(name, wait=20) as lease:
                write_guarded(locks, lease, name, read(locks, name) + 1)

    add(1)
    child = os.fork()
    if child == 0:
        try:
            add(10)
            os._exit(0)
        finally:
            os._exit(1)
    add(10)
    assert os.waitpid(child, 0)[1] == 0
    assert read(locks, name) == 21


# -- one process ------------------------------------------------------------------------------------------------------


def test_versions_grow(locks: Any, name: str) -> None:
    versions = []
    for _ in range(5):
        with locks.hold(name) as lease:
            versions.append(lease.version)
    assert versions == sorted(set(versions))


def test_threads_wait_for_each_other(locks: Any, name: str) -> None:
    inside, max_inside = 0, 0

    def work() -> None:
        nonlocal inside, max_inside
        for _ in range(3):
            with locks.hold(name, wait=60, lease=30):
                inside += 1
                max_inside = max(max_inside, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max_inside == 1


def test_waiting_times_out(locks: Any, name: str) -> None:
    """Locks are not reentrant: a holder that takes its lock again waits for itself."""
    with locks.hold(name, lease=LONG):
        for wait in (0, 0.2):
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=rf"lock '{name}' was not free within {wait} s \(.+\)"):
                locks.hold(name, wait=wait).__enter__()
            assert wait <= time.monotonic() - began < wait + 2
        with locks.hold(f"{name}, another", wait=0):
            pass


def test_expired_lease_still_writes_until_another_takes_the_lock(locks: Any, name: str) -> None:
    with locks.hold(name, lease=0.01) as first:
        time.sleep(0.05)
        write_guarded(locks, first, name, 1)
        with locks.hold(name, wait=20, lease=LONG) as second:
            assert second.version > first.version
            with pytest.raises(LeaseLostError, match=f"lock '{name}': the lease of version {first.version} expired"):
                write_guarded(locks, first, name, 2)
            assert read(locks, name) == 1
            write_guarded(locks, second, name, 3)
    assert read(locks, name) == 3
    with locks.hold(name, wait=0):
        pass


def test_failure_writes_nothing_and_releases_the_lock(locks: Any, name: str) -> None:
    def fail() -> None:
        with locks.hold(name, lease=LONG) as lease, locks.guarded(lease) as transaction:
            if not isinstance(locks, FileLocks):  # files have no transactions
                write(locks, transaction, name, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert read(locks, name) == 0
    with locks.hold(name, wait=0):
        pass


def test_distinct_names_are_distinct_locks(locks: Any) -> None:
    long = "x" * 1024
    names = ["a", "A", "á", "a ", " a", "a:b", "a/b", "..", "{a}", "}{", "a%2Fb", "\0", "a\nb", "😀", "\ud800"]
    names += [long, long + "y", "x" * 255, "x" * 256, "sha256:", "é" * 128]
    held = []
    try:
        for name in names:
            context = locks.hold(name, wait=0, lease=LONG)
            held.append((context, context.__enter__()))
        for name in names:
            with pytest.raises(TimeoutError):
                locks.hold(name, wait=0).__enter__()
        for _, lease in held:
            with locks.guarded(lease):
                pass
    finally:
        for context, _ in held:
            context.__exit__(None, None, None)


def test_prefixes_keep_locks_apart(url: str, locks: Any, name: str) -> None:
    with open_locks(f"{url}-other") as others, locks.hold(name), others.hold(name, wait=0):
        pass


def test_closed_locks_raise(url: str, name: str) -> None:
    locks = open_locks(url)
    with locks.hold(name) as lease:
        pass
    locks.close()
    locks.close()
    with pytest.raises(StoreClosedError, match="these locks were closed"), locks.hold(name):
        pass
    with pytest.raises(StoreClosedError), locks.guarded(lease):
        pass


# -- Redis ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
def test_every_key_expires_and_has_the_tag_of_the_prefix(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    with open_locks(url_of(kind, request)) as opened:
        locks: Any = opened
        with locks.hold(name, lease=LONG):
            keys = [f"{locks.tag}:lease:{name}", f"{locks.tag}:lock:{name}"]
            record, lock = (locks.client.pttl(key) for key in keys)
            assert RECORD_TTL_MS - 60_000 < record <= RECORD_TTL_MS
            assert 0 < lock <= LONG * 1000
            if kind == "redis_server":
                assert sorted(locks.client.keys(f"*{name}*")) == [key.encode() for key in keys]


def test_versions_grow_after_a_flush(name: str, request: pytest.FixtureRequest) -> None:
    with open_locks(url_of("redis_server", request)) as opened:
        locks: Any = opened
        with locks.hold(name) as first:
            locks.client.flushdb()
            with pytest.raises(LeaseLostError):
                write_guarded(locks, first, name, 1)
        with locks.hold(name) as second:
            assert second.version > first.version


def test_tls_passwords_and_sockets(name: str) -> None:
    with RedisServer(tls=True, password="secret") as encrypted, RedisServer(unix=True, password="secret") as local:
        trusted = f"{encrypted.url}?ssl_ca_certs={encrypted.certificate}"
        for url in (trusted, f"{encrypted.url}?ssl_cert_reqs=none", local.url, local.unix_url):
            with open_locks(url) as locks, locks.hold(name) as lease, locks.guarded(lease):
                pass
        for wrong in (encrypted.url, trusted.replace("secret", "wrong")):
            with pytest.raises(StoreError, match="Redis at") as raised:
                open_locks(wrong)
            assert "secret" not in str(raised.value)
            assert "wrong" not in str(raised.value).replace("WRONGPASS", "")


def test_documented_redis_permissions_are_sufficient(name: str) -> None:
    (line,) = re.findall(r"ACL SETUSER locker .*", LOCKS_PAGE.read_text())
    with RedisServer() as server:
        server.cli(*line.split())
        with open_locks(server.url.replace("//", "//locker:password@")) as opened:
            locks: Any = opened
            with locks.hold(name) as lease:
                write_guarded(locks, lease, name, read(locks, name) + 1)
                with pytest.raises(KeyError), locks.guarded(lease):
                    raise KeyError
            with locks.hold(name, wait=0, lease=SHORT) as late:
                time.sleep(SHORT * 1.5)
                with locks.hold(name, wait=0), pytest.raises(LeaseLostError):
                    write_guarded(locks, late, name, 7)
            assert read(locks, name) == 1
            assert locks.client.get(f"{locks.tag}:lock:{name}") is None, "it was released"
