"""`crestgate serve`: the service, in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Annotated

import typer

from crestgate.cli.locations import ConfigOption, config_path
from crestgate.cli.output import print_line
from crestgate.config.settings import Settings, load_settings
from crestgate.errors import ConfigError, Problem, ValidationError, install_hint

__all__ = ["check_packages", "print_now", "serve"]

LOOPBACK = "127.0.0.1"
_VARIABLES = {
    "--http": "CRESTGATE_SERVER__HTTP",
    "--grpc": "CRESTGATE_SERVER__GRPC",
    "--resp": "CRESTGATE_SERVER__RESP",
}


def serve(
    config: ConfigOption = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where to listen for HTTP; a PORT alone is on 127.0.0.1 [settings, else 127.0.0.1:8080].",
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc", metavar="HOST:PORT", help="Where to listen for gRPC, likewise [settings, else 127.0.0.1:8081]."
        ),
    ] = None,
    resp: Annotated[
        str | None,
        typer.Option(
            "--resp",
            metavar="HOST:PORT",
            help="Where to listen for Redis clients (RESP), likewise [settings, else not].",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, max=512, metavar="N", help="Processes [settings, else 1].")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on other addresses than loopback without an API key.")
    ] = False,
) -> None:
    """Run the service over HTTP and gRPC, until it is stopped.

    Without any settings: on 127.0.0.1, HTTP on port 8080 and gRPC on 8081, with counters and rules in ./.crestgate.
    Ctrl-C or SIGTERM stops it, SIGHUP reloads the rules.
    """
    check_packages()
    from crestgate.service.main import serve as run

    settings = _settings(config, {"--http": http, "--grpc": grpc, "--resp": resp})
    if settings.mode != "service":
        raise ConfigError("mode: embedded is for programs that embed the limiter: write service, or leave it out")
    server = settings.server
    server = replace(server, workers=workers or server.workers, insecure=insecure or server.insecure)
    run(replace(settings, server=server), os.environ, print_now)


def check_packages() -> None:
    """ConfigError if a package is missing that every service needs."""
    try:
        import_module("crestgate.service.worker")
        import_module("crestgate.service.main")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name!r} is missing, which the service needs: {install_hint('server')}"
        ) from None


def _settings(config: str | None, options: Mapping[str, str | None]) -> Settings:
    """The settings with the addresses of the options, which override the environment; errors name the option."""
    for name, value in options.items():
        if value is not None and not value.strip():
            raise ValidationError([Problem(name, "is empty: write host:port, such as 127.0.0.1:8080")])
    overrides = {_VARIABLES[name]: _address(value) for name, value in options.items() if value is not None}
    names = {_VARIABLES[name]: name for name, value in options.items() if value is not None}
    try:
        return load_settings(config_path(config), {**os.environ, **overrides})
    except ValidationError as error:
        raise ValidationError([_with_option_name(problem, names) for problem in error.problems]) from None


def _address(option: str) -> str:
    """A port alone is on loopback."""
    return f"{LOOPBACK}:{option}" if option.isascii() and option.isdigit() else option


def _with_option_name(problem: Problem, names: Mapping[str, str]) -> Problem:
    option = names.get(problem.file or "")
    return problem if option is None else Problem(option, problem.message)


def print_now(line: str) -> None:
    """Flushed, since the service keeps running: the line may hold the first key."""
    print_line(line)
    sys.stdout.flush()
