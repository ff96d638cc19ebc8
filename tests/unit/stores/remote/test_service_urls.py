"""URLs of a service: errors name the remedy, and never show the key."""

from __future__ import annotations

import pytest

from crestgate.errors import ConfigError
from crestgate.runtime.url_options import redact_url
from crestgate.stores.factory import open_store
from crestgate.stores.remote.store import ServiceStore
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock


def opened(url: str) -> ServiceStore:
    store = open_store(url)
    assert isinstance(store, ServiceStore)
    store.close()
    return store


@pytest.mark.parametrize(
    ("url", "host", "port", "key", "title"),
    [
        ("crestgate://limits", "limits", 8080, None, "Crestgate at limits:8080"),
        ("crestgate://limits:9000/", "limits", 9000, None, "Crestgate at limits:9000"),
        ("crestgate://:cg_a%2Fb@limits:9000", "limits", 9000, "cg_a/b", "Crestgate at limits:9000"),
        ("CRESTGATE://[::1]:80", "::1", 80, None, "Crestgate at [::1]:80"),
        ("crestgate://", "localhost", 8080, None, "Crestgate at localhost:8080"),
    ],
)
def test_address_and_key(url: str, host: str, port: int, key: str | None, title: str) -> None:
    store = opened(url)
    assert (store.address.host, store.address.port, store.address.key, store.title) == (host, port, key, title)
    assert store.address.tls is None


def test_common_options() -> None:
    store = opened("crestgate://limits?timeout_ms=40&pool_size=7")
    assert (store.timeout, store.max_concurrent_batches, store.connections.size) == (0.04, 7, 7)
    default = opened("crestgate://limits")
    assert (default.timeout, default.max_concurrent_batches) == (0.1, 4)


def test_crestgates_scheme_uses_tls() -> None:
    assert opened("crestgates://limits").address.tls is not None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("crestgate://cg_secret@limits", "write crestgate://:KEY@host:8080, with the colon"),
        ("crestgate://ann:cg_secret@limits", "knows keys, and no users"),
        ("crestgate://limits/0", "a service has no path"),
        ("crestgate://limits?prefix=shop", "prefix is the service's own"),
        ("crestgate://limits?timeout=4", "unknown option 'timeout'"),
        ("crestgate://limits?timeout_ms=0", "timeout_ms must be a whole number from 1"),
        ("crestgate://limits:99999", "is not a server"),
        ("crestgate://a,b", "one URL names one service"),
        ("crestgate://limits?ssl_ca=ca.pem", "write crestgates://"),
        ("crestgates://limits?ssl_ca=/nowhere/ca.pem", "ssl_ca '/nowhere/ca.pem' cannot be read"),
        ("crestgate://:cg_secret%0D%0AX:%20y@limits", "a key has letters"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_clock_is_rejected() -> None:
    with pytest.raises(ConfigError, match="goes by its own clock"):
        open_store("crestgate://limits", FakeClock(0))


def test_misspelt_scheme_has_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean crestgate://"):
        open_store("crestgat://limits")


@pytest.mark.parametrize("url", ["crestgate://:cg_secret@limits", "crestgate://cg_secret@limits"])
def test_key_is_never_shown(url: str) -> None:
    assert redact_url(url) == "crestgate://:***@limits"


def test_list_of_services_is_sharded() -> None:
    store = open_store(["crestgate://:cg_secret@a", "crestgate://b:8080"])
    assert isinstance(store, ShardedStore)
    assert store.plan_of("gold") is None, "no single service can answer"
    assert store.rules_for({"user": "42"}) is None
    store.close()
    with pytest.raises(ConfigError, match="is listed twice"):
        open_store(["crestgate://:cg_secret@a", "crestgate://A:8080"])
