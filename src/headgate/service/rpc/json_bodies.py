"""Envoy's messages as JSON, and resets by descriptor, as their senders write them.

It is protobuf's mapping: names in either spelling (`hitsAddend`, `hits_addend`), whole numbers as numbers or as text,
units by name or number, null for what is not set. What is unknown or of another kind is told by its field, as of every
body here, which protobuf's own reader does not do.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.service.data.bodies import decoded, way, wrong
from headgate.service.data.shapes import CheckBody
from headgate.service.rpc.descriptors import MOST_DESCRIPTORS, check_size
from headgate.service.rpc.messages import POOL, RateLimitRequest

__all__ = ["DescriptorBody", "ResetBody", "read_rate_limit", "read_reset"]

Number = int | str | None
FORMS = "write {domain, descriptors: [{entries: [{key, value}], limit, hitsAddend, isNegativeHits}], hitsAddend}"
RESET_FORMS = (
    "write one of {dimension, identifier, endpoint, method}, {context: {ip, user, api_key, client, path, method}}, "
    "{key, plans} or {domain, descriptors: [{entries: [{key, value}]}]}"
)
UNITS: dict[str, int] = {
    value.name: value.number for value in POOL.FindEnumTypeByName("envoy.type.v3.RateLimitUnit").values
}
MOST = {"hits_addend": 2**64 - 1, "requests_per_unit": 2**32 - 1}


class EntryBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str | None = None
    value: str | None = None


class OverrideBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    requestsPerUnit: Number = None  # noqa: N815 - as it is spelled
    requests_per_unit: Number = None
    unit: Number = None


class DescriptorBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    entries: list[EntryBody] | None = None
    limit: OverrideBody | None = None
    hitsAddend: Number = None  # noqa: N815
    hits_addend: Number = None
    isNegativeHits: bool | None = None  # noqa: N815
    is_negative_hits: bool | None = None


class RateLimitBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    domain: str | None = None
    descriptors: list[DescriptorBody] | None = None
    hitsAddend: Number = None  # noqa: N815
    hits_addend: Number = None


class Entries(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    entries: list[EntryBody]


class ResetBody(CheckBody):
    """Whose counters are to be forgotten: those of a check, or of Envoy's descriptors."""

    domain: str | None = None
    descriptors: list[Entries] | None = None


_asked = msgspec.json.Decoder(RateLimitBody)
_reset = msgspec.json.Decoder(ResetBody)


def read_rate_limit(body: bytes) -> Any:
    """The RateLimitRequest that a body stands for. BadRequest when it is none."""
    asked: RateLimitBody = decoded(_asked, body, FORMS)
    if asked.descriptors:
        check_size(asked.descriptors, MOST_DESCRIPTORS)
    try:
        message = RateLimitRequest(domain=asked.domain, hits_addend=_number(asked, "hitsAddend", "hits_addend", ""))
        for place, one in enumerate(asked.descriptors or ()):
            _fill(message.descriptors.add(), one, f"descriptors[{place}]")
    except ValueError as error:  # half of a sign, or a number that there is no room for
        raise wrong("", f"the body is no RateLimitRequest: {error}") from None
    return message


def read_reset(body: bytes) -> ResetBody:
    """Whose counters are to be forgotten."""
    asked: ResetBody = decoded(_reset, body, RESET_FORMS)
    for name in ("op", "counters"):
        if getattr(asked, name) is not None:
            raise wrong(name, "goes into a batch: send it to /api/v1/check/batch")
    if asked.domain is None and asked.descriptors is None:
        return asked
    for name in ("domain", "descriptors"):
        if getattr(asked, name) is None:
            raise wrong(name, f"is missing: {RESET_FORMS}")
    for name in ("dimension", "identifier", "endpoint", "method", "context", "key", "plans", "timestamp"):
        if getattr(asked, name) is not None:
            raise wrong(name, "does not go with 'domain': write domain and descriptors alone")
    return asked


def _fill(message: Any, body: DescriptorBody, at: str) -> None:
    for entry in body.entries or ():
        message.entries.add(key=entry.key, value=entry.value)
    limit = body.limit
    if limit is not None:
        where = f"{at}.limit"
        message.limit.requests_per_unit = _number(limit, "requestsPerUnit", "requests_per_unit", where) or 0
        message.limit.unit = _unit(limit.unit, where)
    hits = _number(body, "hitsAddend", "hits_addend", at)
    if hits is not None:
        message.hits_addend.value = hits
    message.is_negative_hits = bool(_one(body, "isNegativeHits", "is_negative_hits", at)[1])


def _one(body: Any, name: str, other: str, at: str) -> tuple[str, Any]:
    """A field in one of its spellings, and what it says."""
    value, second = getattr(body, name), getattr(body, other)
    if value is not None and second is not None:
        raise wrong(way(at, other), f"is there twice, once as {name}: write one of them")
    return (name, value) if second is None else (other, second)


def _number(body: Any, name: str, other: str, at: str) -> int | None:
    spelled, value = _one(body, name, other, at)
    if value is None:
        return None
    most = MOST[other] if at else 2**32 - 1
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else -1
    if not 0 <= value <= most:
        raise wrong(way(at, spelled), f"must be a whole number from 0 to {most}")
    number: int = value
    return number


def _unit(value: Number, at: str) -> int:
    if value is None:
        return 0
    number = UNITS.get(value) if isinstance(value, str) else value
    if number is None or number not in UNITS.values():
        raise wrong(way(at, "unit"), f"must be one of {', '.join([name for name in UNITS if UNITS[name]])}")
    return number
