"""`crestgate tier`: set the tier of a user."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    open_rules_for,
)
from crestgate.cli.output import Cell, print_json, print_line
from crestgate.cli.remote import remote_service
from crestgate.errors import ConfigError, NotFoundError
from crestgate.rules.editor import Editor
from crestgate.rules.ruleset import DEFAULT_TIER

__all__ = ["tier"]


def tier(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, as checks name it.")],
    name: Annotated[str | None, typer.Argument(metavar="TIER", help="Its new tier.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help=f"Instead of TIER: back to tier {DEFAULT_TIER}.")] = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the tier of a user. What was used is kept.

    \b
    crestgate tier acme premium
    crestgate tier acme --remove
    """
    if (name is None) != remove:
        raise ConfigError("name the TIER, as `crestgate tier acme premium`, or --remove it")
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        service.put(f"/api/v1/users/{quote(user, safe='')}/tier", {"tier": name})
    else:
        with open_rules_for(rules_store, config) as repository:
            try:
                Editor(repository, actor()).set_tier(user, name)
            except NotFoundError:
                if name is not None:
                    raise
    if as_json:
        print_json({"user_id": user, "tier": name or DEFAULT_TIER})
    else:
        print_line(Cell("set", "green"), f"  {user} is in tier {name or DEFAULT_TIER}")
