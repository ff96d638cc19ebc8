"""Whose request it is: tables of peers, trusted proxies and headers; above all of headers that none should believe."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ConfigError
from headgate.http import client_address as module
from headgate.http.client_address import Networks, TrustedProxies

PROXIES = ("10.0.0.0/8", "2001:db8:aa::/48", "192.0.2.7")
PEER, CLIENT = "10.0.0.1", "203.0.113.9"
SIX = "2001:db8:bb::1"

# Trusted, peer, lines of X-Forwarded-For, the address.
FORWARDED_FOR: dict[str, tuple[tuple[str, ...] | int, str | None, list[str], str | None]] = {
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

# Lines of Forwarded, the address; the peer and PROXIES as above.
FORWARDED = {
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


def headers(name: bytes, lines: list[str]) -> list[tuple[bytes, bytes]]:
    found = [(name, line.encode("latin-1")) for line in lines]
    return [(b"host", b"example.org"), *found, (b"x-real-ip", b"127.0.0.1")]


@pytest.mark.parametrize("case", FORWARDED_FOR)
def test_x_forwarded_for(case: str) -> None:
    trusted, peer, lines, address = FORWARDED_FOR[case]
    assert TrustedProxies(trusted).address(peer, headers(b"x-forwarded-for", lines)) == address


@pytest.mark.parametrize("case", FORWARDED)
def test_forwarded(case: str) -> None:
    lines, address = FORWARDED[case]
    assert TrustedProxies(PROXIES).address(PEER, headers(b"forwarded", lines)) == address
    assert TrustedProxies(PROXIES).address("198.51.100.4", headers(b"forwarded", lines)) == "198.51.100.4"


def test_x_forwarded_for_comes_before_forwarded() -> None:
    both = [(b"forwarded", b"for=127.0.0.1"), (b"x-forwarded-for", CLIENT.encode())]
    assert TrustedProxies(PROXIES).address(PEER, both) == CLIENT
    malformed = [(b"x-forwarded-for", b"unknown"), (b"forwarded", b"for=127.0.0.1")]
    assert TrustedProxies(PROXIES).address(PEER, malformed) == PEER


@given(st.binary(max_size=200), st.sampled_from([b"x-forwarded-for", b"forwarded"]))
def test_whatever_a_client_writes_the_proxy_has_the_last_word(written: bytes, name: bytes) -> None:
    added = CLIENT if name == b"x-forwarded-for" else f"for={CLIENT}"
    for lines in ([written, added.encode()], [written + b", " + added.encode()]):
        found = TrustedProxies(PROXIES).address(PEER, [(name, line) for line in lines])
        assert found == CLIENT


@given(st.lists(st.text(st.sampled_from('f or=",;\\[]:.%_10a'), max_size=40), max_size=3))
def test_what_is_told_is_always_an_address(lines: list[str]) -> None:
    for name in (b"x-forwarded-for", b"forwarded"):
        for trusted in (PROXIES, 1, 2):
            found = TrustedProxies(trusted).address(PEER, headers(name, lines))
            assert found is not None
            assert str(ip_address(found)) == found


def test_what_is_remembered_is_bounded() -> None:
    proxies = TrustedProxies(1)
    before = module._read_node.cache_info().currsize
    for number in range(10):
        line = f"{number}" + "x" * 1000
        assert proxies.address(PEER, headers(b"x-forwarded-for", [line])) == PEER
    assert module._read_node.cache_info().currsize == before
    networks = Networks(PROXIES)
    for number in range(module.MOST_REMEMBERED + 10):
        assert str(ip_address(number)) not in networks
    assert len(networks._known) <= module.MOST_REMEMBERED


def test_which_peers_are_believed() -> None:
    assert not TrustedProxies().trusts(PEER)
    assert not TrustedProxies().trusts(None)
    proxies = TrustedProxies(PROXIES)
    assert (proxies.trusts(PEER), proxies.trusts(CLIENT), proxies.trusts(None)) == (True, False, False)
    assert TrustedProxies(1).trusts(CLIENT)
    assert TrustedProxies(["unix"]).trusts(None)


def test_networks() -> None:
    networks = Networks(["10.0.0.0/8", "2001:db8::1"])
    assert networks
    assert not Networks([])
    assert Networks(["unix"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "2001:0db8::0001"):
        assert address in networks
    for outside in ("11.1.2.3", "2001:db8::2", "::a01:203", "", None, "10", "ten"):
        assert outside not in networks


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("10.0.0.0/33", "'10.0.0.0/33' is no network: write one such as 10.0.0.0/8, or one address"),
        ("loopback", "'loopback' is no network: write one such as 10.0.0.0/8, or one address"),
        (
            "10.1.2.3/8",
            "'10.1.2.3/8' has more of an address than its network: write 10.0.0.0/8, or 10.1.2.3 alone",
        ),
    ],
)
def test_what_is_no_network(written: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Networks([written])
    assert str(raised.value) == message


@pytest.mark.parametrize("hops", [0, -1, 33, True])
def test_what_is_no_number_of_proxies(hops: int) -> None:
    with pytest.raises(ConfigError, match=f"a number of proxies must be from 1 to 32, not {hops}"):
        TrustedProxies(hops)
