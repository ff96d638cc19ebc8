"""Locks on real servers: what they promise, with processes that are stopped and killed while they hold one."""

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
from integration.child_process import Child, stopped, until
from integration.lock_programs import make_room, read, write
from servers.redis import RedisServer

KINDS = ["file", "sqlite", "redis_server", "mariadb", "postgres"]
TOPOLOGIES = ["redis_sentinels", "redis_cluster"]
SHORT = 0.2
"""Seconds of a lease that is to run out."""
LONG = 60.0
LOCKS_PAGE = Path(__file__).parents[2] / "docs" / "locks.md"
_numbers = itertools.count()


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """Locks of this kind that no other test uses."""
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
        make_room(locks)
        yield locks


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Child]]:
    """Four processes that do what they are told."""
    with ExitStack() as stack:
        yield [stack.enter_context(Child("lock_programs.serve")) for _ in range(4)]


@pytest.fixture
def name() -> str:
    """A lock, and the value that is written under it."""
    return f"client-{os.getpid()}-{next(_numbers)}"


def put(locks: Any, lease: Lease, name: str, value: int) -> None:
    with locks.guarded(lease) as transaction:
        write(locks, transaction, name, value)


# -- several processes ------------------------------------------------------------------------------------------------


def test_no_addition_is_lost(url: str, locks: Any, name: str, workers: list[Child]) -> None:
    for worker in workers:
        worker.say({"task": "add", "url": url, "name": name, "times": 50})
    taken = [version for worker in workers for version in worker.hear()]
    assert read(locks, name) == 200
    assert len(set(taken)) == 200


def stopped_holder(worker: Child, url: str, name: str, *, inside: bool) -> int:
    """Have the worker take a lock, and stop it before, or in the middle of, its guarded write. The lock's version."""
    worker.say({"task": "write_when_told", "url": url, "name": name, "lease": SHORT, "value": 1, "inside": inside})
    version: int = worker.hear()
    worker.signal(signal.SIGSTOP)
    until("the holder is stopped", lambda: stopped(worker.pid))
    return version


def awakened(worker: Child) -> str:
    """How the write went of a holder that now goes on, and gives its lock back."""
    worker.say("write")
    worker.signal(signal.SIGCONT)
    return str(worker.hear())


def test_a_holder_that_was_stopped_cannot_overwrite(url: str, locks: Any, name: str, workers: list[Child]) -> None:
    version = stopped_holder(workers[0], url, name, inside=False)
    with locks.hold(name, wait=20, lease=LONG) as lease:
        assert lease.version > version
        put(locks, lease, name, 2)
        assert awakened(workers[0]) == "LeaseLostError"
        assert read(locks, name) == 2
        # And what it gave back at its end was not ours.
        with pytest.raises(TimeoutError), locks.hold(name, wait=0):
            pass
        put(locks, lease, name, 3)
    assert read(locks, name) == 3


@pytest.mark.parametrize(
    ("kind", "told"), [("redis_server", "LeaseLostError"), ("mariadb", "StoreError"), ("postgres", "StoreError")]
)
def test_a_holder_stopped_in_the_middle_of_its_write(
    kind: str, told: str, name: str, workers: list[Child], request: pytest.FixtureRequest
) -> None:
    """It keeps the row for the timeout at most; Redis writes all at the end, and so keeps nothing."""
    url = url_of(kind, request) + "&timeout_ms=1000"
    with open_locks(url) as locks:
        make_room(locks)
        version = stopped_holder(workers[0], url, name, inside=True)
        with locks.hold(name, wait=20, lease=LONG) as lease:
            assert lease.version > version
            put(locks, lease, name, 2)
            assert awakened(workers[0]) == told
            assert read(locks, name) == 2


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_the_lock_of_a_process_that_was_killed_comes_free(url: str, locks: Any, name: str) -> None:
    with Child("lock_programs.serve") as worker:
        worker.say({"task": "write_when_told", "url": url, "name": name, "lease": 0.5, "value": 1, "inside": False})
        version = worker.hear()
        with pytest.raises(TimeoutError), locks.hold(name, wait=0):
            pass
        worker.kill()
    with locks.hold(name, wait=20) as lease:
        assert lease.version > version
        put(locks, lease, name, 2)
    assert read(locks, name) == 2


def test_a_fork_has_connections_of_its_own(locks: Any, name: str) -> None:
    def add(times: int) -> None:
        for _ in range(times):
            with locks.hold(name, wait=20) as lease:
                put(locks, lease, name, read(locks, name) + 1)

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
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(3):
            with locks.hold(name, wait=60, lease=30):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_waiting_ends(locks: Any, name: str) -> None:
    """Also for who holds the lock and takes it again: it waits for itself."""
    with locks.hold(name, lease=LONG):
        for wait in (0, 0.2):
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=rf"lock '{name}' was not free within {wait} s \(.+\)"):
                locks.hold(name, wait=wait).__enter__()
            assert wait <= time.monotonic() - began < wait + 2
        with locks.hold(f"{name}, another", wait=0):
            pass


def test_a_lease_that_ran_out_still_writes_until_another_takes_the_lock(locks: Any, name: str) -> None:
    with locks.hold(name, lease=0.01) as first:
        time.sleep(0.05)
        put(locks, first, name, 1)
        with locks.hold(name, wait=20, lease=LONG) as second:
            assert second.version > first.version
            with pytest.raises(LeaseLostError, match=f"lock '{name}': the lease of version {first.version} ran out"):
                put(locks, first, name, 2)
            assert read(locks, name) == 1
            put(locks, second, name, 3)
    assert read(locks, name) == 3
    with locks.hold(name, wait=0):
        pass


def test_what_fails_writes_nothing_and_frees_the_lock(locks: Any, name: str) -> None:
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


def test_names_are_never_shared(locks: Any) -> None:
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


def test_closed(url: str, name: str) -> None:
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


def test_a_version_that_was_forgotten_is_still_surpassed(name: str, request: pytest.FixtureRequest) -> None:
    with open_locks(url_of("redis_server", request)) as opened:
        locks: Any = opened
        with locks.hold(name) as first:
            locks.client.flushdb()
            with pytest.raises(LeaseLostError):
                put(locks, first, name, 1)
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


def test_the_documented_rights_of_a_redis_user_are_enough(name: str) -> None:
    (line,) = re.findall(r"ACL SETUSER locker .*", LOCKS_PAGE.read_text())
    with RedisServer() as server:
        server.cli(*line.split())
        with open_locks(server.url.replace("//", "//locker:password@")) as opened:
            locks: Any = opened
            with locks.hold(name) as lease:
                put(locks, lease, name, read(locks, name) + 1)
                with pytest.raises(KeyError), locks.guarded(lease):
                    raise KeyError
            with locks.hold(name, wait=0, lease=SHORT) as late:
                time.sleep(SHORT * 1.5)
                with locks.hold(name, wait=0), pytest.raises(LeaseLostError):
                    put(locks, late, name, 7)
            assert read(locks, name) == 1
            assert locks.client.get(f"{locks.tag}:lock:{name}") is None, "it was given back"
