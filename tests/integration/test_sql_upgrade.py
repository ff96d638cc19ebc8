"""Opening a database waits while another process upgrades its tables.

MariaDB and MySQL commit with each DDL statement, so other processes see the versions in between.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from crestgate import Limiter
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.version import VERSION
from databases import url_of
from servers.machine import until


def test_open_waits_for_a_running_upgrade(request: pytest.FixtureRequest) -> None:
    url = url_of("mariadb", request)
    Limiter(url).close()
    driver = open_driver(Options(url))
    change = text("UPDATE crestgate_version SET version_num = :version")
    waiting = text("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")

    engine = driver.engine()
    with ThreadPoolExecutor(1) as pool, engine.connect() as connection:
        driver.lock(connection)
        connection.execute(change, {"version": "0000"})
        connection.commit()
        opened = pool.submit(Limiter, url)
        try:
            until("another waits for the lock", lambda: opened.done() or connection.execute(waiting).scalar() == 1)
            assert not opened.done()
        finally:
            connection.execute(change, {"version": VERSION})
            connection.commit()
            driver.unlock(connection)
        with opened.result() as limiter:
            assert limiter.check("a", "1/minute").allowed
    engine.dispose()
