"""Per-process cache of the limits on Envoy's descriptors, refreshed by a background thread.

The source is a file, a folder of files, or the snapshot of a control plane (xds/snapshot.py).

The files are read at the start, which fails if they have errors. From then on a thread reloads them when they change
(loader/file_reloader.py). The limits are swapped as a whole: no request ever sees half of a change. If a reload fails,
the previous limits stay in force, and the failure is logged and counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from crestgate.envoy.files import DescriptorFiles, path_state, read_descriptor_files
from crestgate.envoy.matcher import Domains
from crestgate.errors import ValidationError
from crestgate.loader.background_refresh import REFRESH_SECONDS, BackgroundRefresh, Reloaded, ReloadMessages
from crestgate.loader.file_reloader import FileReloader

__all__ = ["REFRESH_SECONDS", "Descriptors"]

RELOAD_MESSAGES = ReloadMessages(
    "descriptor reload failed, keeping the previous descriptors: %s",
    "descriptor reload recovered: %s",
    "descriptors reloaded: %s: %d before, %d now",
)


class Descriptors:
    """The descriptors of a file, or of a folder of files. `current` is always a complete snapshot."""

    current: Domains
    waiting: bool
    """Whether nothing was received yet from a control plane: then no request can be decided."""

    def __init__(
        self,
        path: str,
        refresh_seconds: float = REFRESH_SECONDS,
        files: DescriptorFiles | None = None,
        read: Callable[[str], DescriptorFiles] | None = None,
    ) -> None:
        """ValidationError has all errors. `files` are the files if they are already read. `read` reads another kind of
        source."""

        def load(name: str) -> DescriptorFiles:
            return read_descriptor_files(name) if read is None else read(name)

        files = load(path) if files is None else files
        if files.problems:
            raise ValidationError(files.problems)
        self.current = files.domains
        self.waiting = not files.digests
        absolute = os.path.abspath(path)  # a program may change its working directory
        self.files = FileReloader(lambda: load(absolute), path_state, files)
        self.background = BackgroundRefresh(
            self,
            Descriptors._load,
            messages=RELOAD_MESSAGES,
            title=path,
            seconds=refresh_seconds,
            thread_name="crestgate-envoy",
        )
        self.background.start()

    @property
    def failures(self) -> int:
        """How many refreshes have failed."""
        return self.background.failures

    @property
    def problem(self) -> str | None:
        """The current errors of the files; None while they are valid."""
        return self.background.problem

    def refresh(self) -> bool:
        """Refresh now; whether anything was new. Errors are logged, and the previous limits stay."""
        return self.background.refresh()

    def reload(self) -> None:
        """Read the files soon, changed or not, in the thread. A signal handler may call it."""
        self.files.force()
        self.background.wake()

    def close(self) -> None:
        """End the thread. The current limits stay in force."""
        self.background.close()

    def _load(self) -> Reloaded | None:
        if not self.files.refresh():
            return None
        _, files = self.files.latest()
        assert files is not None
        before, self.current = self.current, files.domains
        self.waiting = not files.digests
        return Reloaded(sum(before.counts.values()), sum(self.current.counts.values()))
