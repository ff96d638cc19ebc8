"""Owner and permissions of the default folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.config.default_folder import (
    check_default_folder,
    default_rules_url,
    default_store_url,
    make_default_folder,
)
from crestgate.errors import StoreError

OTHER_UID = 12345


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".crestgate"


@pytest.fixture
def as_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process appear to run as another user."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)


def every_use() -> list[Callable[[], object]]:
    return [check_default_folder, default_store_url, default_rules_url, lambda: make_default_folder("elsewhere")]


def test_folder_is_created_for_its_owner(folder: Path) -> None:
    before = os.umask(0)
    try:
        make_default_folder("elsewhere")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("as_other_user")
def test_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for use in every_use():
        with pytest.raises(StoreError, match=rf"belongs to .*, and this runs as {OTHER_UID}: .*`chown -hR {OTHER_UID}"):
            use()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702, 0o1777])
def test_folder_that_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    for use in every_use():
        with pytest.raises(StoreError, match=r"can be written by others .*`chmod -R go-rwx"):
            use()
    assert folder.stat().st_mode & 0o7777 == mode, "permissions are not repaired without review"


@pytest.mark.parametrize("name", ["counters", "counters.once", "rules.db", "rules.db-wal", "rules.db-shm"])
def test_file_that_others_can_write_to_is_refused(folder: Path, name: str) -> None:
    folder.mkdir(mode=0o700)
    (folder / name).touch()
    (folder / name).chmod(0o660)
    with pytest.raises(StoreError, match=rf"the file .*{name} can be written by others \(mode 660\)"):
        default_store_url()


def test_read_permissions_of_others_are_removed(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "rules.db").touch(0o644)
    (folder / "notes.txt").touch(0o644)
    default_rules_url()
    assert (folder / "rules.db").stat().st_mode & 0o777 == 0o600
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o644, "a file that Crestgate did not create"


def test_planted_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (tmp_path / "planted").touch(0o600)
    (folder / "rules.db").symlink_to(tmp_path / "planted")
    with pytest.raises(StoreError, match=r"rules\.db is not a regular file"):
        default_rules_url()


def test_own_symbolic_link_is_accepted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert default_store_url().endswith("/.crestgate/counters")
    (tmp_path / "elsewhere").chmod(0o777)
    with pytest.raises(StoreError, match="can be written by others"):
        default_store_url()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "rules.db").touch(0o600)
    os.chown(folder / "rules.db", OTHER_UID, OTHER_UID)
    with pytest.raises(StoreError, match=rf"the file .*rules\.db belongs to {OTHER_UID}, and this runs as root"):
        default_rules_url()


def test_non_folder_is_refused(folder: Path) -> None:
    folder.touch()
    with pytest.raises(StoreError, match="is not a folder: move it away"):
        make_default_folder("elsewhere")


def test_missing_folder_is_accepted() -> None:
    check_default_folder()
