"""`crestgate check`, `peek` and `reset`: one decision, from a shell.

A key under limits (`check user:42 --limit 10/min`), or a request under rules (`check --user 42 --path /orders`); in
this process, or by a running service (`--url`). If the store is unavailable, the failure policy of the settings decides
a check, as in a service, and the output says so. A reset is an error then: no policy can do it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Annotated, Any, NamedTuple

import typer

from crestgate.cli.attributes import AttrOption, read_attributes
from crestgate.cli.decisions import decision_data, policy_reason, print_decision, print_reset
from crestgate.cli.locations import (
    ConfigOption,
    CountersOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    check_exists,
    default_rules_store,
    load_settings_for,
    store_url,
)
from crestgate.cli.output import print_json
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.remote_checks import decide_remotely, is_notation, request_body, reset_remotely
from crestgate.config.settings import Settings
from crestgate.core.bounds import check_input
from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.plans import Resolver
from crestgate.errors import ConfigError, CrestgateError, StoreError
from crestgate.limiter.backend import Backend
from crestgate.limiter.chain import Bound
from crestgate.limiter.failure_policy import FailurePolicy
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.catalog import Catalog
from crestgate.rules.editor import Editor
from crestgate.rules.evaluator import CatalogPlans, RuleEvaluator
from crestgate.rules.port import Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.stores.factory import open_store
from crestgate.stores.port import Op, Outcome, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["STORE_TIMEOUT", "add_checks", "call_store", "open_catalog"]

DENIED = 1
STORE_TIMEOUT = 5.0
"""Minimum timeout of a store call: a command can wait longer than a request."""
NO_PLANS_HINT = (
    "name the settings that have it with --config, or add it (`crestgate rules apply`, or POST /api/v1/plans of a "
    "service)"
)

KeyArgument = Annotated[str | None, typer.Argument(metavar="KEY", help="What is limited: user:42.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", "-l", metavar="LIMIT", help="For KEY: '10/min', '5/s; 100/h' or a plan; repeatable."),
]
PlanOption = Annotated[
    list[str] | None, typer.Option("--plan", "-p", metavar="NAME", help="For KEY: a plan by its name; repeatable.")
]
CostOption = Annotated[int, typer.Option("--cost", metavar="N", help="Units to take.")]
UserOption = Annotated[str | None, typer.Option("--user", metavar="ID", help="A request by rules, instead of KEY.")]
IpOption = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Its address.")]
ApiKeyOption = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Its API key.")]
ClientOption = Annotated[str | None, typer.Option("--client", metavar="ID", help="Its client.")]
PathOption = Annotated[str | None, typer.Option("--path", metavar="PATH", help="Its path.")]
MethodOption = Annotated[str | None, typer.Option("--method", metavar="VERB", help="Its method.")]
TierOption = Annotated[str | None, typer.Option("--tier", metavar="TIER", help="Its user's tier [as in the rules].")]
PolicyKeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="A key whose policy applies.")]


class CheckCommand(NamedTuple):
    """The key or request, and where to decide it."""

    key: str | None
    limits: Sequence[str]
    plans: Sequence[str]
    context: RequestContext
    store: str | None
    config: str | None
    rules_store: str | None
    service: ServiceClient | None


class Result(NamedTuple):
    """The decision, None for a reset; and the counters, by key and name."""

    decision: Decision | None
    counters: Sequence[tuple[str, str]]


def add_checks(app: typer.Typer) -> None:
    """Add the three commands to the command line."""
    app.command()(check)
    app.command()(peek)
    app.command()(reset)


def check(
    key: KeyArgument = None,
    limit: LimitOption = None,
    plan: PlanOption = None,
    cost: CostOption = 1,
    user: UserOption = None,
    ip: IpOption = None,
    api_key: ApiKeyOption = None,
    client: ClientOption = None,
    path: PathOption = None,
    method: MethodOption = None,
    tier: TierOption = None,
    policy_key: PolicyKeyOption = None,
    attr: AttrOption = None,
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide a request and count it. Exit code 0 allowed, 1 denied.

    A KEY under limits, or a request (--user, --ip, …) under the rules of the settings:

    \b
    crestgate check user:42 --limit 10/min
    crestgate check user:42 --limit 10/min --store redis://localhost:6379/0
    crestgate check --user 42 --path /orders --config crestgate.yaml
    crestgate check --attr org=acme --attr model=large
    crestgate check user:42 --plan gold --url http://127.0.0.1:8080
    """
    context = _context(attr, ip, user, api_key, client, path, method, tier, policy_key)
    service = remote_service(url, token, store=store, config=config, rules_store=rules_store)
    command = CheckCommand(key, limit or (), plan or (), context, store, config, rules_store, service)
    _decide(Op.TAKE, command, cost, as_json)


def peek(
    key: KeyArgument = None,
    limit: LimitOption = None,
    plan: PlanOption = None,
    cost: CostOption = 1,
    user: UserOption = None,
    ip: IpOption = None,
    api_key: ApiKeyOption = None,
    client: ClientOption = None,
    path: PathOption = None,
    method: MethodOption = None,
    tier: TierOption = None,
    policy_key: PolicyKeyOption = None,
    attr: AttrOption = None,
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what check would decide, without counting it. Exit codes as check."""
    context = _context(attr, ip, user, api_key, client, path, method, tier, policy_key)
    service = remote_service(url, token, store=store, config=config, rules_store=rules_store)
    command = CheckCommand(key, limit or (), plan or (), context, store, config, rules_store, service)
    _decide(Op.PEEK, command, cost, as_json)


def reset(
    key: KeyArgument = None,
    limit: LimitOption = None,
    plan: PlanOption = None,
    user: UserOption = None,
    ip: IpOption = None,
    api_key: ApiKeyOption = None,
    client: ClientOption = None,
    path: PathOption = None,
    method: MethodOption = None,
    tier: TierOption = None,
    policy_key: PolicyKeyOption = None,
    attr: AttrOption = None,
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reset the counters of a KEY or a request.

    Those of the KEY under the limits, or of all rules that apply to the request. A rules store records it in its audit
    log.
    """
    context = _context(attr, ip, user, api_key, client, path, method, tier, policy_key)
    service = remote_service(url, token, store=store, config=config, rules_store=rules_store)
    command = CheckCommand(key, limit or (), plan or (), context, store, config, rules_store, service)
    _check_usage(command)
    if service is not None:
        counters: Sequence[tuple[str, str]] = reset_remotely(service, _body(command, None))
    else:
        counters = _run(Op.RESET, command, 0).counters
    if as_json:
        print_json({"reset": [{"key": key, "rule": name} for key, name in counters]})
    else:
        print_reset(counters)


def _context(attr: Sequence[str] | None, *values: str | None) -> RequestContext:
    """The context of attributes, and of values in the order of the other fields."""
    names = [one.name for one in fields(RequestContext) if one.name != "attributes"]
    given: dict[str, Any] = dict(zip(names, values, strict=True))
    return RequestContext(**given, attributes=read_attributes(attr))


def _decide(op: Op, command: CheckCommand, cost: int, as_json: bool) -> None:
    _check_usage(command)
    if command.service is not None:
        data = decide_remotely(command.service, op, _body(command, cost))
    else:
        decision = _run(op, command, cost).decision
        assert decision is not None
        data = decision_data(decision)
    if as_json:
        reason = policy_reason(data)
        print_json(data if reason is None else {**data, "failure_policy": reason})
    else:
        print_decision(data, would=op is Op.PEEK)
    if not data["allowed"]:
        raise typer.Exit(DENIED)


def _body(command: CheckCommand, cost: int | None) -> dict[str, Any]:
    """The body of the call to a service."""
    return request_body(command.key, [*command.limits, *command.plans], command.context, cost)


def _run(op: Op, command: CheckCommand, cost: int) -> Result:
    settings = load_settings_for(command.config)
    if command.rules_store:
        check_exists(command.rules_store)
    has_no_key = command.key is None
    needs_catalog = has_no_key or bool(command.plans) or not all(map(is_notation, command.limits))
    rules_store = command.rules_store
    if not rules_store and (needs_catalog or op is Op.RESET):
        rules_store = default_rules_store(settings)
    if has_no_key and rules_store is None and not settings.files.paths and not settings.records:
        raise ConfigError(
            "a request is decided by rules, and there is no ./.crestgate/rules.db: name the settings with "
            "--config FILE, or --rules-store URL"
        )
    with ExitStack() as stack:
        url = store_url(command.store, settings)
        # Opened first: a reset that cannot be audited is not done.
        auditor = stack.enter_context(_editor(rules_store if op is Op.RESET else None))
        catalog = None
        if needs_catalog:
            catalog = stack.enter_context(open_catalog(settings, rules_store))
        store = open_store(url)
        stack.callback(store.close)
        backend = Backend(store, FailurePolicy(settings.on_store_error, store.clock), None)
        stack.callback(backend.drain)
        try:
            result = _execute(op, command, cost, backend, catalog, auditor)
        except CrestgateError:
            raise
        except ValueError as error:  # an invalid key or cost
            raise ConfigError(str(error)) from None
    return result


def _check_usage(command: CheckCommand) -> None:
    has_context = command.context != RequestContext()
    if command.key is not None and has_context:
        raise ConfigError("write a KEY with --limit, or a request (--user, --ip, …), not both")
    if (command.limits or command.plans) and command.key is None:
        option, value = ("limit", "10/min") if command.limits else ("plan", "gold")
        raise ConfigError(f"--{option} requires a KEY: crestgate check user:42 --{option} {value}")
    for plan in filter(is_notation, command.plans):
        raise ConfigError(f"--plan names a plan, and {plan!r} is a limit: write --limit {plan!r}")
    if command.key is not None and not command.limits and not command.plans and command.service is None:
        raise ConfigError("a KEY requires a limit: write --limit 10/min, or --key KEY for the policy of a key")
    if command.key is None and not has_context:
        raise ConfigError("nothing to check: write a KEY with --limit, or a request: --user, --ip, --path, …")


def _execute(
    op: Op,
    command: CheckCommand,
    cost: int,
    backend: Backend,
    catalog: Catalog | None,
    auditor: Editor | None,
) -> Result:
    store = backend.store
    if command.key is not None:
        key = check_input(command.key, cost)
        plans = CatalogPlans(catalog) if catalog is not None else None
        resolver = Resolver(plans)
        resolver.no_plans_hint = (
            NO_PLANS_HINT if not command.limits else f"{NO_PLANS_HINT}; a limit is written as 10/min"
        )
        if isinstance(store, RemoteStore):
            resolver.plan_of = store.plan_of
        bound = Bound(backend, resolver.chain([*command.limits, *command.plans]))
        check = bound.prepare(op, key, cost)
        outcomes = _apply(backend, check, auditor)
        counters = [(key, name) for name in bound.names]
        return Result(None if op is Op.RESET else check.finish(outcomes), counters)
    assert catalog is not None
    check = RuleEvaluator(catalog, backend).prepare(op, command.context, cost)
    outcomes = _apply(backend, check, auditor) if check.applies else []
    counters = [(member.key, member.algorithm.label) for member in check.members]
    return Result(None if op is Op.RESET else check.finish(outcomes), counters)


def _apply(backend: Backend, check: PendingCheck, auditor: Editor | None) -> Sequence[Outcome]:
    if check.op is not Op.RESET:
        return call_store(backend, check)
    if auditor is None:
        return _send(backend, check)
    with auditor.resetting(*dict.fromkeys([member.key for member in check.members])):
        return _send(backend, check)


def call_store(backend: Backend, check: PendingCheck) -> Sequence[Outcome]:
    """What the store answers; else the failure policy, which logs the error."""
    try:
        return _send(backend, check)
    except StoreError as error:
        return backend.answer(error, [check])[0]


def _send(backend: Backend, request: Request) -> Sequence[Outcome]:
    store = backend.remote
    if store is None:
        return backend.apply([request])[0]
    store.connect()
    return store.call([request], time.monotonic() + max(store.timeout, STORE_TIMEOUT))[0]


@contextmanager
def open_catalog(settings: Settings, rules_store: str | None) -> Iterator[Catalog]:
    """The rules of the settings and of a database together, as a service has them."""
    sources: list[Repository] = [settings.rule_files()]
    if rules_store is not None:
        sources.append(open_repository(rules_store))
    catalog = Catalog(sources)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def _editor(rules_store: str | None) -> Iterator[Editor | None]:
    """Editor for the audit log of a reset, if there is a rule database."""
    if rules_store is None or "://" not in rules_store:
        yield None
        return
    repository = open_repository(rules_store)
    try:
        yield Editor(repository, actor())
    finally:
        repository.close()
