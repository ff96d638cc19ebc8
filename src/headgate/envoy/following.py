"""What a process knows of Envoy's descriptors, kept up to date behind its back.

The files are read at the start, which fails when they have mistakes. From then on a thread looks whether they have
changed, as for rules (reading/traces.py). What they say is swapped as a whole: no request ever sees half of a change.
A reading with mistakes changes nothing: the last good one stays in force, and that is logged and counted.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from weakref import ref

from headgate.envoy.files import DescriptorFiles, look, read_descriptor_files
from headgate.envoy.limits import Domains
from headgate.errors import Invalid
from headgate.reading.traces import Traces
from headgate.stores.forking import renew_after_fork

__all__ = ["REFRESH_SECONDS", "Descriptors"]

REFRESH_SECONDS = 1.0
PATIENCE = 5.0
"""Seconds that closing waits for a look that is under way."""
_log = logging.getLogger("headgate")

Bell = SimpleQueue[None]
"""What the thread waits for. A queue of this kind, because a signal handler may ring it at any time."""


class Descriptors:
    """The descriptors of a file, or of a folder of files. `current` is always one whole reading."""

    current: Domains

    def __init__(
        self, path: str, refresh_seconds: float = REFRESH_SECONDS, files: DescriptorFiles | None = None
    ) -> None:
        """Invalid has all mistakes. `files` is what was read already, if it was."""
        files = read_descriptor_files(path) if files is None else files
        if files.problems:
            raise Invalid(files.problems)
        self.failures = 0
        """At how many looks the files could not be used."""
        self.problem: str | None = None
        """What is wrong with the files now; None while they can be read."""
        self._title = path
        self._path = os.path.abspath(path)  # a program may go to another folder; its files stay where they are
        self._seconds = refresh_seconds
        self._traces = Traces()
        self._again = False
        self._closed = False
        self._looking = Lock()
        self._traces.take(files.seen, files.digests)
        self.current = files.domains
        renew_after_fork(self)
        self._watch()

    def refresh(self) -> bool:
        """Look at the files now; whether anything was new. What cannot be read stays as it was, and is told."""
        with self._looking:
            again, self._again = self._again, False
            if not again and not self._traces.changed(look):
                if self.problem is not None:
                    self.failures += 1
                return False
            try:
                return self._read()
            except Exception as error:  # noqa: BLE001 - whatever it is, what is known stays in force
                self._again = True
                self._failed(repr(error), error)
                return False

    def reload(self) -> None:
        """Have the files read soon, changed or not, in a thread. A signal handler may call it."""
        self._again = True
        self._bell.put(None)

    def close(self) -> None:
        """Stop looking. What is known so far stays in force."""
        self._closed = True
        self._bell.put(None)
        if self._watcher is not current_thread():
            self._watcher.join(PATIENCE)

    def renew(self) -> None:
        """In a forked child: the thread that keeps this up to date has stayed in the parent."""
        self._looking = Lock()
        if not self._closed:
            self._watch()

    def _watch(self) -> None:
        self._bell: Bell = SimpleQueue()
        self._watcher = Thread(
            target=_keep_up, args=(ref(self), self._bell, self._seconds), name="headgate-envoy", daemon=True
        )
        self._watcher.start()

    def _read(self) -> bool:
        files = read_descriptor_files(self._path)
        same = self.problem is None and self._traces.same(files.digests)
        self._traces.take(files.seen, files.digests)
        if files.problems:
            self._failed(str(Invalid(files.problems)))
            return False
        if self.problem is not None:
            self.problem = None
            _log.warning("limits on descriptors can be read again: %s", self._title)
        if same:
            return False
        before, now = sum(self.current.counts.values()), sum(files.domains.counts.values())
        self.current = files.domains
        level = logging.WARNING if before and not now else logging.INFO
        _log.log(level, "limits on descriptors have changed: %s: %d before, %d now", self._title, before, now)
        return True

    def _failed(self, told: str, error: Exception | None = None) -> None:
        """Count it, and say it once as long as it is the same."""
        self.failures += 1
        if told != self.problem:
            self.problem = told
            _log.error(
                "limits on descriptors could not be read, and those known so far stay in force: %s",
                told,
                exc_info=error,
            )


def _keep_up(weak: ref[Descriptors], bell: Bell, seconds: float) -> None:
    """The thread: ends when the descriptors are closed, or nobody has them any more."""
    while True:
        with suppress(Empty):
            bell.get(timeout=seconds)
        descriptors = weak()
        if descriptors is None or descriptors._closed:
            return
        descriptors.refresh()
        del descriptors
