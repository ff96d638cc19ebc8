"""A process that forks and exits leaves its child with a SQLite file. SQLite tracks locks by process: with a connection
inherited across the fork, even an unused one, the child would read and write without locks."""

from __future__ import annotations

from pathlib import Path

from integration.child_process import ChildProcess

ROUNDS = 4
TIMES = 20


def test_orphaned_child_and_others_share_one_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/counters.db?timeout_ms=10000"
    total = 0
    with ChildProcess("orphan_programs.count_as_orphan", url=url) as orphan:
        assert orphan.receive() == "alone"
        for _ in range(ROUNDS):
            with ChildProcess("orphan_programs.count", url=url, times=TIMES) as other:
                total += other.finish()
            orphan.send(TIMES)
            total += orphan.receive()
    assert total == 100


def test_orphaned_child_keeps_its_rules_and_is_notified(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rules.db?timeout_ms=10000"
    with ChildProcess("orphan_programs.write", url=url, limit=1) as other:
        assert other.finish() == ["theirs"]
    with ChildProcess("orphan_programs.write_as_orphan", url=url, folder=str(tmp_path)) as orphan:
        assert orphan.receive() == "alone"
        written: list[str] = []
        for limit in range(2, 2 + ROUNDS):
            with ChildProcess("orphan_programs.write", url=url, limit=limit) as other:
                assert other.finish() == sorted([*written, "theirs"]), "nothing that was written is lost"
            orphan.send(f"mine-{limit}")
            assert orphan.receive() == limit
            written.append(f"mine-{limit}")
