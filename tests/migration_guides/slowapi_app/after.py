"""The same search API, limited by Crestgate."""

from fastapi import FastAPI

from crestgate.integrations import Request
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit


def tenant(request: Request) -> str:
    return request.headers.get("X-Tenant", "nobody")


app = FastAPI()
app.add_middleware(
    RateLimitMiddleware,
    limiter="memory://",
    limits="5/hour",
    key="ip|route",
    exempt=["/healthz", "/search", "/reports"],
    default_algorithm="sliding_window_log",
)


@app.get("/search")
@limit("2/hour")
async def search(q: str) -> str:
    return f"found {q}"


@app.get("/reports")
@limit("3/hour", key=tenant)
async def reports() -> list[str]:
    return ["sales"]


@app.get("/plain")
async def plain() -> str:
    return "plain"


@app.get("/healthz")
async def healthz() -> str:
    return "ok"
