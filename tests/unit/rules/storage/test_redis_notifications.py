"""Listening for changes of rules in Redis."""

from __future__ import annotations

import re
import threading
from contextlib import closing

import pytest

from crestgate.databases.redis_client import open_client
from crestgate.rules.storage.redis.notifications import Listener
from crestgate.runtime.url_options import Options
from servers.machine import until
from servers.proxy import CuttingProxy
from servers.redis import RedisServer
from unit.rules.storage.kit import PATIENCE, in_a_child, put
from unit.rules.storage.redis_rules import Bell, news, opened


def subscribers(server: RedisServer) -> list[str]:
    return re.findall(r"^id=(\d+) .* sub=1 ", server.cli("CLIENT", "LIST", "TYPE", "pubsub"), re.MULTILINE)


def test_a_listener_comes_back() -> None:
    with RedisServer() as server, closing(opened(server.url)) as reader:
        first, second = Bell(), Bell()
        reader.listen(first.ring)
        assert first.rung(), "something may have been missed before it listened"
        reader.listen(second.ring)
        server.cli("CLIENT", "KILL", "ID", *subscribers(server))
        assert first.rung()
        assert second.rung()
        server.cli("PUBLISH", reader.keys.channel, "1")
        assert first.rung()
        assert second.rung()
        server.kill()
        server.start()
        assert first.rung(), "the server may have lost something"
        server.cli("PUBLISH", reader.keys.channel, "1")
        assert first.rung()
        assert not first.rings.acquire(blocking=False), "once for each word"


def test_a_server_that_says_nothing_any_more_is_left(redis_server: RedisServer) -> None:
    with CuttingProxy(Options(redis_server.url).servers(6379)[0][1]) as proxy:
        options, bell = Options(f"redis://127.0.0.1:{proxy.port}/0"), Bell()
        listener = Listener(lambda: open_client(options, 5.0), "{quiet}:rules", quiet_steps=1)
        with closing(listener):
            listener.add(bell.ring)
            assert bell.rung()
            seen = proxy.accepted
            assert not bell.rings.acquire(timeout=1.0), "it asks, is answered, and stays"
            assert proxy.accepted == seen
            proxy.hang()
            until("it has tried another connection", lambda: proxy.accepted > seen)
            proxy.cut()
            proxy.pass_all()
            assert bell.rung()


def test_whoever_fails_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("not now")

    with RedisServer() as server, closing(opened(server.url)) as reader:
        bell = Bell()
        reader.listen(fail)
        reader.listen(bell.ring)  # perhaps after the subscription stood, which then rings for the other alone
        put(reader, "r", {})
        assert bell.rung()
        assert "rule change callback failed" in caplog.text


def test_a_listener_ends_with_its_repository() -> None:
    with RedisServer() as server:
        reader, bell = opened(server.url), Bell()
        reader.listen(bell.ring)
        assert bell.rung()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "crestgate-rules")
        reader.close()
        assert not thread.is_alive()
        until("nobody is subscribed", lambda: subscribers(server) == [])
        other, closed = opened(server.url), threading.Event()

        def close() -> None:
            other.close()
            closed.set()

        other.listen(close)
        assert closed.wait(PATIENCE), "also from within"


def test_a_listener_while_the_server_is_away_ends_too(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        reader, bell = opened(server.url), Bell()
        reader.listen(bell.ring)
        assert bell.rung()
        server.kill()
        until("it has noticed", lambda: "rule notifications lost" in caplog.text)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "crestgate-rules")
        reader.close()
        assert not thread.is_alive()
        assert caplog.text.count("rule notifications lost") == 1


def test_a_forked_child_listens_for_itself() -> None:
    with RedisServer() as server, closing(opened(server.url)) as reader:
        bell = Bell()
        reader.listen(bell.ring)
        assert bell.rung()

        def child() -> None:
            assert bell.rung(), "it has begun"
            assert put(reader, "r", {}).version == 1
            assert bell.rung()
            assert news(reader, 0).revision == 1
            reader.close()

        assert in_a_child(child) == 0
        assert bell.rung(), "and its parent goes on"
        assert len(subscribers(server)) == 1
        put(reader, "r", {})
        assert bell.rung()
