"""`headgate check`, `peek` and `reset`: one decision, from a shell.

A key under limits (`check user:42 --limit 10/min`), or a request under rules (`check --user 42 --path /orders`); here,
with stores of one's own, or by a service that runs (`--url`). A command has no traffic to keep up, so nothing answers
in the place of a store that is away: that is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, NamedTuple

import typer

from headgate.cli.decisions import decision_data, say_answer, say_reset
from headgate.cli.places import (
    ConfigOption,
    CountersOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    check_there,
    default_rules_store,
    settings_of,
    store_of,
)
from headgate.cli.remote import Service, service_of
from headgate.cli.remote_checks import answer_of, is_notation, question_of, reset_by
from headgate.cli.showing import say_json
from headgate.config.settings import Settings
from headgate.core.decision import Decision
from headgate.embedded.asking import Asking, CatalogPlans
from headgate.engine.bound import Bound, Engine, check_input
from headgate.engine.failure import FailurePolicy
from headgate.engine.plans import Resolver
from headgate.errors import ConfigError, HeadgateError
from headgate.rules.catalog import Catalog
from headgate.rules.context import RequestContext
from headgate.rules.editor import Editor
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Repository
from headgate.stores.port import LocalStore, Op, Outcome, Request
from headgate.stores.remote import RemoteStore
from headgate.stores.url import open_store

__all__ = ["add_checks"]

DENIED = 1
PATIENCE = 5.0
"""Seconds for a store to answer, where its URL does not say more: a command can wait longer than a request."""
NO_PLANS = (
    "name the settings that have it with --config, or add it (`headgate rules apply`, or POST /api/v1/plans of a "
    "service)"
)

KeyArgument = Annotated[str | None, typer.Argument(metavar="KEY", help="Who is limited: user:42.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", "-l", metavar="LIMIT", help="For KEY: '10/min', '5/s; 100/h' or a plan; repeatable."),
]
PlanOption = Annotated[
    list[str] | None, typer.Option("--plan", "-p", metavar="NAME", help="For KEY: a plan by its name; repeatable.")
]
CostOption = Annotated[int, typer.Option("--cost", metavar="N", help="How many units it takes.")]
UserOption = Annotated[str | None, typer.Option("--user", metavar="ID", help="A request by rules, instead of KEY.")]
IpOption = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Its address.")]
ApiKeyOption = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Its API key.")]
ClientOption = Annotated[str | None, typer.Option("--client", metavar="ID", help="Its client.")]
PathOption = Annotated[str | None, typer.Option("--path", metavar="PATH", help="Its path.")]
MethodOption = Annotated[str | None, typer.Option("--method", metavar="VERB", help="Its method.")]
TierOption = Annotated[str | None, typer.Option("--tier", metavar="TIER", help="Its user's tier [the rules know].")]
PolicyKeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="A key whose policy applies.")]


class Question(NamedTuple):
    """What is asked about, and where."""

    key: str | None
    limits: Sequence[str]
    plans: Sequence[str]
    context: RequestContext
    store: str | None
    config: str | None
    rules_store: str | None
    service: Service | None


class Answer(NamedTuple):
    """What became of it: a decision, unless counters were reset; and the counters, by key and name."""

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
    headgate check user:42 --limit 10/min
    headgate check user:42 --limit 10/min --store redis://localhost:6379/0
    headgate check --user 42 --path /orders --config headgate.yaml
    headgate check user:42 --plan gold --url http://127.0.0.1:8080
    """
    context = _context(user, ip, api_key, client, path, method, tier, policy_key)
    service = service_of(url, token, store=store, config=config, rules_store=rules_store)
    question = Question(key, limit or (), plan or (), context, store, config, rules_store, service)
    _decide(Op.TAKE, question, cost, as_json)


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
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what check would decide, and count nothing. Exit codes as check."""
    context = _context(user, ip, api_key, client, path, method, tier, policy_key)
    service = service_of(url, token, store=store, config=config, rules_store=rules_store)
    question = Question(key, limit or (), plan or (), context, store, config, rules_store, service)
    _decide(Op.PEEK, question, cost, as_json)


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
    store: CountersOption = None,
    config: ConfigOption = None,
    rules_store: RulesStoreOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget the counters of a KEY or a request.

    Those of the KEY under the limits, or of all rules that apply to the request. Where there is a rules store, its
    audit log says so.
    """
    context = _context(user, ip, api_key, client, path, method, tier, policy_key)
    service = service_of(url, token, store=store, config=config, rules_store=rules_store)
    question = Question(key, limit or (), plan or (), context, store, config, rules_store, service)
    _check_use(question)
    if service is not None:
        counters: Sequence[tuple[str, str]] = reset_by(service, _asked(question, None))
    else:
        counters = _ask(Op.RESET, question, 0).counters
    if as_json:
        say_json({"reset": [{"key": key, "rule": name} for key, name in counters]})
    else:
        say_reset(counters)


def _context(*values: str | None) -> RequestContext:
    names = ("user", "ip", "api_key", "client", "path", "method", "tier", "key")
    return RequestContext(**dict(zip(names, values, strict=True)))


def _decide(op: Op, question: Question, cost: int, as_json: bool) -> None:
    _check_use(question)
    if question.service is not None:
        data = answer_of(question.service, op, _asked(question, cost))
    else:
        decision = _ask(op, question, cost).decision
        assert decision is not None
        data = decision_data(decision)
    if as_json:
        say_json(data)
    else:
        say_answer(data, would=op is Op.PEEK)
    if not data["allowed"]:
        raise typer.Exit(DENIED)


def _asked(question: Question, cost: int | None) -> dict[str, Any]:
    """The question as a service takes it."""
    return question_of(question.key, [*question.limits, *question.plans], question.context, cost)


def _ask(op: Op, question: Question, cost: int) -> Answer:
    settings = settings_of(question.config)
    if question.rules_store:
        check_there(question.rules_store)
    by_rules = question.key is None
    needs_catalog = by_rules or bool(question.plans) or not all(map(is_notation, question.limits))
    rules_store = question.rules_store
    if not rules_store and (needs_catalog or op is Op.RESET):
        rules_store = default_rules_store(settings)
    if by_rules and rules_store is None and not settings.files.paths and not settings.records:
        raise ConfigError(
            "a request is decided by rules, and there is no ./.headgate/rules.db: name the settings with "
            "--config FILE, or --rules-store URL"
        )
    with ExitStack() as stack:
        url = store_of(question.store, settings)
        # Opened first, so that a reset that cannot be noted is not done.
        noting = stack.enter_context(_editor(rules_store if op is Op.RESET else None))
        catalog = None
        if needs_catalog:
            catalog = stack.enter_context(_catalog(settings, rules_store))
        store = stack.enter_context(_opened(url))
        try:
            answer = _answer(op, question, cost, store, catalog, noting)
        except HeadgateError:
            raise
        except ValueError as error:  # a key or a cost that cannot be
            raise ConfigError(str(error)) from None
    return answer


def _check_use(question: Question) -> None:
    a_request = question.context != RequestContext()
    if question.key is not None and a_request:
        raise ConfigError("write a KEY with --limit, or a request (--user, --ip, …), not both")
    if (question.limits or question.plans) and question.key is None:
        option, value = ("limit", "10/min") if question.limits else ("plan", "gold")
        raise ConfigError(f"--{option} goes with a KEY: headgate check user:42 --{option} {value}")
    for plan in filter(is_notation, question.plans):
        raise ConfigError(f"--plan names a plan, and {plan!r} is a limit: write --limit {plan!r}")
    if question.key is not None and not question.limits and not question.plans and question.service is None:
        raise ConfigError("which limit? Write --limit 10/min, or --key KEY for the policy of a key")
    if question.key is None and not a_request:
        raise ConfigError("who asks? Write a KEY with --limit, or a request: --user, --ip, --path, …")


def _answer(
    op: Op,
    question: Question,
    cost: int,
    store: LocalStore | RemoteStore,
    catalog: Catalog | None,
    noting: Editor | None,
) -> Answer:
    engine = Engine(store, FailurePolicy("closed", store.clock), None)
    if question.key is not None:
        key = check_input(question.key, cost)
        plans = CatalogPlans(catalog) if catalog is not None else None
        resolver = Resolver(plans)
        resolver.no_plans_hint = NO_PLANS if not question.limits else f"{NO_PLANS}; a limit is written as 10/min"
        if isinstance(store, RemoteStore):
            resolver.plan_of = store.plan_of
        bound = Bound(engine, resolver.chain([*question.limits, *question.plans]))
        outcomes = _apply(store, bound.request(op, key, cost), noting)
        counters = [(key, name) for name in bound.names]
        return Answer(None if op is Op.RESET else bound.finish(op, key, outcomes), counters)
    assert catalog is not None
    asking = Asking(catalog, engine)
    prepared = asking.prepare(op, question.context, cost)
    outcomes = [] if prepared.request is None else _apply(store, prepared.request, noting)
    members = [] if prepared.request is None else prepared.request.members
    counters = [(member.key, member.algorithm.label) for member in members]
    return Answer(None if op is Op.RESET else prepared.decision(outcomes), counters)


def _apply(store: LocalStore | RemoteStore, request: Request, noting: Editor | None) -> list[Outcome]:
    if noting is not None:
        with noting.resetting(*dict.fromkeys([member.key for member in request.members])):
            return _apply(store, request, None)
    if isinstance(store, RemoteStore):
        (outcomes,) = store.call([request], time.monotonic() + max(store.timeout, PATIENCE))
    else:
        (outcomes,) = store.apply([request])
    return outcomes


@contextmanager
def _opened(url: str | tuple[str, ...]) -> Iterator[LocalStore | RemoteStore]:
    store = open_store(url)
    try:
        if isinstance(store, RemoteStore):
            store.connect()
        yield store
    finally:
        store.close()


@contextmanager
def _catalog(settings: Settings, rules_store: str | None) -> Iterator[Catalog]:
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
    """What notes a reset, where there is a database for it: files are nobody's to write to."""
    if rules_store is None or "://" not in rules_store:
        yield None
        return
    repository = open_repository(rules_store)
    try:
        yield Editor(repository, actor())
    finally:
        repository.close()
