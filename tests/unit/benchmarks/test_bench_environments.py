"""When the benchmarks install Crestgate anew: when its source, or what it is compared with, has changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.environments import MARK, is_installed, python, source_digest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "src").mkdir(parents=True)
    (tmp_path / "source" / "src" / "one.py").write_text("a = 1\n")
    return tmp_path / "source"


def test_same_source_has_the_same_digest(source: Path) -> None:
    assert source_digest(source, ["limits"]) == source_digest(source, ["limits"])


def test_changed_moved_or_compared_files_change_the_digest(source: Path) -> None:
    first = source_digest(source, ["limits"])
    found = {first, source_digest(source, ["limits", "slowapi"])}
    (source / "src" / "one.py").write_text("a = 2\n")
    found.add(source_digest(source, ["limits"]))
    (source / "src" / "one.py").rename(source / "src" / "two.py")
    found.add(source_digest(source, ["limits"]))
    assert len(found) == 4


def test_environment_is_installed_only_with_its_mark(tmp_path: Path) -> None:
    program = python(tmp_path, "pure")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (program.parent.parent / "lib" / version / "site-packages" / "pip").mkdir(parents=True)
    program.parent.mkdir()
    program.touch()
    assert not is_installed(tmp_path, "pure", "digest"), "it was stopped before its end"
    (program.parent.parent / MARK).write_text("digest")
    assert is_installed(tmp_path, "pure", "digest")
    assert not is_installed(tmp_path, "pure", "another")
    program.unlink()
    assert not is_installed(tmp_path, "pure", "digest")
