"""From a URL to a Redis store: where the servers are, how to log in, and whether to speak TLS."""

from __future__ import annotations

import re
import ssl

from headgate.stores.clock import Clock
from headgate.stores.options import Options
from headgate.stores.redis.cluster import DEFAULT_TAGS, SLOTS, ClusterTopology
from headgate.stores.redis.sentinel import SentinelTopology
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.store import RedisStore
from headgate.stores.redis.talk import Address, Topology
from headgate.stores.remote import DEFAULT_TIMEOUT_MS

__all__ = ["open_redis"]

PORT = 6379
SENTINEL_PORT = 26379
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


def open_redis(options: Options, clock: Clock | None) -> RedisStore:
    """The store of a `redis://`, `rediss://`, `valkey://`, `redis+unix://`, `+sentinel://` or `+cluster://` URL."""
    topology: Topology
    database = 0
    if options.username is not None and options.password is None:
        raise options.error("a user name goes with a password: redis://user:password@host:6379/0")
    if options.scheme.endswith("+sentinel"):
        options.allow("tls", "sentinel_username", "sentinel_password", *_TLS)
        name, _, rest = options.path.strip("/").partition("/")
        if not name:
            raise options.error("name the master: redis+sentinel://host:26379/mymaster/0")
        database = _database(options, rest)
        sentinels = [Address(host, port, sentinel=True) for host, port in options.places(SENTINEL_PORT)]
        topology = SentinelTopology(sentinels, name)
    elif options.scheme.endswith("+cluster"):
        options.allow("tls", "tags", *_TLS)
        if options.path not in ("", "/", "/0"):
            raise options.error("a cluster has no numbered databases: leave the path out")
        seeds = [Address(host, port) for host, port in options.places(PORT)]
        topology = ClusterTopology(seeds, options.whole("tags", DEFAULT_TAGS, SLOTS) or DEFAULT_TAGS)
    elif options.scheme.endswith("+unix"):
        options.allow("db")
        if options.place or len(options.path) < 2:
            raise options.error("name the socket, with three slashes: redis+unix:///path/to/redis.sock")
        database = _database(options, options.values.get("db", ""))
        topology = Topology(Address("", 0, path=options.path))
    else:
        options.allow(*_TLS)
        database = _database(options, options.path.strip("/"))
        places = options.places(PORT)
        if len(places) > 1:
            raise options.error("one server is named here; several are redis+sentinel:// or redis+cluster://")
        topology = Topology(Address(*places[0]))
    settings = Settings(
        options.username,
        options.password,
        database,
        options.values.get("sentinel_username"),
        options.values.get("sentinel_password"),
        _tls(options),
    )
    return RedisStore(
        topology,
        settings,
        prefix=options.prefix(),
        timeout_ms=options.timeout_ms(DEFAULT_TIMEOUT_MS),
        pool_size=options.pool_size(),
        clock=clock,
    )


def _database(options: Options, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,6}", text):
        raise options.error(f"the database is a number, as in redis://localhost:6379/0, not {text!r}")
    return int(text or 0)


def _tls(options: Options) -> ssl.SSLContext | None:
    wanted = options.scheme.partition("+")[0] in ("rediss", "valkeys") or options.yes("tls")
    if not wanted:
        given = [name for name in _TLS if name in options.values]
        if given:
            how = "tls=yes" if options.scheme.endswith(("+sentinel", "+cluster")) else "rediss://"
            raise options.error(f"{given[0]} goes with TLS: write {how}")
        return None
    required = options.values.get("ssl_cert_reqs", "required")
    if required not in ("required", "none"):
        raise options.error(f"ssl_cert_reqs must be required or none, not {required!r}")
    try:
        context = ssl.create_default_context(cafile=options.values.get("ssl_ca_certs"))
        if required == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate = options.values.get("ssl_certfile")
        if certificate is not None:
            context.load_cert_chain(certificate, options.values.get("ssl_keyfile"))
    except OSError as error:
        raise options.error(f"a certificate or key cannot be read: {error}") from None
    return context
