"""Assertions on the responses to one request that was sent many times concurrently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from integration.service.processes.concurrent_clients import Response
from integration.service.service_process import Service

__all__ = ["REPLAYS", "assert_decided_once"]

REPLAYS = 50


def assert_decided_once(responses: Sequence[Response], remaining: int, service: Service) -> None:
    """One request was decided; all others are replays of its response, equal in everything but the reason."""
    assert {response.status for response in responses} == {200}, {
        response.text for response in responses if response.status != 200
    }
    decisions = [response.data for response in responses]
    reasons = Counter(decision.pop("reason") for decision in decisions)
    assert reasons == {"ok": 1, "replayed": len(responses) - 1}, f"{reasons}\n{service.logged}"
    assert all(decision == decisions[0] for decision in decisions), {response.text for response in responses}
    assert (decisions[0]["allowed"], decisions[0]["remaining"]) == (True, remaining)
