"""The application that everybody limits, without a limit: one route that answers with a little JSON.

What a limited one needs to know is in its environment, so that uvicorn can make it by its name.
"""

from __future__ import annotations

import os

from fastapi import FastAPI

from benchmarks.frameworks.entry import AMOUNT, ANSWER, STORE

__all__ = ["amount", "application", "hello", "store"]


async def hello() -> dict[str, str]:
    return ANSWER


def application() -> FastAPI:
    app = FastAPI()
    app.get("/")(hello)
    return app


def store() -> str:
    return os.environ[STORE]


def amount() -> int:
    return int(os.environ[AMOUNT])
