"""Processes that find an empty database at the same moment: one makes the tables, the others wait for it."""

from __future__ import annotations

import threading
import time

import pytest

from headgate import Limiter
from headgate.stores.sql import store
from servers.mariadb import MariaDB


def test_waiting_for_those_who_make_the_tables_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CONNECT_SECONDS", 1.0)
    with MariaDB() as server:

        def busy() -> None:
            server.sql("SELECT GET_LOCK('headgate_schema', 1); SELECT SLEEP(2.5)")

        other = threading.Thread(target=busy)
        other.start()
        while server.sql("SELECT IS_FREE_LOCK('headgate_schema')") == "1":
            time.sleep(0.01)
        try:
            with Limiter(f"{server.url}?timeout_ms=5000") as limiter:
                assert limiter.check("key", "1/year").reason == "ok"
        finally:
            other.join()
