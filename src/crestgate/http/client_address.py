"""Client address behind trusted proxies.

Any client can send X-Forwarded-For. Only the peer of the connection is certain. If the peer is a trusted proxy, the
right-most entry, which that proxy added, is trusted too, and so on leftwards while the entries are trusted proxies. The
first address that is not a trusted proxy is the client. Entries to the left of it are ignored, well-formed or not.

Proxies are trusted by network or by number of hops: each proxy adds one address, so with two proxies the client is the
second from the right. With a number, every peer is trusted, which is only safe if clients cannot bypass the proxies. A
request with fewer addresses has bypassed one: then, as for all malformed headers, the client is the peer.

    X-Forwarded-For and Forwarded (RFC 7239) have the same meaning; if a request has both, X-Forwarded-For is used. A
    proxy that writes only Forwarded must remove the X-Forwarded-For of its clients.
    All lines of a header are one list, in their order.
    Malformed: anything that is not an address, an empty entry, `unknown`, an obfuscated `_name`, a zone (`%eth0`).
    If every address is a trusted proxy, the left-most is the client: a proxy sent the request itself.
    A peer without an address is a local process on a Unix socket: trusted if the networks include the word `unix`, or
    with a number of hops. Otherwise there is no address, and the result is None.

Addresses are returned in their shortest spelling, IPv4-mapped IPv6 (`::ffff:10.0.0.1`) as IPv4. Rules decide whether a
/64 is one caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from crestgate.core.bounded_cache import BoundedCache
from crestgate.errors import ConfigError
from crestgate.loader.fields import describe

__all__ = ["MAX_HOPS", "UNIX", "Networks", "TrustedProxies", "peer_address", "read_network", "read_proxies"]

UNIX = "unix"
"""In a list of networks: peers on a Unix socket."""
EVERYBODY = "*"
"""All peers, in the notation of servers and other libraries."""
MAX_HOPS = 32
MAX_CACHED = 4096
MAX_NODE_LENGTH = 128
"""Longer than any address with its port. Longer texts are not cached."""
_MAPPED = IPv6Network("::ffff:0:0/96")
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::(?:([0-9]{1,5})|_[\w.-]+))?", re.ASCII)
_PAIR = re.compile(r"""\s*([\w!#$%&'*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,]*))\s*(?:;|$)""", re.ASCII)


class Networks:
    """A set of networks in configuration notation: `10.0.0.0/8`, `2001:db8::/32`, one address, or `unix`."""

    __slots__ = ("_cache", "_networks", "_unix")

    def __init__(self, texts: Iterable[str]) -> None:
        names = list(texts)
        self._unix = UNIX in names
        self._networks = [read_network(text) for text in names if text != UNIX]
        self._cache: dict[str, bool] = BoundedCache(MAX_CACHED)

    def __contains__(self, address: str | None) -> bool:
        """Whether an address is in one of the networks. None is a peer on a Unix socket."""
        if not address:
            return self._unix
        contained = self._cache.get(address)
        if contained is None:
            parsed = _parse_address(address)
            contained = parsed is not None and any(parsed in network for network in self._networks)
            self._cache[address] = contained
        return contained

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)


class TrustedProxies:
    """Trusted proxies, by network or by number; none by default."""

    __slots__ = ("_hops", "_networks", "any")

    def __init__(self, proxies: Iterable[str] | int = ()) -> None:
        if isinstance(proxies, int):
            if isinstance(proxies, bool) or not 1 <= proxies <= MAX_HOPS:
                raise ConfigError(f"a number of proxies must be from 1 to {MAX_HOPS}, not {proxies!r}")
            self._hops, self._networks = proxies, Networks(())
        elif isinstance(proxies, str):
            listed = proxies if "/" in proxies else "10.0.0.0/8"
            raise ConfigError(f"trusted proxies: write a list of networks, such as [{listed!r}], not {proxies!r}")
        else:
            names = list(proxies)
            for name in names:
                if name != UNIX:
                    read_proxies(name)
            self._hops, self._networks = 0, Networks(names)
        self.any = self._hops > 0 or bool(self._networks)
        """Whether any proxy is trusted; if not, the peer is the client."""

    def trusts(self, peer: str | None) -> bool:
        """Whether forwarded headers of this peer are trusted."""
        return bool(self._hops) or (bool(self._networks) and peer in self._networks)

    def address(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The client's address, by the peer of the connection and the headers, whose names are lower-case."""
        if not self.any or not self.trusts(peer):
            return peer_address(peer)
        entries = _entries(headers)
        client = self._by_hops(entries) if self._hops else self._by_networks(entries)
        return peer_address(peer) if client is None else client

    def _by_hops(self, entries: Iterator[str]) -> str | None:
        for position, entry in enumerate(entries, 1):
            if position == self._hops:
                return _node(entry)
        return None

    def _by_networks(self, entries: Iterator[str]) -> str | None:
        client = None
        for entry in entries:
            client = _node(entry)
            if client is None or client not in self._networks:
                break
        return client


def read_network(text: str) -> IPv4Network | IPv6Network:
    """Parse a network; ConfigError if it is invalid."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(f"{describe(text)} is not a network: write one such as 10.0.0.0/8, or one address") from None
    if "/" in text and network.prefixlen != network.max_prefixlen:
        address = ip_address(text.partition("/")[0])
        if address != network.network_address:
            raise ConfigError(f"{describe(text)} has host bits set: write {network}, or {address} alone")
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


def read_proxies(text: str) -> IPv4Network | IPv6Network:
    """Parse a network of proxies; ConfigError if it contains all addresses."""
    if text == EVERYBODY or read_network(text).prefixlen == 0:
        raise ConfigError(
            f"{describe(text)} trusts every peer, so any client could forge its address: write the networks of the "
            "proxies, or their number"
        )
    return read_network(text)


@lru_cache(maxsize=MAX_CACHED)
def peer_address(peer: str | None) -> str | None:
    """The peer's normalised address. A peer that is not an address, such as a test client's name, is unchanged."""
    if not peer:
        return None
    parsed = _parse_address(peer)
    return peer if parsed is None else str(parsed)


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address of a socket, which has a zone if it is link-local."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _node(text: str) -> str | None:
    """Parse an address of a forwarded header, with or without brackets and a port; None if it is malformed."""
    return _read_node(text) if len(text) <= MAX_NODE_LENGTH else None


@lru_cache(maxsize=MAX_CACHED)
def _read_node(text: str) -> str | None:
    match = _NODE.fullmatch(text)
    if match is not None:
        text = match[1] or match[2]
        if (match[1] and ":" not in text) or int(match[3] or 0) > 65535:
            return None
    elif "%" in text:
        return None
    parsed = _parse_address(text)
    return None if parsed is None else str(parsed)


def _entries(headers: Sequence[tuple[bytes, bytes]]) -> Iterator[str]:
    """The addresses that proxies have added, from the right."""
    lines = [value for name, value in headers if name == b"x-forwarded-for"]
    if lines:
        for entry in reversed(b",".join(lines).decode("latin-1").split(",")):
            yield entry.strip(" \t")
        return
    lines = [value for name, value in headers if name == b"forwarded"]
    if lines:
        yield from map(_forwarded_for, _elements(b",".join(lines).decode("latin-1")))


def _elements(text: str) -> Iterator[str]:
    """The elements of Forwarded, parsed from the right: parsed from the left, an unbalanced quote sent by the client
    would swallow the elements that the proxies added."""
    end = len(text)
    at = end - 1
    while at >= 0:
        if text[at] == ",":
            yield text[at + 1 : end]
            end = at
        elif text[at] == '"':
            at = _opening_quote(text, at)
        at -= 1
    yield text[:end]


def _opening_quote(text: str, closing: int) -> int:
    """The index of the quote that opens the text closed at `closing`; -1 when there is none."""
    at = text.rfind('"', 0, closing)
    while at > 0:
        before = at
        while before and text[before - 1] == "\\":
            before -= 1
        if (at - before) % 2 == 0:
            return at
        at = text.rfind('"', 0, before)
    return at


def _forwarded_for(element: str) -> str:
    """The value of `for=` in an element; empty when it is missing, repeated, or malformed."""
    values: list[str] = []
    at = 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            return ""
        at = pair.end()
        if pair[1].lower() == "for":
            values.append(re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else pair[3])
    return values[0] if len(values) == 1 else ""
