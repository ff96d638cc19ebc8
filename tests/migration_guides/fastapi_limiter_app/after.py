"""The same order API, limited by Crestgate."""

from fastapi import Depends, FastAPI

from crestgate.integrations import Request
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit


async def user(request: Request) -> str:
    return request.headers.get("X-User", "nobody")


def hourly(count: int) -> str:
    return f"{count}/hour using sliding_window_log"


app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter="memory://")


@app.get("/items", dependencies=[Depends(limit(hourly(3)))])
async def items() -> list[str]:
    return ["book"]


@app.post("/orders", dependencies=[Depends(limit(hourly(2), key=user))])
async def order() -> str:
    return "ordered"


@app.get("/healthz")
async def healthz() -> str:
    return "ok"
