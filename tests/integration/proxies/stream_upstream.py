"""A model service behind a proxy, for tests with many streams at once: a rendezvous by counting, and a journal.

A rendezvous of N holds every request at the door until N have arrived, and every stream before its first token until
all N are decided. So N requests are open at once, and all admitted streams too, whatever the machine is busy with.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Journal", "Rendezvous", "ReportingApp", "TokenModel"]


@dataclass(slots=True)
class Journal:
    """What the streams did, in order: opened, produced tokens, ended. Written by one event loop."""

    events: list[tuple[Literal["open", "token", "end"], str]] = field(default_factory=list)

    def spent(self) -> int:
        return sum(kind == "token" for kind, _ in self.events)

    def streams(self) -> int:
        return sum(kind == "open" for kind, _ in self.events)

    def most_open(self) -> int:
        """The most streams that were open at the same moment."""
        count = most = 0
        for kind, _ in self.events:
            count += {"open": 1, "token": 0, "end": -1}[kind]
            most = max(most, count)
        return most

    def in_flight_beyond(self, budget: int) -> tuple[int, int]:
        """When the streams that had ended had used up the budget: the tokens of those that were still open, with the
        one that ended; and the number of streams that were opened later."""
        used: dict[str, int] = {}
        ended = 0
        for position, (kind, stream) in enumerate(self.events):
            used[stream] = used.get(stream, 0) + (kind == "token")
            ended += used[stream] if kind == "end" else 0
            if ended >= budget:
                after = self.events[position + 1 :]
                still_open = {name for kind, name in after if kind == "end"} | {stream}
                total = sum(kind == "token" and name in still_open for kind, name in self.events)
                return total, sum(kind == "open" for kind, _ in after)
        return 0, 0


class Rendezvous:
    """An ASGI application behind a door: see above. It expects nobody until it is told to."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.expect(0)

    def expect(self, count: int) -> None:
        self.count, self.arrived, self.decided = count, 0, 0
        self.all_arrived, self.all_decided = asyncio.Event(), asyncio.Event()
        if count == 0:
            self.all_arrived.set()
            self.all_decided.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.arrived += 1
        if self.arrived == self.count:
            self.all_arrived.set()
        await self.all_arrived.wait()

        async def sender(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self.decided += 1
                if self.decided == self.count:
                    self.all_decided.set()

        await self.app(scope, receive, sender)


class TokenModel:
    """Stands for a language model. How many tokens a prompt takes is drawn by the prompt, so that runs are equal."""

    def __init__(self, journal: Journal, least: int, most: int) -> None:
        self.journal = journal
        self.least, self.most = least, most
        self.rendezvous: Rendezvous | None = None

    async def produce(self, prompt: str, prompt_tokens: int = 0) -> AsyncGenerator[str, None]:
        journal = self.journal.events
        journal.append(("open", prompt))
        journal.extend([("token", prompt)] * prompt_tokens)
        try:
            assert self.rendezvous is not None
            await self.rendezvous.all_decided.wait()
            for _ in range(random.Random(prompt).randint(self.least, self.most) - prompt_tokens):
                journal.append(("token", prompt))
                yield "word"
                await asyncio.sleep(0)  # streams take turns
        finally:
            journal.append(("end", prompt))


class ReportingApp:
    """An ASGI application that knows no limits: each event of its stream says how many tokens were used so far."""

    def __init__(self, model: TokenModel) -> None:
        self.model = model

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"text/event-stream")]
        prompt = scope["query_string"].decode()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        used = 0
        async for word in self.model.produce(prompt):
            used += 1
            event = json.dumps({"word": word, "usage": {"total_tokens": used}})
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
