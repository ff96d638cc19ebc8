"""Quart: the middleware is put around `asgi_app`, and the application stays what it is.

pip install . quart
python examples/quart_app.py
"""

import asyncio

from quart import Quart

from crestgate.integrations.asgi import RateLimitMiddleware

app = Quart(__name__)
app.asgi_app = RateLimitMiddleware(app.asgi_app, limiter="memory://", limits="2/minute")  # type: ignore[method-assign]


@app.get("/hello")
async def hello() -> str:
    return "hello"


async def main() -> None:
    client = app.test_client()
    here = {"client": ("198.51.100.7", 50000)}  # which the client of tests leaves out
    print([(await client.get(path, scope_base=here)).status_code for path in ("/hello", "/nowhere", "/hello")])


asyncio.run(main())
