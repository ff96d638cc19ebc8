"""Rows of a MariaDB session: short texts are read without PyMySQL, and all others as it does."""

from __future__ import annotations

import time

import pytest

from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.session import DatabaseConnectionError, StatementError
from servers.mariadb import MariaDB
from servers.process import GivenServer


def test_texts_of_all_lengths(mariadb: MariaDB | GivenServer) -> None:
    session = open_driver(Options(mariadb.url)).open(time.monotonic() + 30)
    lengths = (0, 1, 250, 251, 252, 255, 256, 65_535, 65_536, 100_000)
    selects = [f"SELECT REPEAT('x', {length}) UNION ALL SELECT NULL UNION ALL SELECT 'é'" for length in lengths]
    rows = session.run([*selects, "DO 0", "SELECT 'no' FROM DUAL WHERE FALSE"], time.monotonic() + 30)
    assert rows == [*[["x" * length, None, "é"] for length in lengths], []]
    session.close()


def test_error_after_rows(mariadb: MariaDB | GivenServer) -> None:
    session = open_driver(Options(mariadb.url)).open(time.monotonic() + 30)
    with pytest.raises(StatementError, match=r"\(1242\)"):
        session.run(["SELECT 'a'", "SELECT (SELECT 1 UNION SELECT 2)"], time.monotonic() + 30)
    assert session.run(["SELECT 'usable'"], time.monotonic() + 30) == [["usable"]]
    with pytest.raises(DatabaseConnectionError):
        session.run(["KILL CONNECTION_ID()", "SELECT 'lost'"], time.monotonic() + 30)
    session.close()
