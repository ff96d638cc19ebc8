"""Rules: `/api/v1/rules`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from headgate.errors import Invalid, NotFound, Problem, Stale
from headgate.rules.rule import Rule, dimension_of
from headgate.service.control.asking import Name, PageQuery, location, page_of
from headgate.service.control.bodies import JsonBody
from headgate.service.control.desk import Desk, TheDesk, TheEditor
from headgate.service.control.models import RuleBody, RulePage, RuleShown
from headgate.service.control.saying import answer, empty, says

__all__ = ["router"]

PATH = "/api/v1/rules"
ETAG = {"ETag": "The rule's version."}
router = APIRouter(tags=["rules"])


class RulesQuery(PageQuery):
    """Which rules."""

    dimension: Annotated[str | None, Field(description="Only those of this dimension.")] = None
    identifier: Annotated[str | None, Field(description="Only those for exactly this identifier, or `*`.")] = None
    tier: Annotated[str | None, Field(description="Only those for exactly this tier, or `*`.")] = None
    mode: Annotated[str | None, Field(description="Only those of this mode.")] = None

    def wants(self, rule: Rule) -> bool:
        return (
            (self.dimension is None or dimension_of(self.dimension) == rule.dimension)
            and (self.identifier is None or self.identifier == rule.identifier)
            and (self.tier is None or self.tier == rule.tier)
            and (self.mode is None or self.mode.lower() == rule.mode)
        )


IfMatch = Annotated[
    str | None, Header(alias="If-Match", description='The version that was read, as its ETag said: `"3"`, or `*`.')
]


@router.get(PATH, **says("List rules", RulePage, 400))
def list_rules(desk: TheDesk, query: Annotated[RulesQuery, QueryParameters()]) -> Response:
    """All rules that are known, those of files too, in the order of their ids; also those that are disabled or have
    ended."""
    rules = desk.rules().rules
    ids, following = page_of(rules, query, lambda rule_id: query.wants(rules[rule_id]))
    return answer({"rules": [rules[rule_id].to_data() for rule_id in ids], "next": following})


@router.post(
    PATH, **says("Create a rule", RuleShown, 409, status=201, body=RuleBody, headers={**ETAG, "Location": "The rule."})
)
def create_rule(desk: TheDesk, editor: TheEditor, body: JsonBody) -> Response:
    """409 if there is a rule of this id, or one that is just as specific in the same slot (dimension,
    endpoint_pattern, method, window_seconds)."""
    rule = Rule.read(body)
    desk.check_absent("rule", rule.rule_id, rule.rule_id in desk.rules().rules)
    created = editor.create(rule)
    desk.take_over()
    return answer(created.to_data(), 201, {**_etag(created), **location(f"{PATH}/", created.rule_id)})


@router.get(f"{PATH}/{{rule_id:name}}", **says("Get a rule", RuleShown, 400, 404, headers=ETAG))
def get_rule(desk: TheDesk, rule_id: Name) -> Response:
    """One rule, with its version as ETag."""
    rule = _known(desk, rule_id)
    return answer(rule.to_data(), headers=_etag(rule))


@router.put(f"{PATH}/{{rule_id:name}}", **says("Replace a rule", RuleShown, 404, 409, 412, body=RuleBody, headers=ETAG))
def put_rule(desk: TheDesk, editor: TheEditor, rule_id: Name, body: JsonBody, if_match: IfMatch = None) -> Response:
    """The rule is written anew: what is left out has its default. Counters go on with what was used."""
    if isinstance(body, dict):
        given = body.get("rule_id")
        if given is not None and given != rule_id:
            raise Invalid([Problem("rule_id", f"must be that of the path, {rule_id!r}: leave it out")])
        body = {**body, "rule_id": rule_id}
    rule = Rule.read(body)
    expected = _expected(desk, rule_id, if_match)
    written = editor.replace(rule, expected)
    desk.take_over()
    return answer(written.to_data(), headers=_etag(written))


@router.delete(f"{PATH}/{{rule_id:name}}", **says("Delete a rule", None, 400, 404, 409, 412, status=204))
def delete_rule(desk: TheDesk, editor: TheEditor, rule_id: Name, if_match: IfMatch = None) -> Response:
    """The rule no longer applies from now on."""
    editor.delete(rule_id, _expected(desk, rule_id, if_match))
    desk.take_over()
    return empty()


def _known(desk: Desk, rule_id: str) -> Rule:
    rule = desk.rules().rules.get(rule_id)
    if rule is None:
        raise NotFound(f"there is no rule {rule_id!r}")
    return rule


def _expected(desk: Desk, rule_id: str, if_match: str | None) -> int | None:
    """The version that a write expects, by `If-Match`; None for whichever. Only what a database has is written to."""
    record = desk.parts.repository.get("rule", rule_id)
    if record is None:
        desk.check_writable("rule", rule_id, rule_id in desk.rules().rules)
        raise NotFound(f"there is no rule {rule_id!r}")
    if if_match is None:
        return None
    versions = [_version(tag) for tag in if_match.split(",")]
    if "*" in versions or str(record.version) in versions:
        return record.version
    raise Stale(f"rule {rule_id!r} is at version {record.version}, and If-Match says {if_match!r}: read it again")


def _version(tag: str) -> str:
    """The version of an entity tag, in whichever form.

    >>> [_version(tag) for tag in ('"3"', 'W/"3"', " 3", "*")]
    ['3', '3', '3', '*']
    """
    return tag.strip().removeprefix("W/").strip('"')


def _etag(rule: Rule) -> dict[str, Any]:
    return {"ETag": f'"{rule.version}"'}
