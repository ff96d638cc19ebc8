"""Histories: every operation on a counter, with the interval in which it may have taken effect.

A client writes a line before it sends an operation and another one after it has the result, each with one `write`. So a
client that is killed leaves its last operations without a result, and loses none. Times are CLOCK_MONOTONIC in
nanoseconds, which all processes of a machine share; `time.monotonic_ns` reads it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

__all__ = ["DECIDED", "FOREVER", "POLICY", "Journal", "Operation", "by_key", "read_journals"]

FOREVER = 1 << 62
"""The end of an operation whose result is unknown: it may still take effect."""
DECIDED = ("ok", "limited")
"""Reasons of decisions that a store made."""
POLICY = ("fail_open", "fail_closed", "fallback")
"""Reasons of decisions that the failure policy made."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one counter.

    `change` is what it adds to the counter if it takes effect; negative for a give-back. `allowed` is None where the
    store's decision is unknown: no result, or one of the failure policy. It then took effect at most once, at any time
    after its start. `remaining` is None where the result does not say it (give-backs).
    """

    key: str
    change: int
    start: int
    end: int
    allowed: bool | None
    remaining: int | None = None
    reason: str = "ok"
    client: int = 0
    call: int = 0
    """Operations of one batch share it."""
    answered: int = FOREVER
    """When the caller had an answer, if only the policy's."""

    @property
    def known(self) -> bool:
        return self.allowed is not None


class Journal:
    """Writes operations to a file. Each line is one `write`, so a killed process leaves whole lines."""

    def __init__(self, path: str, client: int) -> None:
        self.path = path
        self._client = client
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls = 0
        self._lock = Lock()

    def begin(self, items: Sequence[tuple[str, int]], start: int) -> int:
        """Operations (key and change) that one call is about to send; returns the number of the call."""
        with self._lock:
            self._calls += 1
            call = self._calls
        self._write(["b", self._client, call, start, items])
        return call

    def end(self, call: int, end: int, results: Sequence[tuple[bool, int | None, str]]) -> None:
        """Their results, in order: allowed, remaining, reason."""
        self._write(["e", self._client, call, end, results])

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: list[object]) -> None:
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_journals(paths: Iterable[Path]) -> list[Operation]:
    """All operations of all files, by start."""
    operations: list[Operation] = []
    for path in paths:
        begun: dict[tuple[int, int], tuple[int, list[tuple[str, int]]]] = {}
        for line in path.read_bytes().splitlines():
            kind, client, call, at, items = json.loads(line)
            if kind == "b":
                begun[client, call] = at, items
                continue
            start, sent = begun.pop((client, call))
            for (key, change), (allowed, remaining, reason) in zip(sent, items, strict=True):
                decided = reason in DECIDED
                operations.append(
                    Operation(
                        key,
                        change,
                        start,
                        at if decided else FOREVER,
                        allowed if decided else None,
                        remaining if decided else None,
                        reason,
                        client,
                        call,
                        at,
                    )
                )
        for (client, call), (start, sent) in begun.items():
            operations += [
                Operation(key, change, start, FOREVER, None, None, "lost", client, call) for key, change in sent
            ]
    return sorted(operations, key=lambda operation: operation.start)


def by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    keys: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        keys[operation.key].append(operation)
    return dict(keys)
