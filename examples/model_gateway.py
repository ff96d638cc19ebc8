"""A gateway to a language model that streams. For each customer: requests, tokens, a monthly budget, streams at once.

pip install '.[fastapi]' uvicorn
python examples/model_gateway.py
curl -N localhost:8000/chat -H 'X-Customer: acme' --json '{"prompt": "why is the sky blue", "max_tokens": 50}'
"""

import asyncio
import math
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from crestgate import AsyncLimiter, AsyncReservation, RateLimitExceeded

PLANS = {
    "requests": "60/minute",
    "tokens": "10000/minute using fixed_window",
    "budget": "200000/calendar month",  # of UTC; `in Europe/Berlin` for another time zone
    "streams": "5 concurrent ttl 30s",
}
limiter = AsyncLimiter(os.environ.get("CRESTGATE_STORE", "memory://"), plans=PLANS)
app = FastAPI()


class Question(BaseModel):
    prompt: str = Field(max_length=10_000)
    max_tokens: int = Field(500, ge=1, le=4_000)


async def model(question: Question) -> AsyncGenerator[str, None]:
    """Stands for a language model: a word is a token, and there are never more than `max_tokens`."""
    for number in range(question.max_tokens):
        await asyncio.sleep(0.02)
        yield ("because", "of", "Rayleigh", "scattering")[number % 4]


class Answer(StreamingResponse):
    """Settles what it has used, and frees its slot, when it has ended: completely, by an error, or by a hang-up."""

    def __init__(self, question: Question, reservation: AsyncReservation, held: AsyncExitStack) -> None:
        self.used = len(question.prompt.split())
        self.reservation = reservation
        self.held = held
        self.events = self.stream(question)
        super().__init__(self.events, media_type="text/event-stream")

    async def stream(self, question: Question) -> AsyncGenerator[str, None]:
        async with aclosing(model(question)) as words:
            async for word in words:
                self.used += 1
                yield f"data: {word}\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            try:
                await super().__call__(scope, receive, send)
            finally:  # also when the client hangs up: it pays for what was produced
                await self.events.aclose()
                await self.reservation.settle({"tokens": self.used, "budget": self.used})


@app.post("/chat")
async def chat(question: Question, x_customer: Annotated[str, Header(max_length=100)]) -> StreamingResponse:
    """Yours takes the customer from the key that the request is authenticated with."""
    most = len(question.prompt.split()) + question.max_tokens
    async with AsyncExitStack() as held:
        await held.enter_async_context(limiter.hold(x_customer, "streams"))
        costs = {"requests": 1, "tokens": most, "budget": most}
        reservation = await limiter.reserve(x_customer, costs, ttl=600)
        return Answer(question, reservation, held.pop_all())


@app.exception_handler(RateLimitExceeded)
async def denied(_: Request, error: RateLimitExceeded) -> JSONResponse:
    decision = error.decision
    wait = decision.retry_after  # None: more than the whole limit, so waiting does not help
    body = {"error": f"limit of {decision.name} exceeded", "left": decision.remaining, "retry_after": wait}
    return JSONResponse(body, 429, None if wait is None else {"Retry-After": str(math.ceil(wait))})


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
