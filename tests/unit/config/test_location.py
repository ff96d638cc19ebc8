"""Where the configuration is found, by limiters, commands and frameworks alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter
from crestgate.config.location import find_config
from crestgate.errors import ValidationError
from crestgate.integrations import shared_limiters
from crestgate.integrations.shared_limiters import async_limiter_for


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("CRESTGATE_CONFIG", "CRESTGATE_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(folder: Path, name: str, plan: str) -> None:
    (folder / name).write_text(f"plans: {{which: {plan}}}\n")


def limit_of(limiter: Limiter) -> int:
    """The plan tells which file was read."""
    with limiter:
        return limiter.peek("k", "which").limit


def test_argument_wins_over_variable_over_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "mine.yaml", "1/minute")
    write(folder, "other.yaml", "2/minute")
    write(folder, "crestgate.yaml", "3/minute")
    assert limit_of(Limiter.from_config()) == 3
    monkeypatch.setenv("CRESTGATE_CONFIG", "other.yaml")
    assert limit_of(Limiter.from_config()) == 2
    assert limit_of(Limiter.from_config("mine.yaml")) == 1
    assert limit_of(Limiter.from_config(folder / "mine.yaml")) == 1
    assert limit_of(Limiter.from_config(environ={"CRESTGATE_CONFIG": "mine.yaml"})) == 1, "the given environment"
    assert limit_of(Limiter.from_config(environ={})) == 3


def test_async_limiter_finds_the_same_file(folder: Path) -> None:
    write(folder, "crestgate.yaml", "3/minute")

    async def check() -> int:
        async with AsyncLimiter.from_config() as limiter:
            return (await limiter.check("k", "which")).limit

    assert asyncio.run(check()) == 3


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_error_says_where_it_looked(kind: type[Limiter], folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        kind.from_config()
    assert str(raised.value) == (
        f"there is no configuration: no file is named, CRESTGATE_CONFIG is not set, and there is no crestgate.yaml in "
        f"{folder}: write that file, name one as from_config('path.yaml'), or set variables such as CRESTGATE_STORE"
    )


def test_variables_alone_are_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_PLANS__WHICH", "7/minute")
    assert limit_of(Limiter.from_config()) == 7
    monkeypatch.setenv("CRESTGATE_PLAN", "7/minute")
    with pytest.raises(ValidationError, match="unknown variable"):
        Limiter.from_config()


def test_file_that_a_variable_names_must_exist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "crestgate.yaml", "3/minute")
    monkeypatch.setenv("CRESTGATE_CONFIG", "gone.yaml")
    with pytest.raises(ConfigError, match=r"gone\.yaml: there is no such file"):
        Limiter.from_config()


def test_empty_variable_counts_as_unset(folder: Path) -> None:
    assert find_config(None, {"CRESTGATE_CONFIG": " "}) is None
    write(folder, "crestgate.yaml", "3/minute")
    assert find_config(None, {"CRESTGATE_CONFIG": ""}) == "crestgate.yaml"


@pytest.fixture
def no_limiters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: dict[object, AsyncLimiter] = {}
    monkeypatch.setattr(shared_limiters, "_limiters", opened)
    yield
    for limiter in opened.values():
        asyncio.run(limiter.aclose())


@pytest.mark.usefixtures("no_limiters")
def test_frameworks_use_the_configuration_unless_a_limiter_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not async_limiter_for(None).has_rules, "memory, without any configuration"
    write(folder, "crestgate.yaml", "3/minute")
    found = async_limiter_for(None)
    assert found.settings is not None
    assert asyncio.run(found.peek("k", "which")).limit == 3
    assert async_limiter_for(None) is found
    assert async_limiter_for("memory://").settings is None
    write(folder, "other.yaml", "2/minute")
    monkeypatch.setenv("CRESTGATE_CONFIG", "other.yaml")
    assert asyncio.run(async_limiter_for(None).peek("k", "which")).limit == 2


@pytest.mark.usefixtures("no_limiters")
def test_store_of_the_environment_overrides_that_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "crestgate.yaml", "3/minute")
    monkeypatch.setenv("CRESTGATE_STORE", f"sqlite:///{folder}/counters.db")
    found = async_limiter_for(None)
    assert found.settings is not None
    assert found.settings.store == f"sqlite:///{folder}/counters.db"
