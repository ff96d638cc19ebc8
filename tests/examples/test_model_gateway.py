"""The gateway of examples/model_gateway.py behind a real server: each of its limits, hang-ups, failures and a kill.

Time is virtual, and the model produces a token when the test lets it, so what was used is known exactly.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn

import crestgate
from crestgate import AsyncLimiter, Limiter
from crestgate.testing import FakeClock
from servers.machine import PATIENCE, free_port, until

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "model_gateway.py"
PROMPT = "why is the sky blue"
PROMPT_TOKENS = 5
QUESTION = {"prompt": PROMPT, "max_tokens": 50}
RESERVED = PROMPT_TOKENS + 50
ACME = {"x-customer": "acme"}
FULL = {"requests": 60, "tokens": 10_000, "budget": 200_000, "streams": 5}


class PacedModel:
    """Stands for the model of the example: it produces a token for each permit, and says when it was closed."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.length = 50
        self.error: Exception | None = None
        self.closed = 0

    def permit(self, tokens: int) -> None:
        for _ in range(tokens):
            self.permits.release()

    async def __call__(self, question: Any) -> AsyncGenerator[str, None]:
        try:
            for _ in range(min(self.length, question.max_tokens)):
                await self.permits.acquire()
                yield "word"
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


class Gateway:
    """The example on a port of this machine, with its limiter on virtual time."""

    def __init__(self, module: ModuleType, client: httpx.AsyncClient, limiter: AsyncLimiter, model: PacedModel) -> None:
        self.limiter = limiter
        self.model = model
        self.client = client
        self.module = module

    def post(self, **changes: Any) -> Any:
        return self.client.post("/chat", json={**QUESTION, **changes}, headers=ACME)

    def open(self) -> Any:
        return self.client.stream("POST", "/chat", json=QUESTION, headers=ACME)

    async def left(self) -> dict[str, int]:
        return {plan: (await self.limiter.peek("acme", plan)).remaining for plan in FULL}

    async def becomes(self, expected: dict[str, int]) -> None:
        """Wait until so much is left: a response ends a moment before its settlement."""
        async with asyncio.timeout(PATIENCE):
            while (left := await self.left()) != expected:
                await asyncio.sleep(0.01)
        assert left == expected


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_gateway", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def serving() -> AsyncIterator[Gateway]:
    module: Any = load()
    model = PacedModel()
    module.model = model
    server = uvicorn.Server(uvicorn.Config(module.app, port=0, log_level="critical"))
    async with AsyncLimiter("memory://", plans=module.PLANS, clock=FakeClock(1_700_000_000)) as limiter:
        module.limiter = limiter
        task = asyncio.create_task(server.serve())
        try:
            while not server.started:
                assert not task.done()
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
                yield Gateway(module, client, limiter, model)
        finally:
            model.permit(1000)
            server.should_exit = True
            await task


async def read_events(response: httpx.Response, count: int) -> AsyncGenerator[str, None]:
    """The events of a response, which stays open."""
    events = response.aiter_lines()
    while count:
        if (line := await anext(events)).startswith("data: "):
            count -= 1
            yield line


def test_settles_what_was_used_when_the_stream_is_complete() -> None:
    async def scenario() -> None:
        async with serving() as gateway:
            gateway.model.length = 7
            async with gateway.open() as response:
                assert response.status_code == 200
                held = {"requests": 59, "tokens": 10_000 - RESERVED, "budget": 200_000 - RESERVED, "streams": 4}
                assert await gateway.left() == held, "the most it can cost is reserved, and a slot is held"
                gateway.model.permit(7)
                assert len([event async for event in read_events(response, 7)]) == 7
            used = PROMPT_TOKENS + 7
            await gateway.becomes(
                {"requests": 59, "tokens": 10_000 - used, "budget": 200_000 - used, "streams": 5},
            )

    asyncio.run(scenario())


def test_client_that_hangs_up_pays_for_what_was_produced() -> None:
    async def scenario() -> None:
        async with serving() as gateway:
            async with gateway.open() as response:
                gateway.model.permit(3)
                assert len([event async for event in read_events(response, 3)]) == 3
            # The socket is closed, with 47 tokens still to come.
            used = PROMPT_TOKENS + 3
            await gateway.becomes(
                {"requests": 59, "tokens": 10_000 - used, "budget": 200_000 - used, "streams": 5},
            )
            assert gateway.model.closed == 1, "the model was stopped"

    asyncio.run(scenario())


def test_model_that_fails_has_used_what_it_produced() -> None:
    async def scenario() -> None:
        async with serving() as gateway:
            gateway.model.length, gateway.model.error = 4, RuntimeError("the model has failed")
            gateway.model.permit(4)
            async with gateway.open() as response:
                with pytest.raises(httpx.RemoteProtocolError):
                    await response.aread()
            used = PROMPT_TOKENS + 4
            await gateway.becomes(
                {"requests": 59, "tokens": 10_000 - used, "budget": 200_000 - used, "streams": 5},
            )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("plan", "spent", "retry_after"),
    [("requests", 60, "1"), ("tokens", 9_990, "40"), ("budget", 199_990, str(1_701_388_800 - 1_700_000_000))],
)
def test_exhausted_limit_is_429_and_charges_nothing(plan: str, spent: int, retry_after: str) -> None:
    async def scenario() -> None:
        async with serving() as gateway:
            await gateway.limiter.check("acme", plan, cost=spent)
            before = {**FULL, plan: FULL[plan] - spent}
            response = await gateway.post()
            assert response.status_code == 429
            assert response.headers["retry-after"] == retry_after
            body = {"error": f"limit of {plan} exceeded", "left": FULL[plan] - spent, "retry_after": int(retry_after)}
            assert response.json() == body
            assert await gateway.left() == before, "all or nothing, and the slot is free again"

    asyncio.run(scenario())


def test_stream_beyond_the_slots_is_429_until_another_ends() -> None:
    async def scenario() -> None:
        async with serving() as gateway:
            gateway.model.length = 1
            async with AsyncExitStack() as streams:
                for _ in range(5):
                    assert (await streams.enter_async_context(gateway.open())).status_code == 200
                response = await gateway.post()
                assert (response.status_code, response.headers["retry-after"]) == (429, "30")
                assert response.json() == {"error": "limit of streams exceeded", "left": 0, "retry_after": 30.0}
                assert (await gateway.left())["requests"] == 55, "the denied one costs no request"
                gateway.model.permit(1)
                async with asyncio.timeout(PATIENCE):
                    while (await gateway.left())["streams"] == 0:
                        await asyncio.sleep(0.01)
                gateway.model.permit(5)
                assert (await gateway.post()).status_code == 200

    asyncio.run(scenario())


def test_killed_gateway_leaves_the_charge_and_the_slot_to_their_ends(tmp_path: Path) -> None:
    """The program as it is, on shared memory. What ends after a time to live is tested on virtual time elsewhere."""
    store, port = f"shared://{tmp_path}/limits", free_port()
    source = str(Path(crestgate.__file__).parent.parent)
    environment = {**os.environ, "CRESTGATE_STORE": store, "PORT": str(port), "PYTHONPATH": source}
    with subprocess.Popen([sys.executable, str(PROGRAM)], env=environment, stderr=subprocess.DEVNULL) as program:
        try:
            until("it serves", lambda: is_serving(port))
            question = json.dumps({"prompt": PROMPT, "max_tokens": 4_000})
            url = f"http://127.0.0.1:{port}/chat"
            headers = {**ACME, "content-type": "application/json"}
            with httpx.Client(timeout=PATIENCE) as client:
                with client.stream("POST", url, content=question, headers=headers) as response:
                    events = response.iter_lines()
                    assert next(events) == "data: because"
                    program.send_signal(signal.SIGKILL)
                    with pytest.raises(httpx.RemoteProtocolError):
                        list(events)
        finally:
            program.kill()
    plans: dict[str, str] = vars(load())["PLANS"]
    with Limiter(store, plans=plans) as limiter:
        assert limiter.peek("acme", "budget").remaining == 200_000 - 4_005, "it keeps what was reserved"
        assert limiter.peek("acme", "streams").remaining == 4


def is_serving(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/docs").status_code == 200
    except httpx.TransportError:
        return False
