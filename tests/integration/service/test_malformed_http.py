"""Malformed and hostile HTTP over raw sockets: refused with a problem response or disconnected, and the next request
works. The service fixture asserts that no traceback is logged."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from urllib.parse import quote

import httpx
import pytest

from integration.service.raw_http import RawConnection, RawResponse, request, send_raw
from integration.service.service_process import Service

BODY = b'{"key": "wire"}'
CHECK = request(b"POST", b"/api/v1/check", body=BODY)
HEALTHZ = request(b"GET", b"/healthz")
MEMBERS = ("type", "title", "status", "detail", "error", "message", "timestamp")


def chunked(body: bytes, size: int, end: bytes = b"0\r\n\r\n", path: bytes = b"/api/v1/check") -> bytes:
    """A check with a chunked body, each chunk of so many bytes."""
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    head = request(b"POST", path, b"transfer-encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def post(*headers: bytes, body: bytes = b"") -> bytes:
    """A check with arbitrary body headers."""
    return request(b"POST", b"/api/v1/check", *headers) + body


def assert_refused(response: RawResponse | None, *statuses: int) -> None:
    """Assert a problem response with one of these statuses."""
    assert response is not None, "disconnected without a response"
    assert response.status in statuses, response
    assert response.header("content-type") == "application/problem+json"
    problem = response.json()
    assert [name for name in MEMBERS if name not in problem] == []
    assert problem["status"] == response.status
    assert problem["message"] == problem["detail"] != ""
    assert "Traceback" not in problem["detail"]


@pytest.fixture(autouse=True)
def service_still_works(service: Service, anyone: httpx.Client) -> Iterator[None]:
    """The service works as before after each test."""
    yield
    assert anyone.get("/healthz").status_code == 200
    assert anyone.post("/api/v1/check", json={"key": "afterwards", "cost": 0}).json()["allowed"] is True
    assert service.process.poll() is None


MALFORMED = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
    "text": b"hello there\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "nul bytes": b"\0" * 1000,
    "another version": b"GET /healthz HTTP/3.7\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "no version in a check": b"POST /api/v1/check\r\ncontent-length: 15\r\n\r\n" + BODY,
    "no version, no path": b"GET\r\n\r\n",
    "a method of nobody": request(b"BREW", b"/healthz"),
    "a method in lower case": request(b"get", b"/healthz"),
    "nul in the path": request(b"GET", b"/healthz\0"),
    "a blank in the path": request(b"GET", b"/health z"),
    "line break in the path": request(b"GET", b"/healthz\nx: y"),
    "a path that is no ascii": request(b"GET", "/api/v1/rules/é".encode()),
    "no path": request(b"GET", b"http://crestgate"),
    "a port for a path": request(b"GET", b"http://crestgate:99999999/healthz"),
    "nul in a header": request(b"GET", b"/healthz", b"x: a\0b"),
    "carriage return in a header": request(b"GET", b"/healthz", b"x: a\rb"),
    "a folded header": request(b"GET", b"/healthz", b"x: a", b" b"),
    "a name with a blank": request(b"GET", b"/healthz", b"x y: a"),
    "a name before a blank": post(b"transfer-encoding : chunked", body=b"0\r\n\r\n"),
    "an empty name": request(b"GET", b"/healthz", b": a"),
    "no colon": request(b"GET", b"/healthz", b"nothing"),
    "line feeds only": b"GET /healthz HTTP/1.1\nhost: x\n\n",
    "two lengths": post(b"content-length: 15", b"content-length: 16", body=BODY),
    "the same length twice": post(b"content-length: 15", b"content-length: 15", body=BODY),
    "a list of lengths": post(b"content-length: 15, 15", body=BODY),
    "a negative length": post(b"content-length: -1", body=BODY),
    "a length with a plus": post(b"content-length: +15", body=BODY),
    "a length in hex": post(b"content-length: 0xf", body=BODY),
    "a length of letters": post(b"content-length: fifteen", body=BODY),
    "an empty length": post(b"content-length:", body=BODY),
    "a length of 30 digits": post(b"content-length: " + b"9" * 30, body=BODY),
    "a length and chunks": post(b"content-length: 15", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and a length": post(b"transfer-encoding: chunked", b"content-length: 15", body=b"0\r\n\r\n"),
    "identity": post(b"transfer-encoding: identity", body=BODY),
    "chunked and then something": post(b"transfer-encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "nearly chunked": post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "chunked twice, the second not": post(
        b"transfer-encoding: chunked", b"transfer-encoding: identity", body=b"0\r\n\r\n"
    ),
    "a chunk of letters": post(b"transfer-encoding: chunked", body=b"zz\r\n"),
    "a chunk of a negative size": post(b"transfer-encoding: chunked", body=b"-1\r\n"),
    "a chunk of 2^72 bytes": post(b"transfer-encoding: chunked", body=b"ffffffffffffffffff\r\n"),
    "a chunk without an end": post(b"transfer-encoding: chunked", body=b"3\r\nabcdef\r\n"),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_get_400(service: Service, data: bytes) -> None:
    with RawConnection(service) as connection:
        connection.send(data)
        assert_refused(connection.read_response(), 400)
        assert connection.closed()


def test_garbage_after_a_response_gets_400(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(HEALTHZ)
        response = connection.read_response()
        assert response is not None
        assert response.status == 200
        connection.send(b"and now for something else\r\n\r\n")
        assert_refused(connection.read_response(), 400)
        assert connection.closed()


def test_garbage_after_complete_requests_keeps_their_responses(service: Service, anyone: httpx.Client) -> None:
    body = b'{"key": "before garbage"}'
    with RawConnection(service) as connection:
        connection.send(request(b"POST", b"/api/v1/check", body=body) * 3 + b"garbage\r\n\r\n")
        problem = [connection.read_response() for _ in range(3)]
        assert [response.json()["allowed"] for response in problem if response is not None] == [True] * 3
        last = connection.read_response()
        assert last is None or last.status == 400
        assert connection.closed()


@pytest.mark.parametrize("size", [1_000, 30_000, 60_000])
def test_headers_up_to_the_limit_are_accepted(service: Service, size: int) -> None:
    for data in (
        request(b"GET", b"/healthz", b"x: " + b"a" * size),
        request(b"GET", b"/healthz", *[b"x: a"] * (size // 6)),
        request(b"GET", b"/healthz?" + b"a" * size),
    ):
        response = send_raw(service, data)
        assert response is not None
        assert response.status == 200


@pytest.mark.parametrize("size", [100_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("complete", [True, False])
def test_headers_over_the_limit_are_refused(service: Service, size: int, complete: bool) -> None:
    for data in (
        request(b"GET", b"/healthz", b"x: " + b"a" * size),
        request(b"GET", b"/healthz", b"a" * size + b": x"),
        request(b"GET", b"/healthz", *[b"x: a"] * (size // 6)),
        request(b"GET", b"/healthz?" + b"a" * size),
    ):
        with RawConnection(service) as connection:
            connection.send(data if complete else data[:-4])
            assert_refused(connection.read_response(), 431)
            assert connection.closed()


def test_slow_headers_over_the_limit_are_refused(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(HEALTHZ)  # size is counted from the start of each request
        assert connection.read_response() is not None
        connection.send(request(b"GET", b"/healthz")[:-2] + b"x: ")
        for _ in range(100):
            connection.send(b"a" * 1000)
        assert_refused(connection.read_response(), 431)


def test_too_long_path_is_refused(service: Service) -> None:
    assert_refused(send_raw(service, request(b"GET", b"/" + b"a" * 66_000)), 400, 431)


@pytest.mark.parametrize("path", [b"/api/v1/check", b"/api/v1/quota", b"/ratelimiter/verify-api-limit"])
def test_body_over_a_mebibyte_is_refused(service: Service, path: bytes) -> None:
    large = b'{"key": "' + b"k" * (2 << 20) + b'"}'
    assert_refused(send_raw(service, request(b"POST", path, body=large)), 413)
    assert_refused(send_raw(service, chunked(large, 65536, path=path)), 413)
    assert_refused(send_raw(service, chunked(large, 1 << 20, path=path)), 413)
    assert_refused(
        send_raw(service, request(b"POST", path, b"content-length: 1048577") + large[:50_000]), 413
    )  # before the whole body arrived


@pytest.mark.parametrize("path", [b"/api/v1/check", b"/api/v1/reset", b"/api/v1/rules", b"/api/v1/authorize"])
@pytest.mark.parametrize("size", [2 << 20, 20 << 20])
def test_large_body_sent_before_reading_gets_a_response(service: Service, path: bytes, size: int) -> None:
    """So does the next request on the same connection."""
    key = b"authorization: Bearer " + service.key.encode()
    body = b" " * size
    for data in (request(b"POST", path, key, body=body), chunked(body, 65536, path=path)):
        with RawConnection(service) as connection:
            connection.socket.sendall(data)
            response = connection.read_response()
            assert response is not None
            assert response.status in (200, 401, 413)
            connection.socket.sendall(HEALTHZ)
            response = connection.read_response()
            assert response is not None
            assert response.json()["status"] == "alive"


def test_admin_body_over_a_mebibyte_is_refused(service: Service) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    large = b" " * (2 << 20)
    for path in (b"/api/v1/rules", b"/api/v1/reset", b"/admin/policies", b"/ratelimiter/configure-client"):
        assert_refused(send_raw(service, request(b"POST", path, key, body=large)), 413)
        data = chunked(large, 65536, path=path).replace(b"\r\n", b"\r\n" + key + b"\r\n", 1)
        assert_refused(send_raw(service, data), 413)


def test_body_of_a_mebibyte_is_accepted(service: Service) -> None:
    body = BODY + b" " * ((1 << 20) - len(BODY))
    for data in (request(b"POST", b"/api/v1/check", body=body), chunked(body, 1 << 20), chunked(body, 4096)):
        response = send_raw(service, data)
        assert response is not None
        assert response.status == 200


def test_one_byte_chunks_are_accepted(service: Service) -> None:
    """Any number of them: joining takes linear time."""
    for body in (BODY, BODY + b" " * 500_000):
        response = send_raw(service, chunked(body, 1))
        assert response is not None
        assert response.status == 200


def test_trailers_are_not_headers(service: Service) -> None:
    """A proxy in front does not inspect trailers."""
    for field in (b"authorization: Bearer nonsense", b"x-request-id: behind"):
        response = send_raw(service, chunked(BODY, 4, b"0\r\n" + field + b"\r\n\r\n"))
        assert response is not None
        assert response.status == 200
        assert response.header("x-request-id") != "behind"
    first, again = (send_raw(service, chunked(BODY, 4, b"0\r\nidempotency-key: one\r\n\r\n")) for _ in range(2))
    assert first is not None
    assert again is not None
    assert again.json()["reason"] == "ok"


@pytest.mark.parametrize(
    "trailers", [b"x: " + b"a" * 5_000_000, b"x: a\r\n" * 1_000_000], ids=["one long field", "a million fields"]
)
def test_trailers_are_bounded(service: Service, trailers: bytes) -> None:
    assert_refused(send_raw(service, chunked(BODY, 4, b"0\r\n" + trailers)), 413)


def test_request_sent_byte_by_byte_is_accepted(service: Service) -> None:
    with RawConnection(service) as connection:
        for byte in CHECK:
            connection.send(bytes([byte]))
        response = connection.read_response()
        assert response is not None
        assert response.status == 200


def test_half_closed_connection_gets_its_response(service: Service) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    for data in (CHECK, request(b"GET", b"/api/v1/rules", key)):
        with RawConnection(service) as connection:
            connection.send(data)
            connection.half_close()
            response = connection.read_response()
            assert response is not None
            assert response.status == 200
            assert connection.closed()


@pytest.mark.parametrize("size", [0, 1, 20, len(CHECK) - len(BODY), len(CHECK) - 1])
def test_half_closed_incomplete_request_is_disconnected(service: Service, size: int) -> None:
    with RawConnection(service) as connection:
        connection.send(CHECK[:size])
        connection.half_close()
        assert connection.closed()


def test_aborted_request_changes_nothing(service: Service, anyone: httpx.Client) -> None:
    """A check without its last byte is not counted."""
    data = request(b"POST", b"/api/v1/check", body=b'{"key": "broken off"}')
    for _ in range(20):
        with RawConnection(service) as connection:
            connection.send(data[:-1])
            # Close with a reset.
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert anyone.post("/api/v1/quota", json={"key": "broken off"}).json()["current_count"] == 0


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    """A hundred before the first response is read; checks and admin calls mixed."""
    key = b"authorization: Bearer " + service.key.encode()
    pair = [(b"POST", b"/api/v1/check", BODY), (b"GET", b"/api/v1/rules?limit=1", None)]
    data = b"".join(
        request(method, path, key, b"x-request-id: no-%d" % number, body=body)
        for number, (method, path, body) in enumerate(pair * 50)
    )
    with RawConnection(service) as connection:
        connection.send(data)
        for number in range(100):
            response = connection.read_response()
            assert response is not None
            assert (response.status, response.header("x-request-id")) == (200, f"no-{number}")


def test_refused_body_is_not_parsed_as_a_request(service: Service) -> None:
    """The unread body of a refused request is skipped."""
    embedded = request(b"DELETE", b"/api/v1/rules/anything")
    with RawConnection(service) as connection:
        connection.send(request(b"POST", b"/api/v1/rules", body=embedded) + HEALTHZ)
        assert_refused(connection.read_response(), 401)
        response = connection.read_response()
        assert response is not None
        assert response.json()["status"] == "alive"


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("size", [0, 20_000])
def test_requests_after_connection_close_are_ignored(
    service: Service, anyone: httpx.Client, version: bytes, size: int
) -> None:
    """Their responses could not be delivered."""
    key = f"last {version.decode()} {size}"
    body = b'{"key": "%b"}' % key.encode() + b" " * size
    last = request(b"POST", b"/api/v1/check", b"connection: close", body=body, version=version)
    with RawConnection(service) as connection:
        connection.send(last + request(b"POST", b"/api/v1/check", body=body) * 3)
        response = connection.read_response()
        assert response is not None
        assert response.header("connection") == "close"
        assert connection.closed()
    assert anyone.post("/api/v1/quota", json={"key": key}).json()["current_count"] <= 1


def test_expect_continue_is_honoured(service: Service) -> None:
    for path in (b"/api/v1/check", b"/api/v1/quota"):
        with RawConnection(service) as connection:
            connection.send(request(b"POST", path, b"expect: 100-continue", b"content-length: %d" % len(BODY)))
            assert connection.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.send(BODY)
            response = connection.read_response()
            assert response is not None
            assert response.status == 200
        with RawConnection(service) as connection:
            connection.send(request(b"POST", path, b"expect: 100-continue", b"content-length: 5000000"))
            assert connection.socket.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 413"
            assert_refused(connection.read_response(), 413)


def test_upgrade_offers_are_ignored(service: Service) -> None:
    """Some clients offer HTTP/2 with their first request and its body."""
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQBAAAAAAIAAAAA")
    with RawConnection(service) as connection:
        for _ in range(3):
            connection.send(request(b"POST", b"/api/v1/check", *offer, body=BODY))
            response = connection.read_response()
            assert response is not None
            assert (response.status, response.json()["reason"]) == (200, "ok")
        data = request(b"POST", b"/api/v1/check", *offer, body=BODY)
        for start in range(0, len(data), 7):
            connection.send(data[start : start + 7])
        response = connection.read_response()
        assert response is not None
        assert response.status == 200
        connection.send(request(b"GET", b"/healthz", b"connection: upgrade", b"upgrade: websocket") + HEALTHZ)
        assert [
            response.status
            for response in (connection.read_response(), connection.read_response())
            if response is not None
        ] == [200, 200]
        assert_refused(send_raw(service, chunked(b"{", 1).replace(b"host", b"\r\n".join(offer) + b"\r\nhost", 1)), 400)


def test_proxy_requests_are_refused(service: Service) -> None:
    assert_refused(send_raw(service, b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n"), 400, 405)
    assert_refused(send_raw(service, request(b"GET", b"http://example.org/healthz")), 421)
    response = send_raw(service, request(b"GET", b"http://localhost/healthz"))
    assert response is not None
    assert response.json()["status"] == "alive"


def test_http_1_0(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(b"POST /api/v1/check HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY))
        response = connection.read_response()
        assert response is not None
        assert response.status == 200
        assert connection.closed()


@pytest.mark.parametrize(
    "path",
    [
        b"/api/v1/rules/%00",
        b"/api/v1/rules/%0d%0aset-cookie:%20a=b",
        b"/api/v1/rules/%zz",
        b"/api/v1/rules/%",
        b"/api/v1/rules/%2e%2e%2f%2e%2e",
        b"/api/v1/rules/..%2f..",
        b"/api/v1/rules/%25%30%30",
        b"/api/v1/rules/%F0%9F%92%A9",
        b"/api/v1/../../etc/passwd",
        b"/api/v1/%72ules%00",
        b"/admin/policies/%2F%2F",
        b"/admin/metrics/a%2Fb%00",
        b"//api//v1//rules//x",
        b"/%2e%2e/",
        b"/api/v1/check%00",
        b"/api/v1/check/",
        b"/API/V1/RULES",
    ],
)
def test_unusual_paths_are_refused(service: Service, path: bytes) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    response = send_raw(service, request(b"DELETE", path, key))
    assert_refused(response, 400, 404, 405)
    assert response is not None
    assert response.header("set-cookie") is None


@pytest.mark.parametrize("path", [b"/api/v1/rules/%ff", b"/admin/policies/%ed%a0%80", b"/api/v1/plans/%c0%af"])
def test_non_utf8_path_is_refused(service: Service, path: bytes) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    for method in (b"GET", b"DELETE"):
        assert_refused(send_raw(service, request(method, path, key)), 400)


def test_method_override_headers_are_ignored(service: Service, admin: httpx.Client) -> None:
    rule = {"rule_id": "stays", "name": "Stays", "dimension": "user", "limit": 5, "window_seconds": 60}
    assert admin.post("/api/v1/rules", json=rule).status_code == 201
    for name in ("x-http-method-override", "x-method-override", "x-http-method"):
        assert admin.get("/api/v1/rules/stays", headers={name: "DELETE"}).status_code == 200
        assert admin.get("/api/v1/rules/stays?_method=DELETE", headers={name: "DELETE"}).status_code in (200, 400)
    assert admin.delete("/api/v1/rules/stays").status_code == 204


@pytest.mark.parametrize("sent", [b"a b", b"a\tb", b"<script>", "é".encode(), b"x" * 129, b"{}", b'a"b', b""])
def test_invalid_request_id_is_replaced(service: Service, sent: bytes) -> None:
    response = send_raw(service, request(b"GET", b"/healthz", b"x-request-id: " + sent))
    assert response is not None
    request_id = response.header("x-request-id")
    assert request_id
    assert request_id.encode("latin-1") != sent


def test_idle_connections_do_not_block_others(service: Service, anyone: httpx.Client) -> None:
    connections = [RawConnection(service) for _ in range(300)]
    try:
        for number, connection in enumerate(connections):
            connection.send(CHECK[: number % len(CHECK)])
        assert anyone.post("/api/v1/check", json={"key": "among many"}).json()["allowed"] is True
    finally:
        for connection in connections:
            connection.close()


def test_input_cannot_forge_log_lines(serve: Callable[..., Service]) -> None:
    forms = {"CRESTGATE_LOGS__FORMAT": "text", "CRESTGATE_LOGS__REQUESTS": "all", "CRESTGATE_LOGS__KEYS": "plain"}
    service = serve(environment=forms)
    with service.client(service.key) as client:
        client.get("/api/v1/rules/a%0aFORGED%0d%1b[31m%E2%80%A8")
        for name in ("a\nFORGED", "a\rFORGED", "a\u2028FORGED", "a\x1b[2KFORGED"):
            client.post("/api/v1/check", json={"key": name, "cost": 100})
            client.post("/ratelimiter/verify-api-limit", json={"clientId": name})
            client.post("/api/v1/rules", json={"rule_id": name})
            client.post(f"/admin/reset/{quote(name)}")
    service.stop()
    lines = service.logged.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if not line[:4].isdigit()] == []
    assert "\x1b" not in service.logged


def test_stops_while_connections_are_open(serve: Callable[..., Service]) -> None:
    service = serve()
    with RawConnection(service) as idle, RawConnection(service) as partial, RawConnection(service):
        idle.send(HEALTHZ)
        assert idle.read_response() is not None
        partial.send(CHECK[:30])
        assert service.stop() == 0
    assert "Traceback" not in service.logged


def test_requests_after_an_http_1_0_request_are_not_counted(service: Service, anyone: httpx.Client) -> None:
    """An HTTP/1.0 connection carries one request; the rest is ignored."""
    body = b'{"key": "behind-the-last"}'
    one = request(b"POST", b"/api/v1/check", b"connection: keep-alive", body=body, version=b"HTTP/1.0")
    with RawConnection(service) as connection:
        connection.send(one * 3)
        response = connection.read_response()
        assert response is not None
        assert response.status == 200
        assert connection.closed()
    quota = anyone.post("/api/v1/quota", json={"key": "behind-the-last", "cost": 0}).json()
    assert quota["current_count"] <= 1
