"""PostgreSQL, through libpq as psycopg binds it.

psycopg's own connections wait for the server without a deadline. libpq's asynchronous calls leave the waiting to
us, so a server that hangs costs a check its deadline and not a moment more. Several statements travel as one text.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

from headgate.stores.sql.dialect import POSTGRES
from headgate.stores.sql.session import Address, Broken, Driver, Refused, Session

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["PostgresDriver"]

_AGAIN = ("40001", "40P01", "55P03")
"""Serialization failure, dead-lock, a lock not granted within lock_timeout."""
_NO_TABLE = "42P01"
_READ_ONLY = "25006"
"""A primary that was replaced: a new connection may lead to the new one."""
_SCHEMA_LOCK = 0x68656164676174  # "headgat"
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_abandoned: list[PGconn] = []
"""Connections of a parent process. To end one here would say goodbye in the parent's name."""


@final
class PostgresSession(Session):
    """One connection."""

    def __init__(self, connection: PGconn) -> None:
        self.connection = connection

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        connection = self.connection
        try:
            connection.send_query("; ".join(statements).encode())
            while connection.flush():
                if _wait(connection.socket, select.POLLIN | select.POLLOUT, deadline) != select.POLLOUT:
                    connection.consume_input()
            answers: list[list[str]] = []
            refused: Refused | None = None
            ended = False
            while True:
                while connection.is_busy():
                    _wait(connection.socket, select.POLLIN, deadline)
                    connection.consume_input()
                result = connection.get_result()
                if result is None:
                    break
                if result.status == pq.ExecStatus.TUPLES_OK:
                    value = result.get_value
                    answers.append([(value(row, 0) or b"").decode() for row in range(result.ntuples)])
                elif result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
                    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
                    ended = ended or code == _READ_ONLY
                    refused = refused or _refused(result, code)
            if ended or connection.status != pq.ConnStatus.OK:
                raise Broken(refused.args[0] if refused is not None else "the connection was lost")
        except psycopg.Error as error:
            raise Broken(_first_line(str(error))) from None
        if refused is not None:
            raise refused
        return answers

    def close(self) -> None:
        self.connection.finish()

    def abandon(self) -> None:
        _abandoned.append(self.connection)
        # Or the server would not notice the parent's end for as long as this process keeps its socket open, too.
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, self.connection.socket, inheritable=False)
        os.close(nothing)


def _refused(result: Any, code: str) -> Refused:
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    message = message or _first_line(result.get_error_message())
    return Refused(f"{message} ({code})" if code else message, again=code in _AGAIN, no_table=code == _NO_TABLE)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _wait(file: int, events: int, deadline: float) -> int:
    """What of it can be done now. (poll rather than select, which ends at file number 1,024.)"""
    poll = select.poll()
    poll.register(file, events)
    left = deadline - time.monotonic()
    # Rounded up to a whole millisecond, poll's unit, or the last one would be spent asking again and again.
    ready = poll.poll(int(left * 1000) + 1) if left > 0 else []
    if not ready:
        raise Broken("no answer in time", late=True)
    return ready[0][1]


@final
class PostgresDriver(Driver):
    """One PostgreSQL database. `timeout` is the store's, in seconds."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address = address
        self.name = f"PostgreSQL at {address.shown()}"
        self.dialect = POSTGRES
        self.own_clock = True
        lock_ms = max(int(timeout * 1000), 1)
        self.setup = (
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET standard_conforming_strings = on",
            "SET client_min_messages = error",
            f"SET lock_timeout = {lock_ms}",
            # A process that is stopped in the middle must not keep its counters locked for ever.
            f"SET idle_in_transaction_session_timeout = {lock_ms + 2000}",
        )

    def conninfo(self) -> str:
        address = self.address
        given = {name: address.options[name] for name in _TLS if name in address.options}
        return conninfo.make_conninfo(
            "",
            host=address.options.get("unix_socket", address.host),
            port=address.port,
            user=address.user,
            password=address.password,
            dbname=address.database,
            application_name="headgate",
            **given,
        )

    def open(self, deadline: float) -> Session:
        connection = pq.PGconn.connect_start(self.conninfo().encode())
        left = deadline - time.monotonic()
        try:
            _connect(connection, deadline)
            connection.nonblocking = 1
            session = PostgresSession(connection)
            session.run(self.setup, deadline)
        except (Broken, Refused) as problem:
            connection.finish()
            if isinstance(problem, Broken) and problem.late:
                raise self.silent(left) from None
            raise
        except psycopg.Error as error:
            connection.finish()
            raise Broken(_first_line(str(error))) from None
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(self.conninfo()))

    def lock(self, connection: Any) -> None:
        connection.exec_driver_sql("SET lock_timeout = 30000")
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({_SCHEMA_LOCK})")

    def unlock(self, connection: Any) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_SCHEMA_LOCK})")


def _connect(connection: PGconn, deadline: float) -> None:
    """Connect and log in by the deadline."""
    while connection.status != pq.ConnStatus.BAD:
        step = connection.connect_poll()
        if step == pq.PollingStatus.OK:
            return
        if step == pq.PollingStatus.FAILED:
            break
        writing = step == pq.PollingStatus.WRITING
        _wait(connection.socket, select.POLLOUT if writing else select.POLLIN, deadline)
    raise Broken(_first_line(connection.get_error_message()))
