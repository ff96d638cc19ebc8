"""What only newer versions of FastAPI have: its tests are skipped on older ones, which `make package` also runs."""

from __future__ import annotations

import fastapi
import pytest
from packaging.version import Version

__all__ = ["needs_generator_endpoints"]

needs_generator_endpoints = pytest.mark.skipif(
    Version(fastapi.__version__) < Version("0.134"), reason="FastAPI has generator endpoints since 0.134"
)
