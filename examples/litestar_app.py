"""Litestar: the middleware is put around the application, so that it sees every request, also those for no route.

pip install . litestar httpx
python examples/litestar_app.py
"""

import asyncio

import httpx
from litestar import Litestar, get

from crestgate.integrations.asgi import RateLimitMiddleware


@get("/hello", sync_to_thread=False)
def hello() -> str:
    return "hello"


app = RateLimitMiddleware(Litestar([hello], logging_config=None), limiter="memory://", limits="2/minute")


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        print([(await client.get(path)).status_code for path in ("/hello", "/nowhere", "/hello")])


asyncio.run(main())
