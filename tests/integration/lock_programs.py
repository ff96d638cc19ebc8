"""Programs that hold locks, and a value that is kept beside them: what is read and written under a lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from crestgate.errors import LeaseLostError, StoreError
from crestgate.locks import open_locks
from crestgate.locks.file import FileLocks
from crestgate.locks.redis import RedisLocks
from crestgate.locks.sql import SqlLocks
from integration.child_main import hear, say

__all__ = ["make_room", "read", "serve", "write"]


def make_room(locks: Any) -> None:
    """A database needs a table for values."""
    if isinstance(locks, SqlLocks):
        with locks.engine.begin() as connection:
            connection.execute(
                text("CREATE TABLE IF NOT EXISTS test_values (name VARCHAR(255) PRIMARY KEY, value BIGINT)")
            )


def read(locks: Any, name: str) -> int:
    if isinstance(locks, RedisLocks):
        return int(locks.client.get(f"{locks.tag}:test:{name}") or 0)
    if isinstance(locks, FileLocks):
        file = Path(locks.folder, f"{name}.value")
        return int(file.read_text()) if file.exists() else 0
    with locks.engine.connect() as connection:
        found = connection.execute(text("SELECT value FROM test_values WHERE name = :name"), {"name": name})
        return int(found.scalar() or 0)


def write(locks: Any, transaction: Any, name: str, value: int) -> None:
    if isinstance(locks, RedisLocks):
        transaction.set(f"{locks.tag}:test:{name}", value)
    elif isinstance(locks, FileLocks):
        Path(locks.folder, f"{name}.value").write_text(str(value))
    else:
        transaction.execute(text("DELETE FROM test_values WHERE name = :name"), {"name": name})
        new = {"name": name, "value": value}
        transaction.execute(text("INSERT INTO test_values (name, value) VALUES (:name, :value)"), new)


def serve() -> None:
    """Do what the test asks for, one thing after the other: a process serves many tests."""
    tasks: dict[str, Callable[..., None]] = {"add": add, "write_when_told": write_when_told}
    while (task := hear()) is not None:
        tasks[task.pop("task")](**task)


def add(url: str, name: str, times: int) -> None:
    """Read the value and write one more, so many times. Tells the versions of all takings."""
    versions = []
    with open_locks(url) as locks:
        for _ in range(times):
            with locks.hold(name, wait=60, lease=30) as lease:
                value = read(locks, name)
                with locks.guarded(lease) as transaction:
                    write(locks, transaction, name, value + 1)
                versions.append(lease.version)
    say(versions)


def write_when_told(url: str, name: str, lease: float, value: int, inside: bool) -> None:
    """Take the lock, wait for a word (before, or in the middle of, the guarded block), write, and tell how it went."""
    outcome = "written"
    with open_locks(url) as locks, locks.hold(name, wait=10, lease=lease) as taken:
        try:
            if not inside:
                say(taken.version)
                hear()
            with locks.guarded(taken) as transaction:
                write(locks, transaction, name, value)
                if inside:
                    say(taken.version)
                    hear()
        except (LeaseLostError, StoreError) as error:
            outcome = type(error).__name__
    say(outcome)
