"""All commands put together, and what becomes of their errors: one line on stderr and an exit code, never a traceback.

0 fine (of a check: allowed)   1 denied; of `rules diff`: different   2 wrong use, or it could not be done
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

from headgate.cli import version
from headgate.cli.checks import add_checks
from headgate.cli.config import config_app
from headgate.cli.db import db_app
from headgate.cli.keys import keys_app
from headgate.cli.rules import rules_app
from headgate.cli.serve import serve
from headgate.cli.showing import complain, say
from headgate.errors import HeadgateError, Invalid

__all__ = ["app", "run"]

WRONG_USE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""As a shell names a command that was ended by the signal."""
_SECRET = re.compile(r"://.*@")
_TOKEN = re.compile(r"hg_[0-9a-f]{12}_[\w-]+")

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(serve)
add_checks(app)
app.add_typer(rules_app, name="rules")
app.add_typer(keys_app, name="keys")
app.add_typer(config_app, name="config")
app.add_typer(db_app, name="db")


def _say_version(asked: bool) -> None:
    if asked:
        say(version())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def headgate(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say what is installed, how built.")
    ] = False,
) -> None:
    """Rate limiting for Python services.

    Exit codes: 0 fine or allowed, 1 denied, 2 wrong use or an error.
    """
    if context.invoked_subcommand is None:
        say(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; the exit code."""
    with _warnings_told():
        try:
            code = app(list(arguments), prog_name="headgate", standalone_mode=False)
            sys.stdout.flush()
        except HeadgateError as error:
            return _failed(error)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except (BrokenPipeError, SystemExit):  # whoever was listening has heard enough; typer would exit for it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody wants a traceback from a command
            return _unforeseen(error)
    return code if isinstance(code, int) else 0


def _failed(error: HeadgateError) -> int:
    if isinstance(error, Invalid) and any(problem.file is not None for problem in error.problems):
        for problem in error.problems:  # as compilers do, so that editors find the place
            complain(str(problem), prefix="")
    else:
        complain(str(error))
    return WRONG_USE


def _unforeseen(error: Exception) -> int:
    """Wrong use, which typer has found; else a mistake of Headgate's own."""
    message = getattr(error, "format_message", None)
    if message is None:
        if sys.flags.dev_mode:
            raise error
        complain(f"{type(error).__name__}: {error} (a mistake in Headgate: `python -X dev -m headgate` shows where)")
        return WRONG_USE
    # What was typed may be a URL, or a key, in the wrong place.
    said = _TOKEN.sub("hg_***", _SECRET.sub("://***@", " ".join(message().split())))
    context = getattr(error, "ctx", None)
    complain(f"{said} (see {context.command_path} --help)" if context is not None else said)
    return WRONG_USE


@contextmanager
def _warnings_told() -> Iterator[None]:
    """What is logged while a command runs is said in the command's own way."""

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(record.getMessage())

    log = logging.getLogger("headgate")
    teller = Teller(logging.WARNING)
    log.addHandler(teller)
    try:
        yield
    finally:
        log.removeHandler(teller)
