"""SIGHUP and `reload` read the rules again immediately."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter
from unit.rules.fake_sources import until

RULE = "rules: [{{rule_id: r, dimension: user, limit: {limit}, window_seconds: 60}}]"


@pytest.fixture
def before() -> Iterator[list[int]]:
    """The signals that an earlier handler received."""
    got: list[int] = []
    old = signal.signal(signal.SIGHUP, lambda number, frame: got.append(number))
    yield got
    signal.signal(signal.SIGHUP, old)


def written(folder: Path, limit: int) -> str:
    file = folder / "crestgate.yaml"
    file.write_text(f"refresh_seconds: 3600\n{RULE.format(limit=limit)}\n")
    return str(file)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_sighup_reloads_rules(kind: type[Limiter | AsyncLimiter], tmp_path: Path, before: list[int]) -> None:
    limiter = kind.from_config(written(tmp_path, 5), environ={}, sighup=True)
    written(tmp_path, 7)
    assert limiter.catalog.current.rules["r"].limit == 5
    os.kill(os.getpid(), signal.SIGHUP)
    until(lambda: limiter.catalog.current.rules["r"].limit == 7)
    assert before == [signal.SIGHUP], "the earlier handler still gets the signal"
    limiter.catalog.close()


def test_sighup_is_not_handled_by_default(tmp_path: Path, before: list[int]) -> None:
    handler = signal.getsignal(signal.SIGHUP)
    with Limiter.from_config(written(tmp_path, 5), environ={}):
        assert signal.getsignal(signal.SIGHUP) is handler


def test_reload_reads_rules_again(tmp_path: Path) -> None:
    with Limiter.from_config(written(tmp_path, 5), environ={}) as limiter:
        written(tmp_path, 7)
        limiter.reload()
        until(lambda: limiter.catalog.current.rules["r"].limit == 7)


def test_sighup_needs_the_main_thread(tmp_path: Path) -> None:
    errors: list[str] = []

    def elsewhere() -> None:
        try:
            Limiter.from_config(written(tmp_path, 5), environ={}, sighup=True)
        except ConfigError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert errors == ["sighup=True needs the main thread, where Python handles signals: call reload() yourself"]
