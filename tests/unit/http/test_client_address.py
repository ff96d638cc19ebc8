"""Client addresses: the table of cases, and properties for any header a client sends."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.errors import ConfigError
from crestgate.http import client_address as module
from crestgate.http.client_address import Networks, TrustedProxies
from unit.http.address_cases import CASES, CLIENT, FORWARDED, FORWARDED_FOR, PEER, PROXIES


def headers(name: bytes, lines: list[str]) -> list[tuple[bytes, bytes]]:
    found = [(name, line.encode("latin-1")) for line in lines]
    return [(b"host", b"example.org"), *found, (b"x-real-ip", b"127.0.0.1")]


@pytest.mark.parametrize("case", CASES)
def test_address_matches_the_table(case: str) -> None:
    row = CASES[case]
    lines = [(name.encode(), line.encode("latin-1")) for name, line in row.headers]
    around = [(b"host", b"example.org"), *lines, (b"x-real-ip", b"127.0.0.1")]
    assert TrustedProxies(row.trusted).address(row.peer, around) == row.address


def test_table_has_enough_cases() -> None:
    assert len(FORWARDED_FOR) + len(FORWARDED) >= 60
    spoofed = [name for name in CASES if "spoof" in name or "pretends" in name or "open quote" in name]
    assert len(spoofed) >= 12


@given(st.binary(max_size=200), st.sampled_from([b"x-forwarded-for", b"forwarded"]))
def test_client_cannot_override_the_proxy(written: bytes, name: bytes) -> None:
    added = CLIENT if name == b"x-forwarded-for" else f"for={CLIENT}"
    for lines in ([written, added.encode()], [written + b", " + added.encode()]):
        found = TrustedProxies(PROXIES).address(PEER, [(name, line) for line in lines])
        assert found == CLIENT


@given(st.lists(st.text(st.sampled_from('f or=",;\\[]:.%_10a'), max_size=40), max_size=3))
def test_result_is_always_an_address(lines: list[str]) -> None:
    for name in (b"x-forwarded-for", b"forwarded"):
        for trusted in (PROXIES, 1, 2):
            found = TrustedProxies(trusted).address(PEER, headers(name, lines))
            assert found is not None
            assert str(ip_address(found)) == found


def test_address_cache_is_bounded() -> None:
    proxies = TrustedProxies(1)
    before = module._read_node.cache_info().currsize
    for number in range(10):
        line = f"{number}" + "x" * 1000
        assert proxies.address(PEER, headers(b"x-forwarded-for", [line])) == PEER
    assert module._read_node.cache_info().currsize == before
    networks = Networks(PROXIES)
    for number in range(module.MAX_CACHED + 10):
        assert str(ip_address(number)) not in networks
    assert len(networks._cache) <= module.MAX_CACHED


def test_trusted_peers() -> None:
    assert not TrustedProxies().trusts(PEER)
    assert not TrustedProxies().trusts(None)
    proxies = TrustedProxies(PROXIES)
    assert (proxies.trusts(PEER), proxies.trusts(CLIENT), proxies.trusts(None)) == (True, False, False)
    assert TrustedProxies(1).trusts(CLIENT)
    assert TrustedProxies(["unix"]).trusts(None)


def test_networks_are_parsed() -> None:
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
        ("10.0.0.0/33", "'10.0.0.0/33' is not a network: write one such as 10.0.0.0/8, or one address"),
        ("loopback", "'loopback' is not a network: write one such as 10.0.0.0/8, or one address"),
        (
            "10.1.2.3/8",
            "'10.1.2.3/8' has host bits set: write 10.0.0.0/8, or 10.1.2.3 alone",
        ),
    ],
)
def test_invalid_networks_are_refused(written: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Networks([written])
    assert str(raised.value) == message


@pytest.mark.parametrize("hops", [0, -1, 33, True])
def test_invalid_proxy_counts_are_refused(hops: int) -> None:
    with pytest.raises(ConfigError, match=f"a number of proxies must be from 1 to 32, not {hops}"):
        TrustedProxies(hops)
