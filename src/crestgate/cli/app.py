"""The command line application: all commands, and their errors as one line on stderr and an exit code.

A new command is a module of its own, and a line here.

0 success (of a check: allowed)   1 denied; of `rules diff`: different   2 usage error, or failure
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from crestgate.cli import version
from crestgate.cli.audit import audit
from crestgate.cli.checks import add_checks
from crestgate.cli.config import config_app
from crestgate.cli.db import db_app
from crestgate.cli.envoy_ratelimit import envoy_ratelimit
from crestgate.cli.explain import explain
from crestgate.cli.keys import keys_app
from crestgate.cli.migrate import migrate_app
from crestgate.cli.openapi import openapi
from crestgate.cli.output import print_error, print_line
from crestgate.cli.overrides import override_app
from crestgate.cli.plans import plans_app
from crestgate.cli.rules import rules_app
from crestgate.cli.serve import serve
from crestgate.cli.simulate import simulate
from crestgate.cli.stats import stats
from crestgate.cli.status import status
from crestgate.cli.tiers import tier
from crestgate.cli.top import top
from crestgate.errors import CrestgateError, ValidationError

__all__ = ["app", "run"]

USAGE_ERROR = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""As shells report a process that was ended by the signal."""
_SECRET = re.compile(r"://.*@")
_TOKEN = re.compile(r"cg_[0-9a-f]{12}_[\w-]+")

app = typer.Typer(
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(serve)
add_checks(app)
app.command()(explain)
app.command()(top)
app.command()(stats)
app.command()(status)
app.command()(audit)
app.add_typer(override_app, name="override")
app.command()(tier)
app.add_typer(plans_app, name="plans")
app.add_typer(rules_app, name="rules")
app.add_typer(keys_app, name="keys")
app.add_typer(config_app, name="config")
app.add_typer(db_app, name="db")
app.add_typer(migrate_app, name="migrate")
app.command()(openapi)
app.command()(simulate)
app.command()(envoy_ratelimit)


def _print_version(requested: bool) -> None:
    if requested:
        print_line(version())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def crestgate(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and the build."),
    ] = False,
) -> None:
    """Rate limiting for Python services.

    Exit codes: 0 success or allowed, 1 denied, 2 usage error or failure.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    with _log_to_stderr():
        try:
            code = app(list(arguments), prog_name="crestgate", standalone_mode=False)
            sys.stdout.flush()
        except CrestgateError as error:
            return _report_error(error)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except BrokenPipeError:
            return _end_at_closed_pipe()
        except SystemExit as error:  # typer has completed a word for a shell, or found that stdout was closed
            if isinstance(error.__context__, BrokenPipeError):
                return _end_at_closed_pipe()
            return error.code if isinstance(error.code, int) else 0
        except Exception as error:  # noqa: BLE001 - no traceback, whatever it is
            return _report_unexpected(error)
    return code if isinstance(code, int) else 0


def _end_at_closed_pipe() -> int:
    """The reader of stdout has closed it: nothing more is written, not even at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _report_error(error: CrestgateError) -> int:
    if isinstance(error, ValidationError) and any(problem.file is not None for problem in error.problems):
        for problem in error.problems:
            if problem.file is None:
                print_error(str(problem))
            else:  # file:line: message, as compilers print it
                print_error(str(problem), prefix="")
    else:
        print_error(str(error))
    return USAGE_ERROR


def _report_unexpected(error: Exception) -> int:
    """Report a usage error found by typer, or a bug."""
    message = getattr(error, "format_message", None)
    if message is None:
        if sys.flags.dev_mode:
            raise error
        print_error(f"{type(error).__name__}: {error} (a bug in Crestgate: `python -X dev -m crestgate` shows where)")
        return USAGE_ERROR
    # The arguments may hold a URL with a password, or a key.
    text = _TOKEN.sub("cg_***", _SECRET.sub("://***@", " ".join(message().split())))
    context = getattr(error, "ctx", None)
    print_error(f"{text} (see {context.command_path} --help)" if context is not None else text)
    return USAGE_ERROR


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Print warnings that are logged while a command runs."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_error(record.getMessage())

    log = logging.getLogger("crestgate")
    handler = Handler(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
