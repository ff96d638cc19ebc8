"""Client addresses as a table: peers, trusted proxies and headers, especially spoofed headers.

The address parser is tested against it, and so are the middlewares: the counted key must be the one in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["CASES", "CLIENT", "FORWARDED", "FORWARDED_FOR", "PEER", "PROXIES", "AddressCase"]

Trusted: TypeAlias = "tuple[str, ...] | int"

PROXIES = ("10.0.0.0/8", "2001:db8:aa::/48", "192.0.2.7")
PEER, CLIENT = "10.0.0.1", "203.0.113.9"
SIX = "2001:db8:bb::1"

FORWARDED_FOR: dict[str, tuple[Trusted, str | None, list[str], str | None]] = {
    "nothing trusted, no header": ((), PEER, [], PEER),
    "nothing trusted, spoofed": ((), CLIENT, ["127.0.0.1"], CLIENT),
    "nothing trusted, by a proxy": ((), PEER, [CLIENT], PEER),
    "no header": (PROXIES, PEER, [], PEER),
    "one proxy": (PROXIES, PEER, [CLIENT], CLIENT),
    "a single trusted address": (PROXIES, "192.0.2.7", [CLIENT], CLIENT),
    "beside a single trusted address": (PROXIES, "192.0.2.8", ["198.51.100.1"], "192.0.2.8"),
    "two proxies": (PROXIES, PEER, [f"{CLIENT}, 10.0.0.2"], CLIENT),
    "three proxies, one of them IPv6": (PROXIES, PEER, [f"{CLIENT}, 2001:db8:aa::5, 10.0.0.2"], CLIENT),
    "peer not trusted, spoofed": (PROXIES, "198.51.100.4", [CLIENT], "198.51.100.4"),
    "peer not trusted, pretends to be a proxy": (PROXIES, "198.51.100.4", ["10.0.0.2"], "198.51.100.4"),
    "client spoofs an address": (PROXIES, PEER, [f"127.0.0.1, {CLIENT}"], CLIENT),
    "client spoofs a trusted address": (PROXIES, PEER, [f"10.9.9.9, {CLIENT}"], CLIENT),
    "client spoofs trusted hops": (PROXIES, PEER, [f"1.1.1.1, 10.9.9.9, 10.9.9.8, {CLIENT}, 10.0.0.2"], CLIENT),
    "client spoofs by a line of its own": (PROXIES, PEER, ["127.0.0.1", CLIENT], CLIENT),
    "client spoofs by several lines": (
        PROXIES,
        PEER,
        ["127.0.0.1, 10.9.9.9", "1.1.1.1", f"{CLIENT}, 10.0.0.2"],
        CLIENT,
    ),
    "client writes garbage": (PROXIES, PEER, [f"<script>, {CLIENT}"], CLIENT),
    "client writes commas": (PROXIES, PEER, [f",,,, {CLIENT}"], CLIENT),
    "client writes an empty line": (PROXIES, PEER, ["", CLIENT], CLIENT),
    "client writes a quote": (PROXIES, PEER, [f'", {CLIENT}'], CLIENT),
    "client writes a thousand addresses": (PROXIES, PEER, [f"{'10.0.0.2, ' * 1000}{CLIENT}"], CLIENT),
    "all are trusted": (PROXIES, PEER, ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    "no blanks": (PROXIES, PEER, [f"{CLIENT},10.0.0.2"], CLIENT),
    "many blanks": (PROXIES, PEER, [f"  {CLIENT} \t ,\t 10.0.0.2  "], CLIENT),
    "with a port": (PROXIES, PEER, [f"{CLIENT}:51234, 10.0.0.2:80"], CLIENT),
    "IPv6": (PROXIES, PEER, [SIX], SIX),
    "IPv6 spelled at length": (PROXIES, PEER, ["2001:0DB8:00BB:0::0001"], SIX),
    "IPv6 in brackets": (PROXIES, PEER, [f"[{SIX}]"], SIX),
    "IPv6 in brackets with a port": (PROXIES, PEER, [f"[{SIX}]:443, [2001:db8:aa::5]:80"], SIX),
    "IPv4 in IPv6": (PROXIES, PEER, [f"::ffff:{CLIENT}"], CLIENT),
    "IPv4 in IPv6, hexadecimal": (PROXIES, PEER, ["::FFFF:cb00:7109"], CLIENT),
    "IPv4 in IPv6 in brackets": (PROXIES, PEER, [f"[::ffff:{CLIENT}]:1"], CLIENT),
    "a trusted hop as IPv4 in IPv6": (PROXIES, PEER, [f"{CLIENT}, ::ffff:10.0.0.2"], CLIENT),
    "the peer as IPv4 in IPv6": (PROXIES, "::ffff:10.0.0.1", [CLIENT], CLIENT),
    "an untrusted peer as IPv4 in IPv6": (PROXIES, f"::ffff:{CLIENT}", ["1.1.1.1"], CLIENT),
    "a network written as IPv4 in IPv6": (("::ffff:10.0.0.0/104",), PEER, [CLIENT], CLIENT),
    "an IPv6 peer": (PROXIES, "2001:db8:aa:0::1", [CLIENT], CLIENT),
    "a peer with a zone": (("fe80::/10",), "fe80::1%eth0", [CLIENT], CLIENT),
    "an untrusted peer with a zone": (PROXIES, "fe80::1%eth0", [CLIENT], "fe80::1"),
    "malformed: a word": (PROXIES, PEER, ["unknown"], PEER),
    "malformed: a name": (PROXIES, PEER, ["localhost"], PEER),
    "malformed: obfuscated": (PROXIES, PEER, ["_hidden"], PEER),
    "malformed: empty": (PROXIES, PEER, [""], PEER),
    "malformed: an empty entry at the end": (PROXIES, PEER, [f"{CLIENT},"], PEER),
    "malformed: an empty line at the end": (PROXIES, PEER, ["127.0.0.1", ""], PEER),
    "malformed: a zone": (PROXIES, PEER, ["fe80::1%eth0"], PEER),
    "malformed: a zone in brackets": (PROXIES, PEER, ["[fe80::1%eth0]:80"], PEER),
    "malformed: between trusted hops": (PROXIES, PEER, [f"{CLIENT}, unknown, 10.0.0.2"], PEER),
    "malformed: IPv4 in brackets": (PROXIES, PEER, [f"[{CLIENT}]"], PEER),
    "malformed: bracket not closed": (PROXIES, PEER, [f"[{SIX}"], PEER),
    "malformed: too large a part": (PROXIES, PEER, ["203.0.113.256"], PEER),
    "malformed: too few parts": (PROXIES, PEER, ["203.0.113"], PEER),
    "malformed: octal": (PROXIES, PEER, ["0313.0.113.9"], PEER),
    "malformed: one number": (PROXIES, PEER, ["3405803785"], PEER),
    "malformed: other digits": (PROXIES, PEER, ["203.0.113.\xb2"], PEER),
    "malformed: a port too large": (PROXIES, PEER, [f"{CLIENT}:65536"], PEER),
    "malformed: no port behind the colon": (PROXIES, PEER, [f"{CLIENT}:"], PEER),
    "malformed: a network": (PROXIES, PEER, ["203.0.113.0/24"], PEER),
    "malformed: a URL": (PROXIES, PEER, [f"http://{CLIENT}"], PEER),
    "malformed: quoted": (PROXIES, PEER, [f'"{CLIENT}"'], PEER),
    "malformed: blank within": (PROXIES, PEER, ["203.0. 113.9"], PEER),
    "malformed: a line break": (PROXIES, PEER, [f"{CLIENT}\n"], PEER),
    "malformed: separated by blanks": (PROXIES, PEER, [f"127.0.0.1 {CLIENT}"], PEER),
    "one hop": (1, PEER, [CLIENT], CLIENT),
    "one hop, whoever the peer is": (1, "198.51.100.4", [CLIENT], CLIENT),
    "one hop, spoofed": (1, PEER, [f"127.0.0.1, {CLIENT}"], CLIENT),
    "one hop, spoofed by a line": (1, PEER, ["127.0.0.1", CLIENT], CLIENT),
    "two hops": (2, PEER, [f"{CLIENT}, 198.51.100.4"], CLIENT),
    "two hops, spoofed": (2, PEER, [f"127.0.0.1, 1.1.1.1, {CLIENT}, 198.51.100.4"], CLIENT),
    "two hops, across lines": (2, PEER, ["127.0.0.1", f"1.1.1.1, {CLIENT}", "198.51.100.4"], CLIENT),
    "two hops, one gone around": (2, PEER, [CLIENT], PEER),
    "two hops, no header": (2, PEER, [], PEER),
    "two hops, malformed": (2, PEER, ["unknown, 198.51.100.4"], PEER),
    "two hops, malformed to the left": (2, PEER, [f"unknown, {CLIENT}, 198.51.100.4"], CLIENT),
    "a Unix socket, nothing trusted": ((), None, [CLIENT], None),
    "a Unix socket, not trusted": (PROXIES, None, [CLIENT], None),
    "a Unix socket, trusted": ((*PROXIES, "unix"), None, [f"{CLIENT}, 10.0.0.2"], CLIENT),
    "a Unix socket, trusted, without a header": (("unix",), None, [], None),
    "a Unix socket, trusted, malformed": (("unix",), None, ["unknown"], None),
    "a Unix socket, one hop": (1, None, [CLIENT], CLIENT),
    "a Unix socket with an empty name": (("unix",), "", [CLIENT], CLIENT),
    "nothing but a Unix socket is trusted": (("unix",), PEER, [CLIENT], PEER),
    "a peer that is a name": (PROXIES, "testclient", [CLIENT], "testclient"),
}
"""Trusted, peer, lines of X-Forwarded-For, the address."""

FORWARDED: dict[str, tuple[list[str], str | None]] = {
    "one": ([f"for={CLIENT}"], CLIENT),
    "any case": ([f"For={CLIENT}"], CLIENT),
    "quoted": ([f'for="{CLIENT}"'], CLIENT),
    "with a port": ([f'for="{CLIENT}:4711"'], CLIENT),
    "with an obfuscated port": ([f'for="{CLIENT}:_x.1-2"'], CLIENT),
    "IPv6": ([f'for="[{SIX}]"'], SIX),
    "IPv6 with a port": ([f'for="[{SIX}]:4711"'], SIX),
    "IPv6 without its quotes": ([f"for=[{SIX}]:4711"], SIX),
    "IPv4 in IPv6": ([f'for="[::ffff:{CLIENT}]"'], CLIENT),
    "among others": ([f"proto=https;for={CLIENT};by=10.0.0.1;host=example.org"], CLIENT),
    "with blanks": ([f" proto=https ; for={CLIENT} ; by=10.0.0.1 "], CLIENT),
    "quoted comma and semicolon before": ([f'host="a,b;for=1.1.1.1";for={CLIENT}'], CLIENT),
    "quoted quote before": ([rf'host="a\",for=1.1.1.1,\"";for={CLIENT}'], CLIENT),
    "quoted backslash before": ([rf'host="a\\";for={CLIENT}, for=10.0.0.2'], CLIENT),
    "escaped": ([r'for="203\.0.113.9"'], CLIENT),
    "two proxies": ([f"for={CLIENT}, for=10.0.0.2;by=10.0.0.1"], CLIENT),
    "two lines": ([f"for={CLIENT}", "for=10.0.0.2"], CLIENT),
    "spoofed": ([f"for=127.0.0.1, for={CLIENT}, for=10.0.0.2"], CLIENT),
    "spoofed by a line": (["for=10.9.9.9", f"for={CLIENT}"], CLIENT),
    "an open quote, to swallow the proxy's": ([f'for="127.0.0.1, for={CLIENT};host="x"'], CLIENT),
    "an open quote in a line of its own": (['for="127.0.0.1', f'for="{CLIENT}"', 'for="10.0.0.2:1"'], CLIENT),
    "an escaped quote at the end": ([r'for="127.0.0.1;x=\" ', f"for={CLIENT}"], CLIENT),
    "all are trusted": (["for=10.0.0.3, for=10.0.0.2"], "10.0.0.3"),
    "malformed: unknown": (["for=unknown"], PEER),
    "malformed: obfuscated": (["for=_hidden, for=10.0.0.2"], PEER),
    "malformed: no for": (["by=10.0.0.1;proto=http"], PEER),
    "malformed: for twice": ([f"for={CLIENT};for=1.1.1.1"], PEER),
    "malformed: empty": ([""], PEER),
    "malformed: no value": (["for="], PEER),
    "malformed: no equals": ([f"for {CLIENT}"], PEER),
    "malformed: the quote is not closed": ([f'for="{CLIENT}'], PEER),
    "malformed: blanks around the equals": ([f"for = {CLIENT}"], PEER),
    "malformed: a bare address": ([CLIENT], PEER),
    "malformed: a zone": (['for="[fe80::1%eth0]"'], PEER),
    "malformed: text behind the quote": ([f'for="{CLIENT}"x'], PEER),
    "malformed: another name": ([f"xfor={CLIENT}"], PEER),
}
"""Lines of Forwarded, and the address; PEER is the peer, and PROXIES are trusted."""

BOTH: dict[str, tuple[list[tuple[str, str]], str]] = {
    "X-Forwarded-For comes before Forwarded": (
        [("forwarded", "for=127.0.0.1"), ("x-forwarded-for", CLIENT)],
        CLIENT,
    ),
    "a malformed X-Forwarded-For is not made good by Forwarded": (
        [("x-forwarded-for", "unknown"), ("forwarded", "for=127.0.0.1")],
        PEER,
    ),
    "other headers that name clients are not read": (
        [("x-real-ip", "127.0.0.1"), ("true-client-ip", "127.0.0.1"), ("x-client-ip", "127.0.0.1")],
        PEER,
    ),
}
"""Headers, and the address; PEER is the peer, and PROXIES are trusted."""


@dataclass(frozen=True, slots=True)
class AddressCase:
    """One request, and its client address."""

    trusted: Trusted
    peer: str | None
    headers: tuple[tuple[str, str], ...]
    address: str | None


CASES: dict[str, AddressCase] = {
    **{
        f"X-Forwarded-For: {name}": AddressCase(
            trusted, peer, tuple(("x-forwarded-for", line) for line in lines), address
        )
        for name, (trusted, peer, lines, address) in FORWARDED_FOR.items()
    },
    **{
        f"Forwarded: {name}": AddressCase(PROXIES, PEER, tuple(("forwarded", line) for line in lines), address)
        for name, (lines, address) in FORWARDED.items()
    },
    **{
        f"Forwarded, peer not trusted: {name}": AddressCase(
            PROXIES, "198.51.100.4", tuple(("forwarded", line) for line in lines), "198.51.100.4"
        )
        for name, (lines, _) in FORWARDED.items()
    },
    **{name: AddressCase(PROXIES, PEER, tuple(lines), address) for name, (lines, address) in BOTH.items()},
}
