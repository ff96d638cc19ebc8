"""Helpers for calls of the service: assertions on problem responses, and API keys."""

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
    """Assert a problem response with all its members; `words` must be in its detail. Returns the body."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert [name for name in MEMBERS if name not in body] == []
    assert body["status"] == status
    assert body["error"] == body["title"] != ""
    assert body["message"] == body["detail"] != ""
    assert datetime.fromisoformat(body["timestamp"]).utcoffset() is not None
    for word in words:
        assert word in body["detail"]
    return body


def make_key(service: Service, name: str, *options: str) -> tuple[str, str]:
    """Create an API key with the command line; return its id and its token."""
    key = json.loads(_crestgate(service, "keys", "create", name, "--json", *options))
    return key["id"] if "id" in key else key["key_id"], key["token"]


def revoke_key(service: Service, key_id: str) -> None:
    _crestgate(service, "keys", "revoke", key_id)


def _crestgate(service: Service, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    command = [sys.executable, "-m", "crestgate", *arguments]
    process = subprocess.run(command, cwd=service.folder, env=env, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    return process.stdout
