"""Three clients of the service's gRPC that share nothing with it: grpcio's, grpclib's, and one that knows no .proto.

All of them take the fields of a message as a dictionary and give those of the answer, so that one test can call every
method with each of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, Protocol

import grpc
import grpc_tools
import grpclib.client
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

__all__ = ["ENVOY", "HEALTH", "LIMITER", "REFLECTION", "REFLECTION_ALPHA", "Client", "Grpcio", "Grpclib", "Reflected"]

PATIENCE = 30.0
PROTO = Path(__file__).parents[3] / "proto"
LIMITER = "crestgate.v1.RateLimiter"
ENVOY = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


class Client(Protocol):
    """What a test asks of each."""

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        """The answer to a unary call."""

    def first(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The first answer of a call that streams, which is then given up."""

    def close(self) -> None: ...


@cache
def generated() -> dict[str, tuple[Any, Any]]:
    """The messages and the stubs of each service: ours as grpcio's compiler makes them from the .proto file, health and
    reflection as grpcio's packages bring them, and Envoy's without stubs."""
    sys.path.append(str(PROTO / "crestgate" / "v1"))  # and not from above, where `crestgate` is a package already
    try:
        limiter = grpc.protos_and_services("rate_limiter.proto")
    finally:
        sys.path.pop()
    return {
        LIMITER: limiter,
        ENVOY: (compiled("envoy/service/ratelimit/v3/rls.proto"), None),  # `envoy` is a package, too
        HEALTH: (health_pb2, health_pb2_grpc),
        REFLECTION_ALPHA: (reflection_pb2, reflection_pb2_grpc),
        REFLECTION: (compiled("grpc/reflection/v1/reflection.proto"), None),  # for which grpcio has none
    }


def compiled(name: str) -> Any:
    """What a module has that is generated from a .proto file: its description."""
    google = Path(grpc_tools.__file__).parent / "_proto"
    with NamedTemporaryFile() as output:
        arguments = [f"-I{PROTO}", f"-I{google}", "--include_imports", f"--descriptor_set_out={output.name}", name]
        assert protoc.main(["protoc", *arguments]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read())
    pool: Any = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return SimpleNamespace(DESCRIPTOR=pool.FindFileByName(name))


def classes_of(service: str, method: str) -> tuple[Any, Any]:
    """The classes of a method's request and answer, out of what was generated."""
    messages = generated()[service][0]
    described = messages.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
    return tuple(message_factory.GetMessageClass(kind) for kind in (described.input_type, described.output_type))  # type: ignore[return-value]


def as_dict(answer: Any) -> dict[str, Any]:
    told: dict[str, Any] = json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told


class Grpcio:
    """grpcio, with stubs from its compiler."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        asked = json_format.ParseDict(fields, classes_of(service, method)[0]())
        return as_dict(self._stub(service, method)(asked, timeout=PATIENCE, metadata=list(metadata.items())))

    def first(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        asked = json_format.ParseDict(fields, classes_of(service, method)[0]())
        sent = iter([asked]) if method == "ServerReflectionInfo" else asked
        answers = self._stub(service, method)(sent, timeout=PATIENCE)
        answer = as_dict(next(answers))
        answers.cancel()
        return answer

    def _stub(self, service: str, method: str) -> Callable[..., Any]:
        stubs = generated()[service][1]
        if stubs is None:
            request, answer = classes_of(service, method)
            kind = self.channel.unary_unary if service == ENVOY else self.channel.stream_stream
            return kind(f"/{service}/{method}", request.SerializeToString, answer.FromString)  # type: ignore[no-any-return]
        return getattr(getattr(stubs, service.rpartition(".")[2] + "Stub")(self.channel), method)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.channel.close()


class Grpclib:
    """grpclib: HTTP/2 and gRPC of another make, in Python alone."""

    def __init__(self, address: str) -> None:
        self.runner = asyncio.Runner()
        host, _, port = address.rpartition(":")

        async def connect() -> grpclib.client.Channel:
            return grpclib.client.Channel(host, int(port))

        self.channel = self.runner.run(connect())

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        request, answer = classes_of(service, method)
        calling = grpclib.client.UnaryUnaryMethod(self.channel, f"/{service}/{method}", request, answer)
        asked = json_format.ParseDict(fields, request())

        async def ask() -> Any:
            return await calling(asked, timeout=PATIENCE, metadata=dict(metadata))

        return as_dict(self.runner.run(ask()))

    def first(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        request, answer = classes_of(service, method)
        both = method == "ServerReflectionInfo"
        kind = grpclib.client.StreamStreamMethod if both else grpclib.client.UnaryStreamMethod
        calling = kind(self.channel, f"/{service}/{method}", request, answer)
        asked = json_format.ParseDict(fields, request())

        async def ask() -> Any:
            async with calling.open(timeout=PATIENCE) as stream:
                await stream.send_message(asked, end=True)
                told = await stream.recv_message()
                if not both:  # the other one ends by itself
                    await stream.cancel()
                return told

        return as_dict(self.runner.run(ask()))

    def close(self) -> None:
        self.channel.close()
        self.runner.close()


class Reflected:
    """A client that has asked the service what there is, and knows nothing else."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool: Any = descriptor_pool.DescriptorPool(self.database)

    def methods(self) -> set[tuple[str, str]]:
        """Everything that can be called."""
        return {
            (service, method.name)
            for service in self.database.get_services()
            for method in self.pool.FindServiceByName(service).methods
        }

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        asked, calling = self._calling(service, method, fields)
        return as_dict(calling(asked, timeout=PATIENCE, metadata=list(metadata.items())))

    def first(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        asked, calling = self._calling(service, method, fields)
        described = self.pool.FindServiceByName(service).methods_by_name[method]
        answers = calling(iter([asked]) if described.client_streaming else asked, timeout=PATIENCE)
        answer = as_dict(next(answers))
        answers.cancel()
        return answer

    def _calling(self, service: str, method: str, fields: dict[str, Any]) -> tuple[Any, Any]:
        described = self.pool.FindServiceByName(service).methods_by_name[method]
        request = message_factory.GetMessageClass(described.input_type)
        answer = message_factory.GetMessageClass(described.output_type)
        kind = f"{'stream' if described.client_streaming else 'unary'}_" + (
            "stream" if described.server_streaming else "unary"
        )
        calling = getattr(self.channel, kind)(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return json_format.ParseDict(fields, request()), calling

    def close(self) -> None:
        self.channel.close()
