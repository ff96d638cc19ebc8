"""The gRPC interceptor: real servers of every style, all four kinds of calls, on virtual time."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from queue import Queue
from typing import Any

import grpc
import pytest

from crestgate import Limiter
from crestgate.integrations.grpc import RateLimitInterceptor, RpcResponse
from crestgate.integrations.request import Request
from crestgate.testing import FakeClock
from integration.frameworks.rpc_servers import KINDS, STYLES, Client, Service, serve
from servers.machine import until

OK = grpc.StatusCode.OK
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
ME = "ip:127.0.0.1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", clock=clock)


@pytest.fixture
def service() -> Service:
    made = Service()
    made.released.set()
    return made


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """gRPC logs what handlers raise, which is what some of these do on purpose."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("grpc").setLevel(logging.NOTSET)


@pytest.mark.parametrize("style", STYLES)
def test_every_call_type_is_limited_with_metadata(
    style: str, limiter: Limiter, clock: FakeClock, service: Service
) -> None:
    with serve(style, service, [RateLimitInterceptor(limiter, "2/minute")]) as address, Client(address) as client:
        for kind in KINDS:
            twice = kind == "unary_stream"
            first, second, third = [client.call(kind, b"hello") for _ in range(3)]
            assert (first.code, first.messages) == (OK, [b"hello", b"hello"] if twice else [b"hello"])
            assert (first.trailing["ratelimit-policy"], first.trailing["ratelimit"]) == (
                '"2/minute";q=2;w=60',
                '"2/minute";r=1;t=30',
            )
            assert (first.remaining, second.remaining) == (1, 0)
            assert (third.code, third.messages) == (EXHAUSTED, [])
            assert third.details == "rate limit exceeded (2/minute): retry after 30 s"
            assert (third.trailing["retry-after"], third.trailing["ratelimit"]) == ("30", '"2/minute";r=0;t=30')
            clock.advance(60)
    assert service.handled == [b"hello"] * 8, "what was denied was not handled"


@pytest.mark.parametrize("style", STYLES)
def test_responses_are_streamed_as_produced(style: str, limiter: Limiter, service: Service) -> None:
    service.released.clear()
    with serve(style, service, [RateLimitInterceptor(limiter, "9/minute")]) as address, Client(address) as client:
        streaming = client.begin("unary_stream", [b"a"])
        assert next(streaming) == b"a"
        service.released.set()
        assert next(streaming) == b"a"
        assert list(streaming) == []

        asked: Queue[bytes | None] = Queue()
        chat = client.begin("stream_stream", iter(asked.get, None))
        for message in (b"one", b"two", b"three"):  # each is answered before the next is sent
            asked.put(message)
            assert next(chat) == message
        asked.put(None)
        assert list(chat) == []
        assert dict(chat.trailing_metadata())["x-ratelimit-remaining"] == "7", "a call counts once, whatever it streams"
        assert client.call("stream_unary", b"a", b"b", b"c").messages == [b"a b c"]


@pytest.mark.parametrize("style", STYLES)
def test_denied_chain_reports_all_limits_and_takes_nothing(style: str, limiter: Limiter, service: Service) -> None:
    interceptor = RateLimitInterceptor(limiter, ["2/minute", "9/hour"])
    with serve(style, service, [interceptor]) as address, Client(address) as client:
        answers = [client.call("unary_unary", b"x") for _ in range(4)]
    assert [answer.code for answer in answers] == [OK, OK, EXHAUSTED, EXHAUSTED]
    assert answers[0].trailing["ratelimit-policy"] == '"2/minute";q=2;w=60, "9/hour";q=9;w=3600'
    assert limiter.peek(ME, "9/hour").remaining == 7


@pytest.mark.parametrize("style", STYLES)
def test_handler_trailing_metadata_and_codes_are_kept(style: str, limiter: Limiter, service: Service) -> None:
    with serve(style, service, [RateLimitInterceptor(limiter, "9/minute")]) as address, Client(address) as client:
        own = client.call("unary_unary", b"own")
        assert (own.code, own.trailing["own"], own.trailing["own-bin"]) == (OK, "yes", b"\x00\x01")
        assert own.remaining == 8
        refused = client.call("unary_unary", b"no")
        assert (refused.code, refused.details) == (UNAUTHENTICATED, "no password")
        assert (refused.trailing["why"], refused.remaining) == ("no password", 7)
        assert refused.trailing["x-ratelimit-limit"] == "9", "what is ours tells the truth"
        streamed = client.call("unary_stream", b"own")
        assert (streamed.trailing["own"], streamed.remaining) == ("yes", 6)
        assert client.call("unary_stream", b"coded").code is UNAUTHENTICATED


@pytest.mark.parametrize("style", STYLES)
def test_handler_exceptions_pass_through_and_count(style: str, limiter: Limiter, service: Service) -> None:
    with serve(style, service, [RateLimitInterceptor(limiter, "9/minute")]) as address, Client(address) as client:
        for left, kind in zip((8, 7, 6, 5), KINDS, strict=True):
            failed = client.call(kind, b"boom")
            assert failed.code is grpc.StatusCode.UNKNOWN
            assert "boom" in failed.details
            assert failed.remaining == left


@pytest.mark.parametrize("style", STYLES)
def test_rate_limit_exceeded_in_handler_is_a_denial(style: str, limiter: Limiter, service: Service) -> None:
    with serve(style, service, [RateLimitInterceptor(limiter, "9/minute")]) as address, Client(address) as client:
        for kind in KINDS:
            answer = client.call(kind, b"exceed")
            assert (answer.code, answer.messages) == (EXHAUSTED, [])
            assert answer.details == "rate limit exceeded (0/minute): this request can never pass"
            assert '"0/minute";r=0' in str(answer.trailing["ratelimit"])
            assert '"9/minute"' in str(answer.trailing["ratelimit"])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", KINDS)
def test_when_selects_calls_that_count(style: str, kind: str, limiter: Limiter, service: Service) -> None:
    ended: list[tuple[int, grpc.StatusCode]] = []

    def failed(response: RpcResponse) -> bool:
        ended.append((response.status, response.code))
        return response.code is UNAUTHENTICATED

    interceptor = RateLimitInterceptor(limiter, "2/minute", when=failed)
    with serve(style, service, [interceptor]) as address, Client(address) as client:
        fine = client.call(kind, b"right")
        assert (fine.code, fine.remaining) == (OK, 2), "the metadata tell how it stands after that"
        assert client.call(kind, b"boom").remaining == 2
        assert client.call(kind, b"no").remaining == 1
        assert client.call(kind, b"coded").remaining == 0
        assert client.call(kind, b"right").code is EXHAUSTED
    assert ended == [(0, OK), (2, grpc.StatusCode.UNKNOWN), (16, UNAUTHENTICATED), (16, UNAUTHENTICATED)]


@pytest.mark.parametrize("style", ["threads", "loop", "writers"])  # gRPC tells plain functions on a loop nothing of it
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
def test_disconnected_client_stays_charged(style: str, kind: str, limiter: Limiter, service: Service) -> None:
    service.released.clear()
    interceptor = RateLimitInterceptor(limiter, "9/minute", when=lambda response: False)
    with serve(style, service, [interceptor]) as address:
        with Client(address) as client:
            under_way = client.begin(kind, [b"wait" if kind == "unary_unary" else b"x"])
            assert service.entered.wait(20)
            under_way.cancel()
        with Client(address) as client:
            if style == "threads":  # whose handlers are not told of it, but may ask
                until("the server knows", lambda: not service.waiting[0].is_active())
                service.released.set()
            assert service.left.wait(20), "a handler on a loop is cancelled"
            service.released.set()
            service.entered.clear()
            assert client.call("unary_unary", b"x").remaining == 8, "given back itself, beside what was kept"
    assert limiter.peek(ME, "9/minute").remaining == 8


@pytest.mark.parametrize("style", STYLES)
def test_same_limits_in_two_layers_count_once(style: str, limiter: Limiter, service: Service) -> None:
    same = [RateLimitInterceptor(limiter, "5/minute"), RateLimitInterceptor(limiter, ["5/minute", "9/hour"])]
    with serve(style, service, same) as address, Client(address) as client:
        answers = [client.call("stream_stream", b"x") for _ in range(6)]
    assert [answer.code for answer in answers] == [OK] * 5 + [EXHAUSTED]
    assert answers[0].trailing["ratelimit-policy"] == '"5/minute";q=5;w=60, "9/hour";q=9;w=3600'
    assert (limiter.peek(ME, "5/minute").remaining, limiter.peek(ME, "9/hour").remaining) == (0, 4)


@pytest.mark.parametrize("style", STYLES)
def test_inner_denial_reports_limits_of_both_layers(style: str, limiter: Limiter, service: Service) -> None:
    layers = [
        RateLimitInterceptor(limiter, "9/minute", when=lambda response: response.code is not EXHAUSTED),
        RateLimitInterceptor(limiter, {"/test.Echo/unary_unary": "1/hour"}),
    ]
    with serve(style, service, layers) as address, Client(address) as client:
        assert client.call("unary_unary", b"x").code is OK
        denied = client.call("unary_unary", b"x")
        assert denied.code is EXHAUSTED
        assert denied.trailing["ratelimit"] == '"9/minute";r=8;t=7, "1/hour";r=0;t=3600'
        assert client.call("unary_stream", b"x").remaining == 7


@pytest.mark.parametrize("style", STYLES)
def test_method_limits_are_per_caller_and_method(style: str, limiter: Limiter, service: Service) -> None:
    limits = {"/test.Echo/unary_unary": "1/minute", "/test.Echo/*": "2/minute", "/test.Echo/stream_unary": None}
    with serve(style, service, [RateLimitInterceptor(limiter, limits)]) as address, Client(address) as client:
        codes = {kind: [client.call(kind, b"x").code for _ in range(3)] for kind in KINDS}
        assert codes["unary_unary"] == [OK, EXHAUSTED, EXHAUSTED]
        assert codes["unary_stream"] == [OK, OK, EXHAUSTED]
        assert codes["stream_stream"] == [OK, OK, EXHAUSTED]
        assert codes["stream_unary"] == [OK, OK, OK]
        assert client.call("stream_unary", b"x").trailing.keys().isdisjoint({"ratelimit", "x-ratelimit-limit"})
    assert limiter.peek(f"{ME}|route:/test.Echo/unary_unary", "1/minute").remaining == 0


def test_scope_is_shared_by_methods(limiter: Limiter, service: Service) -> None:
    interceptor = RateLimitInterceptor(limiter, {"/test.Echo/*": "3/minute"}, scope="echo")
    with serve("threads", service, [interceptor]) as address, Client(address) as client:
        assert [client.call(kind, b"x").code for kind in KINDS] == [OK, OK, OK, EXHAUSTED]


@pytest.mark.parametrize("style", STYLES)
def test_unknown_methods_are_limited(style: str, limiter: Limiter, service: Service) -> None:
    interceptor = RateLimitInterceptor(limiter, "2/minute")
    with serve(style, service, [interceptor]) as address, Client(address) as client:
        answers = [client.call(kind, b"x", name="/test.Nobody/Here") for kind in KINDS]
        assert [answer.code for answer in answers] == [grpc.StatusCode.UNIMPLEMENTED] * 2 + [EXHAUSTED] * 2
        assert answers[0].details == "Method not found!"
    with serve(style, service, [RateLimitInterceptor(limiter, {"/test.Echo/*": "2/minute"})]) as address:
        with Client(address) as client:
            assert client.call("unary_unary", b"x", name="/no/No").code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("style", STYLES)
def test_exempt_methods_and_dry_runs(style: str, limiter: Limiter, service: Service) -> None:
    layers = [
        RateLimitInterceptor(limiter, "0/minute", exempt=["/test.Echo/*"]),
        RateLimitInterceptor(limiter, "1/minute", dry_run=True),
    ]
    with serve(style, service, layers) as address, Client(address) as client:
        assert [client.call("unary_unary", b"x").code for _ in range(3)] == [OK, OK, OK]
        assert client.call("unary_unary", b"x", name="/other.Service/Here").code is EXHAUSTED


@pytest.mark.parametrize("style", STYLES)
def test_leaky_bucket_delays_calls(style: str, limiter: Limiter, clock: FakeClock, service: Service) -> None:
    layers = [RateLimitInterceptor(limiter, "2/second using leaky_bucket")]
    with serve(style, service, layers) as address, Client(address) as client:
        for kind in KINDS[:2]:
            assert client.call(kind, b"x").code is OK
    assert clock.now() == 1_700_000_000.5
    layers = [RateLimitInterceptor(limiter, "2/second using leaky_bucket", wait=False)]
    with serve(style, service, layers) as address, Client(address) as client:
        assert client.call("unary_unary", b"x").code is OK
    assert clock.now() == 1_700_000_000.5


@pytest.mark.parametrize("style", STYLES)
def test_custom_denials(style: str, limiter: Limiter, service: Service) -> None:
    def shaped(request: Request, decision: Any) -> Any:
        if request.path == "/test.Echo/unary_unary":
            return grpc.StatusCode.UNAVAILABLE, f"later, by {decision.name}"
        return RequestCallable() if request.path == "/test.Echo/unary_stream" else None

    layers = [RateLimitInterceptor(limiter, "0/minute", on_denied=shaped)]
    with serve(style, service, layers) as address, Client(address) as client:
        first, second, third = [client.call(kind, b"x") for kind in KINDS[:3]]
    assert (first.code, first.details) == (grpc.StatusCode.UNAVAILABLE, "later, by 0/minute")
    assert (second.code, second.details, second.trailing["more"]) == (grpc.StatusCode.ABORTED, "told", "yes")
    assert third.code is EXHAUSTED
    assert all("ratelimit" in answer.trailing for answer in (first, second, third))


class RequestCallable(grpc.Status):  # type: ignore[misc]  # has no types
    code = grpc.StatusCode.ABORTED
    details = "told"
    trailing_metadata = (("more", "yes"),)


def test_callback_handlers(limiter: Limiter, service: Service) -> None:
    """gRPC's own health service is one."""

    def watch(request: bytes, context: Any, send: Any) -> None:
        if request == b"no":
            context.abort(UNAUTHENTICATED, "no")
        send(request)
        send(None)

    watch.experimental_non_blocking = True  # type: ignore[attr-defined]  # it is how gRPC knows them
    handlers = {"Watch": grpc.unary_stream_rpc_method_handler(watch)}
    health = grpc.method_handlers_generic_handler("test.Health", handlers)
    interceptor = RateLimitInterceptor(limiter, "2/minute", when=lambda response: response.code is UNAUTHENTICATED)
    with serve("threads", service, [interceptor], more=[health]) as address, Client(address) as client:
        answers = [client.call("unary_stream", one, name="/test.Health/Watch") for one in (b"a", b"no", b"no", b"a")]
    assert [answer.code for answer in answers] == [OK, UNAUTHENTICATED, UNAUTHENTICATED, EXHAUSTED]
    assert answers[0].messages == [b"a"]
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0]


@pytest.mark.parametrize("style", ["threads", "loop", "writers"])  # a plain function's context does not tell them
def test_outer_interceptors_keep_trailing_metadata(style: str, limiter: Limiter, service: Service) -> None:
    with serve(style, service, [Marks(), RateLimitInterceptor(limiter, "9/minute")]) as address:
        with Client(address) as client:
            answer = client.call("unary_unary", b"x")
    assert (answer.trailing["marked"], answer.remaining) == ("yes", 8)


class Marks(grpc.ServerInterceptor, grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no types
    """Sets trailing metadata before it calls the handler."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        found = continuation(details)
        if inspect.isawaitable(found):
            return self.on_loop(found)

        def marked(request: Any, context: Any) -> Any:
            context.set_trailing_metadata((("marked", "yes"),))
            return found.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(marked)

    async def on_loop(self, finding: Any) -> Any:
        found = await finding

        async def marked(request: Any, context: Any) -> Any:
            context.set_trailing_metadata((("marked", "yes"),))
            return await found.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(marked)


def test_handler_context_is_a_servicer_context(limiter: Limiter, service: Service) -> None:
    seen = []

    def look(request: bytes, context: Any) -> bytes:
        seen.append((isinstance(context, grpc.ServicerContext), context.is_active(), context.peer()[:5]))
        context.set_code(grpc.StatusCode.DATA_LOSS)
        seen.append(context.code())
        return request

    handlers = grpc.method_handlers_generic_handler("a.B", {"C": grpc.unary_unary_rpc_method_handler(look)})
    interceptor = RateLimitInterceptor(limiter, "9/minute")
    with serve("threads", service, [interceptor], more=[handlers]) as address, Client(address) as client:
        assert client.call("unary_unary", b"x", name="/a.B/C").code is grpc.StatusCode.DATA_LOSS
    assert seen == [(True, True, "ipv4:"), grpc.StatusCode.DATA_LOSS]
