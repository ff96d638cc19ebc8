"""A rule store in Redis with invalid replies: reading is a StoreError, and listening continues."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from crestgate import StoreError
from crestgate.rules.storage.redis.repository import RedisRepository, open_redis_repository
from crestgate.runtime.url_options import Options
from security.hostile_server import HostileServer

GIVE_UP = 60.0


def greeted(received: bytes) -> bytes:
    """The replies to the first commands of a redis-py client."""
    return b"+OK\r\n" * received.count(b"SETINFO") + b"+PONG\r\n" * received.count(b"PING")


def opened(server: HostileServer) -> RedisRepository:
    return open_redis_repository(Options(f"redis://127.0.0.1:{server.port}?timeout_ms=20000"))


BROKEN = (
    b":1\r\n",
    b"+OK\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*3\r\n:1\r\n:1\r\n:1\r\n",
    b"*3\r\n$1\r\n1\r\n$1\r\nx\r\n$-1\r\n",
    b"*5\r\n$1\r\n1\r\n:7\r\n$1\r\nn\r\n:1\r\n:1\r\n",
    b"*5\r\n$1\r\n1\r\n:7\r\n$1\r\nn\r\n:1\r\n*1\r\n$1\r\na\r\n",
    b"*5\r\n$1\r\n1\r\n:7\r\n$1\r\nn\r\n:1\r\n*2\r\n:1\r\n:1\r\n",
    b"*2\r\n$1\r\n1\r\n:5\r\n",
    b"*2\r\n$1\r\n1\r\n*1\r\n$1\r\na\r\n",
)


@pytest.mark.parametrize("reply", BROKEN)
def test_broken_reply_is_a_store_error(reply: bytes) -> None:
    with HostileServer(lambda received: [reply if b"EVAL" in received else greeted(received), b""]) as server:
        rules = opened(server)
        with pytest.raises(StoreError):
            rules.changes(0)
        with pytest.raises(StoreError):
            rules.list("rule")
        rules.close()


@pytest.mark.parametrize("first", [b":1\r\n", b"*0\r\n", b"+OK\r\n", b"$-1\r\n", b"?1\r\n"])
def test_listening_survives_invalid_replies(first: bytes) -> None:
    """A listener is notified once the server sends valid replies again."""
    subscriptions = 0

    def answer(received: bytes) -> Iterable[bytes]:
        nonlocal subscriptions
        if b"SUBSCRIBE" not in received:
            return [greeted(received), b""]
        subscriptions += 1
        good = b"*3\r\n$9\r\nsubscribe\r\n$10\r\n{cg}:rules\r\n:1\r\n"
        return [greeted(received) + (first if subscriptions == 1 else good), b""]

    with HostileServer(answer) as server:
        rules = opened(server)
        woken = threading.Event()
        rules.listen(woken.set)
        assert woken.wait(GIVE_UP)
        rules.close()
    assert subscriptions > 1
