"""API keys: `/api/v1/keys`.

A token is in one response only, which no cache may keep, and digests are in none. A key expires no later than the one
that creates it, so that a key which was lent for a day cannot be kept. Only scope write creates keys, and it is the
highest: a new key can do no more than its maker.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameters
from starlette.responses import Response

from crestgate.loader.fields import Fields, Problems, describe
from crestgate.rules.timestamps import format_timestamp, read_timestamp
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.context import ContextDep, call_context_of
from crestgate.service.admin.errors import naming_fields
from crestgate.service.admin.key_models import KeyBody, KeyPage, KeyRotation, NewKey, RotatedKey
from crestgate.service.admin.params import Name, PageQuery, page
from crestgate.service.admin.responses import describe as describe_endpoint
from crestgate.service.admin.responses import json_response
from crestgate.service.auth.keys import (
    MAX_GRACE_US,
    SCOPES,
    create_key,
    key_id_of,
    list_keys,
    revoke_key,
    rotate_key,
)
from crestgate.service.context import CallContext

__all__ = ["router"]

PATH = "/api/v1/keys"
DEFAULT_GRACE = 3600.0
NO_STORE = {"Cache-Control": "no-store"}
router = APIRouter(tags=["keys"])


async def _call(request: Request) -> Any:
    return call_context_of(request)


CallDep = Annotated[CallContext, Depends(_call)]


@router.get(PATH, **describe_endpoint("List keys", KeyPage, 400))
def list_api_keys(context: ContextDep, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All keys, without tokens and digests, sorted by id; expired ones until they are removed."""
    keys = {key.key_id: key for key in list_keys(context.dependencies.repository)}
    ids, next_after = page(keys, query)
    return json_response({"keys": [keys[one].to_data() for one in ids], "next": next_after}, headers=NO_STORE)


@router.post(PATH, **describe_endpoint("Create a key", NewKey, status=201, body=KeyBody))
def create_api_key(context: ContextDep, call: CallDep, body: JsonBody) -> Response:
    """The response has its token, once. Without `expires_at`, it expires with the key that creates it, if that does."""
    problems = Problems()
    fields = Fields(body, "", problems, ("name", "scope", "expires_at"))
    name = fields.text("name", "", required=True)
    scope = fields.text("scope", SCOPES[0])
    known = next((one for one in SCOPES if one == scope), SCOPES[0])
    if known != scope:
        fields.report("scope", f"must be one of {', '.join(SCOPES)}, not {describe(scope)}")
    latest_us = _latest(call)
    expires_us = _read_expiry(fields, context.now_us(), latest_us)
    problems.raise_any()
    with naming_fields():
        key, token = create_key(
            context.dependencies.repository, call.actor, name, known, latest_us if expires_us is None else expires_us
        )
    context.dependencies.announce_write()
    return json_response({**key.to_data(), "token": token}, 201, NO_STORE)


@router.post(
    f"{PATH}/{{key_id:name}}/rotate",
    **describe_endpoint("Replace a key", RotatedKey, 404, 412, status=201, body=KeyRotation),
)
def rotate_api_key(context: ContextDep, call: CallDep, key_id: Name, body: JsonBody) -> Response:
    """Creates a key of the same name, scope and expiry, and lets the old one expire after a grace period."""
    problems = Problems()
    fields = Fields(body, "", problems, ("grace_seconds", "expires_at"))
    grace = _read_grace(fields)
    now_us = context.now_us()
    expires_us = _read_expiry(fields, now_us, _latest(call))
    problems.raise_any()
    with naming_fields():
        key, old, token = rotate_key(
            context.dependencies.repository,
            call.actor,
            key_id_of(key_id),
            now_us=now_us,
            grace_us=round(grace * 1_000_000),
            expires_us=expires_us,
            latest_us=_latest(call),
        )
    context.dependencies.announce_write()
    return json_response({**key.to_data(), "token": token, "replaces": old.to_data()}, 201, NO_STORE)


@router.delete(f"{PATH}/{{key_id:name}}", **describe_endpoint("Revoke a key", None, 400, 404, status=204))
def revoke_api_key(context: ContextDep, call: CallDep, key_id: Name) -> Response:
    """It is refused from now on, within a second in every service that uses the same rule database."""
    revoke_key(context.dependencies.repository, call.actor, key_id_of(key_id))
    context.dependencies.announce_write()
    return Response(status_code=204, headers=NO_STORE)


def _latest(call: CallContext) -> int | None:
    """When the caller's key expires; None for never."""
    return None if call.caller is None else call.caller.expires_us


def _read_expiry(fields: Fields, now_us: int, latest_us: int | None) -> int | None:
    at_us = read_timestamp(fields, "expires_at")
    if at_us is None:
        return None
    if at_us <= now_us:
        fields.report("expires_at", "is in the past")
    elif latest_us is not None and at_us > latest_us:
        latest = format_timestamp(latest_us)
        fields.report("expires_at", f"is later than {latest}, when the key that you use expires")
    return at_us


def _read_grace(fields: Fields) -> float:
    value = fields.values.get("grace_seconds")
    if value is None:
        return DEFAULT_GRACE
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_GRACE_US / 1_000_000:
        return float(value)
    fields.report("grace_seconds", f"must be a number from 0 to {MAX_GRACE_US // 1_000_000}, not {describe(value)}")
    return DEFAULT_GRACE
