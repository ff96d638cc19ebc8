"""Each migration guide on a small application, before and after: the same tests pass on both.

The applications are quoted in docs/migrating. Both sides are imported from what is installed: Crestgate, and the newest
releases of the libraries that the guides leave.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import crestgate
from crestgate import Limiter, RequestContext
from crestgate.testing import FakeClock
from migration_guides.drive import load

HERE = Path(__file__).parent
SIDES = ["before", "after"]


Answers = list[dict[str, Any]]


def send(application: str, side: str, *scenarios: Answers) -> list[Answers]:
    """The responses to each list of requests, each by a fresh process."""
    command = [sys.executable, str(HERE / "drive.py"), str(HERE / application / f"{side}.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(crestgate.__file__).parent.parent)}
    sent = json.dumps(scenarios)
    done = subprocess.run(
        command, input=sent, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[Answers] = json.loads(done.stdout)
    return answers


def get(path: str, **headers: str) -> dict[str, Any]:
    return {
        "method": "GET",
        "path": path,
        "headers": {name.replace("_", "-"): value for name, value in headers.items()},
    }


def post(path: str, form: dict[str, str] | None = None, **headers: str) -> dict[str, Any]:
    return {**get(path, **headers), "method": "POST", "form": form or {}}


def statuses(answers: Answers) -> list[int]:
    return [answer["status"] for answer in answers]


@pytest.mark.parametrize("side", SIDES)
def test_flask_limiter(side: str) -> None:
    views, orders, exempt, shared = send(
        "flask_limiter_app",
        side,
        [get(f"/items/{number}") for number in range(5)],
        [*[post("/orders")] * 3, get("/items/1")],
        [get("/healthz")] * 6,
        [get(path, X_API_Key=key) for key in ("a", "b") for path in ("/books", "/films", "/books", "/films")],
    )
    assert statuses(views) == [200, 200, 200, 200, 429]
    assert statuses(orders) == [200, 200, 429, 200]
    assert statuses(exempt) == [200] * 6
    assert statuses(shared) == [200, 200, 200, 429] * 2
    first, denied = orders[0], orders[2]
    assert (first["headers"]["x-ratelimit-limit"], first["headers"]["x-ratelimit-remaining"]) == ("2", "1")
    assert json.loads(denied["text"]) == {"error": "slow down"}
    assert 3500 <= int(denied["headers"]["retry-after"]) <= 3601


@pytest.mark.parametrize("side", SIDES)
def test_slowapi(side: str) -> None:
    own, default, exempt, tenants = send(
        "slowapi_app",
        side,
        [*[get("/search?q=a")] * 3, get("/plain")],
        [get("/plain")] * 6,
        [get("/healthz")] * 7,
        [get("/reports", X_Tenant=tenant) for tenant in ("acme", "shop") for _ in range(4)],
    )
    assert statuses(own) == [200, 200, 429, 200]
    assert statuses(default) == [200] * 5 + [429]
    assert statuses(exempt) == [200] * 7
    assert statuses(tenants) == [200, 200, 200, 429] * 2
    first, denied = own[0], own[2]
    assert (first["headers"]["x-ratelimit-limit"], first["headers"]["x-ratelimit-remaining"]) == ("2", "1")
    assert 3500 <= int(denied["headers"]["retry-after"]) <= 3601


@pytest.mark.parametrize("side", SIDES)
def test_fastapi_limiter(side: str) -> None:
    items, users, exempt = send(
        "fastapi_limiter_app",
        side,
        [get("/items")] * 4,
        [post("/orders", X_User=user) for user in ("alice", "bob") for _ in range(3)],
        [get("/healthz")] * 5,
    )
    assert statuses(items) == [200, 200, 200, 429]
    assert statuses(users) == [200, 200, 429] * 2
    assert statuses(exempt) == [200] * 5


@pytest.mark.parametrize("side", SIDES)
def test_django_ratelimit(side: str) -> None:
    views, logins, group = send(
        "django_ratelimit_app",
        side,
        [get(f"/items/{number}") for number in range(4)],
        [*(post("/login", {"username": name}) for name in ("alice", "alice", "alice", "bob")), get("/login")],
        [get(path, X_Tenant=tenant) for tenant in ("acme", "shop") for path in ("/books", "/films", "/books")],
    )
    assert statuses(views) == [200, 200, 200, 429]
    assert views[3]["text"] == "slow down"
    assert statuses(logins) == [200, 200, 429, 200, 200]
    assert statuses(group) == [200, 200, 429] * 2


@pytest.mark.parametrize("side", SIDES)
def test_throttled_limits_of_users(side: str) -> None:
    sender = load(HERE / "throttled_app" / f"{side}.py")
    assert [sender.send("alice") for _ in range(4)] == [(True, 2), (True, 1), (True, 0), (False, 0)]
    assert sender.send("bob", pages=2) == (True, 1)
    assert (sender.left("alice"), sender.left("bob"), sender.left("carol")) == (0, 1, 3)
    assert 1100 < sender.wait("alice") <= 1200


@pytest.mark.parametrize("side", SIDES)
def test_throttled_decorator(side: str) -> None:
    sender = load(HERE / "throttled_app" / f"{side}.py")
    assert [sender.reported() for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("side", ["before", "imports", "after"])
def test_limits(side: str) -> None:
    """`imports` is the application of before with the imports of Crestgate, as the guide says first."""
    client = load_limits_app(side)
    assert [client.call("alice") for _ in range(4)] == [True, True, True, False]
    assert [client.call("bob", cost=2), client.call("bob", cost=2), client.call("bob")] == [True, False, True]
    assert (client.left("alice"), client.left("bob"), client.left("carol")) == (0, 0, 3)
    assert 3500 < client.wait("alice") <= 3600
    client.refund("alice")
    assert (client.left("alice"), client.left("bob")) == (3, 0)
    assert [client.export("alice") for _ in range(3)] == [True, True, False]
    assert client.export("bob")


def load_limits_app(side: str) -> Any:
    folder = HERE / "limits_app"
    if side != "imports":
        return load(folder / f"{side}.py")
    text = (folder / "before.py").read_text().replace("from limits", "from crestgate.compat.limits")
    module = ModuleType("application")
    exec(compile(text, "imports.py", "exec"), module.__dict__)
    return module


# -- services: what their limits become --------------------------------------------------------------------------------


def test_limits_of_limitador_as_rules() -> None:
    with Limiter.from_config(HERE.parent.parent / "examples" / "from_limitador.yaml", environ={}) as limiter:

        def allowed(user: str, method: str, times: int) -> int:
            context = RequestContext(user=user, path="/orders", method=method)
            return sum(limiter.check_request(context).allowed for _ in range(times))

        assert [allowed("alice", "GET", 12), allowed("alice", "POST", 12), allowed("bob", "GET", 12)] == [10, 5, 10]


def test_request_of_gubernator_as_a_check() -> None:
    with Limiter(
        "memory://", clock=FakeClock(1_700_000_000), plans={"per_sec": "10/second using fixed_window"}
    ) as limiter:
        decisions = [limiter.check("account:12345", ["per_sec"]) for _ in range(11)]
        assert [decision.allowed for decision in decisions] == [True] * 10 + [False]
        assert (decisions[0].remaining, decisions[10].retry_after) == (9, 1.0)
