"""Changes of descriptor files: all kinds are detected, applied atomically, and an invalid file keeps the old limits."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crestgate.envoy import reloader
from crestgate.envoy.files import DescriptorFiles, path_state, read_descriptor_files
from crestgate.envoy.reloader import Descriptors
from crestgate.errors import ValidationError
from unit.rules.fake_sources import until

NEVER = 3600.0
"""Seconds between polls in tests that refresh explicitly."""


def domain(name: str, *requests: int) -> str:
    """A domain with a limit for each number, on the keys a, b, …"""
    lines = [f"domain: {name}", "descriptors:"]
    for position, number in enumerate(requests):
        lines += [f"  - key: {'abc'[position]}", f"    rate_limit: {{unit: hour, requests_per_unit: {number}}}"]
    return "\n".join(lines) + "\n"


@contextmanager
def follow(path: Path | str, seconds: float = NEVER, files: DescriptorFiles | None = None) -> Iterator[Descriptors]:
    descriptors = Descriptors(str(path), seconds, files)
    try:
        yield descriptors
    finally:
        descriptors.close()


def limits(descriptors: Descriptors, *names: str) -> dict[str, list[int]]:
    """The current limits of a and b in some domains."""
    found: dict[str, list[int]] = {}
    for name in names:
        matches = [descriptors.current.match(name, [(key, "x")]) for key in "abc"]
        found[name] = [match.limit.requests_per_unit for match in matches if match is not None]
    return found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.set_level(logging.INFO, "crestgate")

    def take() -> list[tuple[str, str]]:
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    return take


Logged = Callable[[], list[tuple[str, str]]]


def test_rewritten_file_is_reloaded(tmp_path: Path, logged: Logged) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    with follow(path) as descriptors:
        assert descriptors.refresh() is False
        before = descriptors.current
        path.write_text(domain("shop", 2, 3))
        assert limits(descriptors, "shop") == {"shop": [1]}
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop") == {"shop": [2, 3]}
        assert before.counts == {"shop": 1}, "a snapshot never changes"
        assert descriptors.refresh() is False
        assert (descriptors.failures, descriptors.problem) == (0, None)
    assert logged() == [("INFO", f"descriptors reloaded: {path}: 1 before, 2 now")]


def test_added_changed_and_removed_files_are_reloaded(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(domain("shop", 1))
    with follow(tmp_path) as descriptors:
        (tmp_path / "b.yml").write_text(domain("mail", 2))
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop", "mail") == {"shop": [1], "mail": [2]}
        (tmp_path / "b.yml").write_text(domain("mail", 22))
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop", "mail") == {"shop": [1], "mail": [22]}
        (tmp_path / "a.yaml").unlink()
        assert descriptors.refresh() is True
        assert not descriptors.current.knows("shop")
        (tmp_path / "b.yml").rename(tmp_path / "c.yaml")
        descriptors.refresh()
        assert limits(descriptors, "mail") == {"mail": [22]}
        for name in (".d.yaml", "d.yaml.bak", "d.txt"):
            (tmp_path / name).write_text("no YAML: at: all")
        (tmp_path / "d.yaml").mkdir()
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "d.yaml").write_text(domain("below", 3))
        assert descriptors.refresh() is False
        assert descriptors.problem is None


def test_second_edit_with_the_same_stamp_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits within one tick of the file system's clock: contents are compared once after a read."""
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    names = [str(path)]
    with follow(path) as descriptors:
        monkeypatch.setattr(descriptors.files, "_state", {name: path_state(name) for name in names}.get)
        path.write_text(domain("shop", 2))
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop") == {"shop": [2]}


def mount(folder: Path, generation: str, files: dict[str, str]) -> None:
    """Files as Kubernetes mounts a ConfigMap: symlinks through `..data`, which is switched atomically."""
    (folder / generation).mkdir(parents=True)
    for name, text in files.items():
        (folder / generation / name).write_text(text)
    (folder / "..next").symlink_to(generation)
    (folder / "..next").rename(folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def test_switched_config_map_is_reloaded(tmp_path: Path, logged: Logged) -> None:
    folder = tmp_path / "mounted"
    mount(folder, "..2026_1", {"shop.yaml": domain("shop", 1), "mail.yaml": domain("mail", 2)})
    with follow(folder) as descriptors:
        assert descriptors.current.counts == {"mail": 1, "shop": 1}
        mount(folder, "..2026_2", {"shop.yaml": domain("shop", 11), "mail.yaml": domain("mail", 2, 3)})
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop", "mail") == {"shop": [11], "mail": [2, 3]}
        mount(folder, "..2026_3", {"shop.yaml": domain("shop", 11), "mail.yaml": domain("mail", 2, 3)})
        logged()
        assert descriptors.refresh() is False, "new files with the same content"
        assert logged() == []


def test_switched_folder_link_is_reloaded(tmp_path: Path) -> None:
    for name, number in (("old", 1), ("new", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "limits.yaml").write_text(domain("shop", number))
    (tmp_path / "current").symlink_to("old")
    with follow(tmp_path / "current") as descriptors:
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").rename(tmp_path / "current")
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop") == {"shop": [2]}


def test_invalid_file_keeps_the_previous_limits_until_fixed(tmp_path: Path, logged: Logged) -> None:
    (tmp_path / "a.yaml").write_text(domain("shop", 1))
    (tmp_path / "b.yaml").write_text(domain("mail", 2))
    with follow(tmp_path) as descriptors:
        before = descriptors.current
        (tmp_path / "a.yaml").write_text(domain("shop", 9))
        (tmp_path / "b.yaml").write_text("domain: mail\ndescriptors: [{key: a, rate_limit: {unit: hours}}]\n")
        message = "\n".join(
            f"{tmp_path}/b.yaml:2: descriptors[0].rate_limit.{text}"
            for text in (
                "requests_per_unit: is missing: write a whole number from 0 to 4294967295",
                "unit: must be one of second, minute, hour, day, week, month, year, not 'hours'; did you mean 'hour'?",
            )
        )
        for failures in (1, 2, 3):
            assert descriptors.refresh() is False
            assert (descriptors.failures, descriptors.problem) == (failures, message)
        assert descriptors.current is before, "nothing of a.yaml either: reloads are atomic"
        text = "descriptor reload failed, keeping the previous descriptors: "
        assert logged() == [("ERROR", text + message)], "logged once"
        (tmp_path / "b.yaml").write_text(domain("mail", 2, 3))
        assert descriptors.refresh() is True
        assert (descriptors.failures, descriptors.problem) == (3, None)
        assert limits(descriptors, "shop", "mail") == {"shop": [9], "mail": [2, 3]}
        assert logged() == [
            ("WARNING", f"descriptor reload recovered: {tmp_path}"),
            ("INFO", f"descriptors reloaded: {tmp_path}: 2 before, 3 now"),
        ]


def test_reverted_problem_is_cleared(tmp_path: Path, logged: Logged) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    with follow(path) as descriptors:
        path.write_text("domain: [")
        assert descriptors.refresh() is False
        path.write_text(domain("shop", 1))
        descriptors.refresh()
        assert descriptors.problem is None
        assert limits(descriptors, "shop") == {"shop": [1]}


@pytest.mark.parametrize("whole", [True, False])
def test_removed_files_keep_the_previous_limits(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "limits"
    folder.mkdir()
    (folder / "a.yaml").write_text(domain("shop", 1))
    with follow(folder) as descriptors:
        (folder / "a.yaml").unlink()
        if whole:
            folder.rmdir()
        assert descriptors.refresh() is False
        assert descriptors.problem is not None
        assert descriptors.problem.startswith(f"{folder}: there is no ")
        assert limits(descriptors, "shop") == {"shop": [1]}
        folder.mkdir(exist_ok=True)
        (folder / "a.yaml").write_text(domain("shop", 2))
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop") == {"shop": [2]}


def test_empty_reload_is_a_warning(tmp_path: Path, logged: Logged) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    with follow(path) as descriptors:
        path.write_text("domain: shop\n")
        assert descriptors.refresh() is True
        assert descriptors.current.knows("shop")
    assert logged() == [("WARNING", f"descriptors reloaded: {path}: 1 before, 0 now")]


def test_start_with_invalid_files_reports_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("descriptors: [{value: x}]\n")
    with pytest.raises(ValidationError) as raised:
        Descriptors(str(path))
    assert [(problem.line, problem.field) for problem in raised.value.problems] == [
        (1, "domain"),
        (1, "descriptors[0].key"),
    ]


def test_files_that_were_read_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    files = read_descriptor_files(str(path))
    monkeypatch.setattr(reloader, "read_descriptor_files", None)
    with follow(path, files=files) as descriptors:
        assert descriptors.refresh() is False
        assert descriptors.current is files.domains


def test_relative_path_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limits.yaml").write_text(domain("shop", 1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with follow("limits.yaml") as descriptors:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert descriptors.refresh() is False
        assert descriptors.problem is None
        (tmp_path / "limits.yaml").write_text(domain("shop", 2))
        assert descriptors.refresh() is True


def test_unexpected_error_keeps_the_limits_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))

    def fails(_: str) -> DescriptorFiles:
        raise RuntimeError("no memory")

    with follow(path) as descriptors:
        path.write_text(domain("shop", 2))
        monkeypatch.setattr(reloader, "read_descriptor_files", fails)
        assert descriptors.refresh() is False
        assert descriptors.problem == f"{path}: RuntimeError('no memory')"
        monkeypatch.undo()
        assert descriptors.refresh() is True
        assert limits(descriptors, "shop") == {"shop": [2]}


# -- the thread ------------------------------------------------------------------------------------------------------


def test_background_thread_reloads_changes(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    with follow(path, 0.01) as descriptors:
        path.write_text(domain("shop", 2))
        until(lambda: limits(descriptors, "shop") == {"shop": [2]})


def test_reload_reads_even_unchanged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    read: list[str] = []

    def counted(name: str) -> DescriptorFiles:
        read.append(name)
        return read_descriptor_files(name)

    with follow(path) as descriptors:
        monkeypatch.setattr(reloader, "read_descriptor_files", counted)
        descriptors.reload()
        until(lambda: read == [str(path)])
        path.write_text(domain("shop", 2))
        descriptors.reload()
        until(lambda: limits(descriptors, "shop") == {"shop": [2]})


def test_thread_ends_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    closed = Descriptors(str(path), NEVER)
    watcher = closed.background.thread
    closed.close()
    closed.close()
    assert not watcher.is_alive()
    assert limits(closed, "shop") == {"shop": [1]}
    forgotten = Descriptors(str(path), 0.01)
    watcher = forgotten.background.thread
    del forgotten
    gc.collect()
    watcher.join(10)
    assert not watcher.is_alive()
    assert "crestgate-envoy" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_reloads_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(domain("shop", 1))
    with follow(path, 0.01) as descriptors:
        with descriptors.background.lock:  # as during a poll
            child = os.fork()
        if child == 0:
            try:
                path.write_text(domain("shop", 2))
                until(lambda: limits(descriptors, "shop") == {"shop": [2]})
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_touched_file_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for a path relative to another folder."""
    monkeypatch.chdir(tmp_path)
    Path("limits.yaml").write_text("domain: edge\ndescriptors: []\n")
    follow = Descriptors("limits.yaml", 3600)
    try:
        os.utime("limits.yaml", ns=(1, 1))
        with caplog.at_level("INFO", "crestgate"):
            assert not follow.refresh()
        assert caplog.records == []
    finally:
        follow.close()
