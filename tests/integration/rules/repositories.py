"""URLs of rule repositories: one of each kind, empty for each test."""

from __future__ import annotations

import itertools

import pytest

from databases import url_of

__all__ = ["KINDS", "repository_url"]

KINDS = ["sqlite", "mariadb", "postgres", "redis"]
_numbers = itertools.count()


def repository_url(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of an unused repository of this kind, with a timeout for busy machines."""
    url: str = request.getfixturevalue("redis_server").url if kind == "redis" else url_of(kind, request)
    joint = "&" if "?" in url else "?"
    return f"{url}{joint}prefix=rules-{kind}-{next(_numbers)}&timeout_ms=20000"
