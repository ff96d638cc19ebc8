"""The messages match the .proto files, and do not conflict with other definitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crestgate.protobuf import messages
from crestgate.protobuf.schema import FILES

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto"


def test_schema_is_that_of_the_proto_files() -> None:
    checked = subprocess.run(
        [sys.executable, "proto/compile.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert set(FILES) == {str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto")}


BESIDE = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool

other = descriptor_pb2.FileDescriptorProto(name="envoy/service/ratelimit/v3/rls.proto", syntax="proto3")
other.package = "envoy.service.ratelimit.v3"
other.message_type.add(name="RateLimitRequest").field.add(name="other", number=9, type=9, label=1)
descriptor_pool.Default().AddSerializedFile(other.SerializeToString())

from crestgate.protobuf import messages

from crestgate.service.grpc.services import registry

theirs = descriptor_pool.Default().FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitRequest")
assert [field.name for field in theirs.fields] == ["other"]
assert messages.RateLimitRequest(domain="edge").domain == "edge"
assert "grpc" not in sys.modules
"""


def test_messages_do_not_clash_with_other_definitions_and_need_no_grpcio() -> None:
    """As in a process that has loaded Envoy's own modules, which have more fields."""
    ended = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "crestgate.v1.CheckRequest",
            "identifier=1 dimension=2 endpoint=3 cost=4 timestamp=5 key=6 plans=7 method=8 attributes=9",
        ),
        (
            "crestgate.v1.CheckResponse",
            "allowed=1 current_count=2 limit=3 remaining=4 reset_at=5 retry_after=6 reason=7 rule=8 state=9 delay=10 "
            "queue_position=11 reset_after=12 parts=13 shadows=14",
        ),
        ("crestgate.v1.ResetResponse", "reset_count=1 reset=2"),
        ("envoy.service.ratelimit.v3.RateLimitRequest", "domain=1 descriptors=2 hits_addend=3"),
        (
            "envoy.service.ratelimit.v3.RateLimitResponse",
            "overall_code=1 statuses=2 response_headers_to_add=3 request_headers_to_add=4 raw_body=5 "
            "dynamic_metadata=6",
        ),
        (
            "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
            "code=1 current_limit=2 limit_remaining=3 duration_until_reset=4",
        ),
        ("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit", "requests_per_unit=1 unit=2 name=3"),
        (
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
            "entries=1 limit=2 hits_addend=3 is_negative_hits=4",
        ),
        ("envoy.config.core.v3.HeaderValue", "key=1 value=2 raw_value=3"),
        ("grpc.health.v1.HealthCheckResponse", "status=1"),
    ],
)
def test_field_numbers_are_stable(name: str, fields: str) -> None:
    described = messages.message_class(name).DESCRIPTOR.fields
    assert " ".join(f"{field.name}={field.number}" for field in described) == fields


def test_quota_messages_match_check_messages() -> None:
    for one, other in [("CheckRequest", "QuotaRequest"), ("CheckResponse", "QuotaResponse")]:
        fields_of = [
            [(field.name, field.number, field.type) for field in getattr(messages, name).DESCRIPTOR.fields]
            for name in (one, other)
        ]
        assert fields_of[0] == fields_of[1]
