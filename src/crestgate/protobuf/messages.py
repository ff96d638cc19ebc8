"""The messages that gRPC calls carry, made from the descriptors in schema.py.

They are in a pool of their own: a process that has also loaded Envoy's own modules, or another version of these, would
else have two definitions of one name, which protobuf refuses. And they are made when this is imported, by whichever
protobuf is there, so nothing generated has to fit its version.

Their types are Any: classes that are made at run time have none that mypy could know. What reads and writes them says
what it means by its fields, and every field is called in a test.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, wrappers_pb2
from google.protobuf.message import DecodeError

from crestgate.protobuf.schema import FILES

__all__ = [
    "ALL_FILES",
    "POOL",
    "CheckBatchRequest",
    "CheckBatchResponse",
    "CheckRequest",
    "CheckResponse",
    "DecodeError",
    "Dimension",
    "ExtendRequest",
    "ExtendResponse",
    "HealthCheckRequest",
    "HealthCheckResponse",
    "HealthListResponse",
    "LimitStatus",
    "QuotaRequest",
    "QuotaResponse",
    "RateLimitRequest",
    "RateLimitResponse",
    "ReflectionRequest",
    "ReflectionResponse",
    "ReleaseRequest",
    "ReserveRequest",
    "ReserveResponse",
    "ResetCounter",
    "ResetRequest",
    "ResetResponse",
    "SettleRequest",
    "SettleResponse",
    "message_class",
]

ALL_FILES: Final[dict[str, bytes]] = {
    **{
        file.DESCRIPTOR.name: file.DESCRIPTOR.serialized_pb
        # What our files import, as the installed protobuf has it.
        for file in (any_pb2, duration_pb2, struct_pb2, wrappers_pb2)
    },
    **FILES,
}
"""Serialized descriptors by the file's name, each after those that it imports."""

POOL: Final[Any] = descriptor_pool.DescriptorPool()
for _file in ALL_FILES.values():
    POOL.AddSerializedFile(_file)


def message_class(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


CheckRequest: Final[Any] = message_class("crestgate.v1.CheckRequest")
CheckResponse: Final[Any] = message_class("crestgate.v1.CheckResponse")
CheckBatchRequest: Final[Any] = message_class("crestgate.v1.CheckBatchRequest")
CheckBatchResponse: Final[Any] = message_class("crestgate.v1.CheckBatchResponse")
LimitStatus: Final[Any] = message_class("crestgate.v1.LimitStatus")
QuotaRequest: Final[Any] = message_class("crestgate.v1.QuotaRequest")
QuotaResponse: Final[Any] = message_class("crestgate.v1.QuotaResponse")
ResetRequest: Final[Any] = message_class("crestgate.v1.ResetRequest")
ResetResponse: Final[Any] = message_class("crestgate.v1.ResetResponse")
ResetCounter: Final[Any] = message_class("crestgate.v1.ResetCounter")
ExtendRequest: Final[Any] = message_class("crestgate.v1.ExtendRequest")
ExtendResponse: Final[Any] = message_class("crestgate.v1.ExtendResponse")
ReleaseRequest: Final[Any] = message_class("crestgate.v1.ReleaseRequest")
ReserveRequest: Final[Any] = message_class("crestgate.v1.ReserveRequest")
ReserveResponse: Final[Any] = message_class("crestgate.v1.ReserveResponse")
SettleRequest: Final[Any] = message_class("crestgate.v1.SettleRequest")
SettleResponse: Final[Any] = message_class("crestgate.v1.SettleResponse")
Dimension: Final[dict[int, str]] = {
    value.number: value.name for value in POOL.FindEnumTypeByName("crestgate.v1.Dimension").values
}
"""The names of dimensions by their numbers, DIMENSION_UNSPECIFIED included."""

RateLimitRequest: Final[Any] = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
RateLimitResponse: Final[Any] = message_class("envoy.service.ratelimit.v3.RateLimitResponse")

HealthCheckRequest: Final[Any] = message_class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse: Final[Any] = message_class("grpc.health.v1.HealthCheckResponse")
HealthListResponse: Final[Any] = message_class("grpc.health.v1.HealthListResponse")

ReflectionRequest: Final[Any] = message_class("grpc.reflection.v1.ServerReflectionRequest")
"""The older v1alpha has the same fields with the same numbers: on the wire they are one."""
ReflectionResponse: Final[Any] = message_class("grpc.reflection.v1.ServerReflectionResponse")
