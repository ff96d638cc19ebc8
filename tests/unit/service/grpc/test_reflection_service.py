"""Reflection: clients discover services without .proto files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from crestgate.protobuf import messages
from crestgate.service.grpc.transport.call import RpcCall, RpcStatus
from unit.service.worker import Worker

VERSIONS = ("v1", "v1alpha")
NOT_FOUND = int(RpcStatus.NOT_FOUND)
LIMITER = "crestgate/v1/rate_limiter.proto"
ENVOY = "envoy/service/ratelimit/v3/rls.proto"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def reflect(worker: Worker, *requests: dict[str, Any], version: str = "v1") -> list[Any]:
    method = worker.methods[f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo".encode()].streaming
    assert method is not None
    responses: list[Any] = []

    async def stream() -> AsyncIterator[bytes]:
        for request in requests:
            assert len(responses) == requests.index(request)  # one response to each request, before the next
            yield messages.ReflectionRequest(**request).SerializeToString()

    async def send(message: bytes) -> None:
        responses.append(messages.ReflectionResponse.FromString(message))

    async def run_call() -> None:
        await method(RpcCall(b"", (), None, None), stream(), send)

    worker.runner.run(run_call())
    return responses


def files(answer: Any) -> list[str]:
    data = answer.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(one).name for one in data]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_services_are_listed(worker: Worker, version: str) -> None:
    (answer,) = reflect(worker, {"host": "h", "list_services": "*"}, version=version)
    listed = [service.name for service in answer.list_services_response.service]
    assert listed == sorted({path.split(b"/")[1].decode() for path in worker.methods})
    assert "crestgate.v1.RateLimiter" in listed
    assert (answer.valid_host, answer.original_request.list_services) == ("h", "*")


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("crestgate.v1.RateLimiter", LIMITER),
        ("crestgate.v1.RateLimiter.ResetLimit", LIMITER),
        ("crestgate.v1.CheckRequest", LIMITER),
        ("crestgate.v1.CheckRequest.cost", LIMITER),
        ("crestgate.v1.Descriptor.Entry", LIMITER),
        ("crestgate.v1.Dimension", LIMITER),
        ("crestgate.v1.API_KEY", LIMITER),
        (".crestgate.v1.CheckRequest", LIMITER),
        ("envoy.service.ratelimit.v3.RateLimitResponse.Code", ENVOY),
        ("envoy.service.ratelimit.v3.RateLimitResponse.OVER_LIMIT", ENVOY),
        ("envoy.type.v3.RateLimitUnit", "envoy/type/v3/ratelimit_unit.proto"),
        ("google.protobuf.Duration", "google/protobuf/duration.proto"),
        ("grpc.reflection.v1.ServerReflectionRequest.message_request", "grpc/reflection/v1/reflection.proto"),
    ],
)
def test_symbol_returns_its_file(worker: Worker, symbol: str, file: str) -> None:
    (answer,) = reflect(worker, {"file_containing_symbol": symbol})
    assert files(answer)[0] == file


def test_file_comes_with_its_imports_once(worker: Worker) -> None:
    by_name, by_symbol = reflect(
        worker,
        {"file_by_filename": ENVOY},
        {"file_containing_symbol": "envoy.service.ratelimit.v3.RateLimitService"},
    )
    assert files(by_name) == files(by_symbol)
    assert sorted(files(by_name)) == [
        "envoy/config/core/v3/base.proto",
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        ENVOY,
        "envoy/type/v3/ratelimit_unit.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/wrappers.proto",
    ]


def test_every_service_can_be_built_from_reflection(worker: Worker) -> None:
    (listing,) = reflect(worker, {"list_services": ""})
    for service in listing.list_services_response.service:
        (answer,) = reflect(worker, {"file_containing_symbol": service.name})
        pool: Any = descriptor_pool.DescriptorPool()
        for data in reversed(answer.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(data)
        described = {f"/{service.name}/{method.name}" for method in pool.FindServiceByName(service.name).methods}
        assert described == {path.decode() for path in worker.methods if path.decode().split("/")[1] == service.name}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"file_by_filename": "nowhere.proto"}, NOT_FOUND),
        ({"file_containing_symbol": "crestgate.v1.Nothing"}, NOT_FOUND),
        ({"file_containing_symbol": ""}, NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "crestgate.v1.CheckRequest"}}, NOT_FOUND),
        ({"all_extension_numbers_of_type": "crestgate.v1.CheckRequest"}, NOT_FOUND),
        ({}, int(RpcStatus.INVALID_ARGUMENT)),
    ],
)
def test_unknown_symbol_is_an_error_and_the_stream_continues(worker: Worker, query: dict[str, Any], code: int) -> None:
    refused, answered = reflect(worker, query, {"file_by_filename": LIMITER})
    assert refused.error_response.error_code == code
    assert refused.error_response.error_message
    assert files(answered) == [LIMITER]
