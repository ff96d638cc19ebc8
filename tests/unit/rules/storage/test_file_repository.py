"""Rules in files: every kind of change is detected, and an invalid file keeps the previous rules."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from crestgate.errors import ReadOnlyError, ValidationError
from crestgate.loader import file_reloader
from crestgate.loader.document import Document
from crestgate.loader.overlay import Variable
from crestgate.rules.port import Actor, AuditQuery, Changes, Edit, Repository
from crestgate.rules.storage import files as files_module
from crestgate.rules.storage.files import FileRepository
from crestgate.rules.storage.rule_files import RuleFiles, path_state, read_rule_files

Reading: TypeAlias = tuple[RuleFiles, Document]
ALICE = Actor("alice")
GOLD = "plans: {gold: 5/second}\n"
SILVER = "plans: {silver: 5/second}\n"
BROKEN = "plans: {gold: 5/second\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each time the files are read."""
    made: list[object] = []

    def counted(paths: Sequence[str], variables: Sequence[Variable] = ()) -> Reading:
        made.append(paths)
        return read_rule_files(paths, variables)

    monkeypatch.setattr(files_module, "read_rule_files", counted)
    return made


def write(name: str, content: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content)


def ids(changes: Changes | None) -> list[str] | None:
    return None if changes is None else [record.id for record in changes.records]


class Follower:
    """Polls for changes since the last revision, like a catalog."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.revision = 0

    def new(self) -> list[str] | None:
        changes = self.repository.changes(self.revision)
        if changes is not None:
            assert changes.complete
            assert changes.revision > self.revision
            self.revision = changes.revision
        return ids(changes)


def follow(*paths: str) -> Follower:
    return Follower(FileRepository(paths))


def test_records_are_returned_once() -> None:
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    assert [follower.new(), follower.new(), follower.new()] == [["gold"], None, None]
    assert ids(follower.repository.changes(0)) == ["gold"]


def test_file_edited_in_place() -> None:
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    follower.new()
    write("rules.yaml", SILVER)
    assert [follower.new(), follower.new()] == [["silver"], None]


def test_replaced_file() -> None:
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    follower.new()
    write("new", GOLD.replace("gold", "teak"))
    then = os.stat("rules.yaml")
    os.utime("new", ns=(then.st_atime_ns, then.st_mtime_ns))
    os.replace("new", "rules.yaml")
    assert [follower.new(), follower.new()] == [["teak"], None]


def test_switched_symlink() -> None:
    write("one.yaml", GOLD)
    write("two.yaml", SILVER)
    os.symlink("one.yaml", "rules.yaml")
    follower = follow("rules.yaml")
    follower.new()
    os.symlink("two.yaml", "new")
    os.replace("new", "rules.yaml")
    assert follower.new() == ["silver"]


def test_mounted_config_map() -> None:
    """Kubernetes switches one symlink, `..data`, through which all files are reached."""
    write("etc/..first/a.yaml", GOLD)
    os.symlink("..first", "etc/..data")
    os.symlink("..data/a.yaml", "etc/a.yaml")
    follower = follow("etc")
    assert follower.new() == ["gold"]
    write("etc/..second/a.yaml", SILVER)
    os.symlink("..second", "etc/..new")
    os.replace("etc/..new", "etc/..data")
    assert [follower.new(), follower.new()] == [["silver"], None]


def test_files_added_to_and_removed_from_a_folder() -> None:
    write("main.yaml", "include: conf.d\nmode: embedded\n")
    os.mkdir("conf.d")
    follower = follow("main.yaml")
    assert follower.new() == []
    write("conf.d/b.yaml", GOLD)
    assert follower.new() == ["gold"]
    write("conf.d/a.json", '{"plans": {"silver": "5/second"}}')
    assert follower.new() == ["silver", "gold"]
    write("conf.d/readme.txt", "not read")
    assert follower.new() is None
    os.remove("conf.d/b.yaml")
    assert follower.new() == ["silver"]


def test_changed_include() -> None:
    write("one.yaml", GOLD)
    write("two.yaml", SILVER)
    write("main.yaml", "include: one.yaml\n")
    follower = follow("main.yaml")
    assert follower.new() == ["gold"]
    write("main.yaml", "include: [one.yaml, two.yaml]\n")
    assert follower.new() == ["gold", "silver"]
    write("two.yaml", "plans: {teak: 5/second}\n")
    assert follower.new() == ["gold", "teak"]
    write("main.yaml", "include: two.yaml\n")
    assert follower.new() == ["teak"]
    write("one.yaml", BROKEN)
    assert follower.new() is None


def test_second_edit_with_the_same_stamp_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits within one tick of the file system's clock."""
    write("rules.yaml", GOLD)
    path = os.path.abspath("rules.yaml")
    stamp = path_state(path)

    def stamped(paths: Sequence[str], variables: Sequence[Variable] = ()) -> Reading:
        files, main = read_rule_files(paths, variables)
        files.states = {path: stamp}
        return files, main

    monkeypatch.setattr(files_module, "path_state", lambda _: stamp)
    monkeypatch.setattr(files_module, "read_rule_files", stamped)
    follower = follow("rules.yaml")
    follower.new()
    write("rules.yaml", GOLD.replace("gold", "teak"))
    assert [follower.new(), follower.new(), follower.new()] == [["teak"], None, None]


def test_unchanged_file_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    follower.new()
    follower.new()  # compares the contents once

    def refuse(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(file_reloader, "digest_of", refuse)
    monkeypatch.setattr(files_module, "read_rule_files", refuse)
    assert [follower.new() for _ in range(3)] == [None] * 3


def test_invalid_file_keeps_the_rules_and_is_not_read_again(readings: list[object]) -> None:
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    follower.new()
    write("rules.yaml", BROKEN)
    for _ in range(4):
        with pytest.raises(ValidationError, match=r"rules\.yaml:1: .*never closed"):
            follower.new()
    assert len(readings) == 2
    assert [record.id for record in follower.repository.list("plan")] == ["gold"]
    assert follower.repository.get("plan", "gold") is not None
    write("rules.yaml", "plans: {gold: 5/second, gold: 6/second}\n")
    with pytest.raises(ValidationError, match="written twice"):
        follower.new()
    write("rules.yaml", SILVER)
    assert [follower.new(), follower.new()] == [["silver"], None]
    assert len(readings) == 4
    assert follower.repository.get("plan", "gold") is None


def test_every_poll_raises_a_new_error() -> None:
    """An error object that is raised repeatedly would grow by a traceback each time."""
    write("rules.yaml", BROKEN)
    repository = FileRepository("rules.yaml")
    errors = []
    for _ in range(2):
        with pytest.raises(ValidationError) as raised:
            repository.changes(0)
        errors.append(raised.value)
    assert errors[0] is not errors[1]
    assert errors[0].problems == errors[1].problems


def test_partially_written_file() -> None:
    whole = "plans:\n  gold: 5/second\n  silver: '7/second'\n"
    write("rules.yaml", GOLD)
    follower = follow("rules.yaml")
    follower.new()
    with open("rules.yaml", "w") as file:
        file.write(whole[:-4])
        file.flush()
        with pytest.raises(ValidationError):
            follower.new()
        file.write(whole[-4:])
    assert follower.new() == ["gold", "silver"]


def test_missing_file() -> None:
    follower = follow("rules.yaml")
    with pytest.raises(ValidationError, match=r"rules\.yaml: there is no such file"):
        follower.new()
    with pytest.raises(ValidationError):
        follower.repository.get("plan", "gold")
    write("rules.yaml", GOLD)
    assert follower.new() == ["gold"]
    os.remove("rules.yaml")
    with pytest.raises(ValidationError, match="there is no such file"):
        follower.new()
    assert follower.repository.get("plan", "gold") is not None
    write("rules.yaml", GOLD)
    assert follower.new() == ["gold"]


def test_missing_include() -> None:
    write("main.yaml", "include: more.yaml\n")
    follower = follow("main.yaml")
    with pytest.raises(ValidationError, match=r"main\.yaml:1: include: there is no file or folder '.*/more\.yaml'"):
        follower.new()
    write("more.yaml", GOLD)
    assert follower.new() == ["gold"]


def test_reload_reads_unchanged_files(readings: list[object]) -> None:
    write("rules.yaml", GOLD)
    repository = FileRepository("rules.yaml")
    follower = Follower(repository)
    follower.new()
    repository.reload()
    assert [follower.new(), follower.new()] == [["gold"], None]
    assert len(readings) == 2


def test_initial_read_is_reused(readings: list[object]) -> None:
    write("rules.yaml", GOLD)
    files, _ = read_rule_files(["rules.yaml"])
    repository = FileRepository(files.paths, files.variables, files)
    assert [ids(repository.changes(0)), ids(repository.changes(1))] == [["gold"], None]
    assert readings == []


def test_only_rules_of_a_configuration_are_read() -> None:
    write("crestgate.yaml", f"store: nonsense\nmode: 7\nserver: []\nrefresh_seconds: x\n{GOLD}")
    assert follow("crestgate.yaml").new() == ["gold"]
    write("crestgate.yaml", f"store: memory://\nplan: x\n{GOLD}")
    with pytest.raises(ValidationError, match=r"crestgate\.yaml:2: plan: unknown field: did you mean 'plans'\?"):
        follow("crestgate.yaml").new()


def test_several_files_a_folder_and_a_list_of_rules() -> None:
    write("rules.yaml", "- {rule_id: a, dimension: ip, limit: 5, window_seconds: 1}\n")
    write("folder/plans.yaml", GOLD)
    assert follow("rules.yaml", "folder").new() == ["a", "gold"]
    write("folder/rules.yaml", "- {rule_id: a, dimension: user, limit: 5, window_seconds: 1}\n")
    with pytest.raises(
        ValidationError, match=r"folder/rules\.yaml:1: rules\[0\]: the rule_id 'a' is taken .*/rules\.yaml:1"
    ):
        follow("rules.yaml", "folder").new()


def test_records_by_name() -> None:
    names = ["b", "a", "Ä", "aa", "z"]
    write("rules.yaml", "plans:\n" + "".join(f"  {name}: 5/second\n" for name in names) + "tiers: {a: gold}\n")
    repository: Repository = FileRepository("rules.yaml")
    found = repository.get("plan", "aa")
    assert found is not None
    assert (found.version, found.body, found.created_us, found.updated_us) == (1, {"limits": ["5/second"]}, 0, 0)
    assert repository.get("rule", "aa") is None

    def listed(**options: object) -> list[str]:
        return [record.id for record in repository.list("plan", **options)]  # type: ignore[arg-type]  # several kinds

    assert listed() == ["a", "aa", "b", "z", "Ä"]
    assert listed(prefix="a") == ["a", "aa"]
    assert listed(after="aa", limit=2) == ["b", "z"]
    assert listed(after="Ä") == []
    assert [record.id for record in repository.list("tier")] == ["a"]


def test_change_of_working_directory() -> None:
    write("rules.yaml", "include: one.yaml\n")
    write("one.yaml", GOLD)
    write("two.yaml", SILVER)
    os.mkdir("elsewhere")
    read, _ = read_rule_files(["rules.yaml"])
    followers = [follow("rules.yaml"), Follower(FileRepository("rules.yaml", (), read))]
    followers.append(Follower(FileRepository([], [Variable("CRESTGATE_INCLUDE", ("include",), "one.yaml")])))
    assert [follower.new() for follower in followers] == [["gold"]] * 3
    os.chdir("elsewhere")
    assert [follower.new() for follower in followers] == [None] * 3
    write("../one.yaml", "plans: {teak: 5/second}\n")
    assert [follower.new() for follower in followers] == [["teak"]] * 3


def test_files_are_read_only() -> None:
    write("rules.yaml", GOLD)
    repository: Repository = FileRepository("rules.yaml")
    assert repository.title == "the rules in rules.yaml"
    message = r"the rules in rules\.yaml are read-only: edit the file, which is reloaded"
    with pytest.raises(ReadOnlyError, match=message):
        repository.write([Edit("plan", "x", {"limits": ["5/second"]})], ALICE)
    with pytest.raises(ReadOnlyError, match=message):
        repository.note(ALICE, "reset", "x")
    assert list(repository.audit(AuditQuery())) == []
    repository.listen(lambda: None)
    repository.close()
    repository.close()
    with pytest.raises(ReadOnlyError, match="change the variables"):
        FileRepository([]).write([], ALICE)


def test_concurrent_polls_while_files_change() -> None:
    write("rules.yaml", GOLD)
    repository = FileRepository("rules.yaml")
    done = threading.Event()
    failures: list[BaseException] = []

    def poll() -> None:
        revision = 0
        try:
            while not done.is_set():
                changes = repository.changes(revision)
                if changes is not None:
                    assert changes.revision > revision
                    assert len(changes.records) == 1
                    revision = changes.revision
                assert len(repository.list("plan")) == 1
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=poll) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(50):
        write("new", f"plans: {{p{number}: 5/second}}\n")
        os.replace("new", "rules.yaml")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [record.id for record in repository.list("plan")] == ["p49"]


def test_later_of_two_reads_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write("rules.yaml", GOLD)
    repository = FileRepository("rules.yaml")

    def slow(paths: Sequence[str], variables: Sequence[Variable] = ()) -> Reading:
        found = read_rule_files(paths, variables)
        monkeypatch.setattr(files_module, "read_rule_files", read_rule_files)
        write("rules.yaml", SILVER)
        assert ids(repository.changes(0)) == ["silver"]  # a concurrent read finishes first
        return found

    monkeypatch.setattr(files_module, "read_rule_files", slow)
    assert ids(repository.changes(0)) == ["silver"]
    assert repository.get("plan", "gold") is None


def test_failed_read_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    write("rules.yaml", GOLD)
    repository = FileRepository("rules.yaml")
    repository.changes(0)
    repository.reload()

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(files_module, "read_rule_files", fail)
        with pytest.raises(MemoryError):
            repository.changes(1)
    assert ids(repository.changes(1)) == ["gold"]
