"""Limits of FastAPI's routes, as a dependency or as a decorator, in any order.

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    async def search(): ...

    @app.get("/search")
    @limit("5/minute")
    async def search(): ...

They count for each caller and route, unless `scope=` joins several routes. The limiter is that of the
RateLimitMiddleware around, if there is one and no other is given.

Either way the limits are asked as a dependency, on the event loop, so a function that is not `async` is not held up by
them and holds nobody up. A decorator's come after those in `dependencies=[…]` and before those in the function's
parameters. Above `@app.get` the decorator changes the routes that are there; where it cannot, it says so.

A denial is answered with 429, the headers and the problem as JSON. An application that would answer otherwise has
`on_denied=`, or `@app.exception_handler(RateLimitExceeded)`.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.fastapi.route_limit import RouteLimit, limit
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.fastapi needs {error.name}: {install_hint('fastapi')}") from error

__all__ = ["RouteLimit", "limit"]
