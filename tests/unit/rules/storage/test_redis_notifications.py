"""Notifications of rule changes in Redis."""

from __future__ import annotations

import re
import threading
from contextlib import closing

import pytest

from crestgate.databases.redis_client import open_client
from crestgate.rules.storage.redis.notifications import RedisChangeListener
from crestgate.runtime.url_options import Options
from servers.machine import until
from servers.proxy import CuttingProxy
from servers.redis import RedisServer
from unit.rules.storage.kit import TIMEOUT, put, run_in_child
from unit.rules.storage.redis_rules import NotificationCounter, changes_since, open_rules


def subscribers(server: RedisServer) -> list[str]:
    return re.findall(r"^id=(\d+) .* sub=1 ", server.cli("CLIENT", "LIST", "TYPE", "pubsub"), re.MULTILINE)


def test_listener_reconnects() -> None:
    with RedisServer() as server, closing(open_rules(server.url)) as reader:
        first, second = NotificationCounter(), NotificationCounter()
        reader.listen(first.notify)
        assert first.wait(), "changes may have been missed before it listened"
        reader.listen(second.notify)
        server.cli("CLIENT", "KILL", "ID", *subscribers(server))
        assert first.wait()
        assert second.wait()
        server.cli("PUBLISH", reader.keys.channel, "1")
        assert first.wait()
        assert second.wait()
        server.kill()
        server.start()
        assert first.wait(), "the server may have lost changes"
        server.cli("PUBLISH", reader.keys.channel, "1")
        assert first.wait()
        assert not first.notifications.acquire(blocking=False), "once for each message"


def test_unresponsive_server_is_abandoned(redis_server: RedisServer) -> None:
    with CuttingProxy(Options(redis_server.url).servers(6379)[0][1]) as proxy:
        options, counter = Options(f"redis://127.0.0.1:{proxy.port}/0"), NotificationCounter()
        listener = RedisChangeListener(lambda: open_client(options, 5.0), "{quiet}:rules", quiet_steps=1)
        with closing(listener):
            listener.add(counter.notify)
            assert counter.wait()
            accepted = proxy.accepted
            assert not counter.notifications.acquire(timeout=1.0), "it pings, gets a response, and keeps the connection"
            assert proxy.accepted == accepted
            proxy.hang()
            until("it has opened another connection", lambda: proxy.accepted > accepted)
            proxy.cut()
            proxy.pass_all()
            assert counter.wait()


def test_failing_callback_does_not_end_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("not now")

    with RedisServer() as server, closing(open_rules(server.url)) as reader:
        counter = NotificationCounter()
        reader.listen(fail)
        reader.listen(counter.notify)  # perhaps after the subscription, which then notified only the other
        put(reader, "r", {})
        assert counter.wait()
        assert "rule change callback failed" in caplog.text


def test_listener_ends_with_its_repository() -> None:
    with RedisServer() as server:
        reader, counter = open_rules(server.url), NotificationCounter()
        reader.listen(counter.notify)
        assert counter.wait()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "crestgate-rules")
        reader.close()
        assert not thread.is_alive()
        until("no subscribers are left", lambda: subscribers(server) == [])
        other, closed = open_rules(server.url), threading.Event()

        def close() -> None:
            other.close()
            closed.set()

        other.listen(close)
        assert closed.wait(TIMEOUT), "also from its own callback"


def test_listener_ends_while_the_server_is_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        reader, counter = open_rules(server.url), NotificationCounter()
        reader.listen(counter.notify)
        assert counter.wait()
        server.kill()
        until("it has noticed", lambda: "rule notifications lost" in caplog.text)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "crestgate-rules")
        reader.close()
        assert not thread.is_alive()
        assert caplog.text.count("rule notifications lost") == 1


def test_forked_child_listens_by_itself() -> None:
    with RedisServer() as server, closing(open_rules(server.url)) as reader:
        counter = NotificationCounter()
        reader.listen(counter.notify)
        assert counter.wait()

        def child() -> None:
            assert counter.wait(), "it has subscribed"
            assert put(reader, "r", {}).version == 1
            assert counter.wait()
            assert changes_since(reader, 0).revision == 1
            reader.close()

        assert run_in_child(child) == 0
        assert counter.wait(), "its parent is still subscribed"
        assert len(subscribers(server)) == 1
        put(reader, "r", {})
        assert counter.wait()
