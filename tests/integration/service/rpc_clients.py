"""Three gRPC clients that share no code with the service: grpcio, grpclib, and one that uses reflection only.

All take the fields of the request as a dictionary and return those of the response, so that one test can call every
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

TIMEOUT = 30.0
PROTO = Path(__file__).parents[3] / "proto"
LIMITER = "crestgate.v1.RateLimiter"
ENVOY = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


class Client(Protocol):
    """The interface of the three clients."""

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        """The response to a unary call."""

    def first_response(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The first response of a streaming call, which is then cancelled."""

    def close(self) -> None: ...


@cache
def generated_modules() -> dict[str, tuple[Any, Any]]:
    """Messages and stubs by service: ours compiled by grpcio from the .proto file, health and reflection from grpcio's
    packages, Envoy's without stubs."""
    sys.path.append(str(PROTO / "crestgate" / "v1"))  # not its parent, where `crestgate` would shadow the package
    try:
        limiter = grpc.protos_and_services("rate_limiter.proto")
    finally:
        sys.path.pop()
    return {
        LIMITER: limiter,
        ENVOY: (compile_proto("envoy/service/ratelimit/v3/rls.proto"), None),  # `envoy` is a package too
        HEALTH: (health_pb2, health_pb2_grpc),
        REFLECTION_ALPHA: (reflection_pb2, reflection_pb2_grpc),
        REFLECTION: (compile_proto("grpc/reflection/v1/reflection.proto"), None),  # grpcio has no stubs for it
    }


def compile_proto(name: str) -> Any:
    """Compile a .proto file; return its descriptor like a generated module does."""
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
    """The request and response classes of a method."""
    messages = generated_modules()[service][0]
    descriptor = messages.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
    return tuple(message_factory.GetMessageClass(kind) for kind in (descriptor.input_type, descriptor.output_type))  # type: ignore[return-value]


def as_dict(response: Any) -> dict[str, Any]:
    message: dict[str, Any] = json_format.MessageToDict(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return message


class Grpcio:
    """grpcio, with stubs from its compiler."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        payload = json_format.ParseDict(fields, classes_of(service, method)[0]())
        return as_dict(self._stub(service, method)(payload, timeout=TIMEOUT, metadata=list(metadata.items())))

    def first_response(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        payload = json_format.ParseDict(fields, classes_of(service, method)[0]())
        sent = iter([payload]) if method == "ServerReflectionInfo" else payload
        responses = self._stub(service, method)(sent, timeout=TIMEOUT)
        response = as_dict(next(responses))
        responses.cancel()
        return response

    def _stub(self, service: str, method: str) -> Callable[..., Any]:
        stubs = generated_modules()[service][1]
        if stubs is None:
            request, response = classes_of(service, method)
            kind = self.channel.unary_unary if service == ENVOY else self.channel.stream_stream
            return kind(f"/{service}/{method}", request.SerializeToString, response.FromString)  # type: ignore[no-any-return]
        return getattr(getattr(stubs, service.rpartition(".")[2] + "Stub")(self.channel), method)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.channel.close()


class Grpclib:
    """grpclib: an independent HTTP/2 and gRPC implementation in pure Python."""

    def __init__(self, address: str) -> None:
        self.runner = asyncio.Runner()
        host, _, port = address.rpartition(":")

        async def connect() -> grpclib.client.Channel:
            return grpclib.client.Channel(host, int(port))

        self.channel = self.runner.run(connect())

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        request, response = classes_of(service, method)
        stub = grpclib.client.UnaryUnaryMethod(self.channel, f"/{service}/{method}", request, response)
        payload = json_format.ParseDict(fields, request())

        async def run() -> Any:
            return await stub(payload, timeout=TIMEOUT, metadata=dict(metadata))

        return as_dict(self.runner.run(run()))

    def first_response(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        request, response = classes_of(service, method)
        bidirectional = method == "ServerReflectionInfo"
        kind = grpclib.client.StreamStreamMethod if bidirectional else grpclib.client.UnaryStreamMethod
        stub = kind(self.channel, f"/{service}/{method}", request, response)
        payload = json_format.ParseDict(fields, request())

        async def run() -> Any:
            async with stub.open(timeout=TIMEOUT) as stream:
                await stream.send_message(payload, end=True)
                message = await stream.recv_message()
                if not bidirectional:  # a bidirectional stream ends by itself
                    await stream.cancel()
                return message

        return as_dict(self.runner.run(run()))

    def close(self) -> None:
        self.channel.close()
        self.runner.close()


class Reflected:
    """A client that knows the service only through reflection."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool: Any = descriptor_pool.DescriptorPool(self.database)

    def methods(self) -> set[tuple[str, str]]:
        """All methods that can be called."""
        return {
            (service, method.name)
            for service in self.database.get_services()
            for method in self.pool.FindServiceByName(service).methods
        }

    def call(self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
        payload, stub = self._prepare(service, method, fields)
        return as_dict(stub(payload, timeout=TIMEOUT, metadata=list(metadata.items())))

    def first_response(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        payload, stub = self._prepare(service, method, fields)
        descriptor = self.pool.FindServiceByName(service).methods_by_name[method]
        responses = stub(iter([payload]) if descriptor.client_streaming else payload, timeout=TIMEOUT)
        response = as_dict(next(responses))
        responses.cancel()
        return response

    def _prepare(self, service: str, method: str, fields: dict[str, Any]) -> tuple[Any, Any]:
        descriptor = self.pool.FindServiceByName(service).methods_by_name[method]
        request = message_factory.GetMessageClass(descriptor.input_type)
        response = message_factory.GetMessageClass(descriptor.output_type)
        kind = f"{'stream' if descriptor.client_streaming else 'unary'}_" + (
            "stream" if descriptor.server_streaming else "unary"
        )
        stub = getattr(self.channel, kind)(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return json_format.ParseDict(fields, request()), stub

    def close(self) -> None:
        self.channel.close()
