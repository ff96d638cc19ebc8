"""The commands for operators beside a running service, with Redis killed and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.service.processes.concurrent_clients import wait_until
from integration.service.service_process import Service
from servers.redis import RedisServer

CONFIG = """\
store: '{url}'
rules: [{{rule_id: orders, dimension: user, limit: 3, window_seconds: 3600}}]
"""
REQUEST = ("--user", "acme", "--path", "/orders/1")


class Shell:
    """Commands in the folder of a service, or with its URL."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
        self._env |= {"CRESTGATE_ADMIN_KEY": service.key, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(self, *words: str, remote: bool = False) -> tuple[int, str]:
        """The exit code and stdout."""
        url = ("--url", self._service.url) if remote else ()
        done = subprocess.run(
            [sys.executable, "-m", "crestgate", *words, *url],
            cwd=self._service.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def json(self, *words: str, remote: bool = False) -> Any:
        return json.loads(self.run(*words, "--json", remote=remote)[1])


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def service(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("operators")
    with Service(folder, CONFIG.format(url=redis.url), arguments=("--workers", "2")) as started:
        yield started


@pytest.fixture
def shell(service: Service) -> Shell:
    return Shell(service)


def test_commands_share_counters_and_rules_with_the_service(shell: Shell) -> None:
    for remote in (False, True, False):
        assert shell.run("check", *REQUEST, remote=remote)[0] == 0
    for remote in (False, True):
        assert shell.run("check", *REQUEST, remote=remote)[0] == 1
    made = shell.json("override", "acme", "orders", "5", "--for", "2h")
    assert made["rule_id"] == "override:acme:orders"
    wait_until("the service sees it", lambda: shell.run("peek", *REQUEST, remote=True)[0] == 0)
    assert [rule["limit"] for rule in shell.json("override", "list", remote=True)] == [5]
    assert shell.run("override", "undo", "acme", "orders", remote=True)[0] == 0
    assert shell.run("peek", *REQUEST)[0] == 1
    actions = [entry["action"] for entry in shell.json("audit", "--subject", "rule:override:acme:orders", remote=True)]
    assert actions == ["delete", "create"]


def test_status_has_the_same_rows_with_and_without_url(shell: Shell) -> None:
    """Before the store fails: after that each worker finds out by itself that it is back, with its next request."""
    local, remote = (shell.json("status", remote=remote)["stores"] for remote in (False, True))
    assert local == remote


def test_every_command_says_that_the_failure_policy_decides(shell: Shell, service: Service, redis: RedisServer) -> None:
    assert not shell.json("status", remote=True)["policy_decides_now"]
    assert len(shell.json("status")["workers"]) == 2
    redis.kill()
    try:
        code, text = shell.run("check", *REQUEST, remote=True)
        assert code == 0
        assert "the failure policy decided, not the store" in text
        for remote in (False, True):
            assert shell.json("peek", *REQUEST, remote=remote)["failure_policy"] == "fail_open"
        for remote in (False, True):
            shell.run("check", *REQUEST, remote=True)
            status = shell.json("status", remote=remote)
            assert status["policy_decisions_last_minute"] >= 1
            assert not status["stores"][0]["reachable"]
        assert shell.json("top", "--interval", "0.5")["policy_decisions_last_minute"] >= 1
        assert shell.json("stats", remote=True)["policy_decisions_last_minute"] >= 1
    finally:
        redis.start()
    wait_until("the log says that the store is back", lambda: "store is back: Redis" in service.logged)
    assert "checks meanwhile" in service.logged
    wait_until("the store decides", lambda: shell.json("peek", *REQUEST, remote=True).get("failure_policy") is None)


@pytest.mark.parametrize("remote", [False, True], ids=["local", "url"])
def test_rotated_key_and_its_predecessor_both_work(shell: Shell, service: Service, remote: bool) -> None:
    old = shell.json("keys", "create", "ops", "--scope", "read", remote=remote)
    new = shell.json("keys", "rotate", old["key_id"], "--grace", "1h", remote=remote)
    listed = [shell.json("keys", "list", remote=one) for one in (False, True)]
    assert listed[0] == listed[1]
    assert {old["key_id"], new["key_id"]} <= {key["key_id"] for key in listed[0]}

    def is_known(token: str) -> bool:
        with service.client(token) as client:
            return client.get("/api/v1/status").status_code == 200

    for token in (old["token"], new["token"]):
        wait_until("the key is known", partial(is_known, token))
    assert shell.json("keys", "revoke", new["key_id"], remote=remote) == {"key_id": new["key_id"], "revoked": True}
    wait_until("the key is refused", lambda: not is_known(new["token"]))


def test_key_of_scope_read_lists_keys_and_creates_none(shell: Shell, service: Service) -> None:
    reader = shell.json("keys", "create", "reader", "--scope", "read", remote=True)["token"]
    with service.client(reader) as client:
        response = client.get("/api/v1/keys")
        assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
        assert client.post("/api/v1/keys", json={"name": "mine", "scope": "write"}).status_code == 403
    with service.client() as client:
        assert client.get("/api/v1/keys").status_code == 401
