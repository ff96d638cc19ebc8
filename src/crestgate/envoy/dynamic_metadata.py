"""`dynamic_metadata` of a RateLimitResponse: the configured metadata of the limits that a request passes.

    {"domain": "edge", "descriptors": [{"entries": ["plan=gold"], "hitsAddend": 3}], "hitsAddend": 3,
     "metadata": {"tier": {"name": "gold"}}}

`metadata` is that of all limits that were passed, merged: where two have different values, the first descriptor's wins.
The field is absent if none of them has any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crestgate.core.decision import Decision
from crestgate.envoy.response import varint
from crestgate.protobuf.messages import message_class

if TYPE_CHECKING:
    from crestgate.envoy.request import RateLimitCheck

__all__ = ["metadata_field"]

_Struct: Any = message_class("google.protobuf.Struct")
UNITS = {1: "SECOND", 2: "MINUTE", 3: "HOUR", 4: "DAY", 5: "MONTH", 6: "YEAR", 7: "WEEK"}


def metadata_field(check: RateLimitCheck, decisions: Sequence[Decision]) -> bytes:
    """The field of the response, encoded; empty if no limit that was passed has metadata."""
    metadata: dict[str, Any] = {}
    for position, limit in enumerate(check.limits):
        if limit is None or limit.metadata is None:
            continue
        if not check.denies[position] or decisions[check.indexes[position]].allowed:
            _merge(metadata, limit.metadata)
    if not metadata:
        return b""
    message = check.message
    fields: dict[str, Any] = {
        "domain": message.domain,
        "descriptors": [_descriptor_fields(one) for one in message.descriptors],
    }
    if message.hits_addend:
        fields["hitsAddend"] = message.hits_addend
    fields["metadata"] = metadata
    struct = _Struct()
    struct.update(fields)
    data: bytes = struct.SerializeToString(deterministic=True)
    return b"\x32" + varint(len(data)) + data


def _descriptor_fields(descriptor: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"entries": [f"{entry.key}={entry.value}" for entry in descriptor.entries]}
    if descriptor.HasField("limit"):
        limit = descriptor.limit
        fields["limit"] = f"requests_per_unit:{limit.requests_per_unit} unit:{UNITS.get(limit.unit, limit.unit)}"
    if descriptor.HasField("hits_addend"):
        fields["hitsAddend"] = descriptor.hits_addend.value
    return fields


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if name not in into:
            into[name] = _copied(value)
        elif isinstance(into[name], dict) and isinstance(value, Mapping):
            _merge(into[name], value)


def _copied(value: Any) -> Any:
    """A copy: the limit's own metadata must not change."""
    return {name: _copied(one) for name, one in value.items()} if isinstance(value, Mapping) else value
