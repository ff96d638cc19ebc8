"""An API with a limit per API key, a stricter one for a costly route, and an exempt health check.

pip install '.[fastapi]' httpx
python examples/limit_an_api.py
"""

import asyncio

import httpx
from fastapi import FastAPI

from crestgate.integrations import Request
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit

KEYS = {"key-of-acme": "gold", "key-of-shop": "free"}  # yours come from a database
LIMITS = {"gold": "1000/minute", "free": "3/minute"}


def limits(request: Request) -> str:
    return LIMITS[KEYS.get(request.api_key or "", "free")]


def caller(request: Request) -> str | None:
    return request.api_key if request.api_key in KEYS else None  # None: counted by the client's address


app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter="memory://", limits=limits, key=caller, exempt=["/healthz"])


@app.get("/items")
async def items() -> list[str]:
    return ["book"]


@app.get("/report")
@limit("1/hour", key=caller)  # beside the middleware's limit: both must pass
async def report() -> str:
    return "sales"


@app.get("/healthz")
async def healthz() -> str:
    return "ok"


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for key in ("key-of-acme", "key-of-shop", "invented-1", "invented-2"):
            replies = [await client.get("/items", headers={"X-API-Key": key}) for _ in range(4)]
            print(key, [reply.status_code for reply in replies])
        reports = [await client.get("/report", headers={"X-API-Key": "key-of-acme"}) for _ in range(2)]
        print("report", [(reply.status_code, reply.headers.get("Retry-After")) for reply in reports])
        print("healthz", [(await client.get("/healthz")).status_code for _ in range(4)])


asyncio.run(main())
