"""Groups of commands, such as `crestgate rules`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["command_group"]

USAGE_ERROR = 2


def command_group(purpose: str, default: str | None = None) -> typer.Typer:
    """An empty group. Without a command it prints its help to stderr and exits with 2; with a `default`, that is the
    command where none is named."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if default is not None and args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
                args = [default, *args]
            return super().parse_args(ctx, args)

    group = typer.Typer(cls=Group)

    @group.callback(help=purpose, invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help(), err=True)
            raise typer.Exit(USAGE_ERROR)

    return group
