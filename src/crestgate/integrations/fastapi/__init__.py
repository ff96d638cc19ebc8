"""Limits for FastAPI routes, as a dependency or as a decorator, in any order.

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    async def search(): ...

    @app.get("/search")
    @limit("5/minute")
    async def search(): ...

They count per caller and route, unless `scope=` joins several routes. The default limiter is that of the
RateLimitMiddleware around the application, if there is one.

The limits are always checked as a dependency, on the event loop, so a synchronous endpoint does not block the loop, and
its thread does not wait for the check. A decorator's limits are checked after `dependencies=[…]` and before the
dependencies in the function's parameters. Above `@app.get`, the decorator changes the existing routes; where it cannot,
it raises ConfigError.

The response to a denial is 429 with the headers and a JSON problem document. For another response use `on_denied=` or
`@app.exception_handler(RateLimitExceeded)`.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.fastapi.route_limit import RouteLimit, limit
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.fastapi needs {error.name}: {install_hint('fastapi')}") from error

__all__ = ["RouteLimit", "limit"]
