"""The service with no settings at all."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from integration.service.service_process import Service


def test_service_without_settings_starts_and_stops(serve: Callable[..., Service]) -> None:
    service = serve()
    assert service.key.startswith("cg_")
    assert (service.folder / ".crestgate" / "counters").exists()
    assert (service.folder / ".crestgate" / "rules.db").exists()
    assert httpx.get(f"{service.url}/healthz").status_code == 200
    assert httpx.get(f"{service.url}/api/v1/rules", headers=service.admin).status_code == 200
    assert service.stop() == 0
    assert "Traceback" not in service.logged


def test_admin_key_is_printed_once_and_valid_after_a_restart(serve: Callable[..., Service]) -> None:
    first = serve()
    key = first.key
    first.stop()
    second = serve(key=key)
    assert key not in second.output
    assert key not in second.logged
    assert httpx.get(f"{second.url}/api/v1/rules", headers=second.admin).status_code == 200
