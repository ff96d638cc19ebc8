"""Envoy's limits over HTTP: `POST /json`, as envoyproxy/ratelimit has it for people and for whatever speaks no gRPC,
and resets of their counters.

`/json` takes a RateLimitRequest and answers with a RateLimitResponse: 200 when it is OK, 429 when it is OVER_LIMIT.
What cannot be answered is a problem, as everywhere.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from google.protobuf import json_format

from headgate.service.asgi import Call, Reply
from headgate.service.data.answers import encode
from headgate.service.data.bodies import prepare
from headgate.service.rpc.envoy import Envoy
from headgate.service.rpc.json_bodies import read_rate_limit, read_reset
from headgate.service.rpc.messages import RateLimitResponse
from headgate.stores.port import Op

__all__ = ["EnvoyOverHttp"]

OVER_LIMIT = 2
RETRY_AFTER = "retry-after"


class EnvoyOverHttp:
    """Answers in one worker."""

    def __init__(self, envoy: Envoy) -> None:
        self.envoy = envoy

    async def ask(self, call: Call, body: bytes) -> Reply:
        """`POST /json`: what ShouldRateLimit would answer."""
        started = perf_counter()
        domains = self.envoy.current()
        asked = self.envoy.read(domains, read_rate_limit(body))
        answer: Any = RateLimitResponse.FromString(await self.envoy.decide(call, asked, started))
        said = json_format.MessageToJson(answer, indent=None, ensure_ascii=False).encode()
        if answer.overall_code != OVER_LIMIT:
            return Reply(200, said)
        waits = [(b"retry-after", h.value.encode()) for h in answer.response_headers_to_add if h.key == RETRY_AFTER]
        return Reply(429, said, waits)

    async def reset(self, call: Call, body: bytes) -> Reply:
        """`POST /api/v1/reset`: forget the counters that a check would look at, or those of Envoy's descriptors. It is
        in the audit log."""
        asked = read_reset(body)
        plane = self.envoy.plane
        if asked.domain is None or asked.descriptors is None:
            members = await plane.forget(call, prepare(plane.limiter, Op.RESET, asked))
        else:
            members = await self.envoy.reset(call, asked.domain, asked.descriptors)
        return Reply(200, encode({"reset": [{"key": m.key, "rule": m.algorithm.label} for m in members]}))
