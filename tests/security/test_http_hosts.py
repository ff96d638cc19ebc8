"""The Host header: exactly one, well-formed, and on loopback a name of this machine (DNS rebinding uses another)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.service.raw_http import RawResponse, send_raw
from integration.service.service_process import Service

PATHS = [b"/healthz", b"/metrics", b"/docs", b"/api/v1/rules", b"/api/v1/authorize", b"/nowhere"]
BODY = b'{"key": "host"}'
BEYOND = {
    "CRESTGATE_SERVER__HTTP": "0.0.0.0:0",
    "CRESTGATE_SERVER__CHECKS": "open",
    "CRESTGATE_ADMIN_KEY": "cg_" + "test" * 10,
}
"""A service that other machines could reach, and checks without a key."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("hosts")) as running:
        yield running


def get(service: Service, path: bytes, *headers: bytes, version: bytes = b"1.1") -> RawResponse:
    answer = send_raw(service, b"\r\n".join([b"GET " + path + b" HTTP/" + version, *headers, b"", b""]))
    assert answer is not None
    return answer


def check(service: Service, *headers: bytes, version: bytes = b"1.1") -> RawResponse:
    length = b"content-length: %d" % len(BODY)
    answer = send_raw(service, b"\r\n".join([b"POST /api/v1/check HTTP/" + version, *headers, length, b"", BODY]))
    assert answer is not None
    return answer


def refused(answer: RawResponse, status: int, *words: str) -> None:
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/problem+json"
    for word in words:
        assert word in answer.json()["detail"]


FOREIGN = [
    *(b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"127.0.0.1.evil.example", b"notlocalhost"),
    *(b"0.0.0.0", b"192.0.2.1", b"[::]", b"[2001:db8::1]:80", b"127.1", b"2130706433", b""),
]
OWN = [
    *(b"localhost", b"LocalHost", b"localhost.", b"localhost:1", b"127.0.0.1", b"127.0.0.2:8080"),
    *(b"[::1]", b"[::1]:8080", b"[::ffff:127.0.0.1]"),
]


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_hosts_are_refused_on_loopback(service: Service, host: bytes) -> None:
    for path in PATHS:
        refused(get(service, path, b"host: " + host), 421, "server.allowed_hosts")
    refused(check(service, b"host: " + host), 421, "server.allowed_hosts")


@pytest.mark.parametrize("host", OWN)
def test_names_of_this_machine_pass(service: Service, host: bytes) -> None:
    assert get(service, b"/metrics", b"host: " + host).status == 200
    assert check(service, b"host: " + host).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_missing_host(service: Service, path: bytes) -> None:
    refused(get(service, path), 400, "Host header is missing")
    refused(check(service), 400, "Host header is missing")


def test_http_1_0_needs_no_host(service: Service) -> None:
    """No browser uses HTTP/1.0."""
    assert get(service, b"/healthz", version=b"1.0").status == 200
    assert check(service, version=b"1.0").status == 200
    refused(get(service, b"/healthz", b"host: evil.example", version=b"1.0"), 421)
    refused(get(service, b"/healthz", b"origin: http://evil.example", version=b"1.0"), 403)


@pytest.mark.parametrize("second", [b"localhost", b"evil.example", b""])
def test_doubled_host(service: Service, second: bytes) -> None:
    assert check(service, b"host: localhost").status == 200  # so it is known
    for hosts in ((b"host: localhost", b"Host: " + second), (b"HOST: " + second, b"host: localhost")):
        for path in PATHS:
            refused(get(service, path, *hosts), 400, "2 Host headers")
        refused(get(service, b"/api/v1/authorize", *hosts, b"x-original-uri: /"), 400, "2 Host headers")
        refused(check(service, *hosts), 400, "2 Host headers")


@pytest.mark.parametrize(
    "host", [b"a b", b"a/b", b"a@localhost", b"http://localhost", b"localhost:x", b"[::1", b"\xff"]
)
def test_malformed_host(service: Service, host: bytes) -> None:
    refused(get(service, b"/healthz", b"host: " + host), 400, "Host header is malformed")
    refused(check(service, b"host: " + host), 400, "Host header is malformed")


def test_authorize_has_the_host_of_the_forwarded_request(service: Service) -> None:
    for host in (b"shop.example", b"localhost"):
        assert get(service, b"/api/v1/authorize", b"host: " + host, b"x-original-uri: /orders").status == 200
    refused(get(service, b"/metrics", b"host: shop.example"), 421)


def test_allowed_hosts(serve: Callable[..., Service]) -> None:
    service = serve(environment={"CRESTGATE_SERVER__ALLOWED_HOSTS": '[gate.example, "*.shop.example"]'})
    for host in (b"gate.example", b"GATE.example.:80", b"a.shop.example", b"a.b.shop.example", b"localhost", b"[::1]"):
        assert get(service, b"/metrics", b"host: " + host).status == 200
        assert check(service, b"host: " + host).status == 200
    for host in (b"a.gate.example", b"shop.example", b"evilshop.example", b"gate.example.evil.example"):
        refused(get(service, b"/metrics", b"host: " + host), 421)


def test_beyond_loopback_hosts_are_checked_only_if_they_are_named(serve: Callable[..., Service]) -> None:
    service = serve(environment=BEYOND)
    assert check(service, b"host: gate.example").status == 200
    refused(check(service), 400)
    refused(check(service, b"host: gate.example", b"origin: http://evil.example"), 403)


def test_named_hosts_beyond_loopback(serve: Callable[..., Service]) -> None:
    service = serve(environment=BEYOND | {"CRESTGATE_SERVER__ALLOWED_HOSTS": "gate.example"})
    for host in (b"gate.example", b"10.0.0.7:8080", b"localhost"):  # probes call by address
        assert check(service, b"host: " + host).status == 200
    refused(check(service, b"host: evil.example"), 421)


def test_host_cache_is_bounded(serve: Callable[..., Service]) -> None:
    service = serve(environment={"CRESTGATE_SERVER__ALLOWED_HOSTS": '["*.gate.example"]'})
    for number in range(300):
        assert get(service, b"/healthz", b"host: n%d.gate.example" % number).status == 200
    refused(get(service, b"/healthz", b"host: evil.example"), 421)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_host_of_an_absolute_target_counts(service: Service, path: bytes, version: bytes) -> None:
    """RFC 9112, section 3.2.2: the Host header is ignored then."""
    foreign = b"http://evil.example:8080" + path
    refused(get(service, foreign, b"host: localhost", version=version), 421, "evil.example")
    own = get(service, b"http://localhost" + path, b"host: localhost", version=version)
    assert own.status == get(service, path, b"host: localhost", version=version).status
    assert get(service, b"http://localhost" + path, b"host: evil.example", version=version).status == own.status


def test_absolute_target_does_not_excuse_wrong_host_headers(service: Service) -> None:
    refused(get(service, b"http://localhost/metrics"), 400, "Host")
    refused(get(service, b"http://localhost/metrics", b"host: localhost", b"host: localhost"), 400, "Host")
    refused(get(service, b"http://user@localhost/metrics", b"host: localhost"), 400, "Host")
    refused(get(service, b"http://evil.example/metrics", version=b"1.0"), 421, "evil.example")


def test_checks_to_an_absolute_target_of_another_host_are_refused(service: Service) -> None:
    head = b"POST http://evil.example/api/v1/check HTTP/1.1\r\nhost: localhost\r\n"
    answer = send_raw(service, head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer is not None
    refused(answer, 421, "evil.example")
