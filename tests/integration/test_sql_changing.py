"""Who opens a database while another process changes its tables waits for it, and then finds them right.

MariaDB and MySQL end a transaction with each table that is made, so everybody sees the versions on the way.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from databases import url_of
from headgate import Limiter
from headgate.stores.options import Options
from headgate.stores.sql.opening import open_driver
from headgate.stores.sql.version import VERSION
from servers.machine import until


def test_a_version_on_the_way_is_waited_for(request: pytest.FixtureRequest) -> None:
    url = url_of("mariadb", request)
    Limiter(url).close()
    driver = open_driver(Options(url))
    change = text("UPDATE headgate_version SET version_num = :version")
    waiting = text("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")

    engine = driver.engine()
    with ThreadPoolExecutor(1) as pool, engine.connect() as connection:
        driver.lock(connection)
        connection.execute(change, {"version": "0001"})
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
