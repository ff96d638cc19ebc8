"""Parsing of store URLs: servers, names and passwords. No error shows a password, in any spelling of the URL."""

from __future__ import annotations

import pytest

from crestgate import ConfigError, Limiter
from crestgate.runtime.url_options import Options, redact_url
from crestgate.stores.factory import open_store

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user@localhost", "redis://user@localhost"),
        ("redis://:hunter2@localhost", "redis://:***@localhost"),
        ("redis://user:hunter2@localhost:6379/0", "redis://user:***@localhost:6379/0"),
        ("redis://user:hunter2@[::1]:6379/0", "redis://user:***@[::1]:6379/0"),
        ("redis://user:@localhost", "redis://user:***@localhost"),
        ("redis://user:hun@ter2@localhost", "redis://user:***@localhost"),
        ("redis://user:hun:ter2@localhost", "redis://user:***@localhost"),
        ("redis://user:hun/ter2@localhost/0", "redis://user:***@localhost/0"),
        ("redis://user:hun?ter2@localhost/0", "redis://user:***@localhost/0"),
        ("redis://user:hun#ter2@localhost/0", "redis://user:***@localhost/0"),
        ("redis+unix://:hunter2@/run/redis.sock", "redis+unix://:***@/run/redis.sock"),
        (
            "redis+sentinel://a:1,b:2/m/0?sentinel_password=hunter2",
            "redis+sentinel://a:1,b:2/m/0?sentinel_password=***",
        ),
        (
            "redis+sentinel://a/m?Sentinel_Password=hunter2&tls=yes",
            "redis+sentinel://a/m?Sentinel_Password=***&tls=yes",
        ),
        ("x://h?api_token=hunter2&client_secret=hunter2", "x://h?api_token=***&client_secret=***"),
        ("sqlite:///folder/a:b@c.db", "sqlite:///folder/a:b@c.db"),
        ("hunter2", "hunter2"),
    ],
)
def test_password_is_masked(url: str, masked: str) -> None:
    assert redact_url(url) == masked


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@localhost:port",
        "redis://user:hunter2@localhost:99999",
        "redis://user:hunter2@localhost:6379/zero",
        "redis://user:hunter2@localhost,other",
        "redis://user:hunter2@[::1",
        "redis://user:hunter2@localhost?unknown=1",
        "redis://user:hunter2@localhost?timeout_ms=x",
        "redis://user:hunter2@localhost?ssl_ca_certs=/nowhere",
        "rediss://user:hunter2@localhost?ssl_ca_certs=/nowhere",
        "rediss://user:hunter2@localhost?ssl_cert_reqs=perhaps",
        "redis+unix://:hunter2@host/redis.sock",
        "redis+unix://:hunter2@",
        "redis+cluster://:hunter2@localhost/3",
        "redis+cluster://:hunter2@localhost?tags=0",
        "redis+sentinel://:hunter2@localhost",
        "redis+sentinel://localhost/m?sentinel_password=hunter2&tls=perhaps",
        "unknown://user:hunter2@localhost",
        "redis://user:hunter2#@localhost",
        "redis://user:/hunter2@localhost",
        "redis://user:?hunter2@localhost",
        "redis://user:?hunter2=1@localhost",
        "redis://user:x?hunter2&hunter2@localhost",
        "redis://user:hunter2/@localhost",
        "redis://user:hunter2?x@localhost",
        "redis://:hunter2/x@localhost:6379/0",
        "redis+sentinel://user:x/hunter2@localhost/m/0",
        "redis+cluster://user:x/hunter2@localhost",
        "mysql://user:x/hunter2@localhost/db",
        "postgresql://user:x?hunter2@localhost/db",
    ],
)
def test_errors_show_no_password(url: str) -> None:
    for build in (open_store, Limiter):
        with pytest.raises(ConfigError) as raised:
            build(url)
        assert SECRET not in str(raised.value)
        assert SECRET not in repr(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    ("netloc", "servers"),
    [
        ("", [("localhost", 7)]),
        ("host", [("host", 7)]),
        ("host:6380", [("host", 6380)]),
        ("a,b:1,c:2", [("a", 7), ("b", 1), ("c", 2)]),
        ("[::1]", [("::1", 7)]),
        ("[::1]:6380", [("::1", 6380)]),
        ("[2001:db8::1]:1,[fe80::1%25eth0]:2,10.0.0.1:3", [("2001:db8::1", 1), ("fe80::1%eth0", 2), ("10.0.0.1", 3)]),
        ("user:secret@a:1,b:2", [("a", 1), ("b", 2)]),
        ("user:sec%40ret@[::1]:1", [("::1", 1)]),
    ],
)
def test_servers_are_parsed(netloc: str, servers: list[tuple[str, int]]) -> None:
    assert Options(f"redis://{netloc}/0").servers(7) == servers


@pytest.mark.parametrize(
    "netloc", ["a,", ",", "a:", "a:0", "a:65536", "a:1:2", "::1", "[::1", "a b", "[x]:1", "a:-1", "a:1x"]
)
def test_invalid_servers_are_refused(netloc: str) -> None:
    with pytest.raises(ConfigError):
        Options(f"redis://{netloc}/0").servers(7)


def test_user_and_password() -> None:
    both = Options("redis://us%2Fer:p%3Aa%40s%2Fs%25@host")
    assert (both.username, both.password) == ("us/er", "p:a@s/s%")
    assert (Options("redis://user@host").username, Options("redis://user@host").password) == ("user", None)
    assert (Options("redis://:x@host").username, Options("redis://:x@host").password) == (None, "x")
    assert Options("redis://user:@host").password == ""
    assert (Options("redis://host").username, Options("redis://host").password) == (None, None)


def test_options_are_read_by_name() -> None:
    options = Options("redis://host?prefix=a%3Ab%20c&timeout_ms=250&pool_size=3&tls=YES")
    assert (options.prefix(), options.timeout_ms(100), options.pool_size(), options.boolean("tls")) == (
        "a:b c",
        250,
        3,
        True,
    )
    assert Options("redis://host").prefix() == "cg"
    assert Options("redis://host").timeout_ms(100) == 100
    assert Options("redis://host").pool_size() is None
    assert not Options("redis://host").boolean("tls")
