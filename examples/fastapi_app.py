"""FastAPI: a limit for all requests by a middleware, and limits of single routes by a decorator or a dependency.

pip install '.[fastapi]' httpx
python examples/fastapi_app.py
"""

import asyncio
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI

from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit

app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter="memory://", limits="100/minute")


@app.get("/search")
@limit("2/minute")  # above or below @app.get
async def search(q: str) -> str:
    return f"found {q}"


@app.get("/item/{item_id}", dependencies=[Depends(limit("2/minute"))])
def item(item_id: int) -> int:  # all items together: what counts is the route
    return item_id


by_api_key = limit("3/minute", key="apikey", scope="reports")  # one counter for all routes that have it


@app.get("/reports")
@by_api_key
async def reports() -> list[str]:
    return ["sales"]


@app.get("/report")
async def report(name: str, _: Annotated[object, Depends(by_api_key)]) -> str:
    return name


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for path in ("/search?q=a", "/search?q=b", "/search?q=c", "/item/1", "/item/2", "/item/3"):
            print(path, (await client.get(path)).status_code)

        paths = ("/reports", "/report?name=x", "/reports", "/reports")
        for key in ("key-of-alice", "key-of-bob"):
            print(key, [(await client.get(path, headers={"X-API-Key": key})).status_code for path in paths])

        denied = await client.get("/search?q=d")
        for name in ("RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-State"):
            print(f"{name}: {denied.headers[name]}")
        print({name: denied.json()[name] for name in ("title", "status", "violated-policies", "reason")})


asyncio.run(main())
