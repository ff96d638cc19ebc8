"""`crestgate explain`: why a request would be allowed or denied.

In this process, from the rules and counters of `crestgate serve`, or by a running service (`--url`). Nothing is
consumed. Where the store does not answer, the failure policy of the settings does, as in the service, and the output
says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from crestgate.cli.attributes import AttrOption, read_attributes
from crestgate.cli.checks import call_store, open_catalog
from crestgate.cli.decisions import decision_data, print_verdict
from crestgate.cli.locations import (
    ConfigOption,
    CountersOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    check_exists,
    default_rules_store,
    load_settings_for,
    store_url,
)
from crestgate.cli.output import Cell, Column, escape_control, format_duration, print_json, print_line, print_table
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.remote_checks import is_notation, request_body
from crestgate.config.settings import Settings
from crestgate.core.context import RequestContext
from crestgate.core.plans import Resolver
from crestgate.errors import ConfigError, CrestgateError
from crestgate.limiter.backend import Backend
from crestgate.limiter.chain import Bound
from crestgate.limiter.failure_policy import FailurePolicy
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.catalog import Catalog
from crestgate.rules.evaluator import CatalogPlans, RuleEvaluator
from crestgate.rules.explanation import Explanation, explain_rules
from crestgate.rules.explanation_data import explanation_data
from crestgate.service.observability.labels import key_label
from crestgate.stores.factory import open_store
from crestgate.stores.port import Op
from crestgate.stores.remote_store import store_title

__all__ = ["explain"]

DENIED = 1
MAX_MISSES = 10
"""Rules that do not match, in a table; JSON has more."""
COLUMNS = (
    *(Column("rule", wraps=True), Column("verdict")),
    *(Column("limit", drop_order=2), Column("used", drop_order=4), Column("left", drop_order=5)),
    *(Column("resets in", drop_order=3), Column("store", wraps=True, drop_order=1), Column("why", wraps=True)),
)
VERDICTS = {
    "applies": Cell("applies", "green"),
    "lost": Cell("lost", "yellow"),
    "shadow": Cell("shadow", "cyan"),
    "not_matched": Cell("no match", "dim"),
}

PlanOption = Annotated[
    list[str] | None, typer.Option("--plan", "-p", metavar="NAME", help="Plans of --key, not its policy; repeatable.")
]


def explain(
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="The request's user.")] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="PATH", help="Its path.")] = None,
    method: Annotated[str | None, typer.Option("--method", metavar="VERB", help="Its method.")] = None,
    ip: Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Its address.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Its API key.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="ID", help="Its client.")] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="TIER", help="Its user's tier [as in the rules].")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="A key whose policy, or plans, apply.")
    ] = None,
    attr: AttrOption = None,
    plan: PlanOption = None,
    cost: Annotated[int, typer.Option("--cost", metavar="N", help="Units that it would take.")] = 1,
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why a request would be allowed or denied. Exit code 0 allowed, 1 denied.

    Every rule that was considered, those that apply with their counters, and what would change the decision. Nothing is
    consumed:

    \b
    crestgate explain --user 42 --path /orders/7
    crestgate explain --user 42 --path /orders/7 --method POST --cost 5
    crestgate explain --attr org=acme --attr model=large
    crestgate explain --key user:42 --plan gold --url http://127.0.0.1:8080
    """
    context = RequestContext(
        ip=ip,
        user=user,
        api_key=api_key,
        client=client,
        path=path,
        method=method,
        tier=tier,
        key=key,
        attributes=read_attributes(attr),
    )
    service = remote_service(url, token, store=store, config=config, rules_store=rules_store)
    _check_usage(context, plan or ())
    if service is not None:
        data = _explain_remotely(service, context, plan or (), cost)
    else:
        data = _explain_locally(load_settings_for(config), context, plan or (), cost, store, rules_store)
    if as_json:
        print_json(data)
    else:
        _print(data)
    if not data["decision"]["allowed"]:
        raise typer.Exit(DENIED)


def _check_usage(context: RequestContext, plans: Sequence[str]) -> None:
    given = [name for name, value in asdict(context).items() if value is not None]
    if not given:
        raise ConfigError("nothing to explain: describe a request, as in crestgate explain --user 42 --path /orders/7")
    if plans and given != ["key"]:
        raise ConfigError("--plan needs a --key and no other request option: crestgate explain --key a --plan gold")
    for plan in filter(is_notation, plans):
        raise ConfigError(f"--plan names a plan, and {plan!r} is a limit: see crestgate peek --limit")


def _explain_remotely(
    service: ServiceClient, context: RequestContext, plans: Sequence[str], cost: int
) -> dict[str, Any]:
    body = request_body(context.key if plans else None, plans, context, cost)
    data = service.post("/api/v1/explain", body)
    decision = data.get("decision")
    if (
        not isinstance(decision, dict)
        or not isinstance(decision.get("allowed"), bool)
        or not all(isinstance(data.get(name), list) for name in ("rules", "changes"))
    ):
        raise service.unexpected("its response is not an explanation")
    return data


def _explain_locally(
    settings: Settings,
    context: RequestContext,
    plans: Sequence[str],
    cost: int,
    store_option: str | None,
    rules_store: str | None,
) -> dict[str, Any]:
    if rules_store:
        check_exists(rules_store)
    rules_store = rules_store or default_rules_store(settings)
    if rules_store is None and not settings.files.paths and not settings.records:
        raise ConfigError(
            "a request is explained by rules, and there is no ./.crestgate/rules.db: name the settings with "
            "--config FILE, or --rules-store URL, or use a running service with --url URL"
        )
    url = store_url(store_option, settings)
    with open_catalog(settings, rules_store) as catalog:
        store = open_store(url)
        backend = Backend(store, FailurePolicy(settings.on_store_error, store.clock), None)
        try:
            pending, explanation = _prepare(catalog, backend, context, plans, cost)
            outcomes = call_store(backend, pending) if pending.applies else []
        except CrestgateError:
            raise
        except ValueError as error:  # an invalid key or cost
            raise ConfigError(str(error)) from None
        finally:
            store.close()
    decision = pending.finish(outcomes)
    data = explanation_data(
        pending,
        decision,
        explanation,
        title=store_title(store),
        title_of=partial(store_title, store),
        show_key=partial(key_label, keys=settings.logs.keys),
    )
    return {"decision": decision_data(decision), **data}


def _prepare(
    catalog: Catalog, backend: Backend, context: RequestContext, plans: Sequence[str], cost: int
) -> tuple[PendingCheck, Explanation | None]:
    if plans:
        assert context.key is not None
        bound = Bound(backend, Resolver(CatalogPlans(catalog)).chain(list(plans)))
        return bound.prepare(Op.PEEK, context.key, cost), None
    evaluator = RuleEvaluator(catalog, backend)
    while True:
        rules = catalog.current
        now_us = backend.store.clock.ticks()
        pending = evaluator.prepare(Op.PEEK, context, cost, now_us)
        explanation = explain_rules(rules, context, now_us)
        if rules is catalog.current:  # else they have changed meanwhile
            return pending, explanation


def _print(data: Mapping[str, Any]) -> None:
    decision = data["decision"]
    print_verdict(decision, would=True)
    rules = data["rules"]
    missed = [rule for rule in rules if rule["status"] == "not_matched"]
    shown = [rule for rule in rules if rule["status"] != "not_matched"] + missed[:MAX_MISSES]
    if shown:
        print_table(COLUMNS, [_row(rule) for rule in shown])
    hidden = data["considered"] - len(shown)
    if hidden > 0:
        print_line(Cell(f"{hidden} more of {data['considered']} rules do not match", "dim"))
    print_line("counters: ", escape_control(data["store"]))
    if data["changes"]:
        print_line("what would change it:")
    for change in data["changes"]:
        print_line(f"- {escape_control(change)}")


def _row(rule: Mapping[str, Any]) -> list[str | Cell]:
    counter = rule["counter"]
    numbers = ["-", "-", "-", "-"]
    if counter is not None:
        resets = format_duration(counter["reset_after"])
        numbers = [str(counter["used"]), str(counter["remaining"]), resets, counter["store"]]
    verdict = VERDICTS.get(rule["status"], Cell(str(rule["status"])))
    limit = f"{rule['limit']} (lease)" if rule.get("lease") else rule["limit"]
    return [rule["rule_id"], verdict, limit, *numbers, rule["reason"]]
