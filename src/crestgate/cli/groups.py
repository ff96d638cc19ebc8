"""Groups of commands, such as `crestgate rules`."""

from __future__ import annotations

import typer

__all__ = ["command_group"]

USAGE_ERROR = 2


def command_group(purpose: str) -> typer.Typer:
    """An empty group. Without a command it prints its help to stderr and exits with 2."""
    group = typer.Typer()

    @group.callback(help=purpose, invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help(), err=True)
            raise typer.Exit(USAGE_ERROR)

    return group
