"""PostgreSQL's notifications: they come, they come again after a lost connection or a fork, and they end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count

import pytest
from sqlalchemy import text

from crestgate.rules.storage.sql import notifications
from crestgate.rules.storage.sql.repository import SqlRepository, open_sql_repository
from crestgate.runtime.url_options import Options
from databases import url_of
from servers.machine import until
from unit.rules.storage.kit import PATIENCE, in_a_child, put

Open = Callable[[], SqlRepository]
_numbers = count()


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens the same repository, as several processes would."""
    options = Options(f"{url_of('postgres', request)}?timeout_ms=20000")
    options.values["prefix"] = f"listening-{next(_numbers)}"
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_sql_repository(options)))


class Ear:
    """Counts the times it is woken."""

    def __init__(self) -> None:
        self.calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self.calls.release()

    def heard(self) -> bool:
        return self.calls.acquire(timeout=PATIENCE)

    def forget(self) -> None:
        while self.calls.acquire(blocking=False):
            pass


def listeners(repository: SqlRepository) -> list[int]:
    """The server's processes that listen for this repository."""
    query = text("SELECT pid FROM pg_stat_activity WHERE query IN (:listen, 'SELECT 1') AND pid <> pg_backend_pid()")
    with repository.engine.connect() as connection:
        return list(connection.scalars(query, {"listen": f"LISTEN {repository.channel}"}))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "crestgate-listen"]


def test_several_listen(opened: Open) -> None:
    writer, reader = opened(), opened()
    first, second = Ear(), Ear()
    reader.listen(first)
    assert first.heard(), "once at the start: something may have been written before"
    reader.listen(second)
    put(writer, "r", {})
    assert first.heard()
    assert second.heard()
    assert len(threads()) == 1


def test_one_that_cannot_be_woken_does_not_keep_others_asleep(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = opened(), opened()
    wake_reader = Ear()

    def fail() -> None:
        raise RuntimeError("asleep")

    reader.listen(fail)
    reader.listen(wake_reader)
    put(writer, "r", {})
    assert wake_reader.heard()
    wake_reader.forget()
    put(writer, "r", {})
    assert wake_reader.heard()
    assert "rule change callback failed" in caplog.text


def test_nobody_is_told_of_another_prefix(opened: Open, request: pytest.FixtureRequest) -> None:
    reader = opened()
    wake_reader = Ear()
    reader.listen(wake_reader)
    assert wake_reader.heard()
    other = Options(url_of("postgres", request))
    other.values["prefix"] = f"listening-{next(_numbers)}"
    with closing(open_sql_repository(other)) as stranger:
        put(stranger, "r", {})
    put(reader, "r", {})
    assert wake_reader.heard()
    assert not wake_reader.calls.acquire(blocking=False)


def test_a_connection_that_the_server_ends(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = opened(), opened()
    wake_reader = Ear()
    reader.listen(wake_reader)
    assert wake_reader.heard()
    for _ in range(2):
        wake_reader.forget()
        before = listeners(writer)
        assert before
        with writer.engine.begin() as connection:
            for pid in before:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        assert wake_reader.heard(), "what was missed meanwhile is made up for"
        wake_reader.forget()
        put(writer, "r", {})
        assert wake_reader.heard()
    assert "PostgreSQL at" in caplog.text
    assert "rule notifications lost" in caplog.text
    assert "secret" not in caplog.text


def test_silence_is_looked_into(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has gone without a word is asked whether it is there."""
    monkeypatch.setattr(notifications, "HEARTBEAT", 0.01)
    asked = threading.Event()
    writer, reader = opened(), opened()
    wake_reader = Ear()
    reader.listen(wake_reader)
    assert wake_reader.heard()
    query = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' AND application_name = 'crestgate'")

    def beaten() -> bool:
        with writer.engine.connect() as connection:
            if connection.execute(query).scalar_one():
                asked.set()
        return asked.is_set()

    until("it was asked", beaten)
    put(writer, "r", {})
    assert wake_reader.heard()


def test_listening_ends_with_the_repository(opened: Open) -> None:
    repository = opened()
    files = len(os.listdir("/proc/self/fd"))
    other = opened()
    wake_reader = Ear()
    other.listen(wake_reader)
    assert wake_reader.heard()
    (thread,) = threads()
    other.close()
    assert not thread.is_alive()
    until("the server has noticed", lambda: not listeners(repository))
    repository.close()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_whoever_listens_may_close(opened: Open) -> None:
    repository = opened()
    closed = threading.Event()

    def close() -> None:
        repository.close()
        closed.set()

    repository.listen(close)
    assert closed.wait(PATIENCE)
    until("the thread has ended", lambda: not threads())


def test_a_forked_child_listens_by_itself(opened: Open) -> None:
    writer, reader = opened(), opened()
    wake_reader = Ear()
    reader.listen(wake_reader)
    assert wake_reader.heard()
    wake_reader.forget()

    def child() -> None:
        assert wake_reader.heard(), "once at the start"
        wake_reader.forget()
        put(writer, "child", {})
        assert wake_reader.heard()
        reader.close()
        writer.close()

    assert in_a_child(child) == 0
    assert wake_reader.heard(), "the parent still has its connection"
    wake_reader.forget()
    put(writer, "parent", {})
    assert wake_reader.heard()
    assert len(threads()) == 1
