"""Simulations agree with the live service, decision for decision; and `POST /api/v1/simulate` on its recent traffic."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.combined import CombinedReader
from crestgate.simulate.replay import Replay
from crestgate.simulate.rule_source import load_rules
from integration.service.api_helpers import make_key, problem
from integration.service.processes.concurrent_clients import wait_until
from integration.service.service_process import GENEROUS, Service

MONTH = 2_592_000
"""Seconds of all windows: nothing recovers within the test, whenever each request is decided."""
CONFIG = f"""
rules:
  - {{rule_id: per-user, dimension: user, limit: 6, window_seconds: {MONTH}, algorithm: sliding_window_log}}
  - {{rule_id: alice, dimension: user, identifier: alice, limit: 9, window_seconds: {MONTH}, algorithm: gcra}}
  - {{rule_id: orders, dimension: ip, endpoint_pattern: /orders/*, limit: 5, window_seconds: {MONTH},
      algorithm: token_bucket}}
  - {{rule_id: posts, dimension: api, endpoint_pattern: /posts, method: POST, limit: 7, window_seconds: {MONTH},
      algorithm: leaky_bucket}}
  - {{rule_id: strict, dimension: user, limit: 2, window_seconds: {MONTH}, algorithm: sliding_window_log, mode: shadow}}
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of two workers on shared memory, with rules."""
    folder = tmp_path_factory.mktemp("limited")
    with Service(folder, CONFIG, GENEROUS, ("--workers", "2")) as started:
        yield started
        assert "Traceback" not in started.logged


def log_lines(count: int) -> list[str]:
    draw = random.Random(5)
    lines = []
    for _ in range(count):
        when = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
        user = draw.choice(["alice", "bob", "carol", "-"])
        method, path = draw.choice([("GET", "/orders/7"), ("GET", "/orders//8/"), ("POST", "/posts?x=1"), ("GET", "/")])
        lines.append(f'10.0.0.{draw.randrange(3)} - {user} [{when}] "{method} {path} HTTP/1.1" 200 1 "-" "-"')
    return lines


def test_every_decision_agrees_with_the_service(limited: Service) -> None:
    requests = CombinedReader(BadLines()).read(1, log_lines(150))
    replay = Replay(load_rules(str(limited.folder / "crestgate.yaml")), None, BadLines())
    live, simulated = [], []
    with limited.client() as client:
        for request in requests:
            context = {"ip": request.ip, "user": request.user, "path": request.path, "method": request.method}
            known = {name: value for name, value in context.items() if value is not None}
            answer = client.post("/api/v1/check", json={"context": known}).json()
            live.append((answer["allowed"], None if answer["allowed"] else answer["rule"]))
    for request in requests:
        replay.run([request])
        denying = [tally.rule.rule_id for tally, _ in replay.proposed.denials]
        simulated.append((not denying, denying))
    assert [allowed for allowed, _ in simulated] == [allowed for allowed, _ in live]
    assert all(rule is None or rule in denying for (_, rule), (_, denying) in zip(live, simulated, strict=True))
    assert len({rule for _, rule in live}) == 5, "every enforced rule denied something"
    what_if(limited, replay)


def what_if(limited: Service, replay: Replay) -> None:
    """The API on the same traffic, which both workers have recorded."""
    changed = {"rule_id": "per-user", "dimension": "user", "limit": 4, "window_seconds": MONTH}
    with limited.client(make_key(limited, "reader", "--scope", "read")[1]) as reader:
        wait_until("the key is known", lambda: reader.get("/api/v1/rules").status_code == 200)
        same = reader.post("/api/v1/simulate", json={"rules": []}).json()
        assert (same["requests"], same["share_recorded"], same["workers_heard"]) == (150, 1.0, 2)
        assert same["denied"] == same["against"]["denied"] == replay.proposed.denied
        assert (same["against"]["newly_denied"], same["against"]["newly_allowed"]) == (0, 0)
        assert [rule["rule_id"] for rule in same["shadow_rules"]] == ["strict"]
        stricter = reader.post("/api/v1/simulate", json={"rules": [changed], "minutes": 30}).json()
        assert stricter["denied"] > same["denied"]
        assert stricter["against"]["newly_denied"] > 0
        assert {one["subject"] for one in stricter["subjects"]} <= {
            *("user:alice", "user:bob", "user:carol", "ip:10.0.0.0", "ip:10.0.0.1", "ip:10.0.0.2", "api:/posts"),
        }


def test_simulation_needs_the_scope_read(limited: Service) -> None:
    with limited.client() as anyone, limited.client(make_key(limited, "checker", "--scope", "check")[1]) as checker:
        assert anyone.post("/api/v1/simulate", json={"rules": []}).status_code == 401
        refused = lambda: checker.post("/api/v1/simulate", json={"rules": []}).status_code == 403  # noqa: E731
        wait_until("the key is known, and refused", refused)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "rules"),
        ({"rules": "x"}, "rules"),
        ({"rules": [{"dimension": "user"}]}, "rules[0]"),
        ({"rules": [], "minutes": 61}, "minutes"),
        ({"rules": [], "minutes": 0}, "minutes"),
        ({"rules": [], "hours": 1}, "hours"),
        ({"rules": [{"rule_id": "x", "dimension": "user", "limit": 1, "window_seconds": MONTH}]}, "rules[0]"),
        ({"rules": [{"rule_id": "x", "dimension": "ip", "limit": 1, "window_seconds": 5}] * 2}, "rules"),
        (
            {
                "rules": [
                    {"rule_id": f"r{n}", "dimension": "ip", "limit": 1, "window_seconds": n + 1} for n in range(101)
                ]
            },
            "rules",
        ),
    ],
)
def test_invalid_simulation_names_the_field(limited: Service, body: dict[str, object], field: str) -> None:
    with limited.client(limited.key) as admin:
        response = admin.post("/api/v1/simulate", json=body)
    assert any(one["field"].startswith(field) for one in problem(response, 400)["problems"])


def test_recording_can_be_switched_off(tmp_path: Path) -> None:
    with Service(tmp_path, "traffic: {record: false}", GENEROUS) as started, started.client(started.key) as admin:
        response: httpx.Response = admin.post("/api/v1/simulate", json={"rules": []})
    problem(response, 404, "traffic.record")
