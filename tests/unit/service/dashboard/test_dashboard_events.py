"""Live events: rates, bounds and ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from crestgate.service.auth.keys import Caller
from crestgate.service.auth.sessions import COOKIE, Session
from crestgate.service.dashboard import live
from crestgate.service.dashboard.events import MAX_PER_KEY, MAX_STREAMS, MIN_STREAMS, EventStreams
from crestgate.service.dashboard.live import LiveFeed, StoreState, WorkerRates
from crestgate.service.errors import ApiError
from crestgate.service.observability.snapshot import Snapshot
from unit.service.dashboard.dashboard_client import Dashboard

SECOND = 1_000_000


def snapshot(at_us: int, allowed: int, denied: int = 0, fail_open: int = 0) -> Snapshot:
    counters: Any = {
        "allowed": {("r", "user"): allowed},
        "blocked": {("r", "user"): denied},
        "fail_open": {(): fail_open},
    }
    return Snapshot(at_us=at_us, counters=counters)


def test_rates_are_those_of_all_workers_by_the_times_of_their_files() -> None:
    rates = WorkerRates()
    fine = StoreState(False)
    first = rates.add({0: snapshot(0, 100), 1: snapshot(0, 0)}, 0, fine)
    assert first.allowed == 0, "totals are no rate"
    second = rates.add({0: snapshot(2 * SECOND, 140, 10), 1: snapshot(SECOND, 5, 0, 5)}, 2 * SECOND, fine)
    assert (second.allowed, second.denied, second.fail_open) == (25, 5, 5)
    assert second.rules == {"r": (25, 5, 0)}
    same = rates.add({0: snapshot(2 * SECOND, 140, 10)}, 2 * SECOND + 1, fine)
    assert same.allowed == 25, "no new file yet"
    late = rates.add({}, 60 * SECOND, fine)
    assert late.allowed == 0, "a silent worker has no rate"


def test_rules_of_a_sample_are_bounded() -> None:
    rates = WorkerRates()
    many: Any = {"allowed": {(f"r{n}", "user"): 0 for n in range(1000)}}
    more: Any = {"allowed": {(f"r{n}", "user"): n for n in range(1000)}}
    rates.add({0: Snapshot(at_us=0, counters=many)}, 0, StoreState(False))
    sample = rates.add({0: Snapshot(at_us=SECOND, counters=more)}, SECOND, StoreState(False))
    assert len(sample.rules) == live.MAX_RULES
    assert "r999" in sample.rules


async def stream(dashboard: Dashboard, cookie: str, events: int) -> tuple[int, list[tuple[str, Any]]]:
    """The status, and the first events of a stream, after which the client hangs up."""
    received: list[bytes] = []
    status = 0
    gone = asyncio.Event()

    async def receive() -> Any:
        if not gone.is_set() and not hasattr(receive, "body"):
            receive.body = True  # type: ignore[attr-defined]
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            received.append(message.get("body", b""))
            if b"".join(received).count(b"\n\n") >= events:
                gone.set()

    headers = [(b"host", b"localhost"), (b"cookie", f"{COOKIE}={cookie}".encode()), (b"accept", b"text/event-stream")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/dashboard/events",
        "raw_path": b"/dashboard/events",
        "query_string": b"",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }
    await dashboard.router(scope, receive, send)
    text = b"".join(received).decode()
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return status, found


def test_stream_sends_history_and_samples(dashboard: Dashboard, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.01)
    cookie = dashboard.http.cookies.get(COOKIE) or ""
    status, events = dashboard.control.runner.run(stream(dashboard, cookie, 3))
    assert status == 200
    assert [name for name, _ in events[:3]] == ["history", "sample", "sample"]
    assert events[1][1]["store"] == {"failing": False, "message": ""}
    assert set(events[1][1]) == {"at", "allowed", "denied", "shadowed", "fail_open", "rules", "store"}
    feed: LiveFeed = dashboard.app.state.site.feed
    assert feed._task is None, "nobody watches, nothing runs"
    assert dashboard.app.state.site.streams._open.total() == 0


def test_stream_ends_with_the_session(dashboard: Dashboard, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.01)
    cookie = dashboard.http.cookies.get(COOKIE) or ""
    session = dashboard.sessions.find(cookie)
    assert session is not None

    async def end_soon() -> None:
        await asyncio.sleep(0.05)
        dashboard.sessions.end(session, "192.0.2.1")

    async def both() -> Any:
        ending = asyncio.create_task(end_soon())
        result = await stream(dashboard, cookie, 10_000)
        await ending
        return result

    _, events = dashboard.control.runner.run(both())
    assert events[-1][0] == "end"


def test_stream_ends_when_the_worker_stops(dashboard: Dashboard, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.01)
    dashboard.health.stopping = True
    _, events = dashboard.control.runner.run(stream(dashboard, dashboard.http.cookies.get(COOKIE) or "", 10_000))
    assert [name for name, _ in events] == ["history"]


def test_stream_needs_a_session(anyone: Dashboard) -> None:
    status, events = anyone.control.runner.run(stream(anyone, "nothing", 1))
    assert (status, events) == (401, [])


def test_head_opens_no_stream(dashboard: Dashboard) -> None:
    response = dashboard.request("HEAD", "/dashboard/events")
    assert (response.status_code, response.content) == (200, b"")


def test_streams_are_bounded() -> None:
    feed: Any = None
    streams = EventStreams(feed, workers=1)
    session = Session(Caller("ops", "read", "a"), "1", 0, "")
    streams._open["a"] = MAX_PER_KEY
    with pytest.raises(ApiError, match="too many pages") as refused:
        streams.open(session, lambda: True)
    assert refused.value.status == 503
    many = EventStreams(feed, workers=1000)
    many._open["a"] = MIN_STREAMS // 2
    with pytest.raises(ApiError, match="too many pages"):
        many.open(session, lambda: True)
    assert EventStreams(feed, workers=1)._max == MAX_STREAMS
    assert EventStreams(feed, workers=8)._max == MAX_STREAMS // 8
    assert EventStreams(feed, workers=1000)._max == MIN_STREAMS
