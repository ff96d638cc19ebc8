"""Secrets never leak: a service with one secret of each kind is driven through successes and failures.

All output is collected: standard output, logs at debug level, every response, the audit log, metrics, and the output
of other commands with the same settings. All of it is then searched for every secret in every encoding. A secret that
a client sends itself in a path or a body may appear in its response, but not in the logs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from crestgate.config.settings import load_settings
from crestgate.service.preflight import complete_settings
from integration.service.processes.concurrent_clients import CHECK, Client, responding_workers, wait_until
from integration.service.service_process import ANY_PORTS, TIMEOUT, Service
from servers.machine import free_port
from servers.mariadb import MariaDB
from servers.redis import RedisServer

REDIS = "r3dis:p@ss/w%rd"
MARIADB = "mar1a:p@ss/w%rd"
WEBHOOK_LOGIN = "h00k:p@ss/w%rd"
WEBHOOK_PATH = "T0PATH0F0A0W3BH00K"
WEBHOOK_QUERY = "QU3RY0F0A0W3BH00K"
ADMIN = "admin-k3y-0f-the-operat0r"
END_USER = "key-0f-an-end-us3r"
WRONG_PASSWORD = "wr0ng:p@ss/w%rd"
WORKERS = 2
FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda secret: quote(secret, safe=""),
    quote_plus,
    lambda secret: json.dumps(secret)[1:-1],
    lambda secret: base64.b64encode(secret.encode()).decode().rstrip("="),
    lambda secret: base64.b64encode(f":{secret}".encode()).decode().rstrip("="),
    lambda secret: sha256(secret.encode()).hexdigest(),
    lambda secret: secret.encode().hex(),
)


@dataclass
class Outputs:
    """All collected output, by source."""

    responses: list[str] = field(default_factory=list)
    """Responses to clients that did not send the secret themselves."""
    printed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    service: Service
    redis: RedisServer
    mariadb: MariaDB
    token: str
    outputs: Outputs


def login(secret: str) -> str:
    return quote(secret, safe="")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("secrets")
    with RedisServer(password=REDIS) as redis, MariaDB() as mariadb:
        mariadb.sql(f"CREATE USER vault@'%' IDENTIFIED BY '{MARIADB}'; GRANT ALL ON crestgate.* TO vault@'%'")
        hook = f"http://hook:{login(WEBHOOK_LOGIN)}@127.0.0.1:{free_port()}/to/{WEBHOOK_PATH}?token={WEBHOOK_QUERY}"
        config = {
            "store": f"redis://:{login(REDIS)}@127.0.0.1:{redis.port}/0?timeout_ms=1000",
            "rules_store": f"mysql://vault:{login(MARIADB)}@127.0.0.1:{mariadb.port}/crestgate?timeout_ms=2000",
            "pressure": {"webhook": hook},
            "logs": {"level": "debug", "requests": "all", "keys": "plain"},
            "metrics": {"tokens_remaining": True},
            "plans": {"few": "5/year"},
            "rules": [{"rule_id": "per-key", "dimension": "apikey", "limit": 5, "window_seconds": 3600}],
        }
        (folder / "crestgate.yaml").write_text(json.dumps(config))
        outputs = Outputs()
        token = re.search(r"cg_[0-9a-f]{12}_\S+", command(folder, "keys", "create", "reader", "--scope", "read"))
        assert token is not None
        with Service(
            folder, environment={"CRESTGATE_ADMIN_KEY": ADMIN}, arguments=("--workers", str(WORKERS)), key=ADMIN
        ) as service:
            wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
            yield Stage(service, redis, mariadb, token[0], outputs)


def command(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return all of its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env |= {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "crestgate", *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    return done.stdout


PATHS = [
    *("/healthz", "/readyz", "/metrics", "/", "/docs", "/openapi.json"),
    *("/api/v1/rules", "/api/v1/rules/known", "/api/v1/plans", "/api/v1/audit", "/api/v1/stats"),
    *("/api/v1/users/somebody/limits", "/admin/status", "/admin/metrics", "/admin/policies"),
    *("/ratelimiter/configured-limits", "/nowhere", "/api/v1/rules/unknown"),
]


def call_everything(stage: Stage, key: str | None = None, headers: Mapping[str, str] | None = None) -> None:
    """Call every endpoint and record the responses with their headers."""
    with Client(stage.service, key) as client:

        def send(method: str, path: str, data: object = None) -> None:
            with suppress(OSError, HTTPException):  # from a killed worker
                response = client.request(method, path, data, headers)
                stage.outputs.responses.append(f"{method} {path}: {response.status} {response.headers} {response.text}")

        for path in PATHS:
            send("GET", path)
        for key_ in ("one", "two", "one", "one", "one", "one", "one"):
            send("POST", CHECK, {"key": key_, "plans": ["few"]})
        rule = {"dimension": "user", "limit": 5, "window_seconds": 60}
        send("POST", "/api/v1/rules", {"rule_id": "known", **rule})
        send("PUT", "/api/v1/rules/known", {**rule, "limit": "many"})
        send("POST", "/api/v1/reset", {"key": "one", "plans": ["few"]})
        send("POST", CHECK, {"key": 5})
        send("GET", "/api/v1/authorize")


def send_as_input(stage: Stage, secret: str) -> None:
    """Send a secret in the wrong place: the response may echo it, but the logs must not contain it."""
    with Client(stage.service, ADMIN) as client:
        quoted = quote(secret, safe="")
        for path in (
            f"/api/v1/rules/{quoted}",
            f"/{quoted}",
            f"/api/v1/rules?token={quoted}",
            f"/healthz?key={quoted}",
        ):
            client.request("GET", path)
        client.request("POST", CHECK, {"key": "somebody", secret: 1})
        client.request("POST", CHECK, {"key": "somebody", "plans": [secret]})
        client.request("POST", CHECK, secret)
        client.request("POST", "/api/v1/rules", {"rule_id": "bad", "limit": secret})


def limit_by_api_key(stage: Stage) -> None:
    """Limit an end user by API key until the limit is reached and the counter is reset."""
    about = {"context": {"api_key": END_USER, "path": "/"}}
    with Client(stage.service, ADMIN) as client:
        assert [client.check(about).data["allowed"] for _ in range(6)] == [True] * 5 + [False]
        assert client.request("POST", "/api/v1/quota", about).data["remaining"] == 0
        assert client.request("POST", "/api/v1/reset", about).status == 200
        client.request("GET", "/api/v1/authorize", None, {"x-api-key": END_USER, "x-crestgate-key": ADMIN})


def test_secrets_appear_nowhere(stage: Stage, report: Callable[[str], None]) -> None:
    service, redis, mariadb, outputs = stage.service, stage.redis, stage.mariadb, stage.outputs
    tokens = {"of the store": REDIS, "of the rules": MARIADB, "admin key": ADMIN, "API key": stage.token}
    tokens |= {"webhook login": WEBHOOK_LOGIN, "webhook path": WEBHOOK_PATH, "webhook query": WEBHOOK_QUERY}
    call_everything(stage, ADMIN)
    call_everything(stage, stage.token)
    call_everything(stage, stage.token, {"x-crestgate-key": ADMIN, "idempotency-key": ADMIN})
    call_everything(stage, ADMIN + "x")
    call_everything(stage, None, {"x-api-key": stage.token[:-1]})
    limit_by_api_key(stage)
    for secret in tokens.values():
        send_as_input(stage, secret)
    tokens |= {"end user's key": END_USER}  # not sent as input: in a path it cannot be recognised as a key
    redis.kill()
    call_everything(stage, ADMIN)
    mariadb.kill()
    call_everything(stage, ADMIN)
    os.kill(service.worker_pids[0], signal.SIGKILL)
    wait_until("a worker cannot start", lambda: "exit code 1" in service.logged)
    during_outage = command(service.folder, "config", "check", "--connect")
    redis.start()
    mariadb.start()
    wait_until("all workers respond again", lambda: len(responding_workers(service)) == WORKERS)
    service.await_ready()
    wait_until("the webhook was given up", lambda: "cannot deliver a pressure event" in service.logged)
    call_everything(stage, ADMIN)
    outputs.printed = {
        "config check": command(service.folder, "config", "check"),
        "config check, away": during_outage,
        "config check, reached": command(service.folder, "config", "check", "--connect"),
        "keys list": command(service.folder, "keys", "list"),
        "rules list": command(service.folder, "rules", "list"),
        "repr": repr(complete_settings(load_settings(str(service.folder / "crestgate.yaml"), {}))),
    }
    assert "could not" in during_outage or "cannot" in during_outage or "refuses" in during_outage
    for name, wrong in (
        ("CRESTGATE_STORE", "redis://:{}@127.0.0.1:{}/0"),
        ("CRESTGATE_RULES_STORE", "mysql://vault:{}@127.0.0.1:{}/crestgate"),
    ):
        url = wrong.format(login(WRONG_PASSWORD), redis.port if name == "CRESTGATE_STORE" else mariadb.port)
        env = {name: url, "CRESTGATE_ADMIN_KEY": ADMIN, **ANY_PORTS}
        outputs.printed[f"serve, wrong {name}"] = output = command(service.folder, "serve", environment=env)
        assert "Traceback" not in output
        assert output.startswith("crestgate: ")
    assert service.stop() == 0
    found = leaks({**tokens, "wrong password": WRONG_PASSWORD}, stage)
    report(
        f"{len(tokens) + 1} secrets in {len(FORMS)} forms each are not in {len(outputs.responses)} responses, "
        f"{len(outputs.printed)} outputs of commands, and {len(service.logged):,} characters of logs at debug"
    )
    assert not found, "\n".join(found)
    assert "Traceback" not in service.logged


def leaks(secrets: Mapping[str, str], stage: Stage) -> list[str]:
    """Every occurrence of a secret, with its context."""
    sources = [
        ("output", stage.service.output),
        *((f"log {n}", line) for n, line in enumerate(stage.service.logged.splitlines())),
    ]
    sources += [*stage.outputs.printed.items(), *(("response", text) for text in stage.outputs.responses)]
    found = []
    for name, secret in secrets.items():
        for form in {form(secret) for form in FORMS}:
            for source, text in sources:
                at = text.find(form)
                if at >= 0:
                    found.append(f"{name} as {form!r} in {source}: …{text[max(at - 200, 0) : at + len(form) + 40]}…")
    return found
