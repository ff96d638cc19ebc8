"""From a URL to a client of redis-py: the same URLs and options as the Redis store's.

Nothing is repeated by itself (redis-py would, ten times): a transaction whose answer was lost may have been carried
out. Every answer is waited for a bounded time.
"""

from __future__ import annotations

import re
from typing import Any

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from headgate.errors import StoreError
from headgate.locks.redis_pipeline import FAILURES, told
from headgate.stores.options import Options

__all__ = ["open_client"]

PORT = 6379
SENTINEL_PORT = 26379
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


def open_client(options: Options, timeout: float) -> tuple[Redis | RedisCluster, str]:
    """The client, and what to call the place in errors. Only a cluster is asked anything yet."""
    _, _, topology = options.scheme.partition("+")
    if topology == "sentinel":
        return _sentinel(options, timeout)
    if topology == "cluster":
        return _cluster(options, timeout)
    given = _common(options, timeout)
    if topology == "unix":
        options.allow("db")
        if options.place or len(options.path) < 2:
            raise options.error("name the socket, with three slashes: redis+unix:///path/to/redis.sock")
        database = _database(options, options.values.get("db", ""))
        return Redis(unix_socket_path=options.path, db=database, **given), f"Redis at {options.path}"
    options.allow(*_TLS)
    (host, port), *others = options.places(PORT)
    if others:
        raise options.error("one server is named here; several are redis+sentinel:// or redis+cluster://")
    database = _database(options, options.path.strip("/"))
    return Redis(host=host, port=port, db=database, **given), f"Redis at {_shown(host, port)}"


def _sentinel(options: Options, timeout: float) -> tuple[Redis, str]:
    options.allow("tls", "sentinel_username", "sentinel_password", *_TLS)
    name, _, database = options.path.strip("/").partition("/")
    if not name:
        raise options.error("name the master: redis+sentinel://host:26379/mymaster/0")
    given = _common(options, timeout)
    login = {"username": options.values.get("sentinel_username"), "password": options.values.get("sentinel_password")}
    places = options.places(SENTINEL_PORT)
    watched: Any = Sentinel  # redis-py has no types here
    sentinels = watched(places, sentinel_kwargs={**given, **login}, **given)
    master = sentinels.master_for(name, db=_database(options, database))
    return master, f"Redis {name!r} of the Sentinels {', '.join(_shown(*place) for place in places)}"


def _cluster(options: Options, timeout: float) -> tuple[RedisCluster, str]:
    options.allow("tls", "tags", *_TLS)
    if options.path not in ("", "/", "/0"):
        raise options.error("a cluster has no numbered databases: leave the path out")
    places = options.places(PORT)
    address = f"Redis Cluster at {', '.join(_shown(*place) for place in places)}"
    try:
        nodes = [ClusterNode(host, port) for host, port in places]  # type: ignore[no-untyped-call]  # redis-py's
        return RedisCluster(startup_nodes=nodes, **_common(options, timeout)), address
    except FAILURES as error:
        raise StoreError(f"{address}: {told(error)}") from None


def _common(options: Options, timeout: float) -> dict[str, Any]:
    given: dict[str, Any] = {
        "username": options.username,
        "password": options.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # with 3, redis-py 8.0 does not notice that an idle connection was cut
    }
    if options.pool_size() is not None:
        given["max_connections"] = options.pool_size()
    tls = {name: options.values[name] for name in _TLS if name in options.values}
    if options.scheme.partition("+")[0] in ("rediss", "valkeys") or options.yes("tls"):
        if tls.get("ssl_cert_reqs", "required") not in ("required", "none"):
            raise options.error(f"ssl_cert_reqs must be required or none, not {tls['ssl_cert_reqs']!r}")
        checks_name = tls.get("ssl_cert_reqs") != "none"
        return {**given, **tls, "ssl": True, "ssl_check_hostname": checks_name}
    if tls:
        raise options.error(f"{next(iter(tls))} goes with TLS: write rediss://, or tls=yes")
    return given


def _database(options: Options, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,6}", text):
        raise options.error(f"the database is a number, as in redis://localhost:6379/0, not {text!r}")
    return int(text or 0)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
