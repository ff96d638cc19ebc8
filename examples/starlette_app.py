"""Starlette, or any ASGI application: whom requests are counted for, what they cost, and what a denial looks like.

pip install starlette httpx
python examples/starlette_app.py
"""

import asyncio

import httpx
from starlette import requests
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from crestgate import Decision
from crestgate.integrations import Request
from crestgate.integrations.asgi import RateLimitMiddleware

LIMITS = {"free": "3/hour", "gold": "10/hour"}


def tenant(request: Request) -> str | None:
    return request.headers.get("x-tenant")  # None: counted by the client's address


def limits(request: Request) -> str | None:
    return LIMITS.get(request.headers.get("x-tier", "free"))  # None: not limited


def cost(request: Request) -> int:
    return 2 if request.method == "POST" else 1


def sorry(request: Request, decision: Decision) -> Response:
    return JSONResponse({"sorry": request.path, "limit": decision.limit}, status_code=429)


async def hello(request: requests.Request) -> Response:
    return PlainTextResponse(f"hello from {request.url.path}")


app = Starlette(routes=[Route("/hello", hello, methods=["GET", "POST"]), Route("/healthz", hello)])
app.add_middleware(
    RateLimitMiddleware,
    limiter="memory://",
    limits=limits,
    key=tenant,
    cost=cost,
    exempt=["/healthz", "10.0.0.0/8"],
    on_denied=sorry,
    trusted_proxies=["192.0.2.0/24"],
)


async def main() -> None:
    from_proxy = httpx.ASGITransport(app, client=("192.0.2.1", 50000))
    async with httpx.AsyncClient(transport=from_proxy, base_url="http://app") as client:
        for headers in ({"X-Tenant": "acme"}, {"X-Tenant": "b", "X-Tier": "gold"}, {"X-Forwarded-For": "198.51.100.7"}):
            answers = [await client.request(method, "/hello", headers=headers) for method in ("GET", "POST", "GET")]
            print(headers, [(answer.status_code, answer.headers["X-RateLimit-Remaining"]) for answer in answers])
        print(answers[-1].json())
        print("exempt:", (await client.get("/healthz")).headers.get("RateLimit"))


asyncio.run(main())
