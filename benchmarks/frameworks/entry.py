"""The contenders: the application without limits, and with each library in each kind of integration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AMOUNT", "ANSWER", "BARE", "ENTRIES", "OURS", "PLENTY", "STORE", "Entry"]

STORE, AMOUNT = "BENCHMARK_STORE", "BENCHMARK_AMOUNT"
"""What an application is told in its environment: the URL of where to count, and the requests that pass in a minute."""
ANSWER = {"hello": "world"}
PLENTY = 1_000_000
"""Requests a minute: more than any of them can answer, so that nobody is ever refused."""
OURS = "Crestgate"
MODULE = "benchmarks.frameworks"


@dataclass(frozen=True)
class Entry:
    """One application. `store` is where it counts: memory, shared, redis, or nowhere."""

    library: str
    integration: str
    made_by: str
    store: str = ""

    @property
    def label(self) -> str:
        where = {"memory": "memory", "shared": "shared memory", "redis": "Redis"}
        return f"{self.library}: {self.integration}, {where[self.store]}" if self.store else self.library

    @property
    def application(self) -> str:
        """Its import name for uvicorn."""
        return f"{MODULE}.{self.made_by}"


BARE = Entry("no limits", "", "bare:application")
ENTRIES = (
    BARE,
    Entry(OURS, "middleware", "ours:middleware", "memory"),
    Entry(OURS, "middleware", "ours:middleware", "shared"),
    Entry(OURS, "decorator", "ours:decorator", "memory"),
    Entry("slowapi", "decorator", "peers:slowapi_decorator", "memory"),
    Entry(OURS, "middleware", "ours:middleware", "redis"),
    Entry(OURS, "dependency", "ours:dependency", "redis"),
    Entry("slowapi", "decorator", "peers:slowapi_decorator", "redis"),
    Entry("slowapi", "middleware", "peers:slowapi_middleware", "redis"),
    Entry("fastapi-limiter", "dependency", "peers:fastapi_limiter", "redis"),
    Entry("fastapi-limiter", "dependency, blocking client", "peers:fastapi_limiter_blocking", "redis"),
)
