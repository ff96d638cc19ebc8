"""MariaDB and MySQL, through PyMySQL.

Socket timeouts follow the deadline of each check, whatever the server does.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import pymysql
from pymysql.connections import MAX_PACKET_LEN, MySQLResult
from pymysql.constants import CLIENT, CR
from pymysql.protocol import MysqlPacket

from crestgate.runtime.name_lookup import NameLookupError
from crestgate.runtime.sockets import connect
from crestgate.stores.sql.dialect import MYSQL
from crestgate.stores.sql.session import DatabaseAddress, DatabaseConnectionError, Driver, Session, StatementError

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["MysqlDriver"]

_SETUP = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # The last is for MariaDB only, and a comment to MySQL: a process that is stopped in a transaction must not keep
    # its counters locked for ever.
    "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 1, sql_mode = 'STRICT_ALL_TABLES' "
    "/*M!100300 , idle_transaction_timeout = 2 */",
)
_RETRYABLE = (1205, 1213)
"""Lock wait timeout, deadlock."""
_LOST = (1040, 1053, 1077, 1080, 1927, 3169, 4031)
"""Besides the client's own codes from 2000 on: the server has too many connections, shuts down, ended the session."""
_READ_ONLY = (1290, 1792, 1836)
_MISSING_TABLE = 1146
_SCHEMA_LOCK = "crestgate_schema"
MAX_SHORT_TEXT = 251
"""Texts below this length have it in one byte before them."""


class _Connection(pymysql.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection whose every read and write ends by `deadline`."""

    deadline = float("inf")

    def _remaining(self) -> float:
        # In steps of 5 ms: setting a socket's timeout for each packet would cost more than the packet.
        return max(round((self.deadline - time.monotonic()) * 200) / 200, 0.005)

    @property
    def _rfile(self) -> io.BufferedReader | None:
        return self.__dict__.get("reader")

    @_rfile.setter
    def _rfile(self, value: io.BufferedReader | None) -> None:
        """What PyMySQL reads from: its own reader of a socket would give each part of a packet the whole time."""
        self.__dict__["reader"] = value and io.BufferedReader(_DeadlineReader(value.detach(), self))

    @property
    def _read_timeout(self) -> float:
        return self._remaining()

    @_read_timeout.setter
    def _read_timeout(self, value: object) -> None:
        """Ignore the value of PyMySQL's constructor."""

    @property
    def _write_timeout(self) -> float:
        return self._remaining()

    @_write_timeout.setter
    def _write_timeout(self, value: object) -> None:
        """As above."""

    def _read_query_result(self, unbuffered: bool = False) -> int | None:
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        count: int | None = result.affected_rows
        return count

    def _create_ssl_ctx(self, sslp: dict[str, Any]) -> ssl.SSLContext:
        """Without TLS options PyMySQL encrypts if the server can, and verifies nothing; yet it loads all CA
        certificates of the machine. That takes 30 ms per connection, in which no other thread runs."""
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)
            return context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


@final
class _Result(MySQLResult):  # type: ignore[misc]  # PyMySQL has no types
    """Reads rows of one short text, as most of ours are, without an object for each packet: a third of the time."""

    connection: Any
    affected_rows: Any
    rows: Any

    def _read_rowdata_packet(self) -> None:
        connection = self.connection
        read, encoding = connection._read_bytes, connection.encoding
        rows: list[tuple[Any, ...]] = []
        while True:
            header = read(4)
            size = header[0] | header[1] << 8 | header[2] << 16
            if header[3] != connection._next_seq_id or size == MAX_PACKET_LEN:
                connection._force_close()
                raise pymysql.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
            connection._next_seq_id = (header[3] + 1) % 256
            data = read(size)
            if self.field_count == 1 and size and data[0] < MAX_SHORT_TEXT and size == data[0] + 1:
                rows.append((data[1:].decode(encoding),))
                continue
            packet = MysqlPacket(data, encoding)
            packet.check_error()
            if self._check_packet_is_eof(packet):
                break
            rows.append(self._read_row_from_packet(packet))
        self.connection = None
        self.affected_rows = len(rows)
        self.rows = tuple(rows)


@final
class _DeadlineReader(io.RawIOBase):
    """Reads of a connection's socket, each of which ends by the deadline: a packet may come a few bytes at a time."""

    def __init__(self, raw: io.RawIOBase, connection: _Connection) -> None:
        self.raw = raw
        self.connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        connection = self.connection
        # Past the deadline only what has arrived already: it is not late because this thread was not scheduled.
        seconds = connection._remaining() if time.monotonic() < connection.deadline else 0.0
        if seconds != connection._current_timeout:
            connection._sock.settimeout(seconds)
            connection._current_timeout = seconds
        count: int | None = self.raw.readinto(buffer)
        if count is None:
            raise TimeoutError("timed out")
        return count

    def close(self) -> None:
        self.raw.close()
        super().close()


@final
class MysqlSession(Session):
    """One connection."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        connection = self.connection
        connection.deadline = deadline
        results: list[list[str]] = []
        try:
            if time.monotonic() >= deadline:
                raise TimeoutError("deadline exceeded")
            cursor = connection.cursor()
            cursor.execute("; ".join(statements))
            while True:
                if cursor.description is not None:
                    results.append([row[0] for row in cursor.fetchall()])
                if not cursor.nextset():
                    return results
        except pymysql.MySQLError as error:
            raise _translate(error, deadline) from None
        except (OSError, AttributeError, ValueError, IndexError) as error:
            # What PyMySQL raises on a connection that was closed in the middle of a packet.
            raise DatabaseConnectionError(
                f"the connection broke: {error}", timed_out=time.monotonic() >= deadline
            ) from None

    def close(self) -> None:
        with suppress(Exception):
            self.connection._force_close()

    def abandon(self) -> None:
        """Close this process's copy of the socket, and send nothing. Not through PyMySQL's buffered reader: a thread of
        the parent may have held its lock, which is never released here."""
        sock = self.connection._sock
        if sock is not None:
            os.close(sock.detach())


def _connect(address: DatabaseAddress, deadline: float) -> socket.socket:
    try:
        return connect(address.host, address.port, deadline)
    except NameLookupError:
        raise
    except OSError as error:
        problem = f"Can't connect to MySQL server on {address.host!r} ({error})"
        raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, problem) from None


def _translate(error: pymysql.MySQLError, deadline: float) -> DatabaseConnectionError | StatementError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code >= 2000 or code == 0 or code in _LOST:
        timed_out = time.monotonic() >= deadline - 0.005
        return DatabaseConnectionError("no answer in time" if timed_out else message, timed_out=timed_out)
    if code in _READ_ONLY:
        return DatabaseConnectionError(message, read_only=True)
    return StatementError(f"{message} ({code})", retryable=code in _RETRYABLE, missing_table=code == _MISSING_TABLE)


@final
class MysqlDriver(Driver):
    """One MariaDB or MySQL database."""

    def __init__(self, title: str, address: DatabaseAddress) -> None:
        self.address = address
        self.name = f"{title} at {address.shown()}"
        self.dialect = MYSQL
        self.own_clock = True
        self.opens_in_background = True
        # Measured: for 100 tasks two batches of 50, one decided while the other commits, beat one; with PostgreSQL not.
        self.min_shared_batch = 50

    def parameters(self) -> dict[str, Any]:
        address = self.address
        return {
            "host": address.host,
            "port": address.port,
            "user": address.user or "",
            "password": address.password or "",
            "database": address.database,
            "unix_socket": address.options.get("unix_socket"),
            "charset": "utf8mb4",
            "autocommit": True,
            "client_flag": CLIENT.MULTI_STATEMENTS,
            **_tls(address.options),
        }

    def open(self, deadline: float) -> Session:
        remaining_seconds = max(deadline - time.monotonic(), 0.001)
        try:
            connection = _Connection(**self.parameters(), connect_timeout=remaining_seconds, defer_connect=True)
            connection.deadline = deadline
            connection.connect(None if connection.unix_socket else _connect(self.address, deadline))
            session = MysqlSession(connection)
        except pymysql.MySQLError as error:
            problem = _translate(error, deadline)
            if isinstance(problem, DatabaseConnectionError) and problem.timed_out:
                problem = self.no_answer(remaining_seconds)
            raise problem from None
        except (OSError, RuntimeError, ValueError, AttributeError, IndexError) as error:
            # RuntimeError: an authentication method that needs the package `cryptography`.
            raise DatabaseConnectionError(str(error)) from None
        try:
            session.run(_SETUP, deadline)
        except (DatabaseConnectionError, StatementError):
            session.close()
            raise
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("mysql+pymysql://", creator=lambda: pymysql.connect(**self.parameters()))

    def lock(self, connection: Any) -> None:
        got = connection.exec_driver_sql(f"SELECT GET_LOCK('{_SCHEMA_LOCK}', 30)").scalar()
        if got != 1:
            raise DatabaseConnectionError("another process has been migrating the tables for 30 s")

    def unlock(self, connection: Any) -> None:
        connection.exec_driver_sql(f"SELECT RELEASE_LOCK('{_SCHEMA_LOCK}')")


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """With a certificate authority in the URL, the server's certificate and host name are verified."""
    given: dict[str, Any] = {name: options[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options}
    if "ssl_ca" in given:
        return {**given, "ssl_verify_cert": True, "ssl_verify_identity": True}
    return given
