"""What if: `POST /api/v1/simulate` replays recent traffic against changed rules, and compares with those in force.

It runs in a thread, one at a time in each worker, within bounds of requests and seconds. Compiled code does not let
other threads run by itself, so it is replayed in short slices, with a pause after each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from crestgate.core.dimensions import join_parts
from crestgate.core.redaction import client_id_from_api_key
from crestgate.errors import NotFoundError, Problem, ValidationError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.rule import ANY, Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.context import AdminContext, ContextDep
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.admin.simulate_models import SimulateBody, SimulationReport
from crestgate.service.checks.traffic import MAX_MINUTES
from crestgate.service.node import TRAFFIC
from crestgate.service.observability.traffic_files import TrafficFile, TrafficFiles
from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.replay import Replay
from crestgate.simulate.report import build_report, share

__all__ = ["ONE_AT_A_TIME", "router"]

MAX_RULES = 100
MAX_REQUESTS = 200_000
MAX_SECONDS = 10.0
MAX_KEYS = 200_000
COLLECT_SECONDS = 5.0
SLICE = 50
PAUSE_SECONDS = 0.0005
ONE_AT_A_TIME = Lock()
"""In this worker."""
router = APIRouter(tags=["rules"])


@router.post(
    "/api/v1/simulate", **describe("Simulate rules on recent traffic", SimulationReport, 404, body=SimulateBody)
)
def simulate_rules(context: ContextDep, body: JsonBody) -> Response:
    """Replays the checks of the last minutes against the rules in force with some of them replaced or added, and
    compares with the rules in force. Changes nothing, and counts nothing."""
    problems = Problems()
    fields = Fields(body, "", problems, ("rules", "minutes"))
    changed = _rules(fields, problems)
    minutes: int = fields.integer("minutes", MAX_MINUTES, minimum=1, maximum=MAX_MINUTES)
    problems.raise_any()
    for rule in changed:
        context.check_store(rule)
    if context.dependencies.traffic is None:
        raise NotFoundError("no traffic is recorded: set traffic.record in the settings")
    if not ONE_AT_A_TIME.acquire(blocking=False):
        raise HTTPException(429, "another simulation is running: try again when it is done", {"Retry-After": "1"})
    try:
        current = _with_digests(context.rules())
        proposed = _changed(current, changed)
        return json_response(_simulate(context, current, proposed, minutes))
    finally:
        ONE_AT_A_TIME.release()


def _rules(fields: Fields, problems: Problems) -> list[Rule]:
    """The rules of the body."""
    if not fields.has("rules"):
        problems.add("rules", "is missing: write the rules to try, as in POST /api/v1/rules")
        return []
    items = list(fields.items("rules"))
    if len(items) > MAX_RULES:
        problems.add("rules", f"has {len(items)} rules; the maximum is {MAX_RULES}")
        return []
    rules = [Rule.read(item, path, problems) for path, item in items]
    return [rule for rule in rules if rule is not None]


def _with_digests(rules: RuleSet) -> RuleSet:
    """The rules with digests in place of API keys, as the records have them."""
    return rules.edited([_with_digest(rule) for rule in rules.rules.values() if _names_key(rule)])


def _names_key(rule: Rule) -> bool:
    return ("apikey", ANY) not in rule.parts and "apikey" in rule.dimensions


def _with_digest(rule: Rule) -> Rule:
    if not _names_key(rule):
        return rule
    parts = [
        client_id_from_api_key(identifier) if name == "apikey" else identifier
        for name, identifier in zip(rule.dimensions, rule.identifiers, strict=True)
    ]
    return replace(rule, identifier=join_parts(parts) if rule.is_composite else parts[0])


def _changed(current: RuleSet, changed: Sequence[Rule]) -> RuleSet:
    """The rules in force with these in their place, or beside them. ValidationError if two are equally specific."""
    new = {rule.rule_id: _with_digest(rule) for rule in changed}
    if len(new) < len(changed):
        raise ValidationError([Problem("rules", "two of them have the same rule_id: write each once")])
    slots = {rule.unique_key: rule.rule_id for rule in current.rules.values() if rule.rule_id not in new}
    problems = []
    for index, rule in enumerate(changed):
        slot = new[rule.rule_id].unique_key
        if slot is not None and slots.setdefault(slot, rule.rule_id) != rule.rule_id:
            message = f"is as specific as the rule {slots[slot]!r} in the same slot: give it that rule_id to replace it"
            problems.append(Problem(f"rules[{index}]", message))
    if problems:
        raise ValidationError(problems)
    return current.edited(new.values())


def _simulate(context: AdminContext, current: RuleSet, proposed: RuleSet, minutes: int) -> dict[str, Any]:
    traffic = _collect(context, context.now_us() - minutes * 60_000_000)
    bits = max(one.bits for one in traffic)
    requests = _requests(traffic, bits, context.now_us() - minutes * 60_000_000)
    replay = Replay(proposed, current, BadLines(), MAX_KEYS)
    deadline = time.monotonic() + MAX_SECONDS
    replayed = 0
    while replayed < len(requests) and time.monotonic() < deadline:
        replay.run(requests[replayed : replayed + SLICE])
        replayed += SLICE
        time.sleep(PAUSE_SECONDS)
    return {
        "minutes": minutes,
        "recorded_since": format_timestamp(max(one.since_us for one in traffic)),
        "share_recorded": 1 / 2**bits,
        "not_recorded": sum(one.skipped for one in traffic),
        "share_replayed": share(min(replayed, len(requests)), len(requests)) if requests else 1.0,
        "workers": context.dependencies.settings.server.workers,
        "workers_heard": len(traffic),
        **build_report(replay),
    }


def _collect(context: AdminContext, from_us: int) -> list[TrafficFile]:
    """The records of all workers; of this one directly."""
    dependencies = context.dependencies
    assert dependencies.traffic is not None
    started_us = time.time_ns() // 1000
    dependencies.notifier.notify(TRAFFIC)
    own = dependencies.traffic.records(from_us)
    traffic = [TrafficFile(started_us, own.bits, own.since_us, own.skipped, list(own.rows))]
    snapshots = dependencies.worker_snapshots
    files = TrafficFiles(snapshots.folder, snapshots.worker)
    workers = dependencies.settings.server.workers
    return traffic + (files.collect(workers, started_us, COLLECT_SECONDS) if workers > 1 else [])


def _requests(traffic: Sequence[TrafficFile], bits: int, from_us: int) -> list[LoggedRequest]:
    """The records in one order, in the smallest sample of all workers; the last ones where there are too many."""
    mask = (1 << bits) - 1
    rows = [row for one in traffic for row in one.rows if row[0] >= from_us and not row[2] & mask]
    rows.sort(key=lambda row: row[0])
    return [
        LoggedRequest(time_us, 0, ip, user, path, method, api_key, client, tier, key, cost, attributes)
        for time_us, cost, _, ip, user, api_key, client, path, method, tier, key, attributes in rows[-MAX_REQUESTS:]
    ]
