"""gRPC: an interceptor, the same one for `grpc.server` and for `grpc.aio.server`.

pip install '.[grpc]'
python examples/grpc_server.py
"""

from concurrent.futures import ThreadPoolExecutor

import grpc

from crestgate.integrations.grpc import RateLimitInterceptor


def shout(request: bytes, _: grpc.ServicerContext) -> bytes:
    return request.upper()


SHOUT = grpc.method_handlers_generic_handler(  # what a generated add_…Servicer_to_server does
    "shop.Echo", {name: grpc.unary_unary_rpc_method_handler(shout) for name in ("Shout", "Cry", "Whisper")}
)

limits = RateLimitInterceptor(
    "memory://",
    {"/shop.Echo/*": "100/hour", "/shop.Echo/Shout": "2/hour", "/shop.Echo/Whisper": None},
)
server = grpc.server(ThreadPoolExecutor(2), interceptors=[limits])
server.add_generic_rpc_handlers([SHOUT])
port = server.add_insecure_port("127.0.0.1:0")
server.start()

with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    for name in ("Shout", "Shout", "Shout", "Cry", "Whisper"):
        call = channel.unary_unary(f"/shop.Echo/{name}")
        try:
            answer, rpc = call.with_call(b"hello")
            print(name, answer, dict(rpc.trailing_metadata()).get("x-ratelimit-remaining"))
        except grpc.RpcError as error:
            metadata = dict(error.trailing_metadata())  # ratelimit, retry-after, …
            print(name, error.code().name, metadata["ratelimit-policy"], error.details().partition(":")[0])
server.stop(None).wait()
