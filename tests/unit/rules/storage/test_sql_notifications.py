"""PostgreSQL notifications: delivery, reconnection after a lost connection or a fork, and shutdown."""

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
from unit.rules.storage.kit import TIMEOUT, put, run_in_child

Open = Callable[[], SqlRepository]
_numbers = count()


@pytest.fixture
def open_repository(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens the same repository several times, as several processes would."""
    options = Options(f"{url_of('postgres', request)}?timeout_ms=20000")
    options.values["prefix"] = f"listening-{next(_numbers)}"
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_sql_repository(options)))


class NotificationCounter:
    """Counts notifications."""

    def __init__(self) -> None:
        self.calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self.calls.release()

    def wait(self) -> bool:
        return self.calls.acquire(timeout=TIMEOUT)

    def clear(self) -> None:
        while self.calls.acquire(blocking=False):
            pass


def listeners(repository: SqlRepository) -> list[int]:
    """Server processes that listen for this repository."""
    query = text("SELECT pid FROM pg_stat_activity WHERE query IN (:listen, 'SELECT 1') AND pid <> pg_backend_pid()")
    with repository.engine.connect() as connection:
        return list(connection.scalars(query, {"listen": f"LISTEN {repository.channel}"}))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "crestgate-listen"]


def test_several_listeners(open_repository: Open) -> None:
    writer, reader = open_repository(), open_repository()
    first, second = NotificationCounter(), NotificationCounter()
    reader.listen(first)
    assert first.wait(), "once at the start: something may have been written earlier"
    reader.listen(second)
    put(writer, "r", {})
    assert first.wait()
    assert second.wait()
    assert len(threads()) == 1


def test_failing_callback_does_not_affect_others(open_repository: Open, caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = open_repository(), open_repository()
    wake_reader = NotificationCounter()

    def fail() -> None:
        raise RuntimeError("asleep")

    reader.listen(fail)
    reader.listen(wake_reader)
    put(writer, "r", {})
    assert wake_reader.wait()
    wake_reader.clear()
    put(writer, "r", {})
    assert wake_reader.wait()
    assert "rule change callback failed" in caplog.text


def test_other_prefixes_are_not_notified(open_repository: Open, request: pytest.FixtureRequest) -> None:
    reader = open_repository()
    wake_reader = NotificationCounter()
    reader.listen(wake_reader)
    assert wake_reader.wait()
    other = Options(url_of("postgres", request))
    other.values["prefix"] = f"listening-{next(_numbers)}"
    with closing(open_sql_repository(other)) as other_repository:
        put(other_repository, "r", {})
    put(reader, "r", {})
    assert wake_reader.wait()
    assert not wake_reader.calls.acquire(blocking=False)


def test_connection_closed_by_the_server(open_repository: Open, caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = open_repository(), open_repository()
    wake_reader = NotificationCounter()
    reader.listen(wake_reader)
    assert wake_reader.wait()
    for _ in range(2):
        wake_reader.clear()
        before = listeners(writer)
        assert before
        with writer.engine.begin() as connection:
            for pid in before:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        assert wake_reader.wait(), "missed changes cause a notification"
        wake_reader.clear()
        put(writer, "r", {})
        assert wake_reader.wait()
    assert "PostgreSQL at" in caplog.text
    assert "rule notifications lost" in caplog.text
    assert "secret" not in caplog.text


def test_idle_connection_is_probed(open_repository: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that disappeared silently is detected by a probe."""
    monkeypatch.setattr(notifications, "HEARTBEAT", 0.01)
    probed = threading.Event()
    writer, reader = open_repository(), open_repository()
    wake_reader = NotificationCounter()
    reader.listen(wake_reader)
    assert wake_reader.wait()
    query = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' AND application_name = 'crestgate'")

    def is_probed() -> bool:
        with writer.engine.connect() as connection:
            if connection.execute(query).scalar_one():
                probed.set()
        return probed.is_set()

    until("it was probed", is_probed)
    put(writer, "r", {})
    assert wake_reader.wait()


def test_listening_ends_with_the_repository(open_repository: Open) -> None:
    repository = open_repository()
    files = len(os.listdir("/proc/self/fd"))
    other = open_repository()
    wake_reader = NotificationCounter()
    other.listen(wake_reader)
    assert wake_reader.wait()
    (thread,) = threads()
    other.close()
    assert not thread.is_alive()
    until("the server has noticed", lambda: not listeners(repository))
    repository.close()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_callback_may_close_the_repository(open_repository: Open) -> None:
    repository = open_repository()
    closed = threading.Event()

    def close() -> None:
        repository.close()
        closed.set()

    repository.listen(close)
    assert closed.wait(TIMEOUT)
    until("the thread has ended", lambda: not threads())


def test_forked_child_listens_by_itself(open_repository: Open) -> None:
    writer, reader = open_repository(), open_repository()
    wake_reader = NotificationCounter()
    reader.listen(wake_reader)
    assert wake_reader.wait()
    wake_reader.clear()

    def child() -> None:
        assert wake_reader.wait(), "once at the start"
        wake_reader.clear()
        put(writer, "child", {})
        assert wake_reader.wait()
        reader.close()
        writer.close()

    assert run_in_child(child) == 0
    assert wake_reader.wait(), "the parent still has its connection"
    wake_reader.clear()
    put(writer, "parent", {})
    assert wake_reader.wait()
    assert len(threads()) == 1
