"""No supported version of a dependency has a known fault that reaches Crestgate's users."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())
FAULTY = {
    "protobuf": ["4.25.7", "5.29.5", "6.31.0", "6.33.4"],  # CVE-2025-4565, CVE-2026-0994: recursion
    "starlette": ["0.39.2", "0.47.1", "0.49.0"],  # CVE-2024-47874, CVE-2025-54121, CVE-2025-62727
    "httptools": ["0.4.0", "0.6.1"],  # CVE-2022-32213, CVE-2024-27982: request smuggling
    "pymysql": ["1.1.0"],  # CVE-2024-36039: SQL injection
    "django": ["4.2.26", "5.2.10", "5.2.12"],  # CVE-2026-1312: SQL injection; CVE-2026-3902: spoofed headers
    "flask": ["3.1.0"],  # CVE-2025-47278: session keys
    "werkzeug": ["3.0.2", "3.0.5"],  # CVE-2024-34069, CVE-2024-49767
    "grpcio": ["1.60.1", "1.65.3"],  # CVE-2024-7246: HPACK table poisoning
    "setuptools": ["78.1.0"],  # CVE-2025-47273: path traversal
}
"""The last versions with each fault."""


def required() -> list[tuple[str, Requirement]]:
    extras = {
        "build": PROJECT["build-system"]["requires"],
        **PROJECT["project"]["optional-dependencies"],
        **PROJECT["dependency-groups"],
    }
    return [(extra, Requirement(text)) for extra, texts in extras.items() for text in texts]


@pytest.mark.parametrize(("extra", "requirement"), required(), ids=lambda value: str(value))
def test_faulty_versions_are_not_accepted(extra: str, requirement: Requirement) -> None:
    for faulty in FAULTY.get(requirement.name.lower(), ()):
        assert Version(faulty) not in requirement.specifier, f"{extra}: {requirement}"


def test_framework_and_its_server_part_are_named_together() -> None:
    """FastAPI alone accepts a Starlette with faults."""
    for extra in ("server", "fastapi", "test", "bench"):
        names = {requirement.name for found, requirement in required() if found == extra}
        assert {"fastapi", "starlette"} <= names, extra
