"""`crestgate plans`: list, get, set and delete plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import quote

import typer

from crestgate.cli.completion import complete_plans
from crestgate.cli.groups import command_group
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    open_rules_for,
)
from crestgate.cli.output import Cell, Column, print_json, print_line, print_table
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.remote_rules import ServiceRules
from crestgate.errors import NotFoundError
from crestgate.rules.diff import all_records
from crestgate.rules.editor import Editor
from crestgate.rules.port import Lookup, Record
from crestgate.rules.records import plan_of, read_plan

__all__ = ["plans_app"]

PLANS = "/api/v1/plans"

plans_app = command_group("List and change plans.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", autocompletion=complete_plans)]


@plans_app.command("list")
def list_plans(
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all plans.

    \b
    crestgate plans list
    """
    with _plans(rules_store, config, url, token) as (plans, _, _):
        found = [_data(record) for record in all_records(plans, "plan")]
    if as_json:
        print_json(found)
    elif found:
        rows = [[str(one["name"]), "; ".join(one["limits"])] for one in found]
        print_table((Column("plan", wraps=True), Column("limits", wraps=True)), rows)
    else:
        print_line("no plans")


@plans_app.command()
def get(
    name: NameArgument,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one plan.

    \b
    crestgate plans get gold
    """
    with _plans(rules_store, config, url, token) as (plans, _, _):
        record = plans.get("plan", name)
    if record is None:
        raise NotFoundError(f"there is no plan {name!r}")
    data = _data(record)
    if as_json:
        print_json(data)
    else:
        print_line(f"{name}: {'; '.join(data['limits'])}")


@plans_app.command("set")
def set_plan(
    name: NameArgument,
    limits: Annotated[list[str], typer.Argument(metavar="LIMIT...", help="'10/second burst 20', '5000/day'.")],
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a plan, or replace its limits. What was used is kept.

    \b
    crestgate plans set gold '10/second burst 20' 5000/day
    """
    read = list(read_plan(name, limits))
    with _plans(rules_store, config, url, token) as (_, put, _):
        put(name, read)
    if as_json:
        print_json({"name": name, "limits": read})
    else:
        print_line(Cell("set", "green"), f"  plan {name}: {'; '.join(read)}")


@plans_app.command()
def delete(
    name: NameArgument,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a plan.

    \b
    crestgate plans delete gold
    """
    with _plans(rules_store, config, url, token) as (_, _, remove):
        remove(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_line(Cell("deleted", "red"), f"  plan {name}")


Put = Callable[[str, list[str]], object]


@contextmanager
def _plans(
    rules_store: str | None, config: str | None, url: str | None, token: str | None
) -> Iterator[tuple[Lookup, Put, Callable[[str], None]]]:
    """The plans of a service or a database, and how to write and delete one."""
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        client = service
        yield (
            ServiceRules(client),
            lambda name, limits: _put(client, name, limits),
            lambda name: client.delete(_path(name)),
        )
        return
    with open_rules_for(rules_store, config) as repository:
        editor = Editor(repository, actor())
        yield repository, editor.put_plan, editor.delete_plan


def _put(service: ServiceClient, name: str, limits: list[str]) -> None:
    try:
        service.put(_path(name), {"limits": limits})
    except NotFoundError:
        service.post(PLANS, {"name": name, "limits": limits})


def _path(name: str) -> str:
    return f"{PLANS}/{quote(name, safe='')}"


def _data(record: Record) -> dict[str, Any]:
    return {"name": record.id, "limits": list(plan_of(record))}
