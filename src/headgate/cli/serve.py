"""`headgate serve`: the service, in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from headgate.cli.places import ConfigOption, config_path
from headgate.cli.showing import say
from headgate.config.settings import load_settings
from headgate.errors import ConfigError

__all__ = ["serve"]


def serve(
    config: ConfigOption = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Where to listen for HTTP [settings, else 127.0.0.1:8080]."),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", metavar="HOST:PORT", help="Where to listen for gRPC [settings, else 127.0.0.1:8081]."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, max=512, metavar="N", help="Processes [settings, else 1].")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine though there are no keys yet.")
    ] = False,
) -> None:
    """Answer over HTTP and gRPC, until it is told to end.

    Without any settings: on 127.0.0.1, HTTP on port 8080 and gRPC on 8081, with counters and rules in ./.headgate.
    Ctrl-C or SIGTERM ends it, SIGHUP has rules read again.
    """
    try:
        from headgate.service.running import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name!r} is missing, which the service needs: pip install 'headgate[server]'"
        ) from None
    told = {"HEADGATE_SERVER__HTTP": http, "HEADGATE_SERVER__GRPC": grpc}
    environ = {**os.environ, **{name: address for name, address in told.items() if address is not None}}
    settings = load_settings(config_path(config), environ)
    if settings.mode != "service":
        raise ConfigError("mode: embedded is for programs that have the limiter inside: write service, or leave it out")
    server = settings.server
    server = replace(server, workers=workers or server.workers, insecure=insecure or server.insecure)
    run(replace(settings, server=server), os.environ, _say_now)


def _say_now(line: str) -> None:
    """A line that is read while the service runs, in a file or a pipe too: it may have the first key in it."""
    say(line)
    sys.stdout.flush()
