"""A language model behind Envoy: Envoy limits requests, and this application reserves and settles tokens in Crestgate.

pip install '.[fastapi]' uvicorn
crestgate serve --config deploy/envoy/reservations-crestgate.yaml
python examples/model_behind_envoy.py
envoy -c deploy/envoy/reservations.yaml --concurrency 1
curl -N localhost:8000/chat -H 'X-Customer: acme' --json '{"prompt": "why is the sky blue", "max_tokens": 50}'
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from crestgate import AsyncLimiter, AsyncReservation, RateLimitExceeded

limiter = AsyncLimiter(os.environ.get("CRESTGATE_STORE", "crestgate://127.0.0.1:8080"), on_store_error="closed")
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
    """Settles what it has used when it has ended: completely, by an error, or by a hang-up."""

    def __init__(self, question: Question, reservation: AsyncReservation) -> None:
        self.used = len(question.prompt.split())
        self.reservation = reservation
        self.events = self.stream(question)
        super().__init__(self.events, media_type="text/event-stream")

    async def stream(self, question: Question) -> AsyncGenerator[str, None]:
        async with aclosing(model(question)) as words:
            async for word in words:
                self.used += 1
                yield f"data: {word}\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.events.aclose()
            await self.reservation.settle({"tokens": self.used, "budget": self.used})


@app.post("/chat")
async def chat(question: Question, x_customer: Annotated[str, Header(max_length=100)]) -> StreamingResponse:
    most = len(question.prompt.split()) + question.max_tokens
    reservation = await limiter.reserve(x_customer, {"tokens": most, "budget": most}, ttl=600)
    return Answer(question, reservation)


@app.exception_handler(RateLimitExceeded)
async def denied(_: Request, error: RateLimitExceeded) -> JSONResponse:
    wait = error.decision.retry_after
    return JSONResponse({"error": f"limit of {error.decision.name} exceeded", "retry_after": wait}, 429)


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "9000")))
