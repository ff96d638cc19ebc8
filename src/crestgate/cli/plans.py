"""`crestgate plans`: list, get, set and delete plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote

import typer

from crestgate.cli.checks import open_catalog
from crestgate.cli.completion import complete_plans
from crestgate.cli.groups import command_group
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    check_exists,
    default_rules_store,
    load_settings_for,
    open_rules_for,
)
from crestgate.cli.output import Cell, Column, print_json, print_line, print_table
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.remote_rules import ServiceRules
from crestgate.config.settings import Settings
from crestgate.errors import NotFoundError, ReadOnlyError
from crestgate.rules.diff import all_records
from crestgate.rules.editor import Editor
from crestgate.rules.plan import StoredPlan
from crestgate.rules.records import plan_body, plan_of, read_plan

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
    """List all plans, including those of the settings.

    \b
    crestgate plans list
    """
    plans = _read(rules_store, config, url, token)
    if as_json:
        print_json([{"name": name, **plan_body(plan)} for name, plan in sorted(plans.items())])
    elif plans:
        rows = [[name, _text(plan)] for name, plan in sorted(plans.items())]
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
    plan = _read(rules_store, config, url, token).get(name)
    if plan is None:
        raise NotFoundError(f"there is no plan {name!r}")
    if as_json:
        print_json({"name": name, **plan_body(plan)})
    else:
        print_line(f"{name}: {_text(plan)}")


@plans_app.command("set")
def set_plan(
    name: NameArgument,
    limits: Annotated[list[str], typer.Argument(metavar="LIMIT...", help="'10/second burst 20', '5000/day'.")],
    lease: Annotated[
        bool, typer.Option("--lease", help="Decide from slices of the limits that are charged in advance.")
    ] = False,
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
    plan = read_plan(name, limits, lease)
    with _writer(rules_store, config, url, token) as (put, _):
        put(name, plan)
    if as_json:
        print_json({"name": name, **plan_body(plan)})
    else:
        print_line(Cell("set", "green"), f"  plan {name}: {_text(plan)}")


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
    with _writer(rules_store, config, url, token) as (_, remove):
        remove(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_line(Cell("deleted", "red"), f"  plan {name}")


Put = Callable[[str, StoredPlan], object]


def _text(plan: StoredPlan) -> str:
    limits = "; ".join(plan.limits)
    return f"{limits} (lease)" if plan.lease else limits


def _read(rules_store: str | None, config: str | None, url: str | None, token: str | None) -> Mapping[str, StoredPlan]:
    """The plans of a service or of one database; without options those in force, as a service of this folder has them:
    of the settings and of the database."""
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        return {record.id: plan_of(record) for record in all_records(ServiceRules(service), "plan")}
    if not rules_store:
        settings = load_settings_for(config)
        database = default_rules_store(settings)
        if settings.files.paths or settings.files.records:
            if database is not None:
                check_exists(database)
            with open_catalog(settings, database) as catalog:
                return catalog.current.plans
    with open_rules_for(rules_store, config) as repository:
        return {record.id: plan_of(record) for record in all_records(repository, "plan")}


@contextmanager
def _writer(
    rules_store: str | None, config: str | None, url: str | None, token: str | None
) -> Iterator[tuple[Put, Callable[[str], None]]]:
    """How to write a plan of a service or a database, and how to delete one."""
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        client = service
        yield lambda name, plan: _put(client, name, plan), lambda name: client.delete(_path(name))
        return
    with open_rules_for(rules_store, config) as repository:
        editor = Editor(repository, actor())

        def check(name: str) -> None:
            if not rules_store and repository.get("plan", name) is None:
                _check_not_in_settings(load_settings_for(config), name)

        def put(name: str, plan: StoredPlan) -> None:
            check(name)
            editor.put_plan(name, plan.limits, lease=plan.lease)

        def delete(name: str) -> None:
            check(name)
            editor.delete_plan(name)

        yield put, delete


def _check_not_in_settings(settings: Settings, name: str) -> None:
    """ReadOnlyError for a plan of the settings, as from a service: one in the database would silently replace it."""
    if settings.rule_files().get("plan", name) is not None:
        raise ReadOnlyError(f"plan {name!r} is defined in a file, which is read-only here: change it there")


def _put(service: ServiceClient, name: str, plan: StoredPlan) -> None:
    try:
        service.put(_path(name), plan_body(plan))
    except NotFoundError:
        service.post(PLANS, {"name": name, **plan_body(plan)})


def _path(name: str) -> str:
    return f"{PLANS}/{quote(name, safe='')}"
