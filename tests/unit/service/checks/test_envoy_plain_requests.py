"""Requests whose bytes are read here, and those that match the limits of an earlier one, are as protobuf has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.envoy.evaluator import MAX_CACHED, MAX_SHAPES, DescriptorEvaluator
from crestgate.envoy.matcher import Domains
from crestgate.envoy.plain_request import read_plain
from crestgate.envoy.request import RateLimitCheck
from crestgate.errors import InvalidRequestError
from crestgate.protobuf import messages
from crestgate.protobuf.messages import DecodeError
from unit.service.checks.proxy import Proxy, descriptor

YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: route
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 1, burst: 5, algorithm: token_bucket}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: share
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true, name: free}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: per-user}]}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: tenant
    value: acme
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 5}
  - key: known
    metadata: {team: search}
    rate_limit: {unit: minute, requests_per_unit: 5}
"""
entries = st.tuples(
    st.sampled_from(
        ["user", "route", "bucket", "tried", "share", "free", "vip", "detailed", "tenant", "known", "", "x"]
    ),
    st.sampled_from(["a", "b", "acme", "", "%|", "grüße", "v" * 200]),
)
descriptors = st.lists(st.lists(entries, max_size=3), min_size=1, max_size=4)
requests = st.tuples(st.sampled_from(["edge", "edge", "edge", "elsewhere"]), descriptors, st.integers(0, 5))


def encoded(domain: str, descriptors: list[list[tuple[str, str]]], hits: int = 0) -> bytes:
    made = [descriptor(*[f"{key}={value}" for key, value in one]) for one in descriptors]
    return bytes(messages.RateLimitRequest(domain=domain, descriptors=made, hits_addend=hits).SerializeToString())


def described(check: RateLimitCheck) -> Any:
    """All of a check."""
    request = check.request
    return (
        [(one.key, one.algorithm, one.cost, one.binds, one.tick, one.amount, one.peeks) for one in check.members],
        (check.indexes, check.encoded_limits, check.denies, check.kinds, check.is_peek, check.amounts, check.beyond),
        [None if limit is None else limit.label for limit in check.limits],
        (check.labels, check.quotas, check.checks, check.single, check.settles, check.message is None),
        None if request is None else (request.op, request.members is check.members),
        None if check.pending is None else check.pending.members is check.members,
    )


@pytest.fixture
def evaluator(proxies: Callable[..., Proxy]) -> DescriptorEvaluator:
    found = proxies().envoy.evaluator
    assert found is not None
    return found


@settings(max_examples=300)
@given(st.lists(requests, min_size=1, max_size=8))
def test_checks_are_those_of_protobuf(domains: Any, sent: list[tuple[str, list[list[tuple[str, str]]], int]]) -> None:
    proxy = Proxy(domains)
    try:
        evaluator = proxy.envoy.evaluator
        assert evaluator is not None
        for domain, descriptors, hits in sent:
            data = encoded(domain, descriptors, hits)
            expected = evaluator.read(messages.RateLimitRequest.FromString(data))
            assert described(evaluator.read_bytes(data)) == described(expected)
    finally:
        proxy.close()


@given(requests)
def test_plain_requests_are_read(sent: tuple[str, list[list[tuple[str, str]]], int]) -> None:
    domain, descriptors, hits = sent
    plain = read_plain(encoded(domain, descriptors, hits))
    assert plain is not None
    assert (plain.domain, plain.descriptors, plain.hits) == (domain, descriptors, hits)


@settings(max_examples=500)
@given(
    st.binary(max_size=30)
    | st.lists(st.sampled_from([b"\x0a", b"\x12", b"\x18", b"\x01", b"\x02", b"a", b"\x80", b"\x00"])).map(b"".join)
)
def test_what_is_read_is_what_protobuf_reads(data: bytes) -> None:
    plain = read_plain(data)
    if plain is None:
        return  # it is left to protobuf
    message = messages.RateLimitRequest.FromString(data)
    assert plain.domain == message.domain
    assert plain.hits == message.hits_addend
    assert plain.descriptors == [[(entry.key, entry.value) for entry in one.entries] for one in message.descriptors]


@pytest.mark.parametrize(
    "data",
    [
        encoded("edge", [[("user", "a")]]) + b"\x0a\x01x",
        encoded("edge", [[("user", "a")]], 1) + b"\x18\x02",
        encoded("edge", [[("user", "a")]]) + b"\x20\x01",
        encoded("edge", [[("user", "a")]])[:-1],
        b"\x0a\x01\xff",
        b"\x12\x04\x0a\x02\x0a\xff",
        b"\x18\xff\xff\xff\xff\x0f",
        bytes(messages.RateLimitRequest(domain="d", descriptors=[descriptor("a=b", hits=2)]).SerializeToString()),
        bytes(messages.RateLimitRequest(domain="d", descriptors=[descriptor("a=b", back=True)]).SerializeToString()),
        bytes(messages.RateLimitRequest(domain="d", descriptors=[descriptor("a=b", limit=(1, 2))]).SerializeToString()),
    ],
)
def test_other_requests_are_left_to_protobuf(data: bytes) -> None:
    assert read_plain(data) is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encoded("", [[("user", "a")]]), InvalidRequestError),
        (encoded("edge", []), InvalidRequestError),
        (encoded("edge", [[("user", "a")]], 2**31), InvalidRequestError),
        (b"\x0a\x04edge\x12\x05\x0a\x03\x0a\x01\xff", DecodeError),
        (b"\x0a\x04edg", DecodeError),
    ],
)
def test_invalid_requests_stay_errors(evaluator: DescriptorEvaluator, data: bytes, error: type[Exception]) -> None:
    evaluator.read_bytes(encoded("edge", [[("user", "a")]]))
    for _ in range(2):
        with pytest.raises(error):
            evaluator.read_bytes(data)


def test_requests_of_the_same_limits_share_all_but_their_keys(evaluator: DescriptorEvaluator) -> None:
    first, second = (evaluator.read_bytes(encoded("edge", [[("user", name)]])) for name in "ab")
    assert (first.members[0].key, second.members[0].key) == ("edge|user=a", "edge|user=b")
    assert first.encoded_limits is second.encoded_limits
    assert len(evaluator.shapes) == 1


def test_a_counter_that_two_descriptors_name_is_charged_once(evaluator: DescriptorEvaluator) -> None:
    evaluator.read_bytes(encoded("edge", [[("user", "a")], [("user", "b")]]))
    both = evaluator.read_bytes(encoded("edge", [[("user", "c")], [("user", "c")]]))
    assert [(one.key, one.cost) for one in both.members] == [("edge|user=c", 2)]


def test_caches_are_bounded_and_belong_to_their_limits(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    evaluator = proxy.envoy.evaluator
    assert evaluator is not None
    for number in range(MAX_CACHED + 10):
        evaluator.read_bytes(encoded("edge", [[("user", f"{number}")]], number % 1000))
    assert len(evaluator.cache) <= MAX_CACHED
    assert len(evaluator.shapes) <= MAX_SHAPES
    many = [[("user", f"{number}")] for number in range(20)]
    evaluator.read_bytes(encoded("edge", many))
    assert all(len(check.members) <= 8 for check in [*evaluator.cache.values(), *evaluator.shapes.values()])
    assert proxy.descriptors is not None
    proxy.descriptors.current = Domains({})
    assert not evaluator.read_bytes(encoded("edge", [[("user", "1")]])).members
    assert len(evaluator.cache) == 1
    assert not evaluator.shapes
