"""Groups of commands, such as `headgate rules`: without a command, they show what there is."""

from __future__ import annotations

import typer

__all__ = ["command_group"]

WRONG_USE = 2


def command_group(purpose: str) -> typer.Typer:
    """An empty group. Named alone it prints its help to stderr and exits with 2: nothing was done."""
    group = typer.Typer()

    @group.callback(help=purpose, invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help(), err=True)
            raise typer.Exit(WRONG_USE)

    return group
