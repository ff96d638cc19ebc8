"""A process that forks and goes leaves its child alone with a SQLite file. SQLite remembers by process which locks it
has: a connection that is carried across the fork, even unused, would have the child read and write without any."""

from __future__ import annotations

from pathlib import Path

from integration.child_process import Child

ROUNDS = 4
TIMES = 20


def test_orphaned_child_and_others_share_one_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/counters.db?timeout_ms=10000"
    total = 0
    with Child("orphan_programs.count_as_orphan", url=url) as orphan:
        assert orphan.hear() == "alone"
        for _ in range(ROUNDS):
            with Child("orphan_programs.count", url=url, times=TIMES) as other:
                total += other.finish()
            orphan.say(TIMES)
            total += orphan.hear()
    assert total == 100


def test_orphaned_child_keeps_its_rules_and_is_notified(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rules.db?timeout_ms=10000"
    with Child("orphan_programs.write", url=url, limit=1) as other:
        assert other.finish() == ["theirs"]
    with Child("orphan_programs.write_as_orphan", url=url, folder=str(tmp_path)) as orphan:
        assert orphan.hear() == "alone"
        written: list[str] = []
        for limit in range(2, 2 + ROUNDS):
            with Child("orphan_programs.write", url=url, limit=limit) as other:
                assert other.finish() == sorted([*written, "theirs"]), "nothing that was written is lost"
            orphan.say(f"mine-{limit}")
            assert orphan.hear() == limit
            written.append(f"mine-{limit}")
