"""Live streams over sockets: how many there may be, and that they do not hold up a worker that stops."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx

from crestgate.service.dashboard.events import MAX_PER_KEY
from integration.service.service_process import GENEROUS, Service
from servers.machine import until


def test_streams_are_bounded_and_end_with_the_worker(tmp_path: Path) -> None:
    with Service(tmp_path, environment=GENEROUS) as service, ExitStack() as opened:
        client = opened.enter_context(service.client())
        assert client.post("/login", data={"key": service.key}).status_code == 303
        assert client.get("/system").status_code == 200
        assert "crestgate_session" in client.cookies
        streams: list[httpx.Response] = []
        for _ in range(MAX_PER_KEY):
            stream = opened.enter_context(client.stream("GET", "/dashboard/events"))
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            streams.append(stream)
        refused = client.get("/dashboard/events", headers={"accept": "text/event-stream"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "10"
        lines = streams[0].iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: history"
        assert next(line for line in lines if line.startswith("event:")) == "event: sample"
        streams[1].close()  # whoever leaves makes room for another
        until("there is room again", lambda: _opens(client))
        assert service.stop() == 0
        assert "Traceback" not in service.logged


def _opens(client: httpx.Client) -> bool:
    with client.stream("GET", "/dashboard/events") as another:
        return another.status_code == 200
