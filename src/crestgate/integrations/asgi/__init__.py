"""Limits for any ASGI application: Starlette, FastAPI, Litestar, Quart, Django.

    app.add_middleware(RateLimitMiddleware, limits="100/minute")                         # Starlette, FastAPI
    app = RateLimitMiddleware(Litestar(…), limits="100/minute")                          # Litestar, or any other
    app.asgi_app = RateLimitMiddleware(app.asgi_app, limits="100/minute")                # Quart

A request is checked before the application receives it. Headers are added to the start of the response; the other
messages pass unchanged, so streaming works.

Websockets are not limited, unless `websockets=True`: then each connection counts as a request.
"""

from crestgate.integrations.asgi.middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
