"""Clients and their limits: `/ratelimiter/…`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.core.redaction import client_id_from_api_key
from crestgate.errors import NotFoundError, ReadOnlyError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.compat.clients import GLOBAL, TYPES, UNITS, ClientLimit, client_limit_of, read_client
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.subjects import counter_key
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.compat_models import ClientLimits, ClientOfLimits, Configuration, LimitNames, WriteResult
from crestgate.service.admin.context import AdminContext, ContextDep, EditorDep
from crestgate.service.admin.counters import read_counters
from crestgate.service.admin.params import MAX_NAME_BYTES, PageQuery, Query, next_link, page
from crestgate.service.admin.policies import NEXT
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.observability.worker_metrics import counter_name

__all__ = ["router"]

UNKNOWN = "client {!r} is not configured, and was not seen recently"

router = APIRouter(prefix="/ratelimiter", tags=["clients"])


class ClientQuery(Query):
    """The client."""

    clientId: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]  # noqa: N815 - the name in this API


@router.post("/configure-client", **describe("Configure a client", WriteResult, 409, 412, body=Configuration))
def configure_client(editor: EditorDep, body: JsonBody) -> Response:
    """Adds or replaces these limits, by limitType and limitName, all or none. Its other limits do not change."""
    problems = Problems()
    limits = [limit for _, limit in read_client(body, "", problems)]
    if not limits and not problems.entries:
        problems.add("limits", "is empty: write at least one {limitType, limitName, timeIntervalLimit}")
    problems.raise_any()
    client = limits[0].client
    editor.configure_client(client, limits)
    return _success(f"{len(limits)} {'limit' if len(limits) == 1 else 'limits'} of client {client!r} written")


@router.get("/client-limits", **describe("Get a client's limits and counters", ClientLimits, 400, 404))
async def client_limits(context: ContextDep, query: Annotated[ClientQuery, QueryParameters()]) -> Response:
    """The configured limits of a client, sorted by type and name, or the default limits for a client that was recently
    seen; with the remaining permits of each, and the time of its last counted request in milliseconds since the epoch.
    404 for other clients."""
    client, parts = query.clientId, context.dependencies
    rules = await asyncio.to_thread(context.rules)
    entries, limits = _limits_of(rules, client)
    configured = bool(entries)
    if not configured:
        if rules.knows_client(client, context.now_us()):
            raise NotFoundError(UNKNOWN.format(client))
        entries, limits = rules.default_clients, [_default(entry.rule) for entry in rules.default_clients]
    subjects = {"client": f"client:{client}"}
    chosen = [(counter_key(entry, subjects), entry) for entry in entries]
    decisions = await read_counters(parts.limiter, chosen)
    mine = parts.metrics.take_uses()
    counters = [counter_name(entry.counter, key) for key, entry in chosen]
    times, seen = await asyncio.to_thread(_last_seen, context, client, mine, counters)
    in_use = any(decision.remaining < decision.limit for decision in decisions)
    if not (configured or seen or in_use or any(times)):
        raise NotFoundError(UNKNOWN.format(client))
    shown = [
        {
            **limit,
            "availablePermits": decision.remaining,
            "maxPermits": decision.limit,
            "lastRequestTimeStamp": None if time is None else time // 1000,
        }
        for limit, decision, time in zip(limits, decisions, times, strict=True)
    ]
    return json_response({"clientId": client, "limits": shown})


@router.get("/configured-limits", **describe("List configured clients", list[ClientOfLimits], 400, headers=NEXT))
def configured_limits(
    request: Request, context: ContextDep, query: Annotated[PageQuery, QueryParameters()]
) -> Response:
    """All configured clients, including those of files, sorted by id."""
    rules = context.rules()
    ids, next_after = page(rules.clients, query, lambda client: bool(_limits_of(rules, client)[0]))
    shown = [{"clientId": client, "limits": _limits_of(rules, client)[1]} for client in ids]
    return json_response(shown, headers=next_link(request, next_after, query.limit))


@router.delete("/delete-limits", **describe("Delete limits of a client", WriteResult, 404, 409, 412, body=LimitNames))
def delete_limits(context: ContextDep, editor: EditorDep, body: JsonBody) -> Response:
    """Deletes these limits; 404, and none is deleted, if one does not exist."""
    client, names = _read_names(body)
    _check_writable(context, client, set(names))
    editor.delete_client_limits(client, names)
    return _success(f"{len(names)} {'limit' if len(names) == 1 else 'limits'} of client {client!r} deleted")


@router.delete("/delete-client", **describe("Delete a client", WriteResult, 400, 404, 409, 412))
def delete_client(context: ContextDep, editor: EditorDep, query: Annotated[ClientQuery, QueryParameters()]) -> Response:
    """Deletes all configured limits of a client. It has the default limits from now on."""
    _check_writable(context, query.clientId, None)
    editor.delete_client(query.clientId)
    return _success(f"client {query.clientId!r} deleted")


def _success(message: str) -> Response:
    return json_response({"status": "SUCCESS", "message": message})


def _last_seen(
    context: AdminContext, client: str, mine: dict[str, int], counters: list[str]
) -> tuple[list[int | None], bool]:
    """The last use of each counter, and whether any worker saw this client recently: by its name, or by the digest of
    an API key. `mine` are the uses that this worker has not published yet."""
    parts = context.dependencies
    parts.last_uses.note(mine)
    seen = (parts.metrics.clients.last_us, parts.worker_snapshots.seen().clients)
    known = any(name in clients for clients in seen for name in (client, client_id_from_api_key(client)))
    return parts.last_uses.find(counters), known


def _limits_of(rules: RuleSet, client: str) -> tuple[list[CompiledRule], list[dict[str, Any]]]:
    """The configured limits of a client, sorted by type and name: the rules, and each in the format of the API."""
    found = []
    for entry in rules.clients.get(client, ()):  # in an order that differs from worker to worker
        limit = client_limit_of(entry.rule)
        if limit is not None:
            found.append((limit.limit_type, limit.limit_name, entry, limit.to_data()))
    found.sort(key=lambda one: one[:2])
    return [one[2] for one in found], [one[3] for one in found]


def _default(rule: Rule) -> dict[str, Any]:
    """A default limit in the format of a configured one; without an interval if no unit fits."""
    units = UNITS.items() if rule.calendar is None else ()
    unit = next((name for name, seconds in units if seconds == rule.window_seconds), None)
    interval = None if unit is None else {"timeUnit": unit, "maxRequests": rule.limit}
    return {"limitType": "DEFAULT", "limitName": GLOBAL, "timeIntervalLimit": interval}


def _read_names(body: Any) -> tuple[str, list[tuple[str, str]]]:
    """The client and the limits that a body names; ValidationError, with all errors."""
    problems = Problems()
    fields = Fields(body, "", problems, ("clientId", "limits"))
    client: str = fields.text("clientId", required=True)
    items = fields.items("limits")
    if fields.is_mapping and not items and isinstance(fields.values.get("limits"), list | None):
        fields.report("limits", "is empty: write a list of {limitType, limitName}")
    names = [_name(item, field_path, problems) for field_path, item in items]
    problems.raise_any()
    return client, names


def _name(data: Any, at: str, problems: Problems) -> tuple[str, str]:
    fields = Fields(data, at, problems, ("limitType", "limitName"))
    limit_type: str = fields.choice("limitType", TYPES, "", required=True)
    name: str = fields.text("limitName", GLOBAL, required=limit_type != "DEFAULT")
    return limit_type, name.upper() if limit_type in ("DEFAULT", "METHOD") else name


def _check_writable(context: AdminContext, client: str, names: set[tuple[str, str]] | None) -> None:
    """ReadOnlyError if these limits of a client (None: all of them) are in a file."""
    limits: Mapping[str, ClientLimit] = {
        rule.rule_id: limit
        for rule in (entry.rule for entry in context.rules().clients.get(client, ()))
        if (limit := client_limit_of(rule)) is not None
    }
    for rule_id, limit in limits.items():
        if (names is None or (limit.limit_type, limit.limit_name) in names) and (
            context.dependencies.repository.get("rule", rule_id) is None
        ):
            what = f"limit {limit.limit_type} {limit.limit_name!r} of client {client!r}"
            raise ReadOnlyError(f"{what} is defined in a file, which is read-only here: change it there")
