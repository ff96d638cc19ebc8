"""The service's own settings: where it listens, by how many processes, and whom it lets in.

server:
  http: 127.0.0.1:8080
  grpc: 127.0.0.1:8081
  workers: 4
  tls: {certificate: server.pem, key: server.key, grpc_client_ca: clients.pem}
  trusted_proxies: [10.0.0.0/8]             # or how many proxies there are, such as 2
  checks: key                               # or open: unless said, open on loopback and nowhere else
  admin_from: [10.1.0.0/16]                 # from where the admin API may be called: from anywhere unless said
  allowed_hosts: [gate.example.com]         # further names in Host: on loopback, and elsewhere the only ones if given
  allowed_origins: [https://app.example.com]  # web pages of other sites that may call the service: none unless said
  limits: {reads: 1000/minute, writes: 100/minute, checks: 100000/second, failed_logins: 10/minute}
  insecure: false                           # listen beyond loopback though there are no keys
  shutdown_seconds: 10                      # for requests that are under way
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from headgate.config.hosts import read_allowed_hosts, read_allowed_origins
from headgate.config.section import names_of, section
from headgate.config.tls import Tls, read_tls
from headgate.core.limit import Limit
from headgate.errors import ConfigError
from headgate.http.client_address import MOST_HOPS, UNIX, read_network, read_proxies
from headgate.reading.fields import Fields, kind_of

__all__ = ["Address", "Ceilings", "Checks", "Server", "Tls", "read_server"]

Checks = Literal["open", "key"]
CHECKS: tuple[Checks, ...] = ("open", "key")
MOST_WORKERS = 512
LEAST_SHUTDOWN, MOST_SHUTDOWN = 0.1, 3600
_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%[\w.~-]+)?)\]|([^\[\]:/@\s]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the service lets its own callers do: admin calls per key, checks per node, failed log-ins per address.

    They are windows, unless another algorithm is named: who is told 100 a minute is not to have 150 in the first.
    """

    reads: Limit = field(default=Limit(1000, 60, algorithm="sliding_window_log"))
    writes: Limit = field(default=Limit(100, 60, algorithm="sliding_window_log"))
    checks: Limit = field(default=Limit(100_000, 1, algorithm="sliding_window_counter"))
    failed_logins: Limit = field(default=Limit(10, 60, algorithm="sliding_window_log"))


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how the service listens."""

    http: Address = Address("127.0.0.1", 8080)
    grpc: Address = Address("127.0.0.1", 8081)
    workers: int = 1
    tls: Tls | None = None
    trusted_proxies: tuple[str, ...] | int = ()
    """Networks, or a number of hops: what TrustedProxies takes."""
    checks: Checks | None = None
    """None: open on loopback, and beyond it only with a key."""
    admin_from: tuple[str, ...] = ()
    """Networks; empty: anywhere."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that may stand in `Host`, or `*.name`; empty: on loopback its own names, elsewhere any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the service from another site."""
    limits: Ceilings = Ceilings()
    insecure: bool = False
    shutdown_seconds: float = 10.0


def read_server(fields: Fields, name: str) -> Server:
    """The section, with its defaults; mistakes are noted."""
    default = Server()
    inner = section(fields, name, names_of(Server))
    server = Server(
        _address(inner, "http", default.http),
        _address(inner, "grpc", default.grpc),
        inner.whole("workers", default.workers, least=1, most=MOST_WORKERS),
        read_tls(inner, "tls"),
        _proxies(inner, "trusted_proxies"),
        inner.choice("checks", CHECKS),
        _networks(inner, "admin_from"),
        read_allowed_hosts(inner, "allowed_hosts"),
        read_allowed_origins(inner, "allowed_origins"),
        _ceilings(inner, "limits"),
        inner.yes("insecure", default.insecure),
        float(inner.seconds("shutdown_seconds", default.shutdown_seconds, least=LEAST_SHUTDOWN, most=MOST_SHUTDOWN)),
    )
    if server.http == server.grpc and server.http.port:
        here, there = ("grpc", "http") if inner.given("grpc") else ("http", "grpc")
        inner.wrong(here, f"is the address of server.{there} too: write another port than {server.http.port}")
    return server


def _address(fields: Fields, name: str, default: Address) -> Address:
    value: Any = fields.values.get(name)
    if value is None:
        return default
    match = _PLACE.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        if int(match[3]) < 65536:
            return Address(match[1] or match[2], int(match[3]))
        fields.wrong(name, f"has the port {match[3]}: write one from 1 to 65535, or 0 for any that is free")
        return default
    port = str(value).strip(":")
    example = f"127.0.0.1:{port}" if re.fullmatch("[0-9]{1,4}", port) else str(default)
    fields.wrong(name, f"must be host:port or [address]:port, such as {example!r}, not {kind_of(value)}")
    return default


def _ceilings(fields: Fields, name: str) -> Ceilings:
    default = Ceilings()
    inner = section(fields, name, names_of(Ceilings))
    return Ceilings(*(_ceiling(inner, limit, getattr(default, limit)) for limit in names_of(Ceilings)))


def _ceiling(fields: Fields, name: str, default: Limit) -> Limit:
    value = fields.values.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        fields.wrong(name, f"must be a limit such as {_short(default)}, not {kind_of(value)}")
        return default
    try:
        limit = Limit.parse(value)
    except ConfigError as error:
        fields.wrong(name, str(error))
        return default
    if not limit.count:
        fields.wrong(name, f"would let nobody in: write how many may pass, such as {_short(default)}")
        return default
    if limit.burst is None and "using" not in value.lower():
        return Limit(limit.count, limit.period, algorithm=default.algorithm)
    return limit


def _short(limit: Limit) -> str:
    """The notation of a limit without its algorithm: `100/minute`."""
    return str(limit).partition(" using ")[0]


def _proxies(fields: Fields, name: str) -> tuple[str, ...] | int:
    value = fields.values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MOST_HOPS:
            return value
        fields.wrong(
            name, f"must be the number of proxies, from 1 to {MOST_HOPS}, or their networks, not {kind_of(value)}"
        )
        return ()
    if isinstance(value, str) and value.isdecimal() and len(value) <= 3:
        fields.wrong(name, f"is no network: for a number of proxies write {int(value)}, without quotes")
        return ()
    return _networks(fields, name, trusted=True)


def _networks(fields: Fields, name: str, *, trusted: bool = False) -> tuple[str, ...]:
    """A network, or a list of them; those that are wrong are noted and left out."""
    value = fields.values.get(name)
    if value is None:
        return ()
    if isinstance(value, list):
        entries = [(f"{fields.way(name)}[{position}]", item) for position, item in enumerate(value)]
        wanted = "a network such as 10.0.0.0/8"
    else:
        entries = [(fields.way(name), value)]
        wanted = "a network such as 10.0.0.0/8, or a list of networks" + (
            ", or the number of proxies" if trusted else ""
        )
    found = []
    for way, text in entries:
        if not isinstance(text, str):
            fields.problems.add(way, f"must be {wanted}, not {kind_of(text)}")
            continue
        try:
            found.append(text if text == UNIX else str(read_proxies(text) if trusted else read_network(text)))
        except ConfigError as error:
            fields.problems.add(way, str(error))
    return tuple(found)
