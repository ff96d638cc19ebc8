"""Messages of the discovery protocol (state of the world): requests, acknowledgements, and resources as plain data.

A response has all resources of the type. Each is a domain, in the fields of envoyproxy/ratelimit's YAML, so it becomes
what that YAML would be, and is read and checked by the same reader.
"""

from __future__ import annotations

from typing import Any, Final

from crestgate import __version__
from crestgate.envoy.xds.settings import Xds
from crestgate.protobuf.messages import DecodeError, message_class

__all__ = ["ADS", "RLS", "TYPE_URL", "DiscoveryResponse", "discovery_request", "resources_of"]

ADS: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
RLS: Final = "/ratelimit.service.ratelimit.v3.RateLimitConfigDiscoveryService/StreamRlsConfigs"
TYPE_URL: Final = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
INVALID_ARGUMENT: Final = 3
MAX_ERROR: Final = 2000
"""Characters of an error that a control plane is sent."""
MAX_DEPTH: Final = 50
"""Levels of descriptors: a request has one entry for each."""
FLAGS: Final = ("shadow_mode", "detailed_metric", "quota_mode")
UNITS: Final = {1: "second", 2: "minute", 3: "hour", 4: "day", 5: "month", 6: "year", 7: "week"}

DiscoveryRequest: Final[Any] = message_class("envoy.service.discovery.v3.DiscoveryRequest")
DiscoveryResponse: Final[Any] = message_class("envoy.service.discovery.v3.DiscoveryResponse")
RateLimitConfig: Final[Any] = message_class("ratelimit.config.ratelimit.v3.RateLimitConfig")


def discovery_request(xds: Xds, version: str = "", nonce: str = "", error: str | None = None) -> Any:
    """A request: the first of a stream without a nonce, an acknowledgement with one, a refusal with an error, too."""
    request = DiscoveryRequest(version_info=version, type_url=TYPE_URL, response_nonce=nonce)
    node = request.node
    node.id, node.cluster = xds.node_id, xds.cluster
    node.user_agent_name, node.user_agent_version = "crestgate", __version__
    if xds.node_metadata:
        node.metadata.update(dict(xds.node_metadata))
    if error is not None:
        request.error_detail.code = INVALID_ARGUMENT
        request.error_detail.message = error[:MAX_ERROR]
    return request


def resources_of(response: Any) -> list[dict[str, Any]]:
    """The domains of a response as plain data; ValueError for one that is not such a response."""
    if response.type_url != TYPE_URL:
        raise ValueError(f"the type is {response.type_url!r} instead of {TYPE_URL!r}")
    resources = []
    for index, resource in enumerate(response.resources):
        if resource.type_url != TYPE_URL:
            raise ValueError(f"resources[{index}]: the type is {resource.type_url!r} instead of {TYPE_URL!r}")
        try:
            config = RateLimitConfig.FromString(resource.value)
        except DecodeError:
            raise ValueError(f"resources[{index}]: is not a valid RateLimitConfig") from None
        resources.append(
            {
                "name": config.name,
                "domain": config.domain,
                "descriptors": [_descriptor(one, 1) for one in config.descriptors],
            }
        )
    return resources


def _descriptor(descriptor: Any, depth: int) -> dict[str, Any]:
    """What is not set is left out: the reader of the YAML has its own defaults."""
    if depth > MAX_DEPTH:
        raise ValueError(f"descriptors are nested more than {MAX_DEPTH} levels deep")
    data: dict[str, Any] = {"key": descriptor.key}
    if descriptor.value:
        data["value"] = descriptor.value
    data |= {name: True for name in FLAGS if getattr(descriptor, name)}
    if descriptor.HasField("metadata"):
        data["metadata"] = _plain(descriptor.metadata)
    if descriptor.HasField("rate_limit"):
        data["rate_limit"] = _rate_limit(descriptor.rate_limit)
    if descriptor.descriptors:
        data["descriptors"] = [_descriptor(one, depth + 1) for one in descriptor.descriptors]
    return data


def _rate_limit(policy: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if policy.unlimited:
        data["unlimited"] = True
    else:
        data["requests_per_unit"] = policy.requests_per_unit
    if policy.unit:
        data["unit"] = UNITS.get(policy.unit, str(policy.unit))
    if policy.name:
        data["name"] = policy.name
    if policy.replaces:
        data["replaces"] = [{"name": one.name} for one in policy.replaces]
    return data


def _plain(value: Any) -> Any:
    """A Struct, or a part of one."""
    kind = value.DESCRIPTOR.name
    if kind == "Struct":
        return {name: _plain(value.fields[name]) for name in value.fields}
    if kind == "ListValue":
        return [_plain(one) for one in value.values]
    which = value.WhichOneof("kind")
    if which is None or which == "null_value":
        return None
    inner = getattr(value, which)
    return _plain(inner) if which in ("struct_value", "list_value") else inner
