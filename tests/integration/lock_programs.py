"""Child programs that hold locks, and a value that is read and written under a lock."""

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
from integration.child_main import receive, send

__all__ = ["create_values_table", "read", "serve", "write"]


def create_values_table(locks: Any) -> None:
    """Create the table for values, if the locks are in a database."""
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
        row = connection.execute(text("SELECT value FROM test_values WHERE name = :name"), {"name": name})
        return int(row.scalar() or 0)


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
    """Run the tasks that the test sends: one process serves many tests."""
    tasks: dict[str, Callable[..., None]] = {"add": add, "write_on_signal": write_on_signal}
    while (task := receive()) is not None:
        tasks[task.pop("task")](**task)


def add(url: str, name: str, times: int) -> None:
    """Increment the value so many times. Sends the versions of all leases."""
    versions = []
    with open_locks(url) as locks:
        for _ in range(times):
            with locks.hold(name, wait=60, lease=30) as lease:
                value = read(locks, name)
                with locks.guarded(lease) as transaction:
                    write(locks, transaction, name, value + 1)
                versions.append(lease.version)
    send(versions)


def write_on_signal(url: str, name: str, lease: float, value: int, inside: bool) -> None:
    """Take the lock, wait for a message (before or inside the guarded block), write, and send the outcome."""
    outcome = "written"
    with open_locks(url) as locks, locks.hold(name, wait=10, lease=lease) as held_lease:
        try:
            if not inside:
                send(held_lease.version)
                receive()
            with locks.guarded(held_lease) as transaction:
                write(locks, transaction, name, value)
                if inside:
                    send(held_lease.version)
                    receive()
        except (LeaseLostError, StoreError) as error:
            outcome = type(error).__name__
    send(outcome)
