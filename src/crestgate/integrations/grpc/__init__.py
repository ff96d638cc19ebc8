"""Limits for the calls of a gRPC server: one interceptor for `grpc.server` and for `grpc.aio.server`.

    server = grpc.server(threads, interceptors=[RateLimitInterceptor("redis://localhost", "100/minute")])
    server = grpc.aio.server(interceptors=[RateLimitInterceptor("crestgate.yaml")])            # by rules
    RateLimitInterceptor(limiter, {"/shop.Orders/Create": "5/minute", "/shop.Search/*": "50/second"})

A call of any of the four kinds is checked once, when it starts; messages pass unchanged. A denied call is aborted with
RESOURCE_EXHAUSTED, and has `retry-after` and the other rate limit headers in its trailing metadata. An admitted call
has them too: they are sent with the status, so no message is delayed, beside the handler's own metadata.

Limits for all methods count per caller. Those of a mapping count per caller and method, also where `/shop.Search/*`
names all methods of a service, unless `scope` joins them. A method's own entry replaces that of its service, and None
means no limit. Calls of unknown methods are limited too, and then UNIMPLEMENTED.

Health checks and reflection are limited like other calls: `exempt=["/grpc.health.v1.Health/*"]` exempts them.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.grpc.calls import RpcRequest, RpcResponse
    from crestgate.integrations.grpc.interceptor import RateLimitInterceptor
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.grpc needs {error.name}: {install_hint('grpc')}") from error

__all__ = ["RateLimitInterceptor", "RpcRequest", "RpcResponse"]
