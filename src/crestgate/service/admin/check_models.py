"""OpenAPI of checks and decisions, derived from the structures that service/checks/ decodes and encodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from crestgate.service.admin.models import Model
from crestgate.service.admin.responses import ref
from crestgate.service.checks.schemas import (
    BatchBody,
    CheckBody,
    Counter,
    Counters,
    DecisionBody,
    ExtendBody,
    ExtensionResponse,
    ReservationBody,
    ReservationResponse,
    SettleBody,
    SettlementResponse,
    VerifyBody,
)

__all__ = ["CHECK_MODELS", "check_schemas"]

Schema = dict[str, Any]
NAMES = {"ContextBody": "CheckContext", "CounterBody": "NamedCounter", "Counter": "ExactCounter"}
"""Structures that have another name in OpenAPI."""
RULE_OPS: Schema = {
    "type": "string",
    "enum": ["take", "peek", "reset"],
    "default": "take",
    "description": "Check, peek, or reset the counters (which needs scope `write`).",
}
COUNTER_OPS: Schema = {
    "type": "string",
    "enum": ["take", "peek", "charge", "give_back", "reset"],
    "default": "take",
    "description": "`charge` takes even above the limit, `give_back` returns what was taken: both need the token of "
    "the take, or scope `write`. `reset` resets the counters, and needs scope `write`.",
}
RESERVATIONS = (*(ExtendBody, ExtensionResponse, ReservationBody, ReservationResponse, SettleBody, SettlementResponse),)
ALWAYS = ("cost", "timestamp")
TERMS = ("costs", "ttl", "on_expiry", "exact")
SUBJECT = ("dimension", "identifier", "endpoint", "method", *ALWAYS)
EXAMPLES: Mapping[str, Any] = {
    "SubjectCheck": {"dimension": "USER", "identifier": "42", "endpoint": "/api/v1/orders", "method": "GET"},
    "ContextCheck": {"context": {"user": "42", "ip": "10.0.0.1", "path": "/api/v1/orders"}},
    "KeyCheck": {"key": "user:42", "plans": ["gold", "daily"], "cost": 1},
    "CountersItem": {
        "op": "take",
        "counters": [{"key": "user:42", "limit": "100/minute"}, {"key": "user:42", "plan": "gold"}],
    },
    "SubjectReservation": {"dimension": "USER", "identifier": "42", "costs": {"tokens-per-user": 800}, "ttl": 120},
    "ContextReservation": {"context": {"user": "42"}, "costs": {"tokens-per-user": 800}, "on_expiry": "release"},
    "KeyReservation": {"key": "acme", "plans": ["requests", "tokens"], "costs": {"tokens": 800}, "ttl": 120},
    "SettleBody": {"actual": {"tokens": 620}},
    "ExtendBody": {"ttl": 120},
    "VerifyBody": {"clientId": "client123", "apiName": "getUsers", "methodName": "GET"},
}


class CounterResponse(Model):
    key: Annotated[str, Field(description="The subject, such as `user:42`.")]
    rule: Annotated[str, Field(description="The rule or plan that it was counted for.")]


class ResetResponse(Model):
    reset: Annotated[list[CounterResponse], Field(description="The counters that were reset.")]


class Liveness(Model):
    status: Literal["alive"]
    version: str


class Readiness(Model):
    status: Annotated[
        Literal["ready", "degraded"],
        Field(description="`degraded`: ready, although a store is unreachable. See `server.ready_without_store`."),
    ]
    checks: Annotated[dict[str, str], Field(description="Each check, and `ok` or its error.")]
    unreachable: Annotated[list[str], Field(description="The stores that are unreachable; names of `checks`.")]


class VerifyResponse(Model):
    """Response of the client API."""

    status: Literal["SUCCESS", "FAILURE"]
    message: str


CHECK_MODELS: tuple[type[BaseModel], ...] = (Liveness, Readiness, ResetResponse, VerifyResponse)


def check_schemas() -> dict[str, Schema]:
    """The components of check bodies and decisions, by name."""
    structures = [DecisionBody, BatchBody, CheckBody, Counter, Counters, VerifyBody, *RESERVATIONS]
    _, found = msgspec.json.schema_components(structures, ref_template="#/components/schemas/{name}")
    given = {NAMES.get(name, name): _renamed(schema) for name, schema in found.items()}
    check, answer = given.pop("CheckBody"), given.pop("DecisionBody")
    reservation = given.pop("ReservationBody")
    given["CheckContext"]["properties"].pop("key")  # KeyCheck has it
    forms = {
        "SubjectCheck": (
            "A dimension and its identifier: the rules for it, for the API, and for all requests.",
            SUBJECT,
        ),
        "ContextCheck": ("A whole request: all rules that apply to it.", ("context", *ALWAYS)),
        "KeyCheck": ("An opaque key under plans; without plans, under its policy.", ("key", "plans", *ALWAYS)),
    }
    for name, (description, fields) in forms.items():
        given[name] = _form(check, description, fields)
        item = _form(check, description, fields)
        item["properties"]["op"] = RULE_OPS
        given[name.replace("Check", "Item")] = item
        given[name.replace("Check", "Reservation")] = _form(reservation, description, (*fields, *TERMS))
    counters = "A list of counters, all or nothing. Limits in notation are all counted as the rule `inline`."
    given["CountersItem"] = _form(check, counters, ("counters", "timestamp"))
    given["CountersItem"]["properties"]["op"] = COUNTER_OPS
    given["CountersReservation"] = _form(reservation, counters, ("counters", "timestamp", *TERMS[1:]))
    items = [ref(name) for name in ("SubjectItem", "ContextItem", "KeyItem", "CountersItem")]
    given["BatchBody"]["properties"]["checks"]["items"] = {"anyOf": items}
    part = {name: schema for name, schema in answer["properties"].items() if name not in ("parts", "shadows")}
    given["DecisionPart"] = {**answer, "properties": part, "description": "The numbers of one limit."}
    given["DecisionResponse"] = {
        **answer,
        "description": "A decision: the numbers of the most restrictive limit, and of all limits if there are several.",
    }
    given["CountersResponse"] = given.pop("Counters")
    given["CheckFailure"] = _object({"error": ref("Problem")}, "With `exact`: why this check was not decided.")
    decisions = {"anyOf": [ref(name) for name in ("DecisionResponse", "CountersResponse", "CheckFailure")]}
    given["BatchResponse"] = _object(
        {"decisions": {"type": "array", "items": decisions, "description": "In the order of the checks."}}, ""
    )
    for name, schema in given.items():
        schema.update({"title": name, "additionalProperties": False})
        example = EXAMPLES.get(name) or EXAMPLES.get(name.replace("Item", "Check"))
        if example is not None:
            schema["examples"] = [example]
    return given


def _form(check: Schema, description: str, fields: Sequence[str]) -> Schema:
    """One form of a check: these fields, of which the first is required."""
    properties = {name: check["properties"][name] for name in fields}
    properties[fields[0]] = _not_null(properties[fields[0]])
    return {**_object(properties, description), "required": [fields[0]]}


def _not_null(schema: Schema) -> Schema:
    (value,) = [one for one in schema["anyOf"] if one != {"type": "null"}]
    return {**{name: part for name, part in schema.items() if name not in ("anyOf", "default")}, **value}


def _object(properties: Schema, description: str) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {**schema, "description": description} if description else schema


def _renamed(schema: Any) -> Any:
    """A schema whose references have the names of OpenAPI."""
    if isinstance(schema, list):
        return [_renamed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name:
        return ref("DecisionPart" if name == "DecisionBody" else NAMES.get(name, name))
    return {key: _renamed(value) for key, value in schema.items()}
