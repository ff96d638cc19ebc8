"""What a URL says of a service; what cannot be meant is said in words, without the key."""

from __future__ import annotations

import pytest

from headgate.errors import ConfigError
from headgate.stores.options import masked
from headgate.stores.service.store import ServiceStore
from headgate.stores.sharded import ShardedStore
from headgate.stores.url import open_store
from headgate.testing import FakeClock


def opened(url: str) -> ServiceStore:
    store = open_store(url)
    assert isinstance(store, ServiceStore)
    store.close()
    return store


@pytest.mark.parametrize(
    ("url", "host", "port", "key", "title"),
    [
        ("headgate://limits", "limits", 8080, None, "Headgate at limits:8080"),
        ("headgate://limits:9000/", "limits", 9000, None, "Headgate at limits:9000"),
        ("headgate://:hg_a%2Fb@limits:9000", "limits", 9000, "hg_a/b", "Headgate at limits:9000"),
        ("HEADGATE://[::1]:80", "::1", 80, None, "Headgate at [::1]:80"),
        ("headgate://", "localhost", 8080, None, "Headgate at localhost:8080"),
    ],
)
def test_where_it_is_and_its_key(url: str, host: str, port: int, key: str | None, title: str) -> None:
    store = opened(url)
    assert (store.place.host, store.place.port, store.place.key, store.title) == (host, port, key, title)
    assert store.place.tls is None


def test_the_common_options() -> None:
    store = opened("headgate://limits?timeout_ms=40&pool_size=7")
    assert (store.timeout, store.lanes, store.connections.size) == (0.04, 7, 7)
    usual = opened("headgate://limits")
    assert (usual.timeout, usual.lanes) == (0.1, 4)


def test_tls_has_a_scheme_of_its_own() -> None:
    assert opened("headgates://limits").place.tls is not None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("headgate://hg_secret@limits", "write headgate://:KEY@host:8080, with the colon"),
        ("headgate://ann:hg_secret@limits", "knows keys, and no users"),
        ("headgate://limits/0", "a service has no path"),
        ("headgate://limits?prefix=shop", "prefix is the service's own"),
        ("headgate://limits?timeout=4", "unknown option 'timeout'"),
        ("headgate://limits?timeout_ms=0", "timeout_ms must be a whole number from 1"),
        ("headgate://limits:99999", "is not a server"),
        ("headgate://a,b", "one URL names one service"),
        ("headgate://limits?ssl_ca=ca.pem", "write headgates://"),
        ("headgates://limits?ssl_ca=/nowhere/ca.pem", "ssl_ca '/nowhere/ca.pem' cannot be read"),
        ("headgate://:hg_secret%0D%0AX:%20y@limits", "a key has letters"),
    ],
)
def test_what_cannot_be_meant(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as told:
        open_store(url)
    assert message in str(told.value)
    assert "secret" not in str(told.value)


def test_its_clock_is_the_services() -> None:
    with pytest.raises(ConfigError, match="goes by its own clock"):
        open_store("headgate://limits", FakeClock(0))


def test_a_scheme_that_is_nearly_right() -> None:
    with pytest.raises(ConfigError, match="did you mean headgate://"):
        open_store("headgat://limits")


@pytest.mark.parametrize("url", ["headgate://:hg_secret@limits", "headgate://hg_secret@limits"])
def test_a_key_is_never_shown(url: str) -> None:
    assert masked(url) == "headgate://:***@limits"


def test_a_list_of_services_is_sharded() -> None:
    store = open_store(["headgate://:hg_secret@a", "headgate://b:8080"])
    assert isinstance(store, ShardedStore)
    assert store.plan_of("gold") is None, "which of them would know it?"
    assert store.rules_for({"user": "42"}) is None
    store.close()
    with pytest.raises(ConfigError, match="is listed twice"):
        open_store(["headgate://:hg_secret@a", "headgate://A:8080"])
