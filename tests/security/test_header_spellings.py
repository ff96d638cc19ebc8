"""Other spellings of a header (tabs, blanks, case) give no new quota, in keys and methods."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.proxies.crestgate_service import CrestgateService
from integration.proxies.origin import Origin, serve_origin
from integration.proxies.proxy_processes import DEPLOY, Nginx
from integration.service.raw_http import request, send_raw
from integration.service.service_process import Service

SETTINGS = (DEPLOY / "nginx" / "crestgate.yaml").read_text()
SEARCHES = 5
"""What deploy/nginx/crestgate.yaml allows an API key."""
TRAILERS = [b"", b" ", b"\t", b"\t\t", b" \t ", b"\t" * 50, b"\xa0", b" \xa0\t"]
CONFIG = """
server: {trusted_proxies: [127.0.0.0/8]}
default_client_limits: off
rules:
  - {dimension: apikey, name: keys, endpoint_pattern: /key, limit: 1, window_seconds: 86400, algorithm: fixed_window}
  - {dimension: user, name: users, endpoint_pattern: /user, limit: 1, window_seconds: 86400, algorithm: fixed_window}
  - {dimension: client, name: clients, endpoint_pattern: /client, limit: 1, window_seconds: 86400,
     algorithm: fixed_window}
  - {dimension: global, name: posts, endpoint_pattern: /posts, method: POST, limit: 1, window_seconds: 86400,
     algorithm: fixed_window}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("spellings"), config=CONFIG) as started:
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture(scope="module")
def application() -> Iterator[Origin]:
    with serve_origin() as started:
        yield started


def authorize(service: Service, *headers: bytes) -> int:
    answer = send_raw(service, request(b"GET", b"/api/v1/authorize", *headers))
    assert answer is not None
    return answer.status


@pytest.mark.parametrize(
    ("path", "header"), [(b"/key", b"x-api-key"), (b"/user", b"x-user-id"), (b"/client", b"x-client-id")]
)
def test_blanks_around_a_name_are_no_new_subject(service: Service, path: bytes, header: bytes) -> None:
    statuses = [
        authorize(service, b"x-original-uri: " + path, header + b": somebody" + trailer) for trailer in TRAILERS
    ]
    assert statuses == [200] + [429] * (len(TRAILERS) - 1)


def test_spelling_of_a_method_evades_no_rule(service: Service) -> None:
    methods = [b"POST", b"POST ", b"POST\t", b"post", b"Post\t\t", b"POST\xa0"]
    statuses = [authorize(service, b"x-original-uri: /posts", b"x-original-method: " + name) for name in methods]
    assert statuses == [200] + [429] * (len(methods) - 1)


def test_blanks_after_a_path_evade_no_rule(service: Service) -> None:
    key = b"x-api-key: paths"
    statuses = [authorize(service, key, b"x-original-uri: " + path) for path in (b"/key", b"/key\t", b"/key \t?a=b ")]
    assert statuses[:2] == [200, 429]


def test_repeated_headers_are_compared_without_blanks(service: Service) -> None:
    path, key = b"x-original-uri: /key", b"x-api-key: repeated"
    assert authorize(service, path, key, key + b"\t") == 200
    assert authorize(service, path, key, key + b"\t") == 429
    assert authorize(service, path, key, b"x-api-key: another") == 400
    assert authorize(service, path, b"x-forwarded-uri: /key\t", b"x-api-key: both-paths") == 200


def test_blank_key_is_no_key(service: Service) -> None:
    """No API key rule applies to a header that has only blanks."""
    assert [authorize(service, b"x-original-uri: /key", b"x-api-key: \t") for _ in range(3)] == [200] * 3


def test_service_key_with_blanks_is_the_key(service: Service) -> None:
    answer = send_raw(service, request(b"GET", b"/api/v1/rules", b"x-api-key: " + service.key.encode() + b"\t\t"))
    assert answer is not None
    assert answer.status == 200


def test_counter_is_one_behind_nginx(tmp_path: Path, application: Origin, report: Callable[[str], None]) -> None:
    """The application reads the key as Python does, without blanks, so all spellings are one key."""
    with (
        CrestgateService(tmp_path, {"crestgate.yaml": SETTINGS}) as crestgate,
        Nginx(crestgate.http, application.port, Nginx.patient) as nginx,
    ):
        statuses = [_search(nginx.port, b"secret" + b"\t" * count) for count in range(2 * SEARCHES)]
    assert statuses == [200] * SEARCHES + [429] * SEARCHES
    report(f"spellings of one API key behind nginx: {statuses.count(200)} of {len(statuses)} admitted")


def _search(port: int, key: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        head = b"GET /search HTTP/1.1\r\nHost: shop.example\r\nX-API-Key: " + key
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])
