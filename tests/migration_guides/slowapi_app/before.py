"""A small search API, limited by slowapi."""

from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address


def tenant(request: Request) -> str:
    return request.headers.get("X-Tenant", "nobody")


limiter = Limiter(
    key_func=get_remote_address,
    default_limits=["5/hour"],
    strategy="moving-window",
    headers_enabled=True,
)
app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
app.add_middleware(SlowAPIMiddleware)


@app.get("/search")
@limiter.limit("2/hour")
async def search(request: Request, response: Response, q: str) -> str:
    return f"found {q}"


@app.get("/reports")
@limiter.limit("3/hour", key_func=tenant)
async def reports(request: Request, response: Response) -> list[str]:
    return ["sales"]


@app.get("/plain")
async def plain() -> str:
    return "plain"


@app.get("/healthz")
@limiter.exempt
async def healthz(request: Request) -> str:
    return "ok"
