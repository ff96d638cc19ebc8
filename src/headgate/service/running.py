"""`headgate serve`, from the settings to the last answer."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping

from headgate.config.settings import Address, Settings
from headgate.errors import ConfigError
from headgate.service.node import node_folder
from headgate.service.observe.logs import configure
from headgate.service.secrets import secrets_of
from headgate.service.starting import completed, start

__all__ = ["serve"]

BACKLOG = 2048


def serve(settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Start, say so, and answer until SIGTERM or Ctrl-C. What cannot start is a ConfigError or a StoreError."""
    settings = completed(settings)
    configure(settings.logs, secrets=secrets_of(settings, environ))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to read rules again: they are read anyway
    workers = settings.server.workers
    # The address first: a key that was made and then not shown, because the address is taken, would be lost.
    with _listening(settings.server.http) as listening:
        found = start(settings, environ)
        scheme = "http" if settings.server.tls is None else "https"
        host, port = listening.getsockname()[:2]
        for line in found.lines(f"{scheme}://{Address(host, port)}", workers):
            say(line)
        with node_folder() as node:
            if workers == 1:
                from headgate.service.server import run_worker

                run_worker(settings, node, 0, listening)
            else:
                from headgate.service.supervisor import Supervisor

                Supervisor(settings, node, listening).run()


def _listening(address: Address) -> socket.socket:
    """The socket that all workers accept from."""
    try:
        (family, *_), *_ = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        number = error.errno or 0  # that of a name which nobody knows is below zero
        why = os.strerror(number) if number > 0 else error.strerror
        raise ConfigError(
            f"server.http: cannot listen on {address}: {why}; --http HOST:PORT or HEADGATE_SERVER__HTTP names another"
        ) from error
