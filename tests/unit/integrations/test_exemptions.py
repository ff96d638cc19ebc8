"""Exempt requests of a layer, and near misses that are not exempt."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate.errors import ConfigError
from crestgate.integrations.exemptions import build_exemption, is_preflight
from unit.integrations.plain import plain

EXEMPT = ["/healthz", "/static/*", "/files/{name}/public", "10.0.0.0/8", "2001:db8::/32"]


def exempts(exempt: Any, path: str = "/", **fields: Any) -> bool:
    found = build_exemption(exempt)
    assert found is not None
    return bool(found(plain(path, **fields)))


def test_nothing_is_exempt_by_default() -> None:
    assert build_exemption(None) is None
    assert not exempts([])


@pytest.mark.parametrize(
    "path",
    [
        *("/healthz", "/healthz/", "//healthz", "/healthz?deep=1"),
        *(
            "/static",
            "/static/a.css",
            "/static/css/a.css",
            "/static/css/../a.css",
            "/files/a/public",
            "/files/a%20b/public",
        ),
    ],
)
def test_path_is_exempt(path: str) -> None:
    assert exempts(EXEMPT, path)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "", "/health", "/healthz/more", "/Healthz", "/x/healthz", "/files/public", "/%68ealthz", "/healthz;v=1"),
        *("*", "healthz", "admin", "healthz%2f..", "example.org:443"),
        *("/files/a/b/public", "/files//public", "/admin?/healthz", "/admin#/healthz", "/admin;/healthz"),
        *("/healthz/../admin", "/admin/../healthz", "/healthz/%2e%2e/admin", "/healthz/%252e%252e/admin"),
        *("/static/../admin", "/static/..%2fadmin", "/static/%2e%2e/%2e%2e/admin", "/static/a/../../admin"),
        *("/healthz%00/admin", "/admin%00/../healthz", "/healthz%2f..%2fadmin", "/admin/%2e%2e/healthz"),
        *("/healthz;/../admin", "http://example.org/admin/../healthz", "//evil/healthz"),
    ],
)
def test_ambiguous_path_is_not_exempt(path: str) -> None:
    assert not exempts(EXEMPT, path)


def test_single_path_needs_no_list() -> None:
    assert exempts("/healthz", "/healthz")
    assert not exempts("/healthz", "/")
    assert exempts({"/healthz"}, "/healthz")
    assert exempts((path for path in ["/healthz"]), "/healthz")


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8:5::1"])
def test_network_is_exempt(peer: str) -> None:
    assert exempts(EXEMPT, "/admin", peer=peer)


@pytest.mark.parametrize("peer", ["11.1.2.3", "2001:db9::1", None, "", "10", "localhost"])
def test_other_addresses_are_not_exempt(peer: str | None) -> None:
    assert not exempts(EXEMPT, "/admin", peer=peer)


def test_spoofed_address_is_not_exempt() -> None:
    assert not exempts(EXEMPT, headers={"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"})


def test_unix_socket_is_exempt_when_listed() -> None:
    assert exempts(["unix"], peer=None)
    assert not exempts(["unix"])


def test_callable_exemption() -> None:
    def inside(request: Any) -> bool:
        return bool(request.headers.get("x-internal") == "yes")

    assert exempts(inside, headers={"X-Internal": "yes"})
    assert not exempts(inside)
    assert exempts(lambda: True)


@pytest.mark.parametrize(
    ("exempt", "message"),
    [
        ("healthz", "exempt has 'healthz', which is not a network: if it is a path, write '/healthz'"),
        (["/a", 5], "exempt lists paths such as /healthz and networks such as 10.0.0.0/8, not 5"),
        (5, "exempt must be a callable, or a list of paths and networks, not 5"),
        (True, "exempt must be a callable, or a list of paths and networks, not True"),
        ("10.0.0.1/8", "'10.0.0.1/8' has host bits set: write 10.0.0.0/8, or 10.0.0.1 alone"),
    ],
)
def test_invalid_exemptions_are_refused(exempt: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build_exemption(exempt)
    assert str(raised.value) == message


def test_invalid_pattern_is_refused_immediately() -> None:
    with pytest.raises(ConfigError, match=r"/a/\*\*/b"):
        build_exemption(["/a/**/b"])


# -- preflights -------------------------------------------------------------------------------------------------------

ASKS = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}


def test_preflight_is_detected() -> None:
    assert is_preflight(plain(method="OPTIONS", headers=ASKS))


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("OPTIONS", {}),
        ("OPTIONS", {"Origin": "https://example.org"}),
        ("OPTIONS", {"Access-Control-Request-Method": "POST"}),
        ("GET", ASKS),
        ("POST", ASKS),
        ("options", ASKS),
    ],
)
def test_other_requests_are_not_preflights(method: str, headers: dict[str, str]) -> None:
    assert not is_preflight(plain(method=method, headers=headers))
