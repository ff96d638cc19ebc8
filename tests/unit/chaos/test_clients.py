"""The client processes of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from chaos.clients import Clients, has_pending_batch
from chaos.network import Network
from chaos.traffic import Traffic


def test_each_process_notes_when_it_did_not_run(tmp_path: Path) -> None:
    """Forked children too: their calls are judged like those of the others."""
    clients = Clients(Network(), "memory://", Traffic(150, 4.0, time.monotonic_ns()), 1, tmp_path)
    clients.shared = False
    try:
        clients.start()
        clients.all[0].say("fork")
        assert clients.all[0].receive(60) == "forked"
        clients.finish()
    finally:
        clients.close()
    lines = [json.loads(line) for path in clients.journals() for line in path.read_text().splitlines()]
    assert {f"stalls-{line[1]}" for line in lines} == {path.name for path in clients.stalls()}
    assert "stalls-1001" in {path.name for path in clients.stalls()}


def test_pending_batch_in_a_journal_that_is_being_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    begun = '["b",1,1,10,[["a",1]]]\n["b",1,2,11,[["a",1],["b",1]]]\n'
    journal.write_text(begun + '["e",1,2,12,[[true,4,"o')
    assert has_pending_batch(journal)
    journal.write_text(begun + '["e",1,2,12,[[true,4,"ok"],[true,4,"ok"]]]\n')
    assert not has_pending_batch(journal)
