"""Redaction of subjects: a service gets requests about several callers, each identified in another way. Then its log,
events, metrics, history and files are searched for their names.

Once with hashed keys, and once with plain keys, where API keys must be redacted too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from crestgate.core.redaction import client_id_from_api_key, digest
from crestgate.history.factory import open_history
from crestgate.service.observability.usage import short_subject
from integration.child_process import wait_until
from integration.service.service_process import Service
from unit.service.observability.test_webhook import Receiver

API_KEY = "sk_live_0f-an-end-us3r"
CONFIGURED = "sk_live_0f-a-conf1gured-client"
POLICY = "the-p0licy-key"
LONG = "the-l0ng-p0licy-key" * 30
CLIENT = "the-cl1ent"
USER = "the-us3r"
CONFIG = """
server: {{trusted_proxies: [127.0.0.0/8]}}
logs: {{requests: all, keys: {keys}}}
metrics: {{tokens_remaining: true}}
pressure: {{webhook: '{webhook}'}}
rules:
  - {{rule_id: per-user, dimension: user, endpoint_pattern: /orders, limit: 5, window_seconds: 3600}}
default_client_limits: 3/hour
"""
FORMATS: dict[str, Callable[[str], str]] = {"hashed": digest, "plain": str}
"""How a key is written."""


class Traffic:
    """Sends requests about all callers, and collects all output of the service."""

    def __init__(self, service: Service, receiver: Receiver) -> None:
        with service.client(service.key) as admin, service.client() as anyone:
            self.control(admin, anyone)
            self.checks(anyone)
            self.proxied(anyone)
            self.metrics = anyone.get("/metrics").text
            self.snapshot_bytes = b""
            wait_until("clients are in the worker snapshots", lambda: self.read_snapshots(service.folder))
            self.limits = {
                client: admin.get("/ratelimiter/client-limits", params={"clientId": client}).json()["limits"]
                for client in (API_KEY, CONFIGURED)
            }
        wait_until("all events are posted", lambda: len(receiver.events) >= 6)
        assert service.stop() == 0
        self.events = receiver.events
        self.logged = service.logged
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in self.logged.splitlines()]
        history = open_history(f"sqlite:///{service.folder / '.crestgate' / 'rules.db'}")
        now_us = time.time_ns() // 1000
        spans = (now_us - 3_600_000_000, now_us + 60_000_000)
        self.usage: dict[str, tuple[int, int]] = {}
        for point in history.usage(*spans, "minute"):
            allowed, denied = self.usage.get(point.rule, (0, 0))
            self.usage[point.rule] = (allowed + point.allowed, denied + point.denied)
        self.top = {one.subject: (one.allowed, one.denied) for one in history.top(*spans, 100)}
        history.close()

    def control(self, admin: httpx.Client, anyone: httpx.Client) -> None:
        interval = {"timeIntervalLimit": {"timeUnit": "HOUR", "maxRequests": 1}}
        limit = {"limitType": "DEFAULT", "limitName": "GLOBAL", **interval}
        for client in (CLIENT, CONFIGURED):
            done = admin.post("/ratelimiter/configure-client", json={"clientId": client, "limits": [limit]})
            assert done.status_code == 200, done.text
        for key in (POLICY, LONG):
            policy = {"key": key, "type": "SLIDING_WINDOW", "capacity": 1, "windowSeconds": 3600}
            assert admin.post("/admin/policies", json=policy).status_code == 201
        override = {"rule_id": "per-user", "limit": 1, "duration_seconds": 600}
        assert admin.post(f"/api/v1/users/{USER}/override", json=override).status_code == 201
        assert admin.post(f"/admin/reset/apikey:{API_KEY}").status_code == 200
        assert admin.head(f"/admin/metrics/apikey:{API_KEY}").status_code == 200
        assert admin.get(f"/api/v1/rules/policy:{POLICY}").status_code == 200
        assert anyone.post(f"/admin/reset/apikey:{API_KEY}").status_code == 401
        assert admin.get(f"/no/such/{USER}").status_code == 404

    def checks(self, anyone: httpx.Client) -> None:
        self.decisions: dict[str, list[tuple[bool, str]]] = {}
        bodies: dict[str, Any] = {
            "policy": {"key": POLICY},
            "long": {"key": LONG},
            "client": {"context": {"client": CLIENT, "path": "/"}},
            "user": {"context": {"user": USER, "path": "/orders"}},
            "nobody": {"context": {"path": "/nothing"}},
        }
        for name, body in bodies.items():
            results = [anyone.post("/api/v1/check", json=body).json() for _ in range(2)]
            self.decisions[name] = [(one["allowed"], one["rule"]) for one in results]

    def proxied(self, anyone: httpx.Client) -> None:
        self.statuses: dict[str, list[int]] = {}
        for api_key in (API_KEY, CONFIGURED):
            headers = {"x-api-key": api_key, "x-original-uri": "/"}
            responses = [anyone.get("/api/v1/authorize", headers=headers) for _ in range(3)]
            self.statuses[api_key] = [response.status_code for response in responses]

    def read_snapshots(self, folder: Path) -> bool:
        self.snapshot_bytes = b"".join(file.read_bytes() for file in folder.rglob("worker-*.*") if file.is_file())
        return client_id_from_api_key(CONFIGURED).encode() in self.snapshot_bytes


@pytest.fixture(scope="module", params=["hashed", "plain"])
def traffic_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Traffic]]:
    keys: str = request.param
    folder = tmp_path_factory.mktemp(keys)
    receiver = Receiver()
    config = CONFIG.format(keys=keys, webhook=receiver.url)
    with Service(folder, config=config, environment={"TMPDIR": str(folder)}) as service:
        yield keys, Traffic(service, receiver)
    receiver.close()


def test_rules_match_the_original_keys(traffic_case: tuple[str, Traffic]) -> None:
    _, traffic = traffic_case
    assert traffic.decisions["policy"] == [(True, f"policy:{POLICY}"), (False, f"policy:{POLICY}")], (
        "the rule by its own name"
    )
    assert [allowed for allowed, _ in traffic.decisions["client"]] == [True, False]
    assert [allowed for allowed, _ in traffic.decisions["user"]] == [True, False]
    assert traffic.statuses == {API_KEY: [200, 200, 200], CONFIGURED: [200, 429, 429]}, (
        "a client configured by its API key"
    )
    assert [limit["availablePermits"] for limit in traffic.limits[API_KEY]] == [0], "seen, and its counter found"
    assert [limit["availablePermits"] for limit in traffic.limits[CONFIGURED]] == [0]
    assert all(limit["lastRequestTimeStamp"] for limits in traffic.limits.values() for limit in limits)


def test_api_keys_appear_nowhere(traffic_case: tuple[str, Traffic]) -> None:
    _, traffic = traffic_case
    sources = {
        "log": traffic.logged,
        "events": json.dumps(traffic.events),
        "metrics": traffic.metrics,
        "snapshots": traffic.snapshot_bytes.decode("latin-1"),
        "history": repr((traffic.usage, traffic.top)),
    }
    assert [
        (source, secret) for secret in (API_KEY, CONFIGURED) for source, text in sources.items() if secret in text
    ] == []


def test_hashed_keys_hide_all_names(traffic_case: tuple[str, Traffic]) -> None:
    keys, traffic = traffic_case
    text = traffic.logged + json.dumps(traffic.events) + traffic.metrics + repr(traffic.usage)
    names = [POLICY, LONG[:19], CLIENT, USER]
    if keys == "hashed":
        assert [name for name in names if name in text] == []
    else:
        rules = "".join(re.findall(r'rule="[^"]*"|"rule": "[^"]*"', text)) + repr(traffic.usage)
        assert [name for name in names if name in rules] == []


def test_usage_is_counted_by_rule(traffic_case: tuple[str, Traffic]) -> None:
    _, traffic = traffic_case
    assert traffic.usage == {
        "policy": (2, 2),
        "client:DEFAULT:GLOBAL": (2, 3),
        "override:per-user": (1, 1),
        "default-client-limits": (3, 0),
        "no_rule": (2, 0),
    }
    counted = dict(re.findall(r'^crestgate_allowed_total\{dimension="(\w+)",rule="([^"]*)"\}', traffic.metrics, re.M))
    assert counted["none"] == "no_rule"
    assert 'rule=""' not in traffic.metrics
    assert 'key=""' not in traffic.metrics


def test_top_subjects(traffic_case: tuple[str, Traffic]) -> None:
    _, traffic = traffic_case
    assert traffic.top == {
        f"client:{client_id_from_api_key(API_KEY)}": (3, 0),
        f"client:{client_id_from_api_key(CONFIGURED)}": (1, 2),
        f"client:{CLIENT}": (1, 1),
        f"user:{USER}": (1, 1),
        f"key:{POLICY}": (1, 1),
        short_subject(f"key:{LONG}"): (1, 1),
    }, "no entry without a name"


def test_log_lines_of_one_client_share_a_key(traffic_case: tuple[str, Traffic]) -> None:
    keys, traffic = traffic_case
    key = FORMATS[keys](f"client:{client_id_from_api_key(CONFIGURED)}")
    assert sum(line["event"] == "check" and line.get("key") == key for line in traffic.lines) == 3
    assert any(line["event"] == "pressure" and line["key"] == key for line in traffic.lines)
    assert any(event["key"] == key for event in traffic.events)
    assert f'key="{key}"' in traffic.metrics


def test_logged_paths_are_redacted(traffic_case: tuple[str, Traffic]) -> None:
    keys, traffic = traffic_case
    format_key = FORMATS[keys]
    calls = [
        tuple(line.get(name) for name in ("method", "path", "status", "key", "rule"))
        for line in traffic.lines
        if line["event"] == "request"
    ]
    api_key = (
        format_key(f"key:apikey:{API_KEY}") if keys == "hashed" else f"key:apikey:{digest(f'key:apikey:{API_KEY}')}"
    )
    for call in (
        ("POST", "/ratelimiter/configure-client", 200, None, None),
        ("POST", "/admin/policies", 201, None, None),
        ("POST", "/api/v1/users/{user_id}/override", 201, format_key(f"user:{USER}"), None),
        ("POST", "/admin/reset/{key}", 200, api_key, None),
        ("HEAD", "/admin/metrics/…", 200, None, None),
        ("GET", "/api/v1/rules/{rule_id}", 200, None, "policy"),
        ("POST", "/admin/reset/…", 401, None, None),
        ("GET", "/no/such/…", 404, None, None),
        ("GET", "/ratelimiter/client-limits", 200, None, None),
    ):
        assert call in calls
    assert {line["path"] for line in traffic.lines if line["event"] == "check"} == {
        *("/api/v1/check", "/api/v1/authorize", "/metrics", "/readyz"),
    }
