"""Every path that is described is one that the dispatcher knows, and none else is."""

from __future__ import annotations

from pathlib import Path

from headgate.service.dispatch import BELOW_CONTROL, CONTROL
from unit.service.control.calling import Control

DATA = {
    "/api/v1/check",
    "/api/v1/check/batch",
    "/api/v1/quota",
    "/api/v1/reset",
    "/api/v1/authorize",
    "/json",
    "/ratelimiter/verify-api-limit",
    "/healthz",
    "/readyz",
    "/metrics",
}


def test_what_needs_a_key_is_what_is_described(tmp_path: Path) -> None:
    described = set(Control(tmp_path).app.openapi()["paths"])
    known = {path for path in described if path in CONTROL or path.startswith(BELOW_CONTROL)}
    assert described - known == DATA
    assert not known & DATA
    used = {begin for begin in CONTROL if any(path == begin or path.startswith(begin + "/") for path in known)}
    assert used == set(CONTROL)
