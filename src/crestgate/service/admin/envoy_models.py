"""OpenAPI models of Envoy's messages as JSON. service/http/ reads and writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from crestgate.service.admin.models import Model

__all__ = ["ENVOY_MODELS"]

EXAMPLE: dict[str, Any] = {
    "domain": "edge",
    "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}],
}
Hits = Annotated[int, Field(ge=0, le=2**31 - 1)]
Unit = Literal["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"]
Code = Literal["OK", "OVER_LIMIT"]


class DescriptorEntry(Model):
    key: str
    value: str = ""


class DescriptorOverride(Model):
    """A limit in the request, instead of the configured one."""

    requestsPerUnit: Annotated[int, Field(ge=0, le=2**32 - 1)]  # noqa: N815 - the name in protobuf JSON
    unit: Unit


class RateLimitDescriptor(Model):
    entries: list[DescriptorEntry]
    limit: DescriptorOverride | None = None
    hitsAddend: Annotated[  # noqa: N815
        Hits | None, Field(description="Instead of the request's; 0 takes nothing and checks whether any is left.")
    ] = None
    isNegativeHits: Annotated[bool, Field(description="The hits are given back.")] = False  # noqa: N815


class RateLimitRequestBody(Model):
    """Envoy's RateLimitRequest. Names may also be written with underscores."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    domain: Annotated[str, Field(min_length=1)]
    descriptors: Annotated[list[RateLimitDescriptor], Field(min_length=1, max_length=1000)]
    hitsAddend: Annotated[Hits, Field(description="Hits to take from each limit; 0 means 1.")] = 0  # noqa: N815


class CurrentLimit(Model):
    requestsPerUnit: int = 0  # noqa: N815
    unit: Unit | None = None
    name: str = ""


class DescriptorStatus(Model):
    """The result of a descriptor. Fields that are 0 or empty are omitted, as always in the JSON of protobuf."""

    code: Code
    currentLimit: CurrentLimit | None = None  # noqa: N815
    limitRemaining: int = 0  # noqa: N815
    durationUntilReset: Annotated[str | None, Field(description="Such as `17s`.")] = None  # noqa: N815


class HeaderToAdd(Model):
    key: str
    value: str = ""


class RateLimitResponseBody(Model):
    """Envoy's RateLimitResponse."""

    overallCode: Code  # noqa: N815
    statuses: Annotated[list[DescriptorStatus], Field(description="One for each descriptor, in their order.")]
    responseHeadersToAdd: Annotated[list[HeaderToAdd], Field(default_factory=list)]  # noqa: N815
    dynamicMetadata: dict[str, Any] | None = None  # noqa: N815


class EntriesReset(Model):
    entries: list[DescriptorEntry]


class DescriptorsReset(Model):
    """Counters of Envoy's descriptors."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    domain: str
    descriptors: Annotated[list[EntriesReset], Field(min_length=1, max_length=1000)]


ENVOY_MODELS: tuple[type[BaseModel], ...] = (DescriptorsReset, RateLimitRequestBody, RateLimitResponseBody)
