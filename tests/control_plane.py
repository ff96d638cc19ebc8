"""A control plane: a grpcio server with messages of its own, built from field numbers, independent of Crestgate's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, struct_pb2

__all__ = ["ADS", "RLS", "TYPE", "ControlPlane", "domain"]

ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
RLS = "ratelimit.service.ratelimit.v3.RateLimitConfigDiscoveryService/StreamRlsConfigs"
TYPE = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
Field = descriptor_pb2.FieldDescriptorProto
KINDS = {"string": Field.TYPE_STRING, "int": Field.TYPE_INT32, "uint": Field.TYPE_UINT32, "bool": Field.TYPE_BOOL}
SCHEMA: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Status": {"code": (1, "int"), "message": (2, "string")},
    "Node": {"id": (1, "string"), "cluster": (2, "string"), "metadata": (3, "google.protobuf.Struct")},
    "DiscoveryRequest": {
        "version_info": (1, "string"),
        "node": (2, "control_plane.Node"),
        "resource_names": (3, "string*"),
        "type_url": (4, "string"),
        "response_nonce": (5, "string"),
        "error_detail": (6, "control_plane.Status"),
    },
    "DiscoveryResponse": {
        "version_info": (1, "string"),
        "resources": (2, "google.protobuf.Any*"),
        "canary": (3, "bool"),
        "type_url": (4, "string"),
        "nonce": (5, "string"),
    },
    "Replace": {"name": (1, "string")},
    "Policy": {
        "unit": (1, "int"),
        "requests_per_unit": (2, "uint"),
        "unlimited": (3, "bool"),
        "name": (4, "string"),
        "replaces": (5, "control_plane.Replace*"),
    },
    "Descriptor": {
        "key": (1, "string"),
        "value": (2, "string"),
        "rate_limit": (3, "control_plane.Policy"),
        "descriptors": (4, "control_plane.Descriptor*"),
        "shadow_mode": (5, "bool"),
        "detailed_metric": (6, "bool"),
        "quota_mode": (7, "bool"),
        "metadata": (8, "google.protobuf.Struct"),
    },
    "Config": {"name": (1, "string"), "domain": (2, "string"), "descriptors": (3, "control_plane.Descriptor*")},
}


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.Default()
    made = descriptor_pb2.FileDescriptorProto(name="control_plane.proto", package="control_plane", syntax="proto3")
    made.dependency.extend([any_pb2.DESCRIPTOR.name, struct_pb2.DESCRIPTOR.name])
    for name, fields in SCHEMA.items():
        message = made.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, kind = kind.endswith("*"), kind.rstrip("*")
            added = message.field.add(name=field, number=number, type=KINDS.get(kind, Field.TYPE_MESSAGE))
            added.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            if kind not in KINDS:
                added.type_name = f".{kind}"
    pool.Add(made)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"control_plane.{name}")) for name in SCHEMA
    }


MESSAGES = _classes()


def domain(name: str, *descriptors: Mapping[str, Any]) -> Any:
    """A resource: `domain("shop", {"key": "user", "rate_limit": {"unit": 2, "requests_per_unit": 5}})`."""
    config = MESSAGES["Config"](name=name, domain=name, descriptors=descriptors)
    return any_pb2.Any(type_url=TYPE, value=config.SerializeToString())


class ControlPlane:
    """Serves one configuration at a time, and sends every new one to the streams that are open."""

    def __init__(
        self, port: int = 0, methods: Sequence[str] = (ADS,), credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.requests: list[Any] = []
        """All DiscoveryRequests so far."""
        self.headers: list[dict[str, str]] = []
        """The metadata of each stream."""
        self.current: tuple[str, list[Any], str] | None = None
        self._streams: list[SimpleQueue[Any]] = []
        self._nonces = 0
        self._lock = Lock()
        self._server = grpc.server(ThreadPoolExecutor(16))
        for method in methods:
            service, _, name = method.partition("/")
            handler = grpc.stream_stream_rpc_method_handler(
                self._serve,
                request_deserializer=MESSAGES["DiscoveryRequest"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        at = f"127.0.0.1:{port}"
        self.port: int = (
            self._server.add_insecure_port(at) if credentials is None else self._server.add_secure_port(at, credentials)
        )
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(self, version: str, *resources: Any, type_url: str = TYPE) -> None:
        with self._lock:
            self.current = version, list(resources), type_url
            for stream in self._streams:
                stream.put(self.current)

    def answers(self) -> list[tuple[str, str, str]]:
        """Version, nonce and error of every request that answers a response."""
        return [
            (request.version_info, request.response_nonce, request.error_detail.message)
            for request in list(self.requests)
            if request.response_nonce
        ]

    def close(self) -> None:
        with self._lock:
            for stream in self._streams:
                stream.put(None)
        self._server.stop(0).wait()

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        stream: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            self.headers.append(dict(context.invocation_metadata()))
            if self.current is not None:
                stream.put(self.current)
            self._streams.append(stream)
        context.add_callback(lambda: stream.put(None))
        reading = ThreadPoolExecutor(1)
        reading.submit(self._read, requests)
        try:
            while (configuration := stream.get()) is not None:
                version, resources, type_url = configuration
                with self._lock:
                    self._nonces += 1
                    nonce = f"n{self._nonces}"
                yield MESSAGES["DiscoveryResponse"](
                    version_info=version, resources=resources, type_url=type_url, nonce=nonce
                )
        finally:
            with self._lock:
                self._streams.remove(stream)
            reading.shutdown(wait=False)

    def _read(self, requests: Iterator[Any]) -> None:
        try:
            for request in requests:
                self.requests.append(request)
        except grpc.RpcError:
            pass
        except Exception:  # noqa: BLE001 - the stream was cancelled
            pass
