"""SQL servers that hang, die, cut connections and deadlock: every check meets its deadline, nothing counts twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from crestgate import Limit, StoreError
from crestgate.core.algorithms import Algorithm, build
from crestgate.stores.breaker import OPEN_SECONDS
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.sql import SqlStore
from crestgate.stores.sql.batch_plan import BatchPlan
from crestgate.stores.sql.schema import metadata
from crestgate.stores.sql.session import Session
from crestgate.stores.sql.transaction import RoundTrips
from databases import KINDS, SERVERS, open_at, url_of
from servers.machine import until
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.proxy import CuttingProxy

NOISE = 0.5
"""Seconds that a busy machine may add to a deadline."""
TIMEOUT = 1.0
"""Seconds of a check: a commit on a busy disk may take a few hundred milliseconds."""
LIMIT = build(Limit(1000, 86400.0, algorithm="fixed_window"), "faults")
_numbers = itertools.count()


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def prefix() -> str:
    return f"faults-{next(_numbers)}"


@pytest.fixture
def direct(url: str, prefix: str) -> Iterator[SqlStore]:
    """The same counters, bypassing the proxy."""
    store = open_at(url, prefix=prefix)
    yield store
    store.close()


@pytest.fixture
def proxy(url: str) -> Iterator[CuttingProxy]:
    port = urlsplit(url).port
    assert port is not None
    with CuttingProxy(port) as proxy:
        yield proxy


@pytest.fixture
def store(url: str, prefix: str, proxy: CuttingProxy) -> Iterator[SqlStore]:
    """Through the proxy, with the default deadline of checks."""
    through = url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")
    store = open_at(through, prefix=prefix, timeout_ms=1000)
    yield store
    store.close()


def take(store: SqlStore, key: str = "key", limit: Algorithm = LIMIT, cost: int = 1) -> int:
    """Take, and return the remaining count."""
    return store.apply([Request(Op.TAKE, [Member(key, limit, cost)])])[0][0].decision.remaining


def taken(store: SqlStore) -> bool:
    """Whether the store takes."""
    try:
        take(store)
    except StoreError:
        return False
    return True


def used(store: SqlStore) -> int:
    return 1000 - store.apply([Request(Op.PEEK, [Member("key", LIMIT, 0)])])[0][0].decision.remaining


def failed_check(store: SqlStore) -> tuple[float, str]:
    """The duration and the message of a check that must fail."""
    before = time.monotonic()
    with pytest.raises(StoreError) as caught:
        take(store)
    return time.monotonic() - before, str(caught.value)


def test_server_that_hangs(store: SqlStore, direct: SqlStore, proxy: CuttingProxy) -> None:
    take(store)
    proxy.hang()
    for _ in range(3):
        seconds, message = failed_check(store)
        assert 0.9 * TIMEOUT < seconds < TIMEOUT + NOISE
        assert "no answer in time" in message
        assert "secret" not in message
    seconds, message = failed_check(store)
    assert seconds < TIMEOUT / 2, "the breaker is open"
    assert "several times in a row" in message
    proxy.cut()
    proxy.pass_all()
    time.sleep(OPEN_SECONDS)
    take(store)
    assert used(direct) == 2
    assert store.breaker.state(time.monotonic()) == "closed"


def test_server_that_is_gone_and_comes_back(store: SqlStore, direct: SqlStore, proxy: CuttingProxy) -> None:
    take(store)
    proxy.refuse()
    seconds, message = failed_check(store)
    assert seconds < TIMEOUT + NOISE
    assert "127.0.0.1" in message
    proxy.pass_all()
    take(store)
    assert used(direct) == 2


def test_dead_idle_connections_are_replaced(store: SqlStore, direct: SqlStore, proxy: CuttingProxy) -> None:
    take(store)
    proxy.cut()
    assert take(store) == 998, "the caller sees no error"
    assert used(direct) == 2


def test_connection_that_takes_longer_than_a_check(
    url: str, prefix: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fault, when all clients connect at once: what is opened too late for one check is used by the next."""
    monkeypatch.setattr("crestgate.stores.sql.pool.OPEN_SECONDS", 10.0)
    through = url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")
    store = open_at(through, prefix=prefix, timeout_ms=400)
    take(store)
    proxy.refuse()
    failed_check(store)
    proxy.delay(0.13)  # of each reply: a check needs two, a new connection four or five
    assert "no answer in time" in failed_check(store)[1]
    until("a check succeeds", lambda: taken(store))
    store.close()


def test_connection_lost_before_the_commit(store: SqlStore, direct: SqlStore, proxy: CuttingProxy) -> None:
    take(store)
    for count in (0, 1, 3, 20, 60):
        proxy.cut_after(count)
        take(store)
    assert used(direct) == 6


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_lost_commit_result_is_reported_and_not_retried(
    fault: str, store: SqlStore, direct: SqlStore, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(store)
    session, _ = store.pool.take(time.monotonic() + 1)
    store.pool.give(session)
    kind: type[Session] = type(session)
    run, commits = kind.run, []

    def run_and_lose(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        if statements[-1] == "COMMIT" and self is session:
            commits.append(statements)
            if fault == "cut":
                proxy.cut_after(0)
            else:
                proxy.hang(replies_only=True)
        return run(self, statements, deadline)

    monkeypatch.setattr(kind, "run", run_and_lose)
    seconds, message = failed_check(store)
    assert seconds < TIMEOUT + NOISE
    assert "the requests may have been counted" in message
    assert len(commits) == 1
    proxy.pass_all()
    deadline = time.monotonic() + 5
    while used(direct) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert used(direct) == 2
    assert take(store) == 997


def test_faults_on_an_event_loop(store: SqlStore, proxy: CuttingProxy) -> None:
    async def main() -> tuple[float, object]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        proxy.hang()
        before = time.monotonic()
        store.begin([Request(Op.TAKE, [Member("key", LIMIT, 1)])], before + TIMEOUT, answer.set_result)
        message = await asyncio.wait_for(answer, 10)
        return time.monotonic() - before, message

    seconds, message = asyncio.run(main())
    assert isinstance(message, StoreError)
    assert 0.9 * TIMEOUT < seconds < TIMEOUT + NOISE


def test_deadlock_victim_is_retried(direct: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b"):
        take(direct, key)
    first, second = sorted(direct.counter_ids.hex_id(LIMIT.name, key) for key in ("a", "b"))
    dialect = direct.driver.dialect
    tries: list[BatchPlan] = []
    begin = direct._round_trips

    def begin_and_count(plan: BatchPlan) -> RoundTrips:
        tries.append(plan)
        return begin(plan)

    monkeypatch.setattr(direct, "_round_trips", begin_and_count)
    deadline = time.monotonic() + 20
    other = direct.driver.open(deadline)
    # The other transaction has written more, so it is not chosen as the victim.
    rows = ", ".join(f"({dialect.bytes_of(f'{i:04x}')}, 0, '', 0)" for i in range(100))
    heavy = f"INSERT INTO crestgate_locks (name, version, holder, expires_us) VALUES {rows}"
    other.run([dialect.begin, heavy, dialect.rows([second], locking=True)], deadline)
    with ThreadPoolExecutor(1) as pool:
        batch = [Request(Op.TAKE, [Member(key, LIMIT, 1)]) for key in ("a", "b")]
        answer = pool.submit(direct.call, batch, deadline)
        time.sleep(0.3)  # until it holds the first row and waits for the second
        other.run([dialect.rows([first], locking=True)], deadline)
        other.run(["ROLLBACK"], deadline)
        assert [reply[0].decision.remaining for reply in answer.result(20)] == [998, 998]
    other.close()
    assert len(tries) >= 2


def test_clock_is_read_while_the_lock_is_held(direct: SqlStore) -> None:
    limit = build(Limit(1_000_000, 86400.0), "clock")
    take(direct, limit=limit)
    dialect = direct.driver.dialect
    hex_id = direct.counter_ids.hex_id(limit.name, "key")
    deadline = time.monotonic() + 20
    other = direct.driver.open(deadline)
    other.run([dialect.begin, dialect.rows([hex_id], locking=True)], deadline)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, direct, "key", limit)
        time.sleep(0.3)
        released = int(other.run([f"SELECT {dialect.line(dialect.clock)}", "ROLLBACK"], deadline)[0][0])
        answer.result(20)
    row = other.run([dialect.rows([hex_id], locking=False)], deadline)[0][0]
    other.close()
    assert int(row.split(",")[5]) >= released
    assert abs(direct.clock.ticks() - time.time() * 1_000_000) < 5_000_000


def test_forked_child_does_not_use_its_parents_connections(direct: SqlStore) -> None:
    take(direct)
    sessions = set(direct.pool.sessions)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if [take(direct) for _ in range(3)] == [998, 997, 996] else 2
            direct.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take(direct) == 995
    assert direct.pool.sessions == sessions, "still the same connections"


def test_lock_that_is_not_granted_costs_no_connection(url: str, prefix: str) -> None:
    """PostgreSQL ends the wait before the check does. The breaker opens all the same: no caller should wait for it."""
    if not url.startswith("postgres"):
        pytest.skip("MariaDB waits for a lock for a second or more, so the check ends first")
    store = open_at(f"{url}?timeout_ms=400", prefix=prefix, timeout_ms=400)
    take(store)
    sessions = set(store.pool.sessions)
    deadline = time.monotonic() + 30
    other = store.driver.open(deadline)
    hex_id = store.counter_ids.hex_id(LIMIT.name, "key")
    other.run([store.driver.dialect.begin, store.driver.dialect.rows([hex_id], locking=True)], deadline)
    for _ in range(3):
        seconds, message = failed_check(store)
        assert seconds < 0.4 + NOISE
        assert "lock" in message
    assert failed_check(store)[1].count("several times in a row") == 1
    other.run(["ROLLBACK"], deadline)
    other.close()
    assert store.pool.sessions == sessions
    time.sleep(OPEN_SECONDS)
    assert take(store) == 998
    assert store.pool.sessions == sessions, "still the same connections"
    store.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_server_that_accepts_no_writes_for_a_while(kind: str) -> None:
    """A new connection may reach another server. If not, it is kept for when this one accepts writes again."""
    statements = {
        "mariadb": ("SET GLOBAL read_only = ON", "SET GLOBAL read_only = OFF"),
        "postgres": (
            "ALTER SYSTEM SET default_transaction_read_only = on;\nSELECT pg_reload_conf()",
            "SET default_transaction_read_only = off;\nALTER SYSTEM RESET default_transaction_read_only;\n"
            "SELECT pg_reload_conf()",
        ),
    }
    begin, end = statements[kind]
    with (MariaDB if kind == "mariadb" else Postgres)() as server:
        store = open_at(server.url, prefix="readonly", pool_size=1)
        take(store)
        server.sql(begin)
        until("it accepts no writes", lambda: not taken(store))
        (kept,) = store.pool.sessions
        server.sql(end)
        time.sleep(OPEN_SECONDS)
        until("it accepts writes", lambda: taken(store))
        assert store.pool.sessions == {kept}, "no new connection was needed"
        store.close()


def test_more_threads_than_connections_wait_their_turn(url: str) -> None:
    store = open_at(url, pool_size=2)
    with ThreadPoolExecutor(12) as pool:
        left = list(pool.map(lambda _: take(store), range(100)))
    assert sorted(left) == list(range(900, 1000))
    assert len(store.pool.sessions) == 2
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_migrations_create_the_schema(kind: str, request: pytest.FixtureRequest) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    store = open_at(url_of(kind, request))
    engine = store.driver.engine()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "crestgate_version"})
        ours = [change for change in compare_metadata(context, metadata) if "crestgate" in str(change)]
    engine.dispose()
    store.close()
    assert ours == []


def test_concurrent_processes_create_the_tables_once(url: str) -> None:
    store = open_at(url)
    session = store.driver.open(time.monotonic() + 5)
    for table in metadata.tables.keys() | {"crestgate_version"}:
        session.run([f"DROP TABLE {table}"], time.monotonic() + 5)
    session.close()
    errors: list[StoreError] = []

    def work() -> None:
        try:
            open_at(url).close()
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert take(store) == 999
    store.close()


def test_server_ends_the_transaction_of_a_stopped_client(direct: SqlStore) -> None:
    take(direct)
    dialect = direct.driver.dialect
    deadline = time.monotonic() + 20
    stopped = direct.driver.open(deadline)
    hex_id = direct.counter_ids.hex_id(LIMIT.name, "key")
    if "idle" in str(getattr(direct.driver, "setup", "")):  # PostgreSQL: as if the store's timeout were 100 ms
        stopped.run(["SET idle_in_transaction_session_timeout = 2100"], deadline)
    stopped.run([dialect.begin, dialect.rows([hex_id], locking=True)], deadline)
    before = time.monotonic()
    assert take(direct) == 998  # MariaDB waits a second for a lock, then the transaction is restarted
    assert 1.0 < time.monotonic() - before < 8.0
    stopped.close()
