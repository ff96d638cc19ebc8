"""Hosts and origins in one spelling."""

from __future__ import annotations

import pytest

from crestgate.http.host import host_address, host_name, read_origin, same_origin


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST.:8080", "localhost"),
        ("gate.example", "gate.example"),
        ("gate_1.example:", "gate_1.example"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[2001:DB8::1]:443", "2001:db8::1"),
        ("", ""),
        ("::1", None),
        ("[::1", None),
        ("a b", None),
        ("a/b", None),
        ("a@b", None),
        ("http://a", None),
        ("a:123456", None),
        ("a:b", None),
        ("é", None),
        ("a\n", None),
    ],
)
def test_host_names(value: str, name: str | None) -> None:
    assert host_name(value) == name


def test_host_addresses() -> None:
    assert [str(host_address(name)) for name in ("10.0.0.1", "::1", "::ffff:10.0.0.1", "10.1", "localhost", "")] == [
        *("10.0.0.1", "::1", "10.0.0.1"),
        *("None", "None", "None"),
    ]


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        ("http://localhost", "http://localhost"),
        ("HTTP://LOCALHOST.:80", "http://localhost"),
        ("https://a.example:80", "https://a.example:80"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("null", None),
        ("*", None),
        ("", None),
        ("a.example", None),
        ("http://a.example/", None),
        ("http://a@b", None),
        ("http://a b", None),
    ],
)
def test_origins(value: str, origin: str | None) -> None:
    assert read_origin(value) == origin


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("https://gate.example", "Gate.Example.", True),
        ("https://gate.example", "gate.example:443", True),
        ("https://gate.example", "gate.example:80", False),
        ("http://localhost:8080", "localhost:8081", False),
        ("http://localhost:8080", "127.0.0.1:8080", False),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://evil.example", "gate.example", False),
        ("http://gate.example.evil.example", "gate.example", False),
        ("null", "null", False),
        ("null", "", False),
    ],
)
def test_same_origin(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same
