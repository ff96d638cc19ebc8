"""The page about gRPC: its tables have every service, method, field, status and bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crestgate.envoy.descriptors import MAX_DESCRIPTORS
from crestgate.protobuf import messages
from crestgate.protobuf.schema import FILES
from crestgate.runtime.connection_budget import MAX_CONNECTIONS
from crestgate.runtime.connection_budget import MAX_HELD_BYTES as MAX_HELD_TOGETHER
from crestgate.service.checks.forms import MAX_CHECKS
from crestgate.service.grpc.transport.call import RpcStatus
from crestgate.service.grpc.transport.header_block import MAX_HEADER_BYTES
from crestgate.service.grpc.transport.listener import IDLE_TIMEOUT, PREFACE_TIMEOUT, STALL_TIMEOUT
from crestgate.service.grpc.transport.memory import MAX_HELD_BYTES
from crestgate.service.grpc.transport.requests import MAX_STREAMS
from crestgate.service.grpc.transport.stream import MAX_MESSAGE_BYTES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "grpc.md").read_text()
LIMITER: Any = messages.POOL.FindServiceByName("crestgate.v1.RateLimiter")


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_service_and_method_is_in_the_tables() -> None:
    top = PAGE.partition("\n## ")[0]
    files = [messages.POOL.FindFileByName(name) for name in FILES]
    services = {service.full_name for file in files for service in file.services_by_name.values()}
    assert {*re.findall(r"`(\w+\.[\w.]+\.\w+)`", "".join(re.findall(r"^\| `.*", top, re.MULTILINE)))} == services
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`, `(\w+)` \|", section("Methods"), re.MULTILINE)
    assert rows == [(method.name, method.input_type.name, method.output_type.name) for method in LIMITER.methods]


@pytest.mark.parametrize(("title", "kind"), [("Request", messages.CheckRequest), ("Response", messages.CheckResponse)])
def test_every_field_is_in_the_table_with_its_number(title: str, kind: Any) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", section(title), re.MULTILINE)
    assert {name: int(number) for name, number in rows} == {f.name: f.number for f in kind.DESCRIPTOR.fields}


def test_other_messages_match_the_page() -> None:
    check, response = numbers(messages.CheckRequest), numbers(messages.CheckResponse)
    assert numbers(messages.QuotaRequest) == check
    assert numbers(messages.QuotaResponse) == response
    assert numbers(messages.LimitStatus) == dict(list(response.items())[:12])
    reset = numbers(messages.ResetRequest)
    assert {name for name in check if name not in reset} == {"cost", "timestamp"}
    others = [
        *(messages.CheckBatchRequest, messages.CheckBatchResponse, messages.ResetResponse, messages.ResetCounter),
        messages.message_class("crestgate.v1.Descriptor"),
        messages.message_class("crestgate.v1.Descriptor.Entry"),
    ]
    named = {(name, number) for name, number in reset.items() if name not in check}
    named |= {field for other in others for field in numbers(other).items()}
    documented = " ".join((section("Request") + section("Response")).split())
    assert [name for name, number in named if f"`{name}` ({number})" not in documented] == []


def numbers(kind: Any) -> dict[str, int]:
    return {field.name: field.number for field in kind.DESCRIPTOR.fields}


def test_dimensions_and_statuses_are_those_of_the_code() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `dimension`"))
    documented = {int(number): name for name, number in re.findall(r"`([A-Z_]+)` (\d)", row)}
    assert documented == {number: name for number, name in messages.Dimension.items() if number}
    statuses = {int(number): name for name, number in re.findall(r"^\| ([A-Z_]+) \((\d+)\) \|", PAGE, re.MULTILINE)}
    assert statuses == {status.value: status.name for status in RpcStatus}


def test_bounds_are_those_of_the_listener() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section("Limits and bounds"), re.MULTILINE))
    assert {what: re.split("[:,] ", rows[what])[0] for what in rows if what in BOUNDS} == BOUNDS


BOUNDS = {
    "a message": f"{MAX_MESSAGE_BYTES // 1024**2} MiB",
    "calls in progress on one connection": f"{MAX_STREAMS:,}",
    "bytes of calls in progress on one connection": f"{MAX_HELD_BYTES // 1024**2} MiB",
    "headers of a call": f"{MAX_HEADER_BYTES // 1024} KiB",
    "checks in a batch": f"{MAX_CHECKS:,}",
    "descriptors of one `ShouldRateLimit`": f"{MAX_DESCRIPTORS:,}",
    "from a connection to its first bytes of HTTP/2": f"{PREFACE_TIMEOUT:.0f} seconds",
    "from a call's headers to its message": f"{STALL_TIMEOUT:.0f} seconds",
    "a response that the client does not read": f"{STALL_TIMEOUT:.0f} seconds",
    "the same of all connections of a worker": f"{MAX_HELD_TOGETHER // 1024**2} MiB",
    "a connection without calls": f"{IDLE_TIMEOUT / 60:.0f} minutes",
    "connections of a worker, HTTP and gRPC together": f"{MAX_CONNECTIONS:,}",
}
