"""Whatever comes over a socket: it is answered with a refusal in words or hung up on, and the next one is answered as
if nothing had been. No traceback is logged, which the service's fixture looks after."""

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
ALIVE = request(b"GET", b"/healthz")
MEMBERS = ("type", "title", "status", "detail", "error", "message", "timestamp")


def chunked(body: bytes, size: int, end: bytes = b"0\r\n\r\n", path: bytes = b"/api/v1/check") -> bytes:
    """A check with a body in chunks of so many bytes."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    head = request(b"POST", path, b"transfer-encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def post(*headers: bytes, body: bytes = b"") -> bytes:
    """A check whose headers say what they like about its body."""
    return request(b"POST", b"/api/v1/check", *headers) + body


def refused(answer: RawResponse | None, *statuses: int) -> None:
    """In words, with one of these statuses."""
    assert answer is not None, "hung up on without a word"
    assert answer.status in statuses, answer
    assert answer.header("content-type") == "application/problem+json"
    told = answer.json()
    assert [name for name in MEMBERS if name not in told] == []
    assert told["status"] == answer.status
    assert told["message"] == told["detail"] != ""
    assert "Traceback" not in told["detail"]


@pytest.fixture(autouse=True)
def nothing_spent(service: Service, anyone: httpx.Client) -> Iterator[None]:
    """Afterwards the service answers as before."""
    yield
    assert anyone.get("/healthz").status_code == 200
    assert anyone.post("/api/v1/check", json={"key": "afterwards", "cost": 0}).json()["allowed"] is True
    assert service.process.poll() is None


NO_HTTP = {
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


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_is_told_so(service: Service, data: bytes) -> None:
    with RawConnection(service) as connection:
        connection.send(data)
        refused(connection.read_response(), 400)
        assert connection.closed()


def test_garbage_is_told_apart_from_an_answer_that_was_given_before(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(ALIVE)
        answer = connection.read_response()
        assert answer is not None
        assert answer.status == 200
        connection.send(b"and now for something else\r\n\r\n")
        refused(connection.read_response(), 400)
        assert connection.closed()


def test_garbage_behind_whole_requests_does_not_take_their_answers(service: Service, anyone: httpx.Client) -> None:
    body = b'{"key": "before garbage"}'
    with RawConnection(service) as connection:
        connection.send(request(b"POST", b"/api/v1/check", body=body) * 3 + b"garbage\r\n\r\n")
        told = [connection.read_response() for _ in range(3)]
        assert [answer.json()["allowed"] for answer in told if answer is not None] == [True] * 3
        last = connection.read_response()
        assert last is None or last.status == 400
        assert connection.closed()


@pytest.mark.parametrize("size", [1_000, 30_000, 60_000])
def test_headers_up_to_the_bound_are_read(service: Service, size: int) -> None:
    for data in (
        request(b"GET", b"/healthz", b"x: " + b"a" * size),
        request(b"GET", b"/healthz", *[b"x: a"] * (size // 6)),
        request(b"GET", b"/healthz?" + b"a" * size),
    ):
        answer = send_raw(service, data)
        assert answer is not None
        assert answer.status == 200


@pytest.mark.parametrize("size", [100_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("ends", [True, False])
def test_headers_beyond_the_bound_are_refused(service: Service, size: int, ends: bool) -> None:
    for data in (
        request(b"GET", b"/healthz", b"x: " + b"a" * size),
        request(b"GET", b"/healthz", b"a" * size + b": x"),
        request(b"GET", b"/healthz", *[b"x: a"] * (size // 6)),
        request(b"GET", b"/healthz?" + b"a" * size),
    ):
        with RawConnection(service) as connection:
            connection.send(data if ends else data[:-4])
            refused(connection.read_response(), 431)
            assert connection.closed()


def test_headers_beyond_the_bound_that_come_slowly_are_refused(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(ALIVE)  # it is counted from the request's own beginning
        assert connection.read_response() is not None
        connection.send(request(b"GET", b"/healthz")[:-2] + b"x: ")
        for _ in range(100):
            connection.send(b"a" * 1000)
        refused(connection.read_response(), 431)


def test_a_path_beyond_what_a_url_may_be_is_refused(service: Service) -> None:
    refused(send_raw(service, request(b"GET", b"/" + b"a" * 66_000)), 400, 431)


@pytest.mark.parametrize("path", [b"/api/v1/check", b"/api/v1/quota", b"/ratelimiter/verify-api-limit"])
def test_a_body_over_a_mebibyte_is_refused(service: Service, path: bytes) -> None:
    large = b'{"key": "' + b"k" * (2 << 20) + b'"}'
    refused(send_raw(service, request(b"POST", path, body=large)), 413)
    refused(send_raw(service, chunked(large, 65536, path=path)), 413)
    refused(send_raw(service, chunked(large, 1 << 20, path=path)), 413)
    refused(
        send_raw(service, request(b"POST", path, b"content-length: 1048577") + large[:50_000]), 413
    )  # before all came


@pytest.mark.parametrize("path", [b"/api/v1/check", b"/api/v1/reset", b"/api/v1/rules", b"/api/v1/authorize"])
@pytest.mark.parametrize("size", [2 << 20, 20 << 20])
def test_who_sends_all_of_a_large_body_first_is_still_answered(service: Service, path: bytes, size: int) -> None:
    """And so is what follows on the same connection."""
    key = b"authorization: Bearer " + service.key.encode()
    body = b" " * size
    for data in (request(b"POST", path, key, body=body), chunked(body, 65536, path=path)):
        with RawConnection(service) as connection:
            connection.socket.sendall(data)
            answer = connection.read_response()
            assert answer is not None
            assert answer.status in (200, 401, 413)
            connection.socket.sendall(ALIVE)
            answer = connection.read_response()
            assert answer is not None
            assert answer.json()["status"] == "alive"


def test_a_body_over_a_mebibyte_is_refused_for_admin_calls_too(service: Service) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    large = b" " * (2 << 20)
    for path in (b"/api/v1/rules", b"/api/v1/reset", b"/admin/policies", b"/ratelimiter/configure-client"):
        refused(send_raw(service, request(b"POST", path, key, body=large)), 413)
        data = chunked(large, 65536, path=path).replace(b"\r\n", b"\r\n" + key + b"\r\n", 1)
        refused(send_raw(service, data), 413)


def test_a_body_of_a_mebibyte_is_read(service: Service) -> None:
    body = BODY + b" " * ((1 << 20) - len(BODY))
    for data in (request(b"POST", b"/api/v1/check", body=body), chunked(body, 1 << 20), chunked(body, 4096)):
        answer = send_raw(service, data)
        assert answer is not None
        assert answer.status == 200


def test_chunks_of_one_byte(service: Service) -> None:
    """However many: to join them takes no longer than to read them."""
    for body in (BODY, BODY + b" " * 500_000):
        answer = send_raw(service, chunked(body, 1))
        assert answer is not None
        assert answer.status == 200


def test_what_comes_behind_a_body_is_no_header(service: Service) -> None:
    """A proxy in front has not looked at it."""
    for field in (b"authorization: Bearer nonsense", b"x-request-id: behind"):
        answer = send_raw(service, chunked(BODY, 4, b"0\r\n" + field + b"\r\n\r\n"))
        assert answer is not None
        assert answer.status == 200
        assert answer.header("x-request-id") != "behind"
    first, again = (send_raw(service, chunked(BODY, 4, b"0\r\nidempotency-key: one\r\n\r\n")) for _ in range(2))
    assert first is not None
    assert again is not None
    assert again.json()["reason"] == "ok"


@pytest.mark.parametrize(
    "behind", [b"x: " + b"a" * 5_000_000, b"x: a\r\n" * 1_000_000], ids=["one long field", "a million fields"]
)
def test_what_comes_behind_a_body_has_a_bound(service: Service, behind: bytes) -> None:
    refused(send_raw(service, chunked(BODY, 4, b"0\r\n" + behind)), 413)


def test_a_request_that_comes_byte_by_byte(service: Service) -> None:
    with RawConnection(service) as connection:
        for byte in CHECK:
            connection.send(bytes([byte]))
        answer = connection.read_response()
        assert answer is not None
        assert answer.status == 200


def test_who_will_send_nothing_more_still_gets_its_answer(service: Service) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    for data in (CHECK, request(b"GET", b"/api/v1/rules", key)):
        with RawConnection(service) as connection:
            connection.send(data)
            connection.half_close()
            answer = connection.read_response()
            assert answer is not None
            assert answer.status == 200
            assert connection.closed()


@pytest.mark.parametrize("part", [0, 1, 20, len(CHECK) - len(BODY), len(CHECK) - 1])
def test_who_will_not_send_the_rest_is_hung_up_on(service: Service, part: int) -> None:
    with RawConnection(service) as connection:
        connection.send(CHECK[:part])
        connection.half_close()
        assert connection.closed()


def test_who_breaks_off_changes_nothing(service: Service, anyone: httpx.Client) -> None:
    """A check whose last byte is missing was never made."""
    data = request(b"POST", b"/api/v1/check", body=b'{"key": "broken off"}')
    for _ in range(20):
        with RawConnection(service) as connection:
            connection.send(data[:-1])
            # A reset instead of a friendly end.
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert anyone.post("/api/v1/quota", json={"key": "broken off"}).json()["current_count"] == 0


def test_requests_one_after_the_other_are_answered_in_order(service: Service) -> None:
    """A hundred of them before the first answer is read; checks and admin calls mixed."""
    key = b"authorization: Bearer " + service.key.encode()
    pair = [(b"POST", b"/api/v1/check", BODY), (b"GET", b"/api/v1/rules?limit=1", None)]
    data = b"".join(
        request(method, path, key, b"x-request-id: no-%d" % number, body=body)
        for number, (method, path, body) in enumerate(pair * 50)
    )
    with RawConnection(service) as connection:
        connection.send(data)
        for number in range(100):
            answer = connection.read_response()
            assert answer is not None
            assert (answer.status, answer.header("x-request-id")) == (200, f"no-{number}")


def test_what_follows_a_refused_body_is_a_request_of_its_own(service: Service) -> None:
    """A body that is refused unread is not taken for the next request."""
    within = request(b"DELETE", b"/api/v1/rules/anything")
    with RawConnection(service) as connection:
        connection.send(request(b"POST", b"/api/v1/rules", body=within) + ALIVE)
        refused(connection.read_response(), 401)
        answer = connection.read_response()
        assert answer is not None
        assert answer.json()["status"] == "alive"


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("size", [0, 20_000])
def test_what_follows_a_last_request_is_not_looked_at(
    service: Service, anyone: httpx.Client, version: bytes, size: int
) -> None:
    """Nobody could be told what came of it."""
    key = f"last {version.decode()} {size}"
    body = b'{"key": "%b"}' % key.encode() + b" " * size
    last = request(b"POST", b"/api/v1/check", b"connection: close", body=body, version=version)
    with RawConnection(service) as connection:
        connection.send(last + request(b"POST", b"/api/v1/check", body=body) * 3)
        answer = connection.read_response()
        assert answer is not None
        assert answer.header("connection") == "close"
        assert connection.closed()
    assert anyone.post("/api/v1/quota", json={"key": key}).json()["current_count"] <= 1


def test_who_asks_before_it_sends_a_body_is_told(service: Service) -> None:
    for path in (b"/api/v1/check", b"/api/v1/quota"):
        with RawConnection(service) as connection:
            connection.send(request(b"POST", path, b"expect: 100-continue", b"content-length: %d" % len(BODY)))
            assert connection.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.send(BODY)
            answer = connection.read_response()
            assert answer is not None
            assert answer.status == 200
        with RawConnection(service) as connection:
            connection.send(request(b"POST", path, b"expect: 100-continue", b"content-length: 5000000"))
            assert connection.socket.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 413"
            refused(connection.read_response(), 413)


def test_an_offer_of_another_protocol_is_passed_over(service: Service) -> None:
    """Some clients offer HTTP/2 with their first request, body and all."""
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQBAAAAAAIAAAAA")
    with RawConnection(service) as connection:
        for _ in range(3):
            connection.send(request(b"POST", b"/api/v1/check", *offer, body=BODY))
            answer = connection.read_response()
            assert answer is not None
            assert (answer.status, answer.json()["reason"]) == (200, "ok")
        data = request(b"POST", b"/api/v1/check", *offer, body=BODY)
        for start in range(0, len(data), 7):
            connection.send(data[start : start + 7])
        answer = connection.read_response()
        assert answer is not None
        assert answer.status == 200
        connection.send(request(b"GET", b"/healthz", b"connection: upgrade", b"upgrade: websocket") + ALIVE)
        assert [
            answer.status for answer in (connection.read_response(), connection.read_response()) if answer is not None
        ] == [200, 200]
        refused(send_raw(service, chunked(b"{", 1).replace(b"host", b"\r\n".join(offer) + b"\r\nhost", 1)), 400)


def test_this_is_no_proxy(service: Service) -> None:
    refused(send_raw(service, b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n"), 400, 405)
    refused(send_raw(service, request(b"GET", b"http://example.org/healthz")), 421)
    answer = send_raw(service, request(b"GET", b"http://localhost/healthz"))
    assert answer is not None
    assert answer.json()["status"] == "alive"


def test_http_1_0(service: Service) -> None:
    with RawConnection(service) as connection:
        connection.send(b"POST /api/v1/check HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY))
        answer = connection.read_response()
        assert answer is not None
        assert answer.status == 200
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
def test_paths_in_any_spelling(service: Service, path: bytes) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    answer = send_raw(service, request(b"DELETE", path, key))
    refused(answer, 400, 404, 405)
    assert answer is not None
    assert answer.header("set-cookie") is None


@pytest.mark.parametrize("path", [b"/api/v1/rules/%ff", b"/admin/policies/%ed%a0%80", b"/api/v1/plans/%c0%af"])
def test_a_path_that_is_no_utf_8(service: Service, path: bytes) -> None:
    key = b"authorization: Bearer " + service.key.encode()
    for method in (b"GET", b"DELETE"):
        refused(send_raw(service, request(method, path, key)), 400)


def test_nothing_makes_one_method_of_another(service: Service, admin: httpx.Client) -> None:
    rule = {"rule_id": "stays", "name": "Stays", "dimension": "user", "limit": 5, "window_seconds": 60}
    assert admin.post("/api/v1/rules", json=rule).status_code == 201
    for name in ("x-http-method-override", "x-method-override", "x-http-method"):
        assert admin.get("/api/v1/rules/stays", headers={name: "DELETE"}).status_code == 200
        assert admin.get("/api/v1/rules/stays?_method=DELETE", headers={name: "DELETE"}).status_code in (200, 400)
    assert admin.delete("/api/v1/rules/stays").status_code == 204


@pytest.mark.parametrize("told", [b"a b", b"a\tb", b"<script>", "é".encode(), b"x" * 129, b"{}", b'a"b', b""])
def test_a_request_id_that_cannot_be_written_down_is_replaced(service: Service, told: bytes) -> None:
    answer = send_raw(service, request(b"GET", b"/healthz", b"x-request-id: " + told))
    assert answer is not None
    given = answer.header("x-request-id")
    assert given
    assert given.encode("latin-1") != told


def test_many_who_only_connect_do_not_keep_others_out(service: Service, anyone: httpx.Client) -> None:
    wires = [RawConnection(service) for _ in range(300)]
    try:
        for number, connection in enumerate(wires):
            connection.send(CHECK[: number % len(CHECK)])
        assert anyone.post("/api/v1/check", json={"key": "among many"}).json()["allowed"] is True
    finally:
        for connection in wires:
            connection.close()


def test_nothing_that_is_sent_makes_a_line_of_its_own_in_the_log(serve: Callable[..., Service]) -> None:
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


def test_ends_while_connections_are_open(serve: Callable[..., Service]) -> None:
    service = serve()
    with RawConnection(service) as kept, RawConnection(service) as half, RawConnection(service):
        kept.send(ALIVE)
        assert kept.read_response() is not None
        half.send(CHECK[:30])
        assert service.stop() == 0
    assert "Traceback" not in service.logged


def test_what_stands_behind_the_last_request_is_not_counted(service: Service, anyone: httpx.Client) -> None:
    """Of HTTP/1.0 a connection has one request, whatever else is sent on it."""
    body = b'{"key": "behind-the-last"}'
    one = request(b"POST", b"/api/v1/check", b"connection: keep-alive", body=body, version=b"HTTP/1.0")
    with RawConnection(service) as connection:
        connection.send(one * 3)
        answer = connection.read_response()
        assert answer is not None
        assert answer.status == 200
        assert connection.closed()
    quota = anyone.post("/api/v1/quota", json={"key": "behind-the-last", "cost": 0}).json()
    assert quota["current_count"] <= 1
