"""Secrets are nowhere to be read: a service that has one of each kind is driven through what works and what fails.

Everything that comes out is kept: what it says and logs (at its most talkative), every answer, the audit log, metrics,
what other commands print of the same settings. Then all of it is searched for every secret, in each form that it may
have. What a caller sends of its own accord in a path or a body is the caller's to know, and only the logs must not
have it.
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
from integration.service.processes.concurrent_clients import CHECK, Caller, answering_workers, until
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
WRONG = "wr0ng:p@ss/w%rd"
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
class Heard:
    """All that came out, by where it did."""

    answers: list[str] = field(default_factory=list)
    """To callers who did not send the secret themselves."""
    printed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    service: Service
    redis: RedisServer
    mariadb: MariaDB
    token: str
    heard: Heard


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
        heard = Heard()
        token = re.search(r"cg_[0-9a-f]{12}_\S+", command(folder, "keys", "create", "reader", "--scope", "read"))
        assert token is not None
        with Service(
            folder, environment={"CRESTGATE_ADMIN_KEY": ADMIN}, arguments=("--workers", str(WORKERS)), key=ADMIN
        ) as service:
            until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
            yield Stage(service, redis, mariadb, token[0], heard)


def command(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """All that a command prints."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    surroundings |= {"PYTHONPATH": os.pathsep.join(place for place in sys.path if place), **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "crestgate", *words],
        cwd=folder,
        env=surroundings,
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


def call(stage: Stage, key: str | None = None, headers: Mapping[str, str] | None = None) -> None:
    """Call everything, and keep the answers, headers too."""
    with Caller(stage.service, key) as caller:

        def ask(method: str, path: str, data: object = None) -> None:
            with suppress(OSError, HTTPException):  # of a worker that was killed
                told = caller.ask(method, path, data, headers)
                stage.heard.answers.append(f"{method} {path}: {told.status} {told.headers} {told.text}")

        for path in PATHS:
            ask("GET", path)
        for key_ in ("one", "two", "one", "one", "one", "one", "one"):
            ask("POST", CHECK, {"key": key_, "plans": ["few"]})
        rule = {"dimension": "user", "limit": 5, "window_seconds": 60}
        ask("POST", "/api/v1/rules", {"rule_id": "known", **rule})
        ask("PUT", "/api/v1/rules/known", {**rule, "limit": "many"})
        ask("POST", "/api/v1/reset", {"key": "one", "plans": ["few"]})
        ask("POST", CHECK, {"key": 5})
        ask("GET", "/api/v1/authorize")


def send_as_input(stage: Stage, secret: str) -> None:
    """The caller sends a secret where none belongs: it may be told what it sent, but nobody else may read it."""
    with Caller(stage.service, ADMIN) as caller:
        asked = quote(secret, safe="")
        for path in (f"/api/v1/rules/{asked}", f"/{asked}", f"/api/v1/rules?token={asked}", f"/healthz?key={asked}"):
            caller.ask("GET", path)
        caller.ask("POST", CHECK, {"key": "somebody", secret: 1})
        caller.ask("POST", CHECK, {"key": "somebody", "plans": [secret]})
        caller.ask("POST", CHECK, secret)
        caller.ask("POST", "/api/v1/rules", {"rule_id": "bad", "limit": secret})


def limit_by_api_key(stage: Stage) -> None:
    """Somebody else's API key is whom a rule is about, until it is at its limit and its counter is reset."""
    about = {"context": {"api_key": END_USER, "path": "/"}}
    with Caller(stage.service, ADMIN) as caller:
        assert [caller.check(about).data["allowed"] for _ in range(6)] == [True] * 5 + [False]
        assert caller.ask("POST", "/api/v1/quota", about).data["remaining"] == 0
        assert caller.ask("POST", "/api/v1/reset", about).status == 200
        caller.ask("GET", "/api/v1/authorize", None, {"x-api-key": END_USER, "x-crestgate-key": ADMIN})


def test_secrets_appear_nowhere(stage: Stage, report: Callable[[str], None]) -> None:
    service, redis, mariadb, heard = stage.service, stage.redis, stage.mariadb, stage.heard
    tokens = {"of the store": REDIS, "of the rules": MARIADB, "admin key": ADMIN, "API key": stage.token}
    tokens |= {"webhook login": WEBHOOK_LOGIN, "webhook path": WEBHOOK_PATH, "webhook query": WEBHOOK_QUERY}
    call(stage, ADMIN)
    call(stage, stage.token)
    call(stage, stage.token, {"x-crestgate-key": ADMIN, "idempotency-key": ADMIN})
    call(stage, ADMIN + "x")
    call(stage, None, {"x-api-key": stage.token[:-1]})
    limit_by_api_key(stage)
    for secret in tokens.values():
        send_as_input(stage, secret)
    tokens |= {"end user's key": END_USER}  # which nobody could know for one in a path
    redis.kill()
    call(stage, ADMIN)
    mariadb.kill()
    call(stage, ADMIN)
    os.kill(service.worker_pids[0], signal.SIGKILL)
    until("a worker cannot start", lambda: "exit code 1" in service.logged)
    away = command(service.folder, "config", "check", "--connect")
    redis.start()
    mariadb.start()
    until("all is well again", lambda: len(answering_workers(service)) == WORKERS)
    service.await_ready()
    until("the webhook was given up", lambda: "cannot deliver a pressure event" in service.logged)
    call(stage, ADMIN)
    heard.printed = {
        "config check": command(service.folder, "config", "check"),
        "config check, away": away,
        "config check, reached": command(service.folder, "config", "check", "--connect"),
        "keys list": command(service.folder, "keys", "list"),
        "rules list": command(service.folder, "rules", "list"),
        "repr": repr(complete_settings(load_settings(str(service.folder / "crestgate.yaml"), {}))),
    }
    assert "could not" in away or "cannot" in away or "refuses" in away
    for name, wrong in (
        ("CRESTGATE_STORE", "redis://:{}@127.0.0.1:{}/0"),
        ("CRESTGATE_RULES_STORE", "mysql://vault:{}@127.0.0.1:{}/crestgate"),
    ):
        url = wrong.format(login(WRONG), redis.port if name == "CRESTGATE_STORE" else mariadb.port)
        surroundings = {name: url, "CRESTGATE_ADMIN_KEY": ADMIN, **ANY_PORTS}
        heard.printed[f"serve, wrong {name}"] = said = command(service.folder, "serve", environment=surroundings)
        assert "Traceback" not in said
        assert said.startswith("crestgate: ")
    assert service.stop() == 0
    found = leaks({**tokens, "wrong password": WRONG}, stage)
    report(
        f"{len(tokens) + 1} secrets in {len(FORMS)} forms each are nowhere in {len(heard.answers)} answers, "
        f"{len(heard.printed)} outputs of commands, and {len(service.logged):,} characters of logs at debug"
    )
    assert not found, "\n".join(found)
    assert "Traceback" not in service.logged


def leaks(secrets: Mapping[str, str], stage: Stage) -> list[str]:
    """Where a secret stands, with what is around it."""
    places = [
        ("output", stage.service.output),
        *((f"log {n}", line) for n, line in enumerate(stage.service.logged.splitlines())),
    ]
    places += [*stage.heard.printed.items(), *(("answer", text) for text in stage.heard.answers)]
    found = []
    for name, secret in secrets.items():
        for form in {form(secret) for form in FORMS}:
            for place, text in places:
                at = text.find(form)
                if at >= 0:
                    found.append(f"{name} as {form!r} in {place}: …{text[max(at - 200, 0) : at + len(form) + 40]}…")
    return found
