"""Whose request it is: the address of the client, seen through proxies that are trusted, and through no others.

Anybody can write X-Forwarded-For. What can be known is who opened the connection, the peer; if that is a proxy of one's
own, what the proxy has added, at the right-hand end; and so on leftwards, as long as one's own proxies follow each
other. The first address that is none of theirs is the client. Nothing to the left of it is looked at, so whatever a
client writes there, well-formed or not, changes nothing.

Trusted are either networks, or a number of hops: each proxy adds one address, so with two proxies the client is the
second from the right. A number is believed whoever the peer is, and is right only where nobody can go around the
proxies. Who has fewer addresses than that has gone around one: the peer is told, as for everything malformed.

    X-Forwarded-For and Forwarded (RFC 7239) say the same; where a request has both, X-Forwarded-For is read. A proxy
    that writes only Forwarded must take away the X-Forwarded-For of its clients.
    All lines of a header are one list, in their order.
    Malformed, and so the peer: what is no address, an empty entry, `unknown`, an obfuscated `_name`, a zone (`%eth0`).
    Where every address is one of the proxies' own, the left-most is the client: a proxy has asked for itself.
    A peer without an address has come by a Unix socket, as a process of this machine: trusted if the networks have
    the word `unix` among them, or by a number of hops. Otherwise there is no address, and None is told.

Addresses are told in their shortest spelling, IPv4 in IPv6 (`::ffff:10.0.0.1`) as IPv4. That a /64 is one caller is the
rules' business.
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
"""Stands among networks for whoever comes by a Unix socket."""
EVERYBODY = "*"
"""As servers and other libraries write it."""
MAX_HOPS = 32
MAX_CACHED = 4096
MAX_NODE_LENGTH = 128
"""More than any address has, with its port. What is longer is not even remembered."""
_MAPPED = IPv6Network("::ffff:0:0/96")
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::(?:([0-9]{1,5})|_[\w.-]+))?", re.ASCII)
_PAIR = re.compile(r"""\s*([\w!#$%&'*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,]*))\s*(?:;|$)""", re.ASCII)


class Networks:
    """A set of networks, as an operator writes them: `10.0.0.0/8`, `2001:db8::/32`, one address, or `unix`."""

    __slots__ = ("_by_socket", "_known", "_networks")

    def __init__(self, texts: Iterable[str]) -> None:
        names = list(texts)
        self._by_socket = UNIX in names
        self._networks = [read_network(text) for text in names if text != UNIX]
        self._known: dict[str, bool] = BoundedCache(MAX_CACHED)

    def __contains__(self, address: str | None) -> bool:
        """Whether an address is in one of them. None is one that came by a Unix socket."""
        if not address:
            return self._by_socket
        known = self._known.get(address)
        if known is None:
            parsed = _parsed(address)
            known = parsed is not None and any(parsed in network for network in self._networks)
            self._known[address] = known
        return known

    def __bool__(self) -> bool:
        return self._by_socket or bool(self._networks)


class TrustedProxies:
    """Which proxies are believed: those in the networks given, or as many as are given. None unless said."""

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
        """Whether some are: without any, the peer is the client."""

    def trusts(self, peer: str | None) -> bool:
        """Whether what this peer says of a client is believed."""
        return bool(self._hops) or (bool(self._networks) and peer in self._networks)

    def address(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The client's address, by who opened the connection and by the headers, whose names are in small letters."""
        if not self.any or not self.trusts(peer):
            return peer_address(peer)
        entries = _entries(headers)
        found = self._counted(entries) if self._hops else self._rightmost(entries)
        return peer_address(peer) if found is None else found

    def _counted(self, entries: Iterator[str]) -> str | None:
        for position, entry in enumerate(entries, 1):
            if position == self._hops:
                return _node(entry)
        return None

    def _rightmost(self, entries: Iterator[str]) -> str | None:
        found = None
        for entry in entries:
            found = _node(entry)
            if found is None or found not in self._networks:
                break
        return found


def read_network(text: str) -> IPv4Network | IPv6Network:
    """A network as it is written; ConfigError says what is wrong with it."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(f"{describe(text)} is no network: write one such as 10.0.0.0/8, or one address") from None
    if "/" in text and network.prefixlen != network.max_prefixlen:
        written = ip_address(text.partition("/")[0])
        if written != network.network_address:
            raise ConfigError(
                f"{describe(text)} has more of an address than its network: write {network}, or {written} alone"
            )
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


def read_proxies(text: str) -> IPv4Network | IPv6Network:
    """A network of proxies, which cannot be everybody's."""
    if text == EVERYBODY or read_network(text).prefixlen == 0:
        raise ConfigError(
            f"{describe(text)} is everybody, and then anybody could pass for anyone: write the networks of the "
            "proxies, or their number"
        )
    return read_network(text)


@lru_cache(maxsize=MAX_CACHED)
def peer_address(peer: str | None) -> str | None:
    """A peer as an address. What is none, such as a test client's name, is taken as it is."""
    if not peer:
        return None
    parsed = _parsed(peer)
    return peer if parsed is None else str(parsed)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """An address in the spelling of a socket, which adds a zone to those of one link."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _node(text: str) -> str | None:
    """An address as proxies write it: with brackets and a port, or without. None for what is none."""
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
    parsed = _parsed(text)
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
    """The elements of Forwarded from the right, where what a client wrote cannot reach: a quote that it left open, or
    opened once too often, would else take along what the proxies added."""
    end = len(text)
    at = end - 1
    while at >= 0:
        if text[at] == ",":
            yield text[at + 1 : end]
            end = at
        elif text[at] == '"':
            at = _opening(text, at)
        at -= 1
    yield text[:end]


def _opening(text: str, closing: int) -> int:
    """Where the quoted text begins that ends here; before the text when it does nowhere."""
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
    """What an element says after `for=`; nothing when it says nothing, says it twice, or is malformed."""
    found: list[str] = []
    at = 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            return ""
        at = pair.end()
        if pair[1].lower() == "for":
            found.append(re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else pair[3])
    return found[0] if len(found) == 1 else ""
