"""Open a Redis store by its URL."""

from __future__ import annotations

import ssl

from crestgate.runtime.clock import Clock
from crestgate.runtime.redis_url import RedisTls, RedisUrl, parse_redis_url
from crestgate.runtime.url_options import Options
from crestgate.stores.redis.cluster import DEFAULT_TAGS, SLOTS, ClusterTopology
from crestgate.stores.redis.protocol import ServerAddress, Topology
from crestgate.stores.redis.sentinel import SentinelTopology
from crestgate.stores.redis.settings import RedisSettings
from crestgate.stores.redis.store import RedisStore
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS

__all__ = ["open_redis"]


def open_redis(options: Options, clock: Clock | None) -> RedisStore:
    """The store of a `redis://`, `rediss://`, `valkey://`, `redis+unix://`, `+sentinel://` or `+cluster://` URL."""
    url = parse_redis_url(options)
    settings = RedisSettings(
        url.username,
        url.password,
        url.database,
        url.sentinel_username,
        url.sentinel_password,
        None if url.tls is None else _tls_context(options, url.tls),
    )
    return RedisStore(
        _topology(options, url),
        settings,
        prefix=options.prefix(),
        timeout_ms=options.timeout_ms(DEFAULT_TIMEOUT_MS),
        pool_size=options.pool_size(),
        clock=clock,
    )


def _topology(options: Options, url: RedisUrl) -> Topology:
    if url.topology == "unix":
        return Topology(ServerAddress("", 0, path=url.socket_path))
    if url.topology == "sentinel":
        return SentinelTopology([ServerAddress(*server, sentinel=True) for server in url.servers], url.master)
    if url.topology == "cluster":
        tags = options.integer("tags", DEFAULT_TAGS, SLOTS) or DEFAULT_TAGS
        return ClusterTopology([ServerAddress(*server) for server in url.servers], tags)
    return Topology(ServerAddress(*url.servers[0]))


def _tls_context(options: Options, tls: RedisTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise options.error(f"a certificate or key cannot be read: {error}") from None
    return context
