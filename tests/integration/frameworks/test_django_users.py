"""Django users in a database: counted by user, and loaded only where the key needs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).with_name("django_users.py")


def run_project(kind: str, folder: Path) -> list[Any]:
    process = subprocess.run(
        [sys.executable, str(PROJECT), kind, str(folder)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    results: list[Any] = json.loads(process.stdout)
    return results


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_users_are_counted_by_id_and_others_by_address(kind: str, tmp_path: Path) -> None:
    results = run_project(kind, tmp_path)
    assert [(name, status) for name, status, _ in results] == [
        ("ann", 200),
        ("bob", 200),
        ("nobody", 200),
        ("ann", 200),
        ("nobody", 200),
        ("ann", 429),
        ("bob", 200),
        ("nobody", 429),
    ]
    assert {name: queries for name, _, queries in results} == {"ann": 2, "bob": 2, "nobody": 0}  # a session, and a user


@pytest.mark.parametrize("kind", ["wsgi-ip", "asgi-ip"])
def test_users_are_not_loaded_with_address_keys(kind: str, tmp_path: Path) -> None:
    results = run_project(kind, tmp_path)
    assert [status for _, status, _ in results] == [200, 200, *[429] * 6]
    assert {queries for _, _, queries in results} == {0}
