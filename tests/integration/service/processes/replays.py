"""What must be true of the answers to one request that was sent many times at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from integration.service.processes.concurrent_clients import Told
from integration.service.service_process import Service

__all__ = ["REPEATS", "told_once"]

REPEATS = 50


def told_once(answers: Sequence[Told], remaining: int, service: Service) -> None:
    """One was decided, all others got its answer, which says so and is the same in everything else."""
    assert {told.status for told in answers} == {200}, {told.text for told in answers if told.status != 200}
    decisions = [told.data for told in answers]
    reasons = Counter(decision.pop("reason") for decision in decisions)
    assert reasons == {"ok": 1, "replayed": len(answers) - 1}, f"{reasons}\n{service.logged}"
    assert all(decision == decisions[0] for decision in decisions), {told.text for told in answers}
    assert (decisions[0]["allowed"], decisions[0]["remaining"]) == (True, remaining)
