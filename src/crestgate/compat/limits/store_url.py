"""Translates the storage URLs and options of `limits` into Crestgate's store URLs."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, redact_url

__all__ = ["DEFAULT_TIMEOUT_MS", "KEY_PREFIX", "STORE_SCHEMES", "from_limits", "redis_schemes", "unsupported"]

KEY_PREFIX = "LIMITS"
DEFAULT_TIMEOUT_MS = 1000
"""Not Crestgate's 100 ms: a storage of `limits` raises, where a limiter has a failure policy."""
STORE_SCHEMES = ("shared", *SQL_SCHEMES)
"""Stores that `limits` does not have."""

_NO_EFFECT = ("use_replicas", "implementation")
"""A decision is always read from the master, on connections of Crestgate's own."""
_OWN = ("prefix", "timeout_ms", "pool_size", "tls", "tags", "max_keys", "sentinel_username", "sentinel_password")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_REDIS = (
    *("key_prefix", "socket_timeout", "socket_connect_timeout", "max_connections", "username", "password", "db"),
    *("ssl", "service_name", "sentinel_kwargs", "startup_nodes"),
)
_INSTEAD = (
    "use memory:// (one process), shared://name (all processes of this machine, without a server), redis://host:6379, "
    "or a database: postgresql://, mysql:// or sqlite:///file"
)


def from_limits(uri: str, **options: object) -> str:
    """Crestgate's store URL for a storage URL of `limits` and the options of its storage.

    >>> from_limits("redis://:secret@cache:6379/1", key_prefix="shop", socket_timeout=0.25)
    'redis://:secret@cache:6379/1?prefix=shop&timeout_ms=250'
    >>> from_limits("async+redis+sentinel://sentinel:26379", service_name="mymaster")
    'redis+sentinel://sentinel:26379/mymaster?prefix=LIMITS&timeout_ms=1000'
    >>> from_limits("memory://")
    'memory://'

    The counters themselves are not carried over: `limits` stores them in another form.
    """
    scheme = urlsplit(uri).scheme.removeprefix("async+")
    if unsupported(uri) is not None:
        raise ConfigurationError(unsupported(uri))
    given: dict[str, Any] = {**_query_of(uri), **options}
    if scheme == "memory":
        _refuse_unknown(uri, given, (*_OWN, *_TLS, *_REDIS, *_NO_EFFECT))
        return "memory://" + (f"?max_keys={given['max_keys']}" if "max_keys" in given else "")
    if scheme in REDIS_SCHEMES:
        _refuse_unknown(uri, given, (*_OWN, *_TLS, *_REDIS, *_NO_EFFECT))
        return _redis_url(uri, scheme, given)
    if scheme in STORE_SCHEMES:
        url, _, _ = uri.removeprefix("async+").partition("?")
        if "key_prefix" in given:
            given["prefix"] = given.pop("key_prefix")
        query = {"prefix": KEY_PREFIX, "timeout_ms": DEFAULT_TIMEOUT_MS, **given}
        return f"{url}?{urlencode(query)}"
    raise ConfigurationError(f"unknown storage URL {redact_url(uri)!r}: {_INSTEAD}")


def redis_schemes(*topologies: str, before: str = "") -> list[str]:
    """The schemes of these topologies of Redis and Valkey, for the registry of storages."""
    return [f"{before}{scheme}" for scheme in REDIS_SCHEMES if scheme.partition("+")[2] in topologies]


def unsupported(uri: str) -> str | None:
    """Why there is no store of this URL, if `limits` has one; and what to use instead."""
    scheme = urlsplit(uri).scheme.removeprefix("async+")
    family = scheme.partition("+")[0]
    reasons = {
        "memcached": "memcached cannot decide and count in one atomic step, so it admits too many",
        "mongodb": "Crestgate has no store in MongoDB",
    }
    return f"{redact_url(uri)!r} is not supported: {reasons[family]}; {_INSTEAD}" if family in reasons else None


def _query_of(uri: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))


def _refuse_unknown(uri: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in given:
        if name == "connection_pool":
            raise ConfigurationError(
                f"storage {redact_url(uri)!r}: connection_pool cannot be used, because Crestgate opens connections of "
                "its own: name the server in the URL, such as redis://:password@host:6379/0, and the number of "
                "connections as max_connections"
            )
        if name not in known:
            raise ConfigurationError(
                f"storage {redact_url(uri)!r}: unknown option {name!r}; there are {', '.join(sorted(known))}"
            )


def _redis_url(uri: str, scheme: str, given: dict[str, Any]) -> str:
    parts = urlsplit(uri)
    login, _, servers = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    if "username" in given:
        username = quote(given["username"] or "", safe="")
    if "password" in given:
        password = quote(given["password"] or "", safe="")
    if given.get("startup_nodes"):
        servers = ",".join(f"{node.host}:{node.port}" for node in given["startup_nodes"])
    _, _, topology = scheme.partition("+")
    query = {"prefix": given.get("key_prefix", KEY_PREFIX), "timeout_ms": _timeout_ms(given)}
    path = parts.path.rstrip("/")
    database = given.get("db")
    if topology == "sentinel":
        if len(path) < 2 and given.get("service_name"):
            path = f"/{quote(given['service_name'], safe='')}"
        # What logs in to the servers logs in to the Sentinels, too, unless sentinel_kwargs say otherwise.
        sentinel = {
            "username": unquote(username),
            "password": unquote(password),
            **(given.get("sentinel_kwargs") or {}),
        }
        _refuse_unknown(uri, sentinel, ("username", "password"))
        query |= {f"sentinel_{name}": value for name, value in sentinel.items() if value}
    if database is not None and topology == "unix":
        query["db"] = database
    elif database is not None and path.count("/") < (2 if topology == "sentinel" else 1):
        path += f"/{database}"  # one in the URL itself wins, as in redis-py
    if "max_connections" in given:
        query["pool_size"] = min(int(given["max_connections"]), 10_000)
    if str(given.get("ssl", "")).lower() in ("true", "1", "yes"):
        if topology:
            query["tls"] = "yes"
        else:
            scheme = {"redis": "rediss", "valkey": "valkeys"}.get(scheme, scheme)
    query |= {name: _tls_value(name, given[name]) for name in _TLS if given.get(name) is not None}
    query |= {name: given[name] for name in _OWN if name in given}
    login = f"{username}:{password}@" if password or username else ""
    return f"{scheme}://{login}{servers.replace(' ', '')}{path}?{urlencode(query)}"


def _timeout_ms(given: Mapping[str, Any]) -> int:
    """The deadline of a decision, connecting included."""
    seconds = given.get("socket_timeout") or given.get("socket_connect_timeout")
    return DEFAULT_TIMEOUT_MS if seconds is None else max(1, round(float(seconds) * 1000))


def _tls_value(name: str, value: object) -> object:
    if name == "ssl_cert_reqs" and not isinstance(value, str):
        return "none" if value == ssl.CERT_NONE else "required"
    return "required" if name == "ssl_cert_reqs" and value == "optional" else value
