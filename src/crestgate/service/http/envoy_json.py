"""`POST /json`: Envoy's RateLimitRequest and RateLimitResponse as JSON, as envoyproxy/ratelimit has it.

The request follows protobuf's JSON mapping: names in either spelling (`hitsAddend`, `hits_addend`), whole numbers as
numbers or as text, units by name or number, null for what is not set. Errors name the field, as for every body here,
which protobuf's own reader does not do.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import json_format

from crestgate.envoy.descriptors import MAX_DESCRIPTORS, check_size
from crestgate.errors import InvalidRequestError
from crestgate.protobuf.messages import POOL, RateLimitRequest, RateLimitResponse
from crestgate.service.checks.json_body import decode_json, join_path
from crestgate.service.checks.schemas import EntryBody
from crestgate.service.http.asgi import HttpResponse

__all__ = ["DescriptorBody", "encode_response", "read_rate_limit"]

Number = int | str | None
FORMS = "write {domain, descriptors: [{entries: [{key, value}], limit, hitsAddend, isNegativeHits}], hitsAddend}"
UNITS: dict[str, int] = {
    value.name: value.number for value in POOL.FindEnumTypeByName("envoy.type.v3.RateLimitUnit").values
}
MAX_NUMBERS = {"hits_addend": 2**64 - 1, "requests_per_unit": 2**32 - 1}
OVER_LIMIT = 2
RETRY_AFTER = "retry-after"


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


_decoder = msgspec.json.Decoder(RateLimitBody)


def read_rate_limit(body: bytes) -> Any:
    """The RateLimitRequest in a body; InvalidRequestError when it is none."""
    request: RateLimitBody = decode_json(_decoder, body, FORMS)
    if request.descriptors:
        check_size(request.descriptors, MAX_DESCRIPTORS)
    try:
        message = RateLimitRequest(domain=request.domain, hits_addend=_number(request, "hitsAddend", "hits_addend", ""))
        for index, descriptor in enumerate(request.descriptors or ()):
            _fill(message.descriptors.add(), descriptor, f"descriptors[{index}]")
    except ValueError as error:  # a lone surrogate, or a number out of range
        raise InvalidRequestError("", f"the body is no RateLimitRequest: {error}") from None
    return message


def encode_response(data: bytes) -> HttpResponse:
    """A RateLimitResponse as JSON: 200 when it is OK, 429 when it is OVER_LIMIT."""
    message: Any = RateLimitResponse.FromString(data)
    body = json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()
    if message.overall_code != OVER_LIMIT:
        return HttpResponse(200, body)
    headers = [(b"retry-after", h.value.encode()) for h in message.response_headers_to_add if h.key == RETRY_AFTER]
    return HttpResponse(429, body, headers)


def _fill(message: Any, body: DescriptorBody, at: str) -> None:
    for entry in body.entries or ():
        message.entries.add(key=entry.key, value=entry.value)
    limit = body.limit
    if limit is not None:
        path = f"{at}.limit"
        message.limit.requests_per_unit = _number(limit, "requestsPerUnit", "requests_per_unit", path) or 0
        message.limit.unit = _unit(limit.unit, path)
    hits = _number(body, "hitsAddend", "hits_addend", at)
    if hits is not None:
        message.hits_addend.value = hits
    message.is_negative_hits = bool(_one_of(body, "isNegativeHits", "is_negative_hits", at)[1])


def _one_of(body: Any, name: str, other: str, at: str) -> tuple[str, Any]:
    """The name and the value of a field in one of its spellings."""
    value, second = getattr(body, name), getattr(body, other)
    if value is not None and second is not None:
        raise InvalidRequestError(join_path(at, other), f"is there twice, once as {name}: write one of them")
    return (name, value) if second is None else (other, second)


def _number(body: Any, name: str, other: str, at: str) -> int | None:
    spelled, value = _one_of(body, name, other, at)
    if value is None:
        return None
    largest = MAX_NUMBERS[other] if at else 2**32 - 1
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else -1
    if not 0 <= value <= largest:
        raise InvalidRequestError(join_path(at, spelled), f"must be a whole number from 0 to {largest}")
    number: int = value
    return number


def _unit(value: Number, at: str) -> int:
    if value is None:
        return 0
    number = UNITS.get(value) if isinstance(value, str) else value
    if number is None or number not in UNITS.values():
        raise InvalidRequestError(
            join_path(at, "unit"), f"must be one of {', '.join([name for name in UNITS if UNITS[name]])}"
        )
    return number
