"""Users of Django's own kind, in a database: counted by user, and loaded for those alone who are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).with_name("django_users.py")


def answers(kind: str, folder: Path) -> list[Any]:
    ran = subprocess.run([sys.executable, str(PROJECT), kind, str(folder)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told: list[Any] = json.loads(ran.stdout)
    return told


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_users_are_counted_each_and_others_by_their_address(kind: str, tmp_path: Path) -> None:
    told = answers(kind, tmp_path)
    assert [(name, status) for name, status, _ in told] == [
        ("ann", 200),
        ("bob", 200),
        ("nobody", 200),
        ("ann", 200),
        ("nobody", 200),
        ("ann", 429),
        ("bob", 200),
        ("nobody", 429),
    ]
    assert {name: queries for name, _, queries in told} == {"ann": 2, "bob": 2, "nobody": 0}  # a session, and a user


@pytest.mark.parametrize("kind", ["wsgi-ip", "asgi-ip"])
def test_nobody_is_loaded_where_addresses_count(kind: str, tmp_path: Path) -> None:
    told = answers(kind, tmp_path)
    assert [status for _, status, _ in told] == [200, 200, *[429] * 6]
    assert {queries for _, _, queries in told} == {0}
