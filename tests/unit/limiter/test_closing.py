"""A catalog is closed by the limiter that opened it, and by no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, Limiter, RequestContext
from crestgate.rules.catalog import Catalog
from unit.limiter.rule_limiters import Kind, Maker, RuleLimiter


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Catalog]:
    """The catalogs that were closed."""
    found: list[Catalog] = []
    close = Catalog.close

    def note(catalog: Catalog) -> None:
        found.append(catalog)
        close(catalog)

    monkeypatch.setattr(Catalog, "close", note)
    return found


def close(limiter: Limiter | AsyncLimiter) -> None:
    if isinstance(limiter, Limiter):
        limiter.close()
    else:
        asyncio.run(limiter.aclose())


def test_given_catalog_stays_open(make_limiter: Maker, kind: Kind, closed: list[Catalog]) -> None:
    gate = make_limiter("u user limit=2")
    made = Limiter if kind == "sync" else AsyncLimiter
    for _ in range(2):
        close(made("memory://", catalog=gate.catalog))
    assert closed == []
    gate.put("u user limit=5")
    assert gate.admits("user=1", 9) == 5, "another limiter still gets new rules"
    assert gate.catalog.problem is None


def test_given_catalog_stays_open_after_with_block(closed: list[Catalog]) -> None:
    gate = RuleLimiter("sync", "u user limit=2")
    with Limiter("memory://", catalog=gate.catalog) as limiter:
        assert limiter.check_request(RequestContext(user="1")).remaining == 1

    async def main() -> None:
        async with AsyncLimiter("memory://", catalog=gate.catalog) as limiter:
            assert (await limiter.check_request(RequestContext(user="1"))).remaining == 1

    asyncio.run(main())
    assert closed == []
    gate.close()


def test_catalog_of_from_config_is_closed_with_its_limiter(tmp_path: Path, kind: Kind, closed: list[Catalog]) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text("plans: {gold: 5/s}\n")
    made = Limiter if kind == "sync" else AsyncLimiter
    limiter = made.from_config(path, environ={})
    catalog = limiter.catalog
    watchers = [refresh.thread for refresh in catalog._refreshes]
    assert watchers
    assert closed == []
    close(limiter)
    assert closed == [catalog]
    assert not any(watcher.is_alive() for watcher in watchers)
