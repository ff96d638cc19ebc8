"""grpc.reflection.v1 and v1alpha: the services of this server, for tools without .proto files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, final

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from crestgate.protobuf.messages import ALL_FILES, ReflectionRequest, ReflectionResponse
from crestgate.service.context import CallContext
from crestgate.service.grpc.services.method import one_line
from crestgate.service.grpc.transport.call import RpcStatus, Send

__all__ = ["Reflection"]

FORMS: Final = "list_services, file_by_filename or file_containing_symbol"


@final
class Reflection:
    """Serves file descriptors. Both versions are the same on the wire."""

    def __init__(self, services: Sequence[str]) -> None:
        """`services` are their full names."""
        self.services = sorted(services)
        self._imports: dict[str, list[str]] = {}
        self._files: dict[str, str] = {}
        """The file of each symbol."""
        for name, data in ALL_FILES.items():
            file = FileDescriptorProto.FromString(data)
            self._imports[name] = list(file.dependency)
            for symbol in _symbols(file):
                self._files[symbol] = name

    async def answer(self, call: CallContext, messages: AsyncIterator[bytes], send: Send) -> None:
        """ServerReflectionInfo: one response to each request."""
        async for message in messages:
            request = ReflectionRequest.FromString(message)
            answer = ReflectionResponse(valid_host=request.host, original_request=request)
            self._fill(answer, request)
            await send(answer.SerializeToString())

    def _fill(self, answer: Any, request: Any) -> None:
        kind: str | None = request.WhichOneof("message_request")
        if kind == "list_services":
            answer.list_services_response.SetInParent()
            for service in self.services:
                answer.list_services_response.service.add(name=service)
        elif kind == "file_by_filename":
            self._fill_file(answer, request.file_by_filename, f"there is no file {request.file_by_filename!r} here")
        elif kind == "file_containing_symbol":
            symbol: str = request.file_containing_symbol.removeprefix(".")
            self._fill_file(answer, self._files.get(symbol, ""), f"there is no {symbol!r} here")
        elif kind is None:
            _refuse(answer, RpcStatus.INVALID_ARGUMENT, f"nothing is asked for: set {FORMS}")
        else:
            _refuse(answer, RpcStatus.NOT_FOUND, "there are no extensions here")

    def _fill_file(self, answer: Any, name: str, missing: str) -> None:
        if name not in ALL_FILES:
            _refuse(answer, RpcStatus.NOT_FOUND, missing)
            return
        files = dict.fromkeys(self._with_imports(name))
        answer.file_descriptor_response.file_descriptor_proto.extend([ALL_FILES[file] for file in files])

    def _with_imports(self, name: str) -> Iterator[str]:
        """A file, and all that it imports."""
        yield name
        for imported in self._imports[name]:
            yield from self._with_imports(imported)


def _refuse(answer: Any, status: RpcStatus, message: str) -> None:
    answer.error_response.error_code = int(status)
    answer.error_response.error_message = one_line(message)


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """The full names of all symbols of a file."""
    package = file.package
    for message in file.message_type:
        yield from _symbols_of_message(message, package)
    for enum in file.enum_type:
        yield from _symbols_of_enum(enum, package)
    for service in file.service:
        name = f"{package}.{service.name}"
        yield name
        for method in service.method:
            yield f"{name}.{method.name}"


def _symbols_of_message(message: DescriptorProto, scope: str) -> Iterator[str]:
    name = f"{scope}.{message.name}"
    yield name
    for field in message.field:
        yield f"{name}.{field.name}"
    for oneof in message.oneof_decl:
        yield f"{name}.{oneof.name}"
    for nested in message.nested_type:
        yield from _symbols_of_message(nested, name)
    for enum in message.enum_type:
        yield from _symbols_of_enum(enum, name)


def _symbols_of_enum(enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
    """Values are in the scope of their enum, not in the enum."""
    yield f"{scope}.{enum.name}"
    for value in enum.value:
        yield f"{scope}.{value.name}"
