"""The limiter of a layer, however it is given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crestgate import AsyncLimiter, Limiter
from crestgate.errors import ConfigError, StoreError, ValidationError
from crestgate.integrations import shared_limiters
from crestgate.integrations.shared_limiters import async_limiter_for, connect, sync_limiter_for
from crestgate.testing import FakeClock
from servers.machine import free_port
from unit.integrations.plain import limiter_on

RULES = "rules:\n  - {name: per user, dimension: user, limit: 3, window_seconds: 60}\n"


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts without open limiters, and closes those that it opened."""
    opened: dict[object, AsyncLimiter] = {}
    monkeypatch.setattr(shared_limiters, "_limiters", opened)
    monkeypatch.delenv("CRESTGATE_STORE", raising=False)
    yield
    for limiter in opened.values():
        asyncio.run(limiter.aclose())


@pytest.fixture
def dead_store() -> str:
    return f"redis://127.0.0.1:{free_port()}/0?timeout_ms=50"


def test_given_limiter_is_used_unchanged() -> None:
    sync, loops = limiter_on(), AsyncLimiter("memory://")
    assert sync_limiter_for(sync) is sync
    assert async_limiter_for(loops) is loops


def test_sync_limiter_serves_event_loops_with_the_same_counters() -> None:
    sync = limiter_on(FakeClock(1_700_000_000), plans={"gold": "3/minute"})
    loops = async_limiter_for(sync)
    assert isinstance(loops, AsyncLimiter)
    sync.check("k", "gold")
    assert asyncio.run(loops.check("k", "gold")).remaining == 1
    assert sync.check("k", "gold").remaining == 0
    assert loops.clock is sync.clock


def test_async_limiter_serves_threads_with_the_same_counters() -> None:
    loops = AsyncLimiter("memory://", clock=FakeClock(1_700_000_000))
    sync = sync_limiter_for(loops)
    assert isinstance(sync, Limiter)
    assert sync.check("k", "3/minute").remaining == 2
    assert asyncio.run(loops.check("k", "3/minute")).remaining == 1


def test_derived_limiter_does_not_close_the_store() -> None:
    owner = limiter_on()
    Limiter.sharing(owner).close()
    asyncio.run(AsyncLimiter.sharing(owner).aclose())
    assert owner.check("k", "3/minute").allowed


def test_layers_with_the_same_url_share_counters() -> None:
    one, other = sync_limiter_for("memory://"), sync_limiter_for("memory://")
    loops = async_limiter_for("memory://")
    one.check("k", "3/hour")
    assert other.check("k", "3/hour").remaining == 1
    assert asyncio.run(loops.check("k", "3/hour")).remaining == 0
    assert one.backend is other.backend is loops.backend


def test_layers_with_different_urls_share_nothing() -> None:
    sync_limiter_for("memory://").check("k", "3/hour")
    assert sync_limiter_for("memory://?max_keys=5").check("k", "3/hour").remaining == 2


def test_default_store_is_memory() -> None:
    sync_limiter_for(None).check("k", "3/hour")
    assert sync_limiter_for("memory://").check("k", "3/hour").remaining == 1


def test_default_store_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"shared://{tmp_path}/counters"
    monkeypatch.setenv("CRESTGATE_STORE", url)
    sync_limiter_for(None).check("k", "3/hour")
    assert (tmp_path / "counters").exists()
    assert sync_limiter_for(url).check("k", "3/hour").remaining == 1
    monkeypatch.setenv("CRESTGATE_STORE", "")
    assert sync_limiter_for(None).check("k", "3/hour").remaining == 2


def test_list_of_urls(tmp_path: Path) -> None:
    urls = [f"shared://{tmp_path}/a", f"shared://{tmp_path}/b"]
    sync_limiter_for(urls).check("k", "3/hour")
    assert sync_limiter_for(tuple(urls)).check("k", "3/hour").remaining == 1


def test_configuration_by_path(tmp_path: Path) -> None:
    file = tmp_path / "crestgate.yaml"
    file.write_text(RULES)
    limiter = sync_limiter_for(str(file))
    assert limiter.has_rules
    assert limiter.settings is not None
    assert async_limiter_for(file).backend is limiter.backend, "the same file, in another spelling of its type"
    assert not sync_limiter_for("memory://").has_rules


def test_invalid_configuration_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "crestgate.yaml"
    file.write_text("rules:\n  - {name: per user, dimension: usr, limit: 3, window_seconds: 60}\n")
    with pytest.raises(ValidationError, match=r"crestgate.yaml:2"):
        sync_limiter_for(str(file))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "crestgate.yml",
            "limiter 'crestgate.yml' is not a store URL, such as 'redis://localhost', and no file either",
        ),
        (
            5,
            "limiter must be a Limiter or AsyncLimiter, a store's URL such as 'redis://localhost', or the path of a "
            "configuration such as 'crestgate.yaml', not 5",
        ),
        (
            [],
            "limiter must be a Limiter or AsyncLimiter, a store's URL such as 'redis://localhost', or the path of a "
            "configuration such as 'crestgate.yaml', not []",
        ),
    ],
)
def test_invalid_limiter_is_refused(given: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for made in (sync_limiter_for, async_limiter_for):
        with pytest.raises(ConfigError) as raised:
            made(given)
        assert str(raised.value) == message


@pytest.mark.parametrize("given", ["nosuch://host", "memory://?keys=5", ["memory://", 5]])
def test_invalid_url_stops_the_start(given: Any) -> None:
    with pytest.raises(ConfigError):
        sync_limiter_for(given)


def test_unreachable_store_does_not_stop_the_start(dead_store: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "crestgate"):
        limiter = sync_limiter_for(dead_store)
    assert "store unreachable, applying on_store_error until it is reachable" in caplog.text
    assert limiter.check("k", "1/minute").reason == "fail_open"


def test_unreachable_store_does_not_stop_an_async_start(dead_store: str, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        limiter = async_limiter_for(dead_store)
        await connect(limiter)
        assert "store unreachable, applying on_store_error" in caplog.text
        assert (await limiter.check("k", "1/minute")).reason == "fail_open"
        await limiter.aclose()

    with caplog.at_level(logging.ERROR, "crestgate"):
        asyncio.run(start())


def test_explicitly_built_limiter_raises_for_an_unreachable_store(dead_store: str) -> None:
    with pytest.raises(StoreError):
        Limiter(dead_store)


@pytest.mark.parametrize("given", [{"redis://:secret@here"}, b"redis://:secret@here", "redis:/:secret@here"])
def test_error_does_not_show_the_password(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^limiter ") as raised:
        async_limiter_for(given)
    assert "secret" not in str(raised.value)
