"""`headgate serve`, from the settings to the last answer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import closing

from headgate.config.settings import Settings
from headgate.service.connections import raise_file_limit
from headgate.service.listening import address_of, listen
from headgate.service.node import node_folder
from headgate.service.observe.logs import configure
from headgate.service.secrets import secrets_of
from headgate.service.starting import completed, start

__all__ = ["serve"]


def serve(settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Start, say so, and answer until SIGTERM or Ctrl-C. What cannot start is a ConfigError or a StoreError."""
    settings = completed(settings)
    configure(settings.logs, secrets=secrets_of(settings, environ))
    raise_file_limit()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to read rules again: they are read anyway
    workers = settings.server.workers
    with closing(listen(settings.server)) as listening:
        found = start(settings, environ)
        for line in found.lines(address_of(listening.http), address_of(listening.grpc), settings.server):
            say(line)
        with node_folder() as node:
            if workers == 1:
                from headgate.service.server import run_worker

                run_worker(settings, node, 0, listening)
            else:
                from headgate.service.supervisor import Supervisor

                Supervisor(settings, node, listening).run()
