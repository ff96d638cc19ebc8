"""Protect a login: only failed attempts count, per name and per address.

pip install '.[fastapi]' httpx
python examples/login_protection.py
"""

import asyncio

import httpx
from fastapi import FastAPI, HTTPException, Request

from crestgate.integrations import Response
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit

app = FastAPI()
app.add_middleware(RateLimitMiddleware)  # has no limits itself: it sees the responses, and writes the headers


def failed(response: Response) -> bool:
    return response.status == 401


@app.post("/login/{name}")
@limit("10/hour using sliding_window_log", when=failed)  # for each address
@limit("3/hour using sliding_window_log", when=failed, key=lambda request: request.path_params["name"])
async def login(name: str, request: Request) -> str:
    if await request.body() != b"right":
        raise HTTPException(401)
    return f"welcome, {name}"


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for name, passwords in {
            "alice": ["right"] * 5,  # as often as she likes
            "bob": ["wrong", "wrong", "right", "wrong", "right"],  # after three failures not even with the right one
            "carol": ["right"],
        }.items():
            print(name, [(await client.post(f"/login/{name}", content=sent)).status_code for sent in passwords])


asyncio.run(main())
