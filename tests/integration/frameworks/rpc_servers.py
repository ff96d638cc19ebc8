"""gRPC servers on loopback, over real sockets: of threads, and on an event loop with handlers of every style.

They have one service, `test.Echo`, in every style that a server knows, with a method of each kind. Messages are bytes,
as they are, and say what a handler is to do:

    boom        raise RuntimeError("boom")
    no          abort with UNAUTHENTICATED, and trailing metadata
    coded       set the code UNAUTHENTICATED, and answer
    own         set trailing metadata, and answer
    exceed      raise RateLimitExceeded, as a limited function does
    wait        set `entered`, wait for `released`, and answer
    all else    is answered with itself; where responses are streamed, twice: the second when `released` is set
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import grpc

from crestgate import Limiter, RateLimitExceeded

__all__ = ["KINDS", "STYLES", "Answer", "Client", "Service", "serve"]

STYLES = ("threads", "loop", "writers", "plain")
"""A server of threads; on an event loop: coroutines and async generators, writers to the context, plain functions."""
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
NO = (("why", "no password"), ("x-ratelimit-limit", "the handler's"))
OWN = (("own", "yes"), ("own-bin", b"\x00\x01"))
PATIENCE = 20.0


@dataclass
class Service:
    """The service, and what a test knows of it."""

    released: Event = field(default_factory=Event)
    entered: Event = field(default_factory=Event)
    left: Event = field(default_factory=Event)
    """Set when a handler that waited is over, in whatever way."""
    waiting: list[Any] = field(default_factory=list)
    """The contexts of handlers that waited."""
    handled: list[bytes] = field(default_factory=list)

    def handlers(self, style: str) -> Any:
        of = {
            "threads": (self.unary, self.stream, self.gather, self.chat),
            "plain": (self.unary, self.stream, self.gather, self.chat),
            "loop": (self.unary_async, self.stream_async, self.gather_async, self.chat_async),
            "writers": (self.unary_async, self.stream_writing, self.gather_async, self.chat_writing),
        }[style]
        made = {kind: getattr(grpc, f"{kind}_rpc_method_handler")(one) for kind, one in zip(KINDS, of, strict=True)}
        return grpc.method_handlers_generic_handler("test.Echo", made)

    # In threads.

    def unary(self, request: bytes, context: Any) -> bytes:
        self.handled.append(request)
        if request == b"no":
            context.set_trailing_metadata(NO)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no password")
            return b"on an event loop, abort does not raise for plain functions"
        if request == b"wait":
            self.waiting.append(context)
            self.entered.set()
            try:
                assert self.released.wait(PATIENCE)
            finally:
                self.left.set()
        return self._answered(request, context)

    def stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        answer = self.unary(request, context)
        try:
            yield answer
            self.waiting.append(context)
            self.entered.set()
            assert self.released.wait(PATIENCE)
            yield answer
        finally:
            self.left.set()

    def gather(self, requests: Iterable[bytes], context: Any) -> bytes:
        return b" ".join([self.unary(request, context) for request in requests])

    def chat(self, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield self.unary(request, context)

    # On an event loop.

    async def unary_async(self, request: bytes, context: Any) -> bytes:
        self.handled.append(request)
        if request == b"no":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no password", NO)
        if request == b"wait":
            self.waiting.append(context)
            self.entered.set()
            try:
                await self._released()
            finally:
                self.left.set()
        return self._answered(request, context)

    async def stream_async(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        answer = await self.unary_async(request, context)
        try:
            yield answer
            self.waiting.append(context)
            self.entered.set()
            await self._released()
            yield answer
        finally:
            self.left.set()

    async def stream_writing(self, request: bytes, context: Any) -> None:
        try:
            async for answer in self.stream_async(request, context):
                await context.write(answer)
        finally:
            self.left.set()

    async def gather_async(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b" ".join([await self.unary_async(request, context) async for request in requests])

    async def chat_async(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self.unary_async(request, context)

    async def chat_writing(self, requests: AsyncIterator[bytes], context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(await self.unary_async(request, context))

    async def _released(self) -> None:
        while not self.released.is_set():
            await asyncio.sleep(0.005)

    def _answered(self, request: bytes, context: Any) -> bytes:
        if request == b"boom":
            raise RuntimeError("boom")
        if request == b"coded":
            context.set_code(grpc.StatusCode.UNAUTHENTICATED)
        if request == b"own":
            context.set_trailing_metadata(OWN)
        if request == b"exceed":
            raise RateLimitExceeded(Limiter("memory://").check("all", "0/minute"))
        return request


@dataclass(frozen=True)
class Answer:
    """What a client has got."""

    code: grpc.StatusCode
    messages: list[bytes]
    details: str
    trailing: dict[str, str | bytes]

    @property
    def remaining(self) -> int:
        return int(self.trailing["x-ratelimit-remaining"])


class Client:
    """Calls the service, over a connection of its own."""

    def __init__(self, address: str, credentials: Any = None) -> None:
        options: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            options.append(("grpc.ssl_target_name_override", "localhost"))
            self.channel = grpc.secure_channel(address, credentials, options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, kind: str, *messages: bytes, metadata: Sequence[tuple[str, str]] = (), name: str = "") -> Answer:
        """A whole call."""
        made = self.begin(kind, messages, metadata, name)
        answers = []
        try:
            if kind.endswith("stream"):
                answers.extend(made)
            else:
                answers.append(made.result())
        except grpc.RpcError:
            pass
        return Answer(made.code(), answers, made.details(), dict(made.trailing_metadata() or ()))

    def begin(
        self, kind: str, messages: Iterable[bytes], metadata: Sequence[tuple[str, str]] = (), name: str = ""
    ) -> Any:
        """A call that is under way."""
        method = getattr(self.channel, kind)(name or f"/test.Echo/{kind}")
        request = iter(messages) if kind.startswith("stream") else next(iter(messages))
        begin = method if kind.endswith("stream") else method.future
        return begin(request, metadata=tuple(metadata), timeout=PATIENCE)


@contextmanager
def serve(
    style: str,
    service: Service,
    interceptors: Sequence[Any] | Callable[[], Sequence[Any]],
    *,
    address: str = "127.0.0.1:0",
    credentials: Any = None,
    more: Sequence[Any] = (),
) -> Iterator[str]:
    """A server of this style; its address. `more` are further generic handlers."""

    def prepared(server: Any) -> str:
        server.add_generic_rpc_handlers((service.handlers(style), *more))
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    made = interceptors if callable(interceptors) else lambda: interceptors
    serving = _serve_threads if style == "threads" else _serve_loop
    with serving(made, prepared) as where:
        yield where


@contextmanager
def _serve_threads(interceptors: Callable[[], Sequence[Any]], prepared: Callable[[Any], str]) -> Iterator[str]:
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, interceptors=interceptors(), options=[("grpc.so_reuseport", 0)])
        where = prepared(server)
        server.start()
        try:
            yield where
        finally:
            server.stop(0).wait()


@contextmanager
def _serve_loop(interceptors: Callable[[], Sequence[Any]], prepared: Callable[[Any], str]) -> Iterator[str]:
    started: list[str] = []
    ready, stopping = Event(), Event()

    async def main() -> None:
        threads = ThreadPoolExecutor(8)
        server = grpc.aio.server(threads, interceptors=interceptors(), options=[("grpc.so_reuseport", 0)])
        started.append(prepared(server))
        await server.start()
        ready.set()
        while not stopping.is_set():
            await asyncio.sleep(0.01)
        await server.stop(0)
        await asyncio.to_thread(threads.shutdown)  # which wait for the loop, to tell that their generators are done

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(PATIENCE), "the server did not start"
        yield started[0]
    finally:
        stopping.set()
        thread.join(PATIENCE)
