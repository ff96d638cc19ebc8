"""redis-py clients for the URLs of Redis stores, with helpers for errors and for pipelines in a cluster.

redis-py's automatic retries (ten by default) are disabled: a transaction whose reply was lost may have been executed.
Every wait for a reply has a timeout.
"""

from __future__ import annotations

from typing import Any

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisClusterException, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from crestgate.errors import StoreError
from crestgate.runtime.redis_url import RedisUrl, parse_redis_url
from crestgate.runtime.url_options import Options
from crestgate.stores.redis.reply import NOT_REDIS
from crestgate.stores.redis.sync_client import describe_connection_error

__all__ = ["FAILURES", "describe_error", "node_for_key", "open_client", "release_pipeline"]

FAILURES = (RedisError, RedisClusterException, OSError)
"""Exceptions that redis-py raises."""


def open_client(options: Options, timeout: float) -> tuple[Redis | RedisCluster, str]:
    """The client, and its address for error messages. Only a cluster is connected to already."""
    url = parse_redis_url(options)
    arguments = _arguments(url, options.pool_size(), timeout)
    if url.topology == "unix":
        client = Redis(unix_socket_path=url.socket_path, db=url.database, **arguments)
        return client, f"Redis at {url.socket_path}"
    servers = ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in url.servers)
    if url.topology == "sentinel":
        login = {"username": url.sentinel_username, "password": url.sentinel_password}
        untyped: Any = Sentinel  # redis-py has no types here
        sentinels = untyped(list(url.servers), sentinel_kwargs={**arguments, **login}, **arguments)
        master = sentinels.master_for(url.master, db=url.database)
        return master, f"Redis {url.master!r} of the Sentinels {servers}"
    if url.topology == "cluster":
        return _cluster(url, arguments, f"Redis Cluster at {servers}")
    ((host, port),) = url.servers
    return Redis(host=host, port=port, db=url.database, **arguments), f"Redis at {servers}"


def node_for_key(client: Any, key: str) -> Any:
    """The client of the node that has the key's slot: a cluster's own pipeline has no transactions."""
    if isinstance(client, RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(key))  # type: ignore[no-untyped-call]  # redis-py's
    return client


def release_pipeline(pipeline: Pipeline) -> None:
    """Return its connection to the pool without watched keys."""
    try:
        pipeline.reset()
    except FAILURES:
        pipeline.watching = False  # the connection that watched is closed by now
        pipeline.reset()


def describe_error(error: BaseException) -> str:
    """The same message as the Redis store's for this error."""
    if isinstance(error, MasterNotFoundError):
        return "no Sentinel knows this master; are they running, and is the name right?"
    cause: BaseException | None = error
    while isinstance(cause, RedisConnectionError | RedisClusterException | InvalidResponse):
        if isinstance(cause, InvalidResponse):
            return NOT_REDIS
        cause = cause.__cause__ or cause.__context__
    return describe_connection_error(cause) if isinstance(cause, ConnectionRefusedError) else str(error)


def _cluster(url: RedisUrl, arguments: dict[str, Any], address: str) -> tuple[RedisCluster, str]:
    try:
        nodes = [ClusterNode(host, port) for host, port in url.servers]  # type: ignore[no-untyped-call]  # redis-py's
        return RedisCluster(startup_nodes=nodes, **arguments), address
    except FAILURES as error:
        raise StoreError(f"{address}: {describe_error(error)}") from None


def _arguments(url: RedisUrl, pool_size: int | None, timeout: float) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "username": url.username,
        "password": url.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # with 3, redis-py 8.0 does not notice that an idle connection was cut
    }
    if pool_size is not None:
        arguments["max_connections"] = pool_size
    if url.tls is not None:
        files = {"ssl_ca_certs": url.tls.ca_file, "ssl_certfile": url.tls.certificate, "ssl_keyfile": url.tls.key}
        arguments.update({name: path for name, path in files.items() if path is not None})
        arguments.update(
            ssl=True,
            ssl_cert_reqs="required" if url.tls.verify else "none",
            ssl_check_hostname=url.tls.verify,
        )
    return arguments
