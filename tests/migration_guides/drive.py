"""Sends requests to one application of a migration guide: `python drive.py APPLICATION < scenarios`.

Frameworks keep settings and counters per process, so each scenario, a list of requests, has a fork of its own. The wall
clock stands still at half past an hour, so that no window ends between two requests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx

HALF_PAST = 1_700_000_000 - 1_700_000_000 % 3600 + 1800
Answer = dict[str, Any]


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("application", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["application"] = module
    spec.loader.exec_module(module)
    return module


def lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def by_django(requests: list[dict[str, Any]]) -> list[Answer]:
    from django.test import Client

    answers = []
    for request in requests:
        call = getattr(Client(), request["method"].lower())
        reply = call(request["path"], request.get("form", {}), headers=request.get("headers", {}))
        answers.append({"status": reply.status_code, "text": reply.content.decode(), "headers": lower(reply.items())})
    return answers


def by_flask(app: Any, requests: list[dict[str, Any]]) -> list[Answer]:
    client = app.test_client()
    replies = [
        client.open(request["path"], method=request["method"], headers=request.get("headers", {}))
        for request in requests
    ]
    return [
        {"status": reply.status_code, "text": reply.get_data(as_text=True), "headers": lower(reply.headers.items())}
        for reply in replies
    ]


async def by_asgi(app: Any, requests: list[dict[str, Any]]) -> list[Answer]:
    answers = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for request in requests:
            reply = await client.request(request["method"], request["path"], headers=request.get("headers", {}))
            answers.append({"status": reply.status_code, "text": reply.text, "headers": lower(reply.headers.items())})
    return answers


def answer(application: Any, requests: list[dict[str, Any]]) -> list[Answer]:
    if hasattr(application, "urlpatterns"):
        return by_django(requests)
    if hasattr(application.app, "test_client"):
        return by_flask(application.app, requests)
    return asyncio.run(by_asgi(application.app, requests))


def answer_in_fork(application: Any, requests: list[dict[str, Any]]) -> list[Answer]:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(answer(application, requests)))
        except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    answers: list[Answer] = json.loads(text)
    return answers


def main() -> None:
    time.time = lambda: float(HALF_PAST)
    time.time_ns = lambda: HALF_PAST * 1_000_000_000
    scenarios = json.load(sys.stdin)
    application = load(Path(sys.argv[1]))
    sys.stdout.write(json.dumps([answer_in_fork(application, requests) for requests in scenarios]))


if __name__ == "__main__":
    main()
