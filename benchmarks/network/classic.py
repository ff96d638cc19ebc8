"""One transaction per check, the classic way with a database: lock the row, look at it, change it, commit.

A fixed window in as few round trips as plain SQL needs (the transaction begins by itself where it can), with a
connection for each caller, with READ COMMITTED, and with all rows there before the first check.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.network.entry import Contender, Entry

__all__ = ["classic"]

DAY = 86_400
CREATE = "CREATE TABLE {} (id VARCHAR(64) PRIMARY KEY, opened BIGINT NOT NULL, used BIGINT NOT NULL)"
INSERT = "INSERT INTO {} (id, opened, used) VALUES ({}, 0, 0)"
SELECT = "SELECT opened, used FROM {} WHERE id = {}{}"
UPDATE = "UPDATE {} SET opened = {}, used = {} WHERE id = {}"


def classic(entry: Entry) -> Contender:
    open_one, mark, locking = _OPENERS[entry.store.partition(":")[0]](entry)
    table = entry.space.replace("-", "_").lower()
    select, update = SELECT.format(table, mark, locking), UPDATE.format(table, mark, mark, mark)
    begins = mark == "?"  # SQLite, which would begin to read, and then could not write
    connections = [open_one() for _ in range(entry.callers)]
    cursor = connections[0].cursor()
    cursor.execute(CREATE.format(table))
    cursor.executemany(INSERT.format(table, mark), [(f"user:{number}",) for number in range(entry.keys)])
    connections[0].commit()
    idle = [(connection.cursor(), connection.commit) for connection in connections]
    amount = entry.amount

    def check(key: str) -> bool:
        pair = cursor, commit = idle.pop()
        if begins:
            cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(select, (key,))
        opened, used = cursor.fetchone()
        window = int(time.time()) // DAY
        if opened != window:
            used = 0
        admitted = bool(used < amount)
        if admitted:
            cursor.execute(update, (window, used + 1, key))
        commit()
        idle.append(pair)
        return admitted

    return Contender(check, bool)


Opener = tuple[Callable[[], Any], str, str]
"""What opens a connection, the mark of a parameter, and how a row is locked."""


def _mariadb(entry: Entry) -> Opener:
    import pymysql
    from sqlalchemy import make_url

    url = make_url(entry.store)

    def open_one() -> Any:
        connection = pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password,
            database=url.database,
            ssl_disabled=True,  # the server has no TLS, and to find that out takes PyMySQL 30 ms
        )
        connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    return open_one, "%s", " FOR UPDATE"


def _postgres(entry: Entry) -> Opener:
    import psycopg

    return lambda: psycopg.connect(entry.store), "%s", " FOR UPDATE"


def _sqlite(entry: Entry) -> Opener:
    import sqlite3

    def open_one() -> Any:
        path = entry.store.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")  # as Crestgate sets it up
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    return open_one, "?", ""


_OPENERS: dict[str, Callable[[Entry], Opener]] = {"mysql": _mariadb, "postgresql": _postgres, "sqlite": _sqlite}
