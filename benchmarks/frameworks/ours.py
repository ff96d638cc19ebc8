"""The application with Crestgate's limits: around all of it, as a dependency of its route, and as its decorator.

What counts is the client's address, under a token bucket, and every response says in its headers how it stands: all
that is so by default.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI

from benchmarks.frameworks.bare import amount, hello, store

__all__ = ["decorator", "dependency", "middleware"]


def middleware() -> FastAPI:
    from crestgate.integrations.asgi import RateLimitMiddleware

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=store(), limits=f"{amount()}/minute")
    app.get("/")(hello)
    return app


def dependency() -> FastAPI:
    from crestgate.integrations.fastapi import limit

    app = FastAPI()
    app.get("/", dependencies=[Depends(limit(f"{amount()}/minute", limiter=store()))])(hello)
    return app


def decorator() -> FastAPI:
    from crestgate.integrations.fastapi import limit

    app = FastAPI()
    app.get("/")(limit(f"{amount()}/minute", limiter=store())(hello))
    return app
