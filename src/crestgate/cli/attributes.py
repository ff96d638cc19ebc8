"""`--attr NAME=VALUE`: the own dimensions of a request, of all commands that take a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from crestgate.errors import ConfigError

__all__ = ["AttrOption", "read_attributes"]

AttrOption = Annotated[
    list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="An attribute: org=acme; repeatable.")
]


def read_attributes(options: Sequence[str] | None) -> dict[str, str] | None:
    """The attributes of `--attr` options; None without any. Names and values are validated with the request.

    >>> read_attributes(["org=acme", "model=a=b"])
    {'org': 'acme', 'model': 'a=b'}
    """
    found: dict[str, str] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ConfigError(f"--attr is NAME=VALUE, such as org=acme, not {option!r}")
        if name in found:
            raise ConfigError(f"--attr has {name!r} twice: write each attribute once")
        found[name] = value
    return found or None
