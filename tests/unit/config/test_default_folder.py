"""The folder of counters, rules and keys: whose it must be, and who else may write there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.config.usual import check_usual_folder, make_usual_folder, usual_rules_store, usual_store
from headgate.errors import StoreError

STRANGER = 12345


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".headgate"


@pytest.fixture
def as_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is another user, as far as it can tell."""
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def every_use() -> list[Callable[[], object]]:
    return [check_usual_folder, usual_store, usual_rules_store, lambda: make_usual_folder("elsewhere")]


def test_folder_is_made_for_its_owner(folder: Path) -> None:
    before = os.umask(0)
    try:
        make_usual_folder("elsewhere")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("as_stranger")
def test_folder_of_somebody_else_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for use in every_use():
        with pytest.raises(StoreError, match=rf"belongs to .*, and this runs as {STRANGER}: .*`chown -hR {STRANGER}"):
            use()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702, 0o1777])
def test_folder_that_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    for use in every_use():
        with pytest.raises(StoreError, match=r"can be written by others .*`chmod -R go-rwx"):
            use()
    assert folder.stat().st_mode & 0o7777 == mode, "nothing is mended before somebody has looked"


@pytest.mark.parametrize("name", ["counters", "counters.once", "rules.db", "rules.db-wal", "rules.db-shm"])
def test_file_that_others_can_write_to_is_refused(folder: Path, name: str) -> None:
    folder.mkdir(mode=0o700)
    (folder / name).touch()
    (folder / name).chmod(0o660)
    with pytest.raises(StoreError, match=rf"the file .*{name} can be written by others \(mode 660\)"):
        usual_store()


def test_file_that_others_can_read_is_closed_to_them(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "rules.db").touch(0o644)
    (folder / "notes.txt").touch(0o644)
    usual_rules_store()
    assert (folder / "rules.db").stat().st_mode & 0o777 == 0o600
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o644, "which is not ours"


def test_planted_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (tmp_path / "planted").touch(0o600)
    (folder / "rules.db").symlink_to(tmp_path / "planted")
    with pytest.raises(StoreError, match=r"rules\.db is not a regular file"):
        usual_rules_store()


def test_link_of_our_own_to_a_folder_of_our_own_is_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert usual_store().endswith("/.headgate/counters")
    (tmp_path / "elsewhere").chmod(0o777)
    with pytest.raises(StoreError, match="can be written by others"):
        usual_store()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_somebody_else_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "rules.db").touch(0o600)
    os.chown(folder / "rules.db", STRANGER, STRANGER)
    with pytest.raises(StoreError, match=rf"the file .*rules\.db belongs to {STRANGER}, and this runs as root"):
        usual_rules_store()


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    folder.touch()
    with pytest.raises(StoreError, match="is not a folder: move it away"):
        make_usual_folder("elsewhere")


def test_no_folder_is_fine() -> None:
    check_usual_folder()
