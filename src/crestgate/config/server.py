"""Settings of the server: addresses, workers, TLS, proxies and access.

server:
  http: 127.0.0.1:8080
  grpc: 127.0.0.1:8081
  resp: 127.0.0.1:6380                      # the protocol of Redis; default: off
  workers: 4
  tls: {certificate: server.pem, key: server.key, grpc_client_ca: clients.pem}
  trusted_proxies: [10.0.0.0/8]             # or the number of proxies, such as 2
  checks: key                               # or open; default: open on loopback only
  admin_from: [10.1.0.0/16]                 # networks that may call the admin API; default: any
  allowed_hosts: [gate.example.com]         # names in Host: further ones on loopback, elsewhere the only ones
  allowed_origins: [https://app.example.com]  # web pages of other sites that may call the service
  limits: {reads: 1000/minute, writes: 100/minute, checks: 100000/second, failed_logins: 10/minute}
  insecure: false                           # listen beyond loopback without keys
  shutdown_seconds: 10                      # for requests in flight
  ready_without_store: true                 # /readyz without stores; default: unless on_store_error: closed
  store_wait_seconds: 60                    # at startup, for stores that are unreachable; default: 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from crestgate.config.hosts import read_allowed_hosts, read_allowed_origins
from crestgate.config.section import field_names, section
from crestgate.config.tls import Tls, read_tls
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.http.client_address import MAX_HOPS, UNIX, read_network, read_proxies
from crestgate.loader.fields import Fields, describe

__all__ = ["Address", "Checks", "ServerLimits", "ServerSettings", "Tls", "read_server"]

Checks = Literal["open", "key"]
CHECKS: tuple[Checks, ...] = ("open", "key")
MAX_WORKERS = 512
MIN_SHUTDOWN, MAX_SHUTDOWN = 0.1, 3600
MIN_STORE_WAIT, MAX_STORE_WAIT = 1, 3600
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%[\w.~-]+)?)\]|([^\[\]:/@\s]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


RESP_EXAMPLE = Address("127.0.0.1", 6380)
"""Next to the port of Redis: in examples and errors. There is no default."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the service on its own callers: admin calls per key, checks per node, failed log-ins per address.

    They are sliding windows, unless another algorithm is named, so that 100 a minute never allow 150 in the first.
    """

    reads: Limit = field(default=Limit(1000, 60, algorithm="sliding_window_log"))
    writes: Limit = field(default=Limit(100, 60, algorithm="sliding_window_log"))
    checks: Limit = field(default=Limit(100_000, 1, algorithm="sliding_window_counter"))
    failed_logins: Limit = field(default=Limit(10, 60, algorithm="sliding_window_log"))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how the service listens."""

    http: Address = Address("127.0.0.1", 8080)
    grpc: Address = Address("127.0.0.1", 8081)
    resp: Address | None = None
    """None: no RESP listener."""
    workers: int = 1
    tls: Tls | None = None
    trusted_proxies: tuple[str, ...] | int = ()
    """Networks, or a number of hops, as for TrustedProxies."""
    checks: Checks | None = None
    """None: open on loopback, with a key elsewhere."""
    admin_from: tuple[str, ...] = ()
    """Networks; empty: anywhere."""
    allowed_hosts: tuple[str, ...] = ()
    """Allowed values of `Host`, or `*.name`; empty: loopback names on loopback, any elsewhere."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the service from another site."""
    limits: ServerLimits = ServerLimits()
    insecure: bool = False
    shutdown_seconds: float = 10.0
    ready_without_store: bool | None = None
    """Whether /readyz returns 200 while a store is unreachable. None: see observability/health.py."""
    store_wait_seconds: float = 0.0
    """How long a start waits for stores that are unreachable."""


def read_server(fields: Fields, name: str) -> ServerSettings:
    """The section, with its defaults."""
    default = ServerSettings()
    inner = section(fields, name, field_names(ServerSettings))
    server = ServerSettings(
        _address(inner, "http", default.http),
        _address(inner, "grpc", default.grpc),
        _address(inner, "resp", RESP_EXAMPLE) if inner.has("resp") else None,
        inner.integer("workers", default.workers, minimum=1, maximum=MAX_WORKERS),
        read_tls(inner, "tls"),
        _proxies(inner, "trusted_proxies"),
        inner.choice("checks", CHECKS),
        _networks(inner, "admin_from"),
        read_allowed_hosts(inner, "allowed_hosts"),
        read_allowed_origins(inner, "allowed_origins"),
        _server_limits(inner, "limits"),
        inner.boolean("insecure", default.insecure),
        float(inner.seconds("shutdown_seconds", default.shutdown_seconds, minimum=MIN_SHUTDOWN, maximum=MAX_SHUTDOWN)),
        inner.boolean("ready_without_store", False) if inner.has("ready_without_store") else None,
        _store_wait(inner, "store_wait_seconds"),
    )
    _report_same_addresses(inner, server)
    return server


def _store_wait(fields: Fields, name: str) -> float:
    if fields.values.get(name) == 0 and not isinstance(fields.values[name], bool):
        return 0.0
    return float(fields.seconds(name, 0.0, minimum=MIN_STORE_WAIT, maximum=MAX_STORE_WAIT))


def _report_same_addresses(fields: Fields, server: ServerSettings) -> None:
    if server.http == server.grpc and server.http.port:
        field, other = ("grpc", "http") if fields.has("grpc") else ("http", "grpc")
        fields.report(field, f"is also the address of server.{other}: write another port than {server.http.port}")
    elif server.resp is not None and server.resp.port and server.resp in (server.http, server.grpc):
        other = "http" if server.resp == server.http else "grpc"
        fields.report("resp", f"is also the address of server.{other}: write another port than {server.resp.port}")


def _address(fields: Fields, name: str, default: Address) -> Address:
    value: Any = fields.values.get(name)
    if value is None:
        return default
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        if int(match[3]) < 65536:
            return Address(match[1] or match[2], int(match[3]))
        fields.report(name, f"has the port {match[3]}: write one from 1 to 65535, or 0 for any free port")
        return default
    port = str(value).strip(":")
    example = f"127.0.0.1:{port}" if re.fullmatch("[0-9]{1,4}", port) else str(default)
    fields.report(name, f"must be host:port or [address]:port, such as {example!r}, not {describe(value)}")
    return default


def _server_limits(fields: Fields, name: str) -> ServerLimits:
    default = ServerLimits()
    inner = section(fields, name, field_names(ServerLimits))
    return ServerLimits(*(_server_limit(inner, limit, getattr(default, limit)) for limit in field_names(ServerLimits)))


def _server_limit(fields: Fields, name: str, default: Limit) -> Limit:
    value = fields.values.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        fields.report(name, f"must be a limit such as {_short(default)}, not {describe(value)}")
        return default
    try:
        limit = Limit.parse(value)
    except ConfigError as error:
        fields.report(name, str(error))
        return default
    if not limit.count:
        fields.report(name, f"would deny every request: write a count above 0, such as {_short(default)}")
        return default
    if limit.burst is None and limit.unit is None and "using" not in value.lower():
        return Limit(limit.count, limit.period, algorithm=default.algorithm)
    return limit


def _short(limit: Limit) -> str:
    """The notation of a limit without its algorithm: `100/minute`."""
    return str(limit).partition(" using ")[0]


def _proxies(fields: Fields, name: str) -> tuple[str, ...] | int:
    value = fields.values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MAX_HOPS:
            return value
        fields.report(
            name, f"must be the number of proxies, from 1 to {MAX_HOPS}, or their networks, not {describe(value)}"
        )
        return ()
    if isinstance(value, str) and value.isdecimal() and len(value) <= 3:
        fields.report(name, f"is not a network: for a number of proxies write {int(value)}, without quotes")
        return ()
    return _networks(fields, name, trusted=True)


def _networks(fields: Fields, name: str, *, trusted: bool = False) -> tuple[str, ...]:
    """A network, or a list of them."""
    value = fields.values.get(name)
    if value is None:
        return ()
    if isinstance(value, list):
        entries = [(f"{fields.path(name)}[{position}]", item) for position, item in enumerate(value)]
        expected = "a network such as 10.0.0.0/8"
    else:
        entries = [(fields.path(name), value)]
        expected = "a network such as 10.0.0.0/8, or a list of networks" + (
            ", or the number of proxies" if trusted else ""
        )
    networks = []
    for path, text in entries:
        if not isinstance(text, str):
            fields.problems.add(path, f"must be {expected}, not {describe(text)}")
            continue
        try:
            networks.append(text if text == UNIX else str(read_proxies(text) if trusted else read_network(text)))
        except ConfigError as error:
            fields.problems.add(path, str(error))
    return tuple(networks)
