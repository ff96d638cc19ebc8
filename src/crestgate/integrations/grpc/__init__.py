"""Limits on the calls of a gRPC server: one interceptor for `grpc.server` and for `grpc.aio.server`.

    server = grpc.server(threads, interceptors=[RateLimitInterceptor("redis://localhost", "100/minute")])
    server = grpc.aio.server(interceptors=[RateLimitInterceptor("crestgate.yaml")])            # by rules
    RateLimitInterceptor(limiter, {"/shop.Orders/Create": "5/minute", "/shop.Search/*": "50/second"})

A call is asked about when it starts, of all four kinds, whatever it streams after that; messages pass untouched. One
that is denied is aborted with RESOURCE_EXHAUSTED, with `retry-after` and what else there is to tell in the trailing
metadata. An admitted call has that too: it leaves with the status, so no message waits for it, and what the handler
sets there stays.

Limits for all methods count per caller; those of a mapping per caller and method, also where `/shop.Search/*` names
all methods of a service, unless `scope` joins them. A method that has limits of its own there does not have those of
its service, and None says that it has none. A method that the server does not have is limited like others, and then
UNIMPLEMENTED.

Health checks and reflection are calls like others: `exempt=["/grpc.health.v1.Health/*"]` leaves them alone.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.grpc.calls import RpcRequest, RpcResponse
    from crestgate.integrations.grpc.interceptor import RateLimitInterceptor
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.grpc needs {error.name}: {install_hint('grpc')}") from error

__all__ = ["RateLimitInterceptor", "RpcRequest", "RpcResponse"]
