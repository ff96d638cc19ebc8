"""The limiter of a layer, however it is given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter
from headgate.errors import ConfigError, Invalid, StoreError
from headgate.integrations import opening
from headgate.integrations.opening import connect, limiter_for_loops, limiter_for_threads
from headgate.testing import FakeClock
from servers.machine import free_port
from unit.integrations.plain import limiter_on

RULES = "rules:\n  - {name: per user, dimension: user, limit: 3, window_seconds: 60}\n"


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with no limiter opened, and closes those that it opened."""
    opened: dict[object, AsyncLimiter] = {}
    monkeypatch.setattr(opening, "_opened", opened)
    monkeypatch.delenv("HEADGATE_STORE", raising=False)
    yield
    for limiter in opened.values():
        asyncio.run(limiter.aclose())


@pytest.fixture
def dead_store() -> str:
    return f"redis://127.0.0.1:{free_port()}/0?timeout_ms=50"


def test_a_limiter_is_taken_as_it_is() -> None:
    sync, loops = limiter_on(), AsyncLimiter("memory://")
    assert limiter_for_threads(sync) is sync
    assert limiter_for_loops(loops) is loops


def test_a_limiter_for_threads_serves_event_loops_with_the_same_counters() -> None:
    sync = limiter_on(FakeClock(1_700_000_000), plans={"gold": "3/minute"})
    loops = limiter_for_loops(sync)
    assert isinstance(loops, AsyncLimiter)
    sync.check("k", "gold")
    assert asyncio.run(loops.check("k", "gold")).remaining == 1
    assert sync.check("k", "gold").remaining == 0
    assert loops.clock is sync.clock


def test_a_limiter_for_event_loops_serves_threads_with_the_same_counters() -> None:
    loops = AsyncLimiter("memory://", clock=FakeClock(1_700_000_000))
    sync = limiter_for_threads(loops)
    assert isinstance(sync, Limiter)
    assert sync.check("k", "3/minute").remaining == 2
    assert asyncio.run(loops.check("k", "3/minute")).remaining == 1


def test_who_shares_a_store_does_not_close_it() -> None:
    owner = limiter_on()
    Limiter.sharing(owner).close()
    asyncio.run(AsyncLimiter.sharing(owner).aclose())
    assert owner.check("k", "3/minute").allowed


def test_layers_with_the_same_url_share_their_counters() -> None:
    one, other = limiter_for_threads("memory://"), limiter_for_threads("memory://")
    loops = limiter_for_loops("memory://")
    one.check("k", "3/hour")
    assert other.check("k", "3/hour").remaining == 1
    assert asyncio.run(loops.check("k", "3/hour")).remaining == 0
    assert one._engine is other._engine is loops._engine


def test_layers_with_other_urls_do_not() -> None:
    limiter_for_threads("memory://").check("k", "3/hour")
    assert limiter_for_threads("memory://?max_keys=5").check("k", "3/hour").remaining == 2


def test_nothing_given_is_memory() -> None:
    limiter_for_threads(None).check("k", "3/hour")
    assert limiter_for_threads("memory://").check("k", "3/hour").remaining == 1


def test_nothing_given_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"shared://{tmp_path}/counters"
    monkeypatch.setenv("HEADGATE_STORE", url)
    limiter_for_threads(None).check("k", "3/hour")
    assert (tmp_path / "counters").exists()
    assert limiter_for_threads(url).check("k", "3/hour").remaining == 1
    monkeypatch.setenv("HEADGATE_STORE", "")
    assert limiter_for_threads(None).check("k", "3/hour").remaining == 2


def test_several_urls(tmp_path: Path) -> None:
    urls = [f"shared://{tmp_path}/a", f"shared://{tmp_path}/b"]
    limiter_for_threads(urls).check("k", "3/hour")
    assert limiter_for_threads(tuple(urls)).check("k", "3/hour").remaining == 1


def test_a_configuration_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(RULES)
    limiter = limiter_for_threads(str(file))
    assert limiter.has_rules
    assert limiter.settings is not None
    assert limiter_for_loops(file)._engine is limiter._engine, "the same file, in another spelling of its type"
    assert not limiter_for_threads("memory://").has_rules


def test_a_configuration_with_mistakes_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text("rules:\n  - {name: per user, dimension: usr, limit: 3, window_seconds: 60}\n")
    with pytest.raises(Invalid, match=r"headgate.yaml:2"):
        limiter_for_threads(str(file))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "headgate.yml",
            "limiter 'headgate.yml' is no store's URL, such as 'redis://localhost', and no file either",
        ),
        (
            5,
            "limiter must be a Limiter or AsyncLimiter, a store's URL such as 'redis://localhost', or the path of a "
            "configuration such as 'headgate.yaml', not 5",
        ),
        (
            [],
            "limiter must be a Limiter or AsyncLimiter, a store's URL such as 'redis://localhost', or the path of a "
            "configuration such as 'headgate.yaml', not []",
        ),
    ],
)
def test_what_is_no_limiter(given: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for made in (limiter_for_threads, limiter_for_loops):
        with pytest.raises(ConfigError) as raised:
            made(given)
        assert str(raised.value) == message


@pytest.mark.parametrize("given", ["nosuch://host", "memory://?keys=5", ["memory://", 5]])
def test_a_url_with_a_mistake_stops_the_start(given: Any) -> None:
    with pytest.raises(ConfigError):
        limiter_for_threads(given)


def test_a_store_that_is_away_does_not_keep_an_application_from_starting(
    dead_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "headgate"):
        limiter = limiter_for_threads(dead_store)
    assert "the store of rate limits cannot be reached, and on_store_error answers until it is back" in caplog.text
    assert limiter.check("k", "1/minute").reason == "fail_open"


def test_nor_an_application_on_an_event_loop(dead_store: str, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        limiter = limiter_for_loops(dead_store)
        await connect(limiter)
        assert "the store of rate limits cannot be reached" in caplog.text
        assert (await limiter.check("k", "1/minute")).reason == "fail_open"
        await limiter.aclose()

    with caplog.at_level(logging.ERROR, "headgate"):
        asyncio.run(start())


def test_a_limiter_that_one_builds_says_so_itself(dead_store: str) -> None:
    with pytest.raises(StoreError):
        Limiter(dead_store)


@pytest.mark.parametrize("given", [{"redis://:secret@here"}, b"redis://:secret@here", "redis:/:secret@here"])
def test_no_password_is_shown(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^limiter ") as told:
        limiter_for_loops(given)
    assert "secret" not in str(told.value)
