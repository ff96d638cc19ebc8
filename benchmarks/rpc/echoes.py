"""A minimal server on each available gRPC library: it parses a RateLimitRequest and sends a prepared response.

    python -m benchmarks.rpc.echoes NAME PORT

Each is written as its documentation says, and serves one connection after another in one process until it is stopped.
`asgi` is not run by this: an ASGI server imports it by name.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.rpc.messages import PREFIX_BYTES, READY, SHOULD, framed, read

__all__ = ["ECHOES", "asgi"]

Message = MutableMapping[str, Any]
THREADS = 10
HEADERS = [(b"content-type", b"application/grpc")]
DONE = [(b"grpc-status", b"0")]


def _handlers(echo: Callable[..., Any]) -> Any:
    import grpc

    service, method = SHOULD[1:].split("/")
    handler = grpc.unary_unary_rpc_method_handler(echo, read, type(READY).SerializeToString)
    return grpc.method_handlers_generic_handler(service, {method: handler})


async def grpc_asyncio(port: int) -> None:
    """grpcio on asyncio."""
    import grpc.aio

    async def echo(request: Any, context: Any) -> Any:
        return READY

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handlers(echo),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def grpc_threads(port: int) -> None:
    """grpcio with threads."""
    import grpc

    def echo(request: Any, context: Any) -> Any:
        return READY

    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers((_handlers(echo),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


async def grpclib(port: int) -> None:
    from grpclib.const import Cardinality, Handler
    from grpclib.server import Server

    class Echo:
        async def echo(self, stream: Any) -> None:
            await stream.recv_message()
            await stream.send_message(READY)

        def __mapping__(self) -> dict[str, Handler]:
            request_type, response_type = read.__self__, type(READY)
            return {SHOULD: Handler(self.echo, Cardinality.UNARY_UNARY, request_type, response_type)}

    server = Server([Echo()])
    await server.start("127.0.0.1", port)
    await server.wait_closed()


async def ours(port: int) -> None:
    """The listener of the service, without the service."""
    import socket

    from crestgate.service.grpc.transport.call import Method, RpcCall
    from crestgate.service.grpc.transport.listener import GrpcListener

    def echo(call: RpcCall, message: bytes) -> bytes:
        read(message)
        answer: bytes = READY.SerializeToString()
        return answer

    await GrpcListener({SHOULD.encode(): Method(echo)}).start(socket.create_server(("127.0.0.1", port)))
    await asyncio.Event().wait()


async def asgi(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """An application for ASGI servers that send trailers."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    read(body[PREFIX_BYTES:])
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS, "trailers": True})
    await send({"type": "http.response.body", "body": framed(READY.SerializeToString())})
    await send({"type": "http.response.trailers", "headers": DONE})


def _on_asyncio(echo: Callable[[int], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    return lambda port: asyncio.run(echo(port))


def _on_uvloop(echo: Callable[[int], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    import uvloop

    return lambda port: uvloop.run(echo(port))


ECHOES: dict[str, Callable[[int], None]] = {
    "grpc-asyncio": _on_asyncio(grpc_asyncio),
    "grpc-uvloop": _on_uvloop(grpc_asyncio),
    "grpc-threads": grpc_threads,
    "grpclib": _on_uvloop(grpclib),
    "ours": _on_uvloop(ours),
}

if __name__ == "__main__":
    ECHOES[sys.argv[1]](int(sys.argv[2]))
