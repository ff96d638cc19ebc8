"""Limits for any ASGI application: Starlette, FastAPI, Litestar, Quart, Django.

    app.add_middleware(RateLimitMiddleware, limits="100/minute")                         # Starlette, FastAPI
    app = RateLimitMiddleware(Litestar(…), limits="100/minute")                          # Litestar, or any other
    app.asgi_app = RateLimitMiddleware(app.asgi_app, limits="100/minute")                # Quart

A request is asked about before the application sees it. Of its response only the start is touched, to add the headers;
the rest goes by as it comes, so a stream stays one. What the application receives is not touched at all.

Websockets pass, unless `websockets=True`: then each connection is asked about as a request is.
"""

from crestgate.integrations.asgi.middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
