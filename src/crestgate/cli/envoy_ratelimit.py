"""`crestgate envoy-ratelimit`: the service, started from the environment variables of envoyproxy/ratelimit."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from crestgate.cli.output import print_line
from crestgate.cli.serve import check_packages, print_now
from crestgate.config.envoy_reference import translate
from crestgate.config.settings import load_settings
from crestgate.runtime.url_options import redact_url

__all__ = ["envoy_ratelimit"]

SECRETS = ("CRESTGATE_ADMIN_KEY", "CRESTGATE_ENVOY__XDS__HEADERS", "CRESTGATE_PRESSURE__WEBHOOK")


def envoy_ratelimit(
    show: Annotated[
        bool, typer.Option("--show", help="Print the settings that the variables result in, and do not start.")
    ] = False,
) -> None:
    """Run the service in place of envoyproxy/ratelimit.

    It starts from the environment variables of that: change the image, nothing else. HTTP is on port 8080, with
    /healthcheck and /json, and gRPC on 8081, on all addresses and without keys. Variables without effect, and unknown
    ones, are printed with the reason. CRESTGATE_... variables override them.

    Example: RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 crestgate
    envoy-ratelimit
    """
    check_packages()
    from crestgate.service.main import serve as run

    translation = translate(os.environ)
    for note in translation.notes:
        print_now(note)
    if show:
        for name, value in sorted(translation.variables.items()):
            print_line(f"{name}={'***' if name in SECRETS else redact_url(value)}")
        return
    settings = load_settings(None, translation.variables)
    run(settings, os.environ, print_now)
