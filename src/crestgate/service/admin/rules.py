"""Rules: `/api/v1/rules`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.core.dimensions import parse_dimensions
from crestgate.errors import NotFoundError, Problem, StaleVersionError, ValidationError
from crestgate.rules.rule import Rule
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.context import AdminContext, ContextDep, EditorDep
from crestgate.service.admin.models import RuleBody, RulePage, RuleResponse
from crestgate.service.admin.params import Name, PageQuery, location, page
from crestgate.service.admin.responses import describe, json_response, no_content

__all__ = ["router"]

PATH = "/api/v1/rules"
MAX_UNREADABLE = 100
ETAG = {"ETag": "The rule's version."}
router = APIRouter(tags=["rules"])


class RulesQuery(PageQuery):
    """Filter and page of rules."""

    dimension: Annotated[
        str | None, Field(description="Only those of this dimension; of several together: `org,model`.")
    ] = None
    identifier: Annotated[str | None, Field(description="Only those for exactly this identifier, or `*`.")] = None
    tier: Annotated[str | None, Field(description="Only those for exactly this tier, or `*`.")] = None
    mode: Annotated[str | None, Field(description="Only those of this mode.")] = None
    expired: Annotated[bool, Field(description="Also expired ones.")] = False

    def wants(self, rule: Rule, now_us: int) -> bool:
        return (
            (self.expired or rule.expires_us is None or rule.expires_us > now_us)
            and (self.dimension is None or parse_dimensions(self.dimension) == rule.slot_dimension)
            and (self.identifier is None or self.identifier == rule.identifier)
            and (self.tier is None or self.tier == rule.tier)
            and (self.mode is None or self.mode.lower() == rule.mode)
        )


IfMatch = Annotated[
    str | None, Header(alias="If-Match", description='The version that was read, as in its ETag: `"3"`, or `*`.')
]


@router.get(PATH, **describe("List rules", RulePage, 400))
def list_rules(context: ContextDep, query: Annotated[RulesQuery, QueryParameters()]) -> Response:
    """All rules, sorted by id, including disabled ones and those of files; expired ones only with `expired=true`."""
    rules, now_us = context.rules().rules, context.now_us()
    ids, next_after = page(rules, query, lambda rule_id: query.wants(rules[rule_id], now_us))
    body: dict[str, Any] = {"rules": [rules[rule_id].to_data() for rule_id in ids], "next": next_after}
    unreadable = context.dependencies.catalog.unreadable[:MAX_UNREADABLE]
    if unreadable:
        body["unreadable"] = [{"kind": one.kind, "id": one.id, "message": str(one)} for one in unreadable]
    return json_response(body)


@router.post(
    PATH,
    **describe(
        "Create a rule", RuleResponse, 409, status=201, body=RuleBody, headers={**ETAG, "Location": "The rule."}
    ),
)
def create_rule(context: ContextDep, editor: EditorDep, body: JsonBody) -> Response:
    """409 if the id exists, or an equally specific rule in the same slot (dimension, endpoint_pattern, method,
    window_seconds)."""
    rule = Rule.read(body)
    context.check_store(rule)
    context.check_absent("rule", rule.rule_id, rule.rule_id in context.rules().rules)
    created = editor.create(rule)
    return json_response(created.to_data(), 201, {**_etag(created), **location(f"{PATH}/", created.rule_id)})


@router.get(f"{PATH}/{{rule_id:name}}", **describe("Get a rule", RuleResponse, 400, 404, headers=ETAG))
def get_rule(context: ContextDep, rule_id: Name) -> Response:
    """One rule, with its version as ETag."""
    rule = _known(context, rule_id)
    return json_response(rule.to_data(), headers=_etag(rule))


@router.put(
    f"{PATH}/{{rule_id:name}}", **describe("Replace a rule", RuleResponse, 404, 409, 412, body=RuleBody, headers=ETAG)
)
def put_rule(
    context: ContextDep, editor: EditorDep, rule_id: Name, body: JsonBody, if_match: IfMatch = None
) -> Response:
    """Replaces the whole rule: omitted fields get their defaults. Counters keep what was used."""
    if isinstance(body, dict):
        given = body.get("rule_id")
        if given is not None and given != rule_id:
            raise ValidationError([Problem("rule_id", f"must be that of the path, {rule_id!r}: leave it out")])
        body = {**body, "rule_id": rule_id}
    rule = Rule.read(body)
    context.check_store(rule)
    expected = _expected(context, rule_id, if_match)
    written = editor.replace(rule, expected)
    return json_response(written.to_data(), headers=_etag(written))


@router.delete(f"{PATH}/{{rule_id:name}}", **describe("Delete a rule", None, 400, 404, 409, 412, status=204))
def delete_rule(context: ContextDep, editor: EditorDep, rule_id: Name, if_match: IfMatch = None) -> Response:
    """The rule no longer applies from now on."""
    editor.delete(rule_id, _expected(context, rule_id, if_match))
    return no_content()


def _known(context: AdminContext, rule_id: str) -> Rule:
    rule = context.rules().rules.get(rule_id)
    if rule is None:
        raise NotFoundError(f"there is no rule {rule_id!r}")
    return rule


def _expected(context: AdminContext, rule_id: str, if_match: str | None) -> int | None:
    """The version that a write expects, by `If-Match`; None for any. Only rules of the database can be written."""
    try:
        record = context.dependencies.repository.get("rule", rule_id)
    except ValidationError:  # what cannot be read can be deleted
        if if_match is None:
            return None
        raise
    if record is None:
        context.check_writable("rule", rule_id, rule_id in context.rules().rules)
        raise NotFoundError(f"there is no rule {rule_id!r}")
    if if_match is None:
        return None
    versions = [_version(tag) for tag in if_match.split(",")]
    if "*" in versions or str(record.version) in versions:
        return record.version
    raise StaleVersionError(
        f"rule {rule_id!r} is at version {record.version}, and If-Match says {if_match!r}: read it again"
    )


def _version(tag: str) -> str:
    """The version of an entity tag, in any form.

    >>> [_version(tag) for tag in ('"3"', 'W/"3"', " 3", "*")]
    ['3', '3', '3', '*']
    """
    return tag.strip().removeprefix("W/").strip('"')


def _etag(rule: Rule) -> dict[str, Any]:
    return {"ETag": f'"{rule.version}"'}
