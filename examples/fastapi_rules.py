"""FastAPI with rules: the limits are in crestgate.yaml next to this file, and can change while the application runs.

pip install '.[config,fastapi]' httpx
python examples/fastapi_rules.py
"""

import asyncio
import re
from pathlib import Path

import httpx
from fastapi import FastAPI

from crestgate.integrations import Request
from crestgate.integrations.asgi import RateLimitMiddleware

CONFIG = Path(__file__).with_name("crestgate.yaml")


def user(request: Request) -> str | None:
    return request.headers.get("x-user")  # in production use your session: any client can send a header


app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter=CONFIG, user=user)


@app.post("/api/v1/orders")
async def order() -> str:
    return "ordered"


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for name in ["bob"] * 4 + ["alice"] * 3:  # denied, bob is counted for neither; then both share an address
            answer = await client.post("/api/v1/orders", headers={"X-User": name})
            left = dict(re.findall(r'"([\w-]+)";r=(\d+)', answer.headers["RateLimit"]))
            print(name, answer.status_code, left)


asyncio.run(main())
