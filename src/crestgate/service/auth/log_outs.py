"""Log-outs that last: the sessions that were ended before their time, in the rule database.

A copied cookie must stay worthless after a restart and on other machines. Each log-out is an entry of one record beside
the API keys, which authenticates nobody, and which every instance reads as it reads keys. Entries go with the end of
their session. There are at most `MAX_LOG_OUTS`; beyond that, those that would end first go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from crestgate.errors import ConflictError, CrestgateError, StaleVersionError
from crestgate.rules.port import Actor, Edit, Repository

__all__ = ["LOG_OUTS", "LogOuts"]

LOG_OUTS = "log-outs"
"""Its id. Those of API keys are 12 hexadecimal digits."""
MAX_LOG_OUTS = 1000
TRIES = 5
"""Writes that others may overtake."""
_log = logging.getLogger("crestgate")


class LogOuts:
    """Reads the record as the catalog has it, and writes it."""

    def __init__(
        self,
        repository: Repository,
        keys: Callable[[], Mapping[str, Mapping[str, Any]]],
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`keys` returns the record bodies by id, as for ApiKeys."""
        self._repository = repository
        self._keys = keys
        self._on_write = on_write

    def has(self, session_id: str) -> bool:
        return session_id in _entries(self._keys().get(LOG_OUTS, {}))

    def add(self, session_id: str, expires: int, now: int, actor: Actor) -> None:
        """Add a session that ends at `expires`, in unix seconds. If that fails, it is logged: the cookie is worthless
        on this machine all the same. Blocks."""
        try:
            for _ in range(TRIES):
                record = self._repository.get("key", LOG_OUTS)
                entries = _entries({} if record is None else record.body)
                entries = {name: end for name, end in entries.items() if end > now} | {session_id: expires}
                newest = sorted(entries.items(), key=lambda entry: entry[1])[-MAX_LOG_OUTS:]
                edit = Edit("key", LOG_OUTS, {"ended": dict(newest)}, 0 if record is None else record.version)
                try:
                    self._repository.write([edit], actor)
                except (ConflictError, StaleVersionError):
                    continue
                self._on_write()
                return
            _log.error("log-out: recorded on this machine only: too many at the same time")
        except CrestgateError as error:
            _log.error("log-out: recorded on this machine only: %s", error)


def _entries(body: Mapping[str, Any]) -> dict[str, int]:
    ended = body.get("ended")
    return dict(ended) if isinstance(ended, Mapping) else {}
