"""What every answer of the service has in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import httpx

from integration.service.service_process import Service

__all__ = ["make_key", "problem", "revoke_key"]

MEMBERS = ("type", "title", "status", "detail", "error", "message", "timestamp")


def problem(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The members of an error, all of which it has; `words` are in what it says."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert [name for name in MEMBERS if name not in told] == []
    assert told["status"] == status
    assert told["error"] == told["title"] != ""
    assert told["message"] == told["detail"] != ""
    assert datetime.fromisoformat(told["timestamp"]).utcoffset() is not None
    for word in words:
        assert word in told["detail"]
    return told


def make_key(service: Service, name: str, *options: str) -> tuple[str, str]:
    """A key from a shell beside the service: its id and its token."""
    made = json.loads(_crestgate(service, "keys", "create", name, "--json", *options))
    return made["id"] if "id" in made else made["key_id"], made["token"]


def revoke_key(service: Service, key_id: str) -> None:
    _crestgate(service, "keys", "revoke", key_id)


def _crestgate(service: Service, *arguments: str) -> str:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    surroundings["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    command = [sys.executable, "-m", "crestgate", *arguments]
    done = subprocess.run(command, cwd=service.folder, env=surroundings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
