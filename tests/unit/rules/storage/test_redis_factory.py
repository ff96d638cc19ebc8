"""Opening rules in Redis: addresses, passwords and permissions."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from crestgate.errors import ConfigError, StaleVersionError, StoreError
from crestgate.locks.factory import open_locks
from crestgate.rules.port import AuditQuery
from crestgate.rules.storage.redis.repository import open_redis_repository
from crestgate.runtime.url_options import Options
from servers.redis import RedisServer
from unit.rules.storage.kit import ALICE, ids, put
from unit.rules.storage.redis_rules import NotificationCounter, changes_since

PAGE = Path(__file__).parents[4] / "docs" / "layouts.md"


def test_tls_passwords_and_sockets() -> None:
    with RedisServer(tls=True, password="secret") as encrypted, RedisServer(unix=True, password="secret") as local:
        trusted = f"{encrypted.url}?ssl_ca_certs={encrypted.certificate}"
        for url in (trusted, local.url, local.unix_url):
            with closing(open_redis_repository(Options(url))) as rules:
                counter = NotificationCounter()
                rules.listen(counter.notify)
                assert counter.wait()
                put(rules, "r", {})
                assert counter.wait()
                assert "secret" not in rules.title
        for wrong in (encrypted.url, trusted.replace("secret", "wrong")):
            with pytest.raises(StoreError, match="Redis at") as raised:
                open_redis_repository(Options(wrong))
            assert "secret" not in str(raised.value)
            assert "wrong" not in str(raised.value).replace("WRONGPASS", "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("?cake=1", "unknown option 'cake'"),
        ("?prefix=", "prefix must not be empty"),
        ("?timeout_ms=0", "timeout_ms must be a whole number"),
        ("?pool_size=many", "pool_size must be a whole number"),
        ("cake", "the database is a number"),
    ],
)
def test_invalid_url(options: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_redis_repository(Options(f"redis://:secret@localhost/{options}"))


SCHEMES = ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/main"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_connection_refused(scheme: str) -> None:
    with RedisServer() as server:
        address = f"127.0.0.1:{server.port}"
    message = (
        "no Sentinel knows this master; are they running"
        if "sentinel" in scheme
        else "it refuses connections; is it running?"
    )
    with pytest.raises(StoreError, match=f"{address}: {re.escape(message)}"):
        open_redis_repository(Options(scheme.format(address)))
    with pytest.raises(StoreError, match=f"{address}: {re.escape(message)}"):
        open_locks(scheme.format(address))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_server_that_is_not_redis(scheme: str) -> None:
    class Greeter(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"did you call?\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(StoreError, match=f"{address}: what answers there is not a Redis$"):
            open_redis_repository(Options(scheme.format(address)))
        server.shutdown()


def test_documented_permissions_of_a_redis_user_suffice() -> None:
    (line,) = re.findall(r"ACL SETUSER rules .*", PAGE.read_text())
    with RedisServer() as server:
        server.cli(*line.split())
        with closing(open_redis_repository(Options(server.url.replace("//", "//rules:password@")))) as rules:
            counter = NotificationCounter()
            rules.listen(counter.notify)
            assert counter.wait()
            put(rules, "r", {}, unique_key="slot", expires_us=1)
            assert counter.wait()
            put(rules, "s", {}, unique_key="slot")
            server.cli("HSET", rules.keys.state, "swept_us", "0")
            put(rules, "t", {}, expires_us=1)
            server.cli("HSET", rules.keys.state, "swept_us", "0", "revision", "20000")
            put(rules, "s", {})
            with pytest.raises(StaleVersionError):
                put(rules, "s", {}, expected=1)
            rules.note(ALICE, "reset", "x")
            rules.purge()
            assert ids(rules.list("rule")) == ["s"]
            assert rules.get("rule", "s") is not None
            assert changes_since(rules, 0).complete is True
            assert changes_since(rules, 20000).complete is False
            assert len(rules.audit(AuditQuery())) == 7
