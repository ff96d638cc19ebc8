"""First use of a database: waiting for the tables, and the cost of connecting."""

from __future__ import annotations

import ssl
import threading
import time

import pytest

from crestgate import Limiter
from crestgate.stores.sql import store
from servers.mariadb import MariaDB
from servers.process import GivenServer


def test_waiting_for_table_creation_does_not_count_against_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CONNECT_SECONDS", 1.0)
    with MariaDB() as server:

        def busy() -> None:
            server.sql("SELECT GET_LOCK('crestgate_schema', 1); SELECT SLEEP(2.5)")

        other = threading.Thread(target=busy)
        other.start()
        while server.sql("SELECT IS_FREE_LOCK('crestgate_schema')") == "1":
            time.sleep(0.01)
        try:
            with Limiter(f"{server.url}?timeout_ms=5000") as limiter:
                assert limiter.check("key", "1/year").reason == "ok"
        finally:
            other.join()


def test_connecting_reads_no_certificates(mariadb: MariaDB | GivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes a third of a check's time and blocks all other threads."""
    with Limiter(f"{mariadb.url}?timeout_ms=5000"):
        pass  # the tables are there now

    def read(*_: object) -> None:
        raise AssertionError("the authorities of the machine were read")

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", read)
    with Limiter(f"{mariadb.url}?timeout_ms=5000") as limiter:
        assert limiter.check("certificates", "1/year").reason in ("ok", "limited")
