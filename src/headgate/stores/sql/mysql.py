"""MariaDB and MySQL, through PyMySQL.

Timeouts follow the deadline of each check: the socket gives up when it has passed, whatever the server does.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import pymysql
from pymysql.constants import CLIENT, CR

from headgate.stores.reaching import reached
from headgate.stores.sql.dialect import MYSQL
from headgate.stores.sql.session import Address, Broken, Driver, Refused, Session

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["MysqlDriver"]

_SETUP = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # The last is MariaDB's alone, and a comment to MySQL: a process that is stopped in the middle of a transaction must
    # not keep its counters locked for ever.
    "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 1, sql_mode = 'STRICT_ALL_TABLES' "
    "/*M!100300 , idle_transaction_timeout = 2 */",
)
_AGAIN = (1205, 1213)
"""Lock wait timeout, dead-lock."""
_ENDED = (1040, 1053, 1077, 1080, 1290, 1792, 1836, 1927, 3169, 4031)
"""Besides the client's own codes from 2000 on: the server has no room, shuts down, ended the session, or has become
read-only. The last is a primary that was replaced: a new connection may lead to the new one."""
_NO_TABLE = 1146
_SCHEMA_LOCK = "headgate_schema"


class _Connection(pymysql.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection whose every read and write ends by `deadline`."""

    deadline = float("inf")

    def _left(self) -> float:
        # In steps of 5 ms: setting a socket's timeout for each packet would cost more than the packet.
        return max(round((self.deadline - time.monotonic()) * 200) / 200, 0.005)

    @property
    def _read_timeout(self) -> float:
        return self._left()

    @_read_timeout.setter
    def _read_timeout(self, value: object) -> None:
        """What PyMySQL's constructor says is not asked for."""

    @property
    def _write_timeout(self) -> float:
        return self._left()

    @_write_timeout.setter
    def _write_timeout(self, value: object) -> None:
        """As above."""

    def _create_ssl_ctx(self, sslp: dict[str, Any]) -> ssl.SSLContext:
        """Without TLS options PyMySQL encrypts where the server can, and verifies nothing; yet it reads all authorities
        of the machine for it. That takes 30 ms for each connection, in which no other thread runs."""
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)
            return context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


@final
class MysqlSession(Session):
    """One connection."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        connection = self.connection
        connection.deadline = deadline
        answers: list[list[str]] = []
        try:
            if time.monotonic() >= deadline:
                raise TimeoutError("no time left")
            cursor = connection.cursor()
            cursor.execute("; ".join(statements))
            while True:
                if cursor.description is not None:
                    answers.append([row[0] for row in cursor.fetchall()])
                if not cursor.nextset():
                    return answers
        except pymysql.MySQLError as error:
            raise _translated(error, deadline) from None
        except (OSError, AttributeError, ValueError, IndexError) as error:
            # What PyMySQL raises on a connection that was closed or cut in the middle of a packet.
            raise Broken(f"the connection broke: {error}", late=time.monotonic() >= deadline) from None

    def close(self) -> None:
        with suppress(Exception):
            self.connection._force_close()

    def abandon(self) -> None:
        """Close this process's copy of the socket, and say nothing on it. Not through the reader that PyMySQL puts on
        top of it: a thread of the parent may have been inside, and would keep it locked here for ever."""
        sock = self.connection._sock
        if sock is not None:
            os.close(sock.detach())


def _reached(address: Address, deadline: float) -> socket.socket:
    try:
        return reached(address.host, address.port, deadline)
    except OSError as error:
        problem = f"Can't connect to MySQL server on {address.host!r} ({error})"
        raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, problem) from None


def _translated(error: pymysql.MySQLError, deadline: float) -> Broken | Refused:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code >= 2000 or code == 0 or code in _ENDED:
        late = time.monotonic() >= deadline - 0.005
        return Broken("no answer in time" if late else message, late=late)
    return Refused(f"{message} ({code})", again=code in _AGAIN, no_table=code == _NO_TABLE)


@final
class MysqlDriver(Driver):
    """One MariaDB or MySQL database."""

    def __init__(self, title: str, address: Address) -> None:
        self.address = address
        self.name = f"{title} at {address.shown()}"
        self.dialect = MYSQL
        self.own_clock = True

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
        left = max(deadline - time.monotonic(), 0.001)
        try:
            connection = _Connection(**self.parameters(), connect_timeout=left, defer_connect=True)
            connection.deadline = deadline
            connection.connect(None if connection.unix_socket else _reached(self.address, deadline))
            session = MysqlSession(connection)
        except pymysql.MySQLError as error:
            problem = _translated(error, deadline)
            if isinstance(problem, Broken) and problem.late:
                problem = self.silent(left)
            raise problem from None
        except (OSError, RuntimeError, ValueError, AttributeError, IndexError) as error:
            # RuntimeError: a way of logging in that needs the package `cryptography`.
            raise Broken(str(error)) from None
        try:
            session.run(_SETUP, deadline)
        except (Broken, Refused):
            session.close()
            raise
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("mysql+pymysql://", creator=lambda: pymysql.connect(**self.parameters()))

    def lock(self, connection: Any) -> None:
        got = connection.exec_driver_sql(f"SELECT GET_LOCK('{_SCHEMA_LOCK}', 30)").scalar()
        if got != 1:
            raise Broken("another process has been changing the tables for half a minute")

    def unlock(self, connection: Any) -> None:
        connection.exec_driver_sql(f"SELECT RELEASE_LOCK('{_SCHEMA_LOCK}')")


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """A certificate authority in the URL means that the server must prove to be who its name says."""
    given: dict[str, Any] = {name: options[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options}
    if "ssl_ca" in given:
        return {**given, "ssl_verify_cert": True, "ssl_verify_identity": True}
    return given
