"""The application with the limits of other libraries, each put on as its own documentation says.

slowapi counts in a fixed window with limits, whose calls to a Redis block the event loop; its headers are off by
default, and stay so. As a decorator it needs no middleware, and as one it applies to all routes. fastapi-limiter has a
dependency alone, and leaves the counting to pyrate-limiter: a log in a sorted set of Redis, of which its documentation
says that its client may be an asynchronous or a blocking one.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request

from benchmarks.frameworks.bare import amount, hello, store
from benchmarks.frameworks.entry import ANSWER

__all__ = ["fastapi_limiter", "fastapi_limiter_blocking", "slowapi_decorator", "slowapi_middleware"]


async def hello_to(request: Request) -> dict[str, str]:
    """The same route: slowapi wants to see the request."""
    return ANSWER


def slowapi_decorator() -> FastAPI:
    app, limiter = _with_slowapi()
    app.get("/")(limiter.limit(f"{amount()}/minute")(hello_to))
    return app


def slowapi_middleware() -> FastAPI:
    from slowapi.middleware import SlowAPIMiddleware

    app, _ = _with_slowapi(default_limits=[f"{amount()}/minute"])
    app.add_middleware(SlowAPIMiddleware)
    app.get("/")(hello)
    return app


def _with_slowapi(**more: Any) -> tuple[FastAPI, Any]:
    import slowapi
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    limiter = slowapi.Limiter(key_func=get_remote_address, storage_uri=store(), **more)
    app = FastAPI()
    app.state.limiter = limiter
    refusal: Any = slowapi._rate_limit_exceeded_handler  # which its documentation names
    app.add_exception_handler(RateLimitExceeded, refusal)
    return app, limiter


def fastapi_limiter() -> FastAPI:
    from redis.asyncio import Redis

    return _with_fastapi_limiter(Redis.from_url(store()))


def fastapi_limiter_blocking() -> FastAPI:
    from redis import Redis

    return _with_fastapi_limiter(Redis.from_url(store()))


def _with_fastapi_limiter(client: Any) -> FastAPI:
    import redis
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript

    # `RedisBucket.init` does these two, and would have to be waited for with an asynchronous client.
    with redis.Redis.from_url(store()) as loading:
        script = str(loading.script_load(LuaScript.PUT_ITEM))
    bucket = RedisBucket([Rate(amount(), Duration.MINUTE)], client, "benchmark", script)
    app = FastAPI()
    app.get("/", dependencies=[Depends(RateLimiter(limiter=Limiter(bucket)))])(hello)
    return app
