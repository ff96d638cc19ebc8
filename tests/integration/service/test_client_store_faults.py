"""A service that is down, hangs or restarts: its clients apply their own failure policy within the deadline."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from crestgate import AsyncLimiter, Limiter, RequestContext, StoreError
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.stores.breaker import OPEN_SECONDS
from integration.service.service_process import GENEROUS, Service
from servers.redis import self_signed

CONFIG = "plans: {pair: [5/day using fixed_window, 3/hour]}\n"
TIMEOUT = 30.0


@pytest.fixture(scope="module")
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        number: int = listener.getsockname()[1]
        return number


@pytest.fixture
def start(tmp_path: Path, port: int) -> Callable[[], Service]:
    """Starts or restarts a service on the same port, in the same folder."""
    key = "cg_of_the_operator"

    def start_service() -> Service:
        environment = {**GENEROUS, "CRESTGATE_SERVER__HTTP": f"127.0.0.1:{port}", "CRESTGATE_ADMIN_KEY": key}
        return Service(tmp_path, CONFIG, environment=environment, key=key)

    return start_service


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that accepts connections and never responds."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=50)) as listener:
        yield listener.getsockname()[1]


def test_service_is_killed_and_restarted(start: Callable[[], Service], port: int) -> None:
    key = uuid4().hex
    url = f"crestgate://127.0.0.1:{port}?timeout_ms=5000"
    context = RequestContext(user="42", path="/orders")
    with start() as first:
        limiters = {policy: Limiter(url, on_store_error=policy) for policy in ("open", "closed", "local")}
        for limiter in limiters.values():
            assert limiter.check(key, ["4/day using fixed_window", "pair"]).allowed
        first.kill()
    plan_decisions = {policy: limiter.check(key, "pair") for policy, limiter in limiters.items()}
    assert {policy: (d.allowed, d.reason, d.parts) for policy, d in plan_decisions.items()} == {
        "open": (True, "fail_open", ()),
        "closed": (False, "fail_closed", ()),
        "local": (True, "fail_open", ()),
    }
    assert [rate_limit_headers(decision, HeaderStyle(), 0) for decision in plan_decisions.values()] == [[], [], []]
    request_decisions = {policy: limiter.check_request(context) for policy, limiter in limiters.items()}
    assert [d.reason for d in request_decisions.values()] == ["fail_open", "fail_closed", "fail_open"]
    assert [d.parts for d in request_decisions.values()] == [(), (), ()]
    mixed_decisions = {policy: limiter.check(key, ["pair", "1/day"]) for policy, limiter in limiters.items()}
    assert [[part.name for part in d.parts] for d in mixed_decisions.values()] == [["1/day"]] * 3
    assert [d.reason for d in mixed_decisions.values()] == ["fail_open", "fail_closed", "fallback"]
    assert not limiters["local"].check(key, ["pair", "1/day"]), "local limits are applied locally"
    with limiters["open"].reserve(key, "pair", cost=3) as held:
        held.settle(1)  # nothing was charged, so nothing is returned
    with pytest.raises(StoreError):
        limiters["open"].reset(key, "pair")
    with start():
        deadline = time.monotonic() + TIMEOUT
        for limiter in limiters.values():
            while (state := limiter.peek(key, "pair", cost=0)).reason != "ok":
                assert time.monotonic() < deadline, state
                time.sleep(OPEN_SECONDS / 20)
        assert [part.remaining for part in state.parts] == [2, 0]
        assert [limiter.check(key, "4/day using fixed_window").allowed for limiter in limiters.values()] == [
            True,
            False,
            False,
        ]
    for limiter in limiters.values():
        limiter.close()


def test_hanging_service_costs_at_most_the_deadline(silent_port: int) -> None:
    with pytest.raises(StoreError, match="no answer in time"):
        connect(silent_port)

    async def on_loop() -> None:
        limiter = AsyncLimiter(f"crestgate://127.0.0.1:{silent_port}?timeout_ms=50")
        limiter.driver.connected.add(asyncio.get_running_loop())
        decisions = await asyncio.gather(*[limiter.check(f"user:{n}", "gold") for n in range(100)])
        assert {decision.reason for decision in decisions} == {"fail_open"}
        for n in range(5):
            assert (await limiter.check(f"user:{n}", "5/day")).reason == "fail_open"
        assert limiter.breakers() == {f"Crestgate at 127.0.0.1:{silent_port}": "open"}
        await limiter.aclose()

    asyncio.run(asyncio.wait_for(on_loop(), TIMEOUT))


def connect(port: int, timeout: float = 0.2) -> None:
    """Connect as a limiter does at its start, with a shorter timeout."""
    from crestgate.stores.remote import store as module

    original = module.CONNECT_SECONDS
    module.CONNECT_SECONDS = timeout
    try:
        Limiter(f"crestgate://127.0.0.1:{port}").close()
    finally:
        module.CONNECT_SECONDS = original


def test_unreachable_service_is_an_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StoreError, match=f"Crestgate at 127.0.0.1:{port}: Connection refused"):
        Limiter(f"crestgate://127.0.0.1:{port}")
    with pytest.raises(StoreError, match=r"Crestgate at nowhere\.invalid:8080: "):
        Limiter("crestgate://nowhere.invalid")


def test_wrong_key_is_an_error_at_the_start(service: Service) -> None:
    with pytest.raises(StoreError, match="unknown API key") as error:
        Limiter(f"crestgate://:cg_made_up@127.0.0.1:{service.port}")
    assert "made_up" not in str(error.value)


def test_checks_that_need_a_key(serve: Callable[..., Service]) -> None:
    service = serve(environment={**GENEROUS, "CRESTGATE_SERVER__CHECKS": "key"})
    with pytest.raises(StoreError, match="this needs a key: write it into the URL"):
        Limiter(f"crestgate://127.0.0.1:{service.port}")
    with Limiter(f"crestgate://:{service.key}@127.0.0.1:{service.port}?timeout_ms=5000") as limiter:
        assert limiter.check("user:42", "5/day").reason == "ok"


def test_tls(serve: Callable[..., Service], tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    config = f"server: {{tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}}}\n"
    port = serve(config=config, environment=GENEROUS).port
    with Limiter(f"crestgates://localhost:{port}?timeout_ms=5000&ssl_ca={certificate}") as limiter:
        assert [limiter.check("user:42", "5/day").remaining for _ in range(3)] == [4, 3, 2]
    with pytest.raises(StoreError, match=r"its certificate is not trusted .*: name who has signed it with ssl_ca"):
        Limiter(f"crestgates://localhost:{port}")
    with pytest.raises(StoreError, match=r"it closed the connection|Connection reset"):
        Limiter(f"crestgate://localhost:{port}")


def test_tls_to_a_plain_server_is_an_error(service: Service) -> None:
    with pytest.raises(StoreError, match=r"no TLS there .*: crestgates:// speaks TLS, crestgate:// does not"):
        Limiter(f"crestgates://127.0.0.1:{service.port}")


def test_two_services_share_the_keys(serve: Callable[..., Service], service: Service, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = serve(tmp_path / "other", environment=GENEROUS)
    urls = [f"crestgate://127.0.0.1:{each.port}?timeout_ms=5000" for each in (service, other)]
    keys = [uuid4().hex for _ in range(40)]
    with Limiter(urls) as first, Limiter(urls[::-1]) as second:
        for key in keys:
            assert [each.check(key, "2/day").allowed for each in (first, second, first)] == [True, True, False]
        other.kill()
        reasons = {first.check(key, "2/day").reason for key in keys}
        assert reasons == {"limited", "fail_open"}


def test_deadline_covers_the_whole_response(service: Service) -> None:
    """A server that sends single bytes slowly is treated like one that sends nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def dribble() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                    while True:
                        connection.sendall(b" ")
                        time.sleep(0.01)

        Thread(target=dribble, daemon=True).start()
        with pytest.raises(StoreError, match="no answer in time; the requests may have been counted"):
            connect(listener.getsockname()[1])
