"""`crestgate serve`: preflight, sockets, then one worker or a supervisor."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing

from crestgate.config.default_folder import write_service_file
from crestgate.config.settings import Settings
from crestgate.runtime.connection_budget import raise_file_limit
from crestgate.service.node import address_of, listen, node_folder
from crestgate.service.observability.log_redaction import settings_secrets
from crestgate.service.observability.logs import configure
from crestgate.service.preflight import complete_settings, run_preflight
from crestgate.service.store_wait import await_stores

__all__ = ["serve"]


def serve(settings: Settings, environ: Mapping[str, str], print_line: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ConfigError or StoreError if the service cannot start."""
    settings = complete_settings(settings, environ)
    configure(settings.logs, secrets=settings_secrets(settings, environ))
    raise_file_limit()
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until workers handle it; they read the rules anyway
    workers = settings.server.workers
    if settings.server.store_wait_seconds and not await_stores(settings):
        return
    with closing(listen(settings.server)) as listening:
        checked = run_preflight(settings, environ)
        resp = None if listening.resp is None else address_of(listening.resp)
        for line in checked.lines(address_of(listening.http), address_of(listening.grpc), settings.server, resp):
            print_line(line)
        url = f"{'http' if settings.server.tls is None else 'https'}://{address_of(listening.http)}"
        with node_folder(workers) as node, ExitStack() as stack:
            stack.callback(write_service_file(url, node.snapshots, workers))
            if workers == 1:
                from crestgate.service.worker import run_worker

                run_worker(settings, node, 0, listening)
            else:
                from crestgate.service.supervisor import Supervisor

                Supervisor(settings, node, listening).run()
