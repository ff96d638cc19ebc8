"""Grammar of Redis and Valkey URLs: servers, login, database and TLS.

redis://user:password@host:6379/0                  one server; rediss:// with TLS
redis+unix:///path/to/redis.sock?db=0              a Unix socket
redis+sentinel://host:26379,host/mymaster/0        the master that Sentinels name
redis+cluster://host:6379,host                     a cluster, by some of its nodes
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from crestgate.runtime.url_options import Options

__all__ = ["RedisTls", "RedisUrl", "parse_redis_url"]

PORT = 6379
SENTINEL_PORT = 26379
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_OPTIONS = {
    "": _TLS_OPTIONS,
    "unix": ("db",),
    "sentinel": ("tls", "sentinel_username", "sentinel_password", *_TLS_OPTIONS),
    "cluster": ("tls", "tags", *_TLS_OPTIONS),
}


@dataclass(frozen=True, slots=True)
class RedisTls:
    """Files in PEM form; None for the system's authorities, and for no client certificate."""

    ca_file: str | None
    certificate: str | None
    key: str | None
    verify: bool


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The parts of a Redis URL. Passwords are not shown."""

    topology: str
    """'' for one server, 'unix', 'sentinel' or 'cluster'."""
    servers: tuple[tuple[str, int], ...] = ()
    """Host and port of the server, the Sentinels or some nodes; none for a Unix socket."""
    socket_path: str = ""
    master: str = ""
    """The name that the Sentinels know it by."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: RedisTls | None = None


def parse_redis_url(options: Options) -> RedisUrl:
    """ConfigError for what is not such a URL."""
    _, _, topology = options.scheme.partition("+")
    options.allow(*_OPTIONS[topology])
    if options.username is not None and options.password is None:
        raise options.error("a user name is only valid with a password: redis://user:password@host:6379/0")
    servers: list[tuple[str, int]] = []
    socket_path = master = ""
    database = options.path.strip("/")
    if topology == "unix":
        if options.server_list or len(options.path) < 2:
            raise options.error("name the socket, with three slashes: redis+unix:///path/to/redis.sock")
        if not _has_unix_sockets():
            raise options.error("this system has no Unix sockets: write redis://host:6379/0")
        socket_path, database = options.path, options.values.get("db", "")
    elif topology == "sentinel":
        master, _, database = database.partition("/")
        if not master:
            raise options.error("name the master: redis+sentinel://host:26379/mymaster/0")
        servers = options.servers(SENTINEL_PORT)
    else:
        servers = options.servers(PORT)
        if topology == "cluster" and database not in ("", "0"):
            raise options.error("a cluster has no numbered databases: leave the path out")
        if topology == "" and len(servers) > 1:
            raise options.error("one server is named here; several are redis+sentinel:// or redis+cluster://")
    return RedisUrl(
        topology,
        tuple(servers),
        socket_path,
        master,
        _database_number(options, database),
        options.username,
        options.password,
        options.values.get("sentinel_username"),
        options.values.get("sentinel_password"),
        _tls(options, topology),
    )


def _has_unix_sockets() -> bool:
    import socket  # not above: URLs are parsed where nothing is connected to

    return hasattr(socket, "AF_UNIX")


def _database_number(options: Options, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,6}", text):
        raise options.error(f"the database is a number, as in redis://localhost:6379/0, not {text!r}")
    return int(text or 0)


def _tls(options: Options, topology: str) -> RedisTls | None:
    ca_file, certificate, key, verify = (options.values.get(name) for name in _TLS_OPTIONS)
    if options.scheme.partition("+")[0] not in ("rediss", "valkeys") and not options.boolean("tls"):
        given = [name for name in _TLS_OPTIONS if name in options.values]
        if given:
            remedy = "tls=yes" if topology in ("sentinel", "cluster") else "rediss://"
            raise options.error(f"{given[0]} is only valid with TLS: write {remedy}")
        return None
    if verify not in (None, "required", "none"):
        raise options.error(f"ssl_cert_reqs must be required or none, not {verify!r}")
    return RedisTls(ca_file, certificate, key, verify != "none")
