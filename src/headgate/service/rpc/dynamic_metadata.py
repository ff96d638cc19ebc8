"""`dynamic_metadata` of an answer: what limits were configured to tell the proxy, where a request passes them.

    {"domain": "edge", "descriptors": [{"entries": ["plan=gold"], "hitsAddend": 3}], "hitsAddend": 3,
     "metadata": {"tier": {"name": "gold"}}}

`metadata` has what all limits say that were passed, one merged into the other: where two say different things, the
first descriptor's stands. It is only there where one of them has something to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.core.decision import Decision
from headgate.service.rpc.messages import message_class
from headgate.service.rpc.statuses import varint

if TYPE_CHECKING:
    from headgate.service.rpc.asked import Asked

__all__ = ["metadata_field"]

_Struct: Any = message_class("google.protobuf.Struct")
UNITS = {1: "SECOND", 2: "MINUTE", 3: "HOUR", 4: "DAY", 5: "MONTH", 6: "YEAR", 7: "WEEK"}


def metadata_field(asked: Asked, decisions: Sequence[Decision]) -> bytes:
    """The field of the answer, encoded; nothing where no limit that was passed has any."""
    told: dict[str, Any] = {}
    for place, limit in enumerate(asked.limits):
        if limit is None or limit.metadata is None:
            continue
        if not asked.denies[place] or decisions[asked.places[place]]._allowed:
            _merge(told, limit.metadata)
    if not told:
        return b""
    message = asked.message
    said: dict[str, Any] = {"domain": message.domain, "descriptors": [_said(one) for one in message.descriptors]}
    if message.hits_addend:
        said["hitsAddend"] = message.hits_addend
    said["metadata"] = told
    struct = _Struct()
    struct.update(said)
    data: bytes = struct.SerializeToString(deterministic=True)
    return b"\x32" + varint(len(data)) + data


def _said(descriptor: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"entries": [f"{entry.key}={entry.value}" for entry in descriptor.entries]}
    if descriptor.HasField("limit"):
        limit = descriptor.limit
        said["limit"] = f"requests_per_unit:{limit.requests_per_unit} unit:{UNITS.get(limit.unit, limit.unit)}"
    if descriptor.HasField("hits_addend"):
        said["hitsAddend"] = descriptor.hits_addend.value
    return said


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if name not in into:
            into[name] = _copied(value)
        elif isinstance(into[name], dict) and isinstance(value, Mapping):
            _merge(into[name], value)


def _copied(value: Any) -> Any:
    """A limit's own is not to be merged into."""
    return {name: _copied(one) for name, one in value.items()} if isinstance(value, Mapping) else value
