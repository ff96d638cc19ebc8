"""PostgreSQL, through libpq as psycopg binds it.

psycopg's own connections wait for the server without a deadline. libpq's asynchronous calls leave the waiting to the
caller, so a server that hangs delays a check by its deadline and no longer. Several statements are sent as one text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

from crestgate.runtime.name_lookup import is_numeric, resolve
from crestgate.runtime.poll import POLLIN, POLLOUT, create_poll
from crestgate.stores.sql.dialect import POSTGRES
from crestgate.stores.sql.session import DatabaseAddress, DatabaseConnectionError, Driver, Session, StatementError

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["PostgresDriver"]

_LOCK_TIMEOUT = "55P03"
_RETRYABLE = ("40001", "40P01", _LOCK_TIMEOUT)
"""Serialization failure, deadlock, a lock not granted within lock_timeout."""
_MISSING_TABLE = "42P01"
_READ_ONLY = "25006"
MAX_REST_MS = 50
"""Milliseconds of the timeout that are left when a wait for a lock ends: to say so, and to be heard."""
_SCHEMA_LOCK = 0x63726573746761  # "crestga"
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_abandoned: list[PGconn] = []
"""Connections of a parent process. To finish one here would terminate the parent's session."""


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
                if _wait(connection.socket, POLLIN | POLLOUT, deadline) != POLLOUT:
                    connection.consume_input()
            results: list[list[str]] = []
            failed: StatementError | None = None
            read_only = False
            while True:
                while connection.is_busy():
                    _wait(connection.socket, POLLIN, deadline)
                    connection.consume_input()
                result = connection.get_result()
                if result is None:
                    break
                if result.status == pq.ExecStatus.TUPLES_OK:
                    value = result.get_value
                    results.append([(value(row, 0) or b"").decode() for row in range(result.ntuples)])
                elif result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
                    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
                    read_only = read_only or code == _READ_ONLY
                    failed = failed or _statement_error(result, code)
            alive = connection.status == pq.ConnStatus.OK
            if read_only or not alive:
                problem = failed.args[0] if failed is not None else "the connection was lost"
                raise DatabaseConnectionError(problem, read_only=alive)
        except psycopg.Error as error:
            raise DatabaseConnectionError(_first_line(str(error))) from None
        if failed is not None:
            raise failed
        return results

    def close(self) -> None:
        self.connection.finish()

    def abandon(self) -> None:
        _abandoned.append(self.connection)
        # Otherwise the server would not notice that the parent exits, as long as this process has its socket open.
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, self.connection.socket, inheritable=False)
        os.close(null)


def _statement_error(result: Any, code: str) -> StatementError:
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    message = message or _first_line(result.get_error_message())
    return StatementError(
        f"{message} ({code})" if code else message,
        retryable=code in _RETRYABLE,
        missing_table=code == _MISSING_TABLE,
        lock_timeout=code == _LOCK_TIMEOUT,
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _wait(file: int, events: int, deadline: float) -> int:
    """Wait for events of a file by the deadline."""
    poll = create_poll()
    poll.register(file, events)
    remaining_seconds = deadline - time.monotonic()
    # Rounded up to a millisecond, the unit of poll, or the last one would be a busy loop. Past the deadline it only
    # looks: what has arrived while this thread was not scheduled is not late.
    ready = poll.poll(int(remaining_seconds * 1000) + 1 if remaining_seconds > 0 else 0)
    if not ready:
        raise DatabaseConnectionError("no answer in time", timed_out=True)
    return ready[0][1]


@final
class PostgresDriver(Driver):
    """One PostgreSQL database. `timeout` is the store's, in seconds."""

    def __init__(self, address: DatabaseAddress, timeout: float) -> None:
        self.address = address
        self.name = f"PostgreSQL at {address.shown()}"
        self.dialect = POSTGRES
        self.own_clock = True
        self.opens_in_background = True
        timeout_ms = max(int(timeout * 1000), 1)
        self.setup = (
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET standard_conforming_strings = on",
            "SET client_min_messages = error",
            # Before the deadline: so the server ends the wait, and the connection need not be closed.
            f"SET lock_timeout = {max(timeout_ms - min(timeout_ms // 4, MAX_REST_MS), 1)}",
            # A process that is stopped in a transaction must not keep its counters locked for ever.
            f"SET idle_in_transaction_session_timeout = {timeout_ms + 2000}",
        )

    def conninfo(self, deadline: float | None = None) -> str:
        """The parameters of a connection. With a deadline, the host's name is looked up here: libpq would do so without
        one."""
        address = self.address
        given = {name: address.options[name] for name in _TLS if name in address.options}
        host = address.options.get("unix_socket", address.host)
        if deadline is not None and "unix_socket" not in address.options and not is_numeric(host):
            found = resolve(host, address.port, deadline)
            given["hostaddr"] = ",".join(dict.fromkeys(_numeric(one[4]) for one in found))
            host = ",".join([host] * (given["hostaddr"].count(",") + 1))  # its name is still what TLS verifies
        return conninfo.make_conninfo(
            "",
            host=host,
            port=address.port,
            user=address.user,
            password=address.password,
            dbname=address.database,
            application_name="crestgate",
            **given,
        )

    def open(self, deadline: float) -> Session:
        try:
            parameters = self.conninfo(deadline)
        except (OSError, UnicodeError) as error:
            raise DatabaseConnectionError(str(error)) from None
        connection = pq.PGconn.connect_start(parameters.encode())
        remaining_seconds = deadline - time.monotonic()
        try:
            _connect(connection, deadline)
            connection.nonblocking = 1
            session = PostgresSession(connection)
            session.run(self.setup, deadline)
        except (DatabaseConnectionError, StatementError) as problem:
            connection.finish()
            if isinstance(problem, DatabaseConnectionError) and problem.timed_out:
                raise self.no_answer(remaining_seconds) from None
            raise
        except psycopg.Error as error:
            connection.finish()
            raise DatabaseConnectionError(_first_line(str(error))) from None
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(self.conninfo()))

    def lock(self, connection: Any) -> None:
        connection.exec_driver_sql("SET lock_timeout = 30000")
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({_SCHEMA_LOCK})")

    def unlock(self, connection: Any) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_SCHEMA_LOCK})")


def _numeric(address: tuple[Any, ...]) -> str:
    """The numeric address, of IPv6 with its zone."""
    return f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0])


def _connect(connection: PGconn, deadline: float) -> None:
    """Connect and log in by the deadline."""
    while connection.status != pq.ConnStatus.BAD:
        step = connection.connect_poll()
        if step == pq.PollingStatus.OK:
            return
        if step == pq.PollingStatus.FAILED:
            break
        writing = step == pq.PollingStatus.WRITING
        _wait(connection.socket, POLLOUT if writing else POLLIN, deadline)
    raise DatabaseConnectionError(_first_line(connection.get_error_message()))
