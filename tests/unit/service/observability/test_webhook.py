"""Events posted to a URL: in order, with a few attempts, and without delaying checks."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from crestgate import Limiter, RequestContext
from crestgate.core.redaction import client_id_from_api_key
from crestgate.errors import ConfigError
from crestgate.service.observability.labels import CLIENT_KEY
from crestgate.service.observability.pressure import LINES_PER_SECOND, PressureWatch
from crestgate.service.observability.webhook import Webhook
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.testing import FakeClock

NOW = 1_700_000_000_000_000


class Receiver:
    """A server that receives events; `statuses` are those of its next responses, then 200."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.statuses: list[int] = []
        self.arrivals = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.go.wait(10)
                receiver.events.append(body)
                receiver.requests.append((self.path, dict(self.headers)))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                receiver.arrivals.release()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.arrivals.acquire(timeout=10)

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def hooks() -> Iterator[list[Webhook]]:
    made: list[Webhook] = []
    yield made
    for hook in made:
        hook.close()


def opened(hooks: list[Webhook], url: str, **more: Any) -> Webhook:
    hook = Webhook(url, retry_delays=(0.0, 0.0), **more)
    hooks.append(hook)
    hook.start()
    return hook


def test_events_arrive_in_order(receiver: Receiver, hooks: list[Webhook]) -> None:
    hook = opened(hooks, f"{receiver.url}/hook?x=1")
    for number in range(5):
        hook.send({"event": "pressure", "number": number})
    receiver.wait(5)
    assert [event["number"] for event in receiver.events] == list(range(5))
    path, headers = receiver.requests[0]
    assert (path, headers["Content-Type"]) == ("/hook?x=1", "application/json")
    assert datetime.fromisoformat(receiver.events[0]["timestamp"]).tzinfo is UTC
    assert hook.dropped == 0


def test_url_credentials_become_basic_authorization(receiver: Receiver, hooks: list[Webhook]) -> None:
    hook = opened(hooks, receiver.url.replace("//", "//me:p%40ss@"))
    hook.send({})
    receiver.wait(1)
    assert receiver.requests[0][1]["Authorization"] == "Basic bWU6cEBzcw=="
    assert "p@ss" not in repr(hook)


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_transient_errors_are_retried(receiver: Receiver, hooks: list[Webhook], status: int) -> None:
    receiver.statuses = [status, status]
    hook = opened(hooks, receiver.url)
    hook.send({"number": 1})
    receiver.wait(3)
    hook.close()
    assert (len(receiver.events), hook.dropped) == (3, 0)


def test_event_is_dropped_after_three_attempts(
    receiver: Receiver, hooks: list[Webhook], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [500] * 3
    hook = opened(hooks, f"{receiver.url}/services/very-secret")
    hook.send({"number": 1})
    hook.send({"number": 2})
    receiver.wait(4)
    hook.close()
    assert [event["number"] for event in receiver.events] == [1, 1, 1, 2]
    assert hook.dropped == 1
    assert "cannot deliver a pressure event to 127.0.0.1: status 500" in caplog.text
    assert "very-secret" not in caplog.text


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_not_followed(receiver: Receiver, hooks: list[Webhook], status: int) -> None:
    receiver.statuses = [status] * 3
    hook = opened(hooks, receiver.url)
    hook.send({})
    receiver.wait(3)
    hook.close()
    assert {path for path, _ in receiver.requests} == {"/"}
    assert hook.dropped == 1


def test_client_errors_are_not_retried(receiver: Receiver, hooks: list[Webhook]) -> None:
    receiver.statuses = [404]
    hook = opened(hooks, receiver.url)
    hook.send({"number": 1})
    hook.close()
    assert (len(receiver.events), hook.dropped) == (1, 1)


def test_notify_without_listeners(hooks: list[Webhook]) -> None:
    hook = opened(hooks, "http://127.0.0.1:1/")
    hook.send({})
    hook.close()
    assert hook.dropped == 1


def test_slow_receiver_drops_events_and_delays_nothing(receiver: Receiver, hooks: list[Webhook]) -> None:
    receiver.go.clear()
    hook = opened(hooks, receiver.url, max_pending=10)
    for number in range(1000):
        hook.send({"number": number})  # does not block
    assert 989 <= hook.dropped <= 990
    receiver.go.set()
    receiver.wait(10)


def test_nothing_is_sent_before_the_start(receiver: Receiver) -> None:
    hook = Webhook(receiver.url)
    before = threading.active_count()
    hook.send({})
    hook.close()
    assert receiver.events == []
    assert threading.active_count() <= before


@pytest.mark.parametrize("url", ["", "example.com/hook", "ftp://example.com", "https:///hook"])
def test_invalid_webhook_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"pressure\.webhook"):
        Webhook(url)


def test_pressure_is_counted_logged_and_posted_once(
    receiver: Receiver, hooks: list[Webhook], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = WorkerMetrics()
    watch = PressureWatch(metrics, "hashed", opened(hooks, receiver.url))
    limiter = Limiter("memory://", clock=FakeClock(1_700_000_000), plans={"gold": "10/minute"}, on_pressure=watch)
    for _ in range(15):
        limiter.check("user:alice", "gold")
    receiver.wait(2)
    assert [(event["before"], event["after"], event["rule"]) for event in receiver.events] == [
        ("normal", "warning", "gold"),
        ("warning", "throttled", "gold"),
    ]
    assert (receiver.events[0]["limit"], receiver.events[0]["remaining"]) == (10, 1)
    assert metrics.snapshot(NOW, {}).counters["pressure_transitions"] == {("warning",): 1, ("throttled",): 1}
    assert "alice" not in str(receiver.events) + caplog.text
    assert watch.totals() == {"pressure_unlogged": 0, "webhook_dropped": 0}


def test_span_rule_has_no_key(receiver: Receiver, hooks: list[Webhook], capsys: pytest.CaptureFixture[str]) -> None:
    watch = PressureWatch(WorkerMetrics(), "hashed", opened(hooks, receiver.url))
    environ = {"CRESTGATE_POLICIES": "[{key: hunter2, type: SLIDING_WINDOW, capacity: 1}]"}
    with Limiter.from_config(environ=environ, on_pressure=watch) as limiter:
        limiter.check_request(RequestContext(key="hunter2"))
    receiver.wait(1)
    assert [event["rule"] for event in receiver.events] == ["policy"]
    output = capsys.readouterr().out
    assert "policy" in output
    assert "hunter2" not in output + str(receiver.events)


def test_api_key_as_client_name_is_hashed(receiver: Receiver, hooks: list[Webhook]) -> None:
    watch = PressureWatch(WorkerMetrics(), "plain", opened(hooks, receiver.url))
    environ = {"CRESTGATE_DEFAULT_CLIENT_LIMITS": "1/hour"}
    with Limiter.from_config(environ=environ, on_pressure=watch) as limiter:
        before = CLIENT_KEY.set("sk-secret")
        limiter.check_request(RequestContext(client="sk-secret"))
        CLIENT_KEY.reset(before)
        limiter.check_request(RequestContext(client="acme"))
    receiver.wait(2)
    assert [event["key"] for event in receiver.events] == [
        f"client:{client_id_from_api_key('sk-secret')}",
        "client:acme",
    ]


def test_keys_are_plain_if_configured(receiver: Receiver, hooks: list[Webhook]) -> None:
    watch = PressureWatch(WorkerMetrics(), "plain", opened(hooks, receiver.url))
    limiter = Limiter("memory://", on_pressure=watch)
    limiter.check("user:alice", "1/minute")
    limiter.check("apikey:sk-secret", "1/minute")
    receiver.wait(2)
    assert receiver.events[0]["key"] == "user:alice"
    assert "sk-secret" not in str(receiver.events)


def test_flood_of_fresh_keys_does_not_flood_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    metrics = WorkerMetrics()
    watch = PressureWatch(metrics, "hashed", now=lambda: now)
    limiter = Limiter("memory://", on_pressure=watch)
    for number in range(1000):
        limiter.check(f"ip:{number}", "1/minute")
    assert capsys.readouterr().out.count("pressure ") == LINES_PER_SECOND
    now = 1.0
    limiter.check("ip:last", "1/minute")
    output = capsys.readouterr().out
    assert "not_logged" in output
    assert str(1000 - LINES_PER_SECOND) in output
    assert watch.totals()["pressure_unlogged"] == 1000 - LINES_PER_SECOND
    assert metrics.snapshot(NOW, {}).counters["pressure_transitions"] == {("throttled",): 1001}, "the metric counts all"
