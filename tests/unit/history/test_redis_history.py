"""Usage history in Redis, and in a Redis Cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest

from crestgate.errors import StoreError
from crestgate.history.port import UsagePoint
from crestgate.history.redis import RedisHistory, open_redis_history
from crestgate.runtime.url_options import Options
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisServer
from unit.history.kit import DAY_US, MINUTE_US, NOON, HistoryKit, Opener

PAGE = Path(__file__).parents[3] / "docs" / "layouts.md"


def opener_at(url: str, stack: ExitStack) -> Opener:
    def open_one(prefix: str) -> RedisHistory:
        return stack.enter_context(closing(open_redis_history(Options(f"{url}?prefix={quote(prefix)}"))))

    return open_one


class TestRedisHistory(HistoryKit):
    @pytest.fixture
    def opener(self, redis_server: RedisServer | GivenServer) -> Iterator[Opener]:
        with ExitStack() as stack:
            yield opener_at(redis_server.url, stack)


class TestCluster(HistoryKit):
    @pytest.fixture
    def opener(self, redis_cluster: RedisCluster) -> Iterator[Opener]:
        with ExitStack() as stack:
            yield opener_at(redis_cluster.url, stack)


def test_every_key_has_a_time_to_live_and_a_sweep_leaves_none() -> None:
    with RedisServer() as server, closing(open_redis_history(Options(server.url))) as history:
        history.add(NOON, {"a": (1, 0, 0)}, {"s": (1, 0)})
        second = NOON // 1_000_000
        minutes = [f"{{cg}}:usage:60{end}" for end in ("", f":{second}", f":{second}:top")]
        hours = [f"{{cg}}:usage:3600{end}" for end in ("", f":{second}", f":{second}:top")]
        assert sorted(server.cli("KEYS", "*").split()) == sorted(minutes + hours)
        for keys, days in ((minutes, 30), (hours, 366)):
            for key in keys:
                assert (days - 1) * 86_400 < int(server.cli("TTL", key)) <= days * 86_400
        history.sweep(NOON + 31 * DAY_US)
        assert sorted(server.cli("KEYS", "*").split()) == sorted(hours)
        history.sweep(NOON + 367 * DAY_US)
        assert server.cli("KEYS", "*").split() == []


def test_hashes_of_subjects_are_bounded() -> None:
    with RedisServer() as server, closing(open_redis_history(Options(server.url))) as history:
        for group in range(4):
            history.add(NOON, {}, {f"{group}-{n}": (1, 1) for n in range(80)})
        for seconds in (60, 3600):
            assert server.cli("HLEN", f"{{cg}}:usage:{seconds}:{NOON // 1_000_000}:top").split() == ["200"]


def test_documented_redis_acl_is_sufficient() -> None:
    (line,) = re.findall(r"ACL SETUSER rules .*", PAGE.read_text())
    with RedisServer() as server:
        server.cli(*line.split())
        with closing(open_redis_history(Options(server.url.replace("//", "//rules:password@")))) as history:
            for group in range(2):
                history.add(NOON, {"a": (1, 0, 0)}, {f"{group}-{n}": (1, 0) for n in range(80)})
            assert history.usage(NOON, NOON + MINUTE_US, "minute", "a") == [UsagePoint(NOON, "a", 2, 0, 0)]
            assert history.usage(NOON, NOON + MINUTE_US, "hour") == [UsagePoint(NOON, "a", 2, 0, 0)]
            assert len(history.top(NOON, NOON + MINUTE_US)) == 10
            history.sweep(NOON + 400 * DAY_US)
            assert history.usage(NOON, NOON + MINUTE_US, "hour") == []


def test_server_unavailable() -> None:
    with RedisServer() as server:
        history = open_redis_history(Options(f"{server.url}?timeout_ms=500"))
    with pytest.raises(StoreError, match="is it running"):
        history.add(NOON, {"a": (1, 0, 0)}, {})
    history.close()
