"""A small order API, limited by fastapi-limiter."""

from fastapi import Depends, FastAPI, Request
from fastapi_limiter.decorators import skip_limiter
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import BucketFactory, Duration, InMemoryBucket, Limiter, Rate, RateItem


async def user(request: Request) -> str:
    return request.headers.get("X-User", "nobody")


class BucketPerKey(BucketFactory):
    """Limiter(Rate(…)) alone has one bucket, and counts all callers of a route together."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.buckets: dict[str, InMemoryBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self.get(RateItem(name, 0)).now(), weight)

    def get(self, item: RateItem) -> InMemoryBucket:
        if item.name not in self.buckets:
            self.buckets[item.name] = InMemoryBucket([self.rate])
        return self.buckets[item.name]


def hourly(count: int) -> Limiter:
    return Limiter(BucketPerKey(Rate(count, Duration.HOUR)))


app = FastAPI()


@app.get("/items", dependencies=[Depends(RateLimiter(hourly(3)))])
async def items() -> list[str]:
    return ["book"]


@app.post("/orders", dependencies=[Depends(RateLimiter(hourly(2), identifier=user))])
async def order() -> str:
    return "ordered"


@app.get("/healthz")
@skip_limiter
async def healthz() -> str:
    return "ok"
