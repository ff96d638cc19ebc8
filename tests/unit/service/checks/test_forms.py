"""Invalid checks are refused with the name of the field, before the store is called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crestgate import AsyncLimiter
from crestgate.errors import InvalidRequestError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Edit
from crestgate.service.checks.forms import prepare_check, prepare_verify, read_batch, read_check, read_verify
from crestgate.service.checks.json_body import MAX_OBJECTS, decode_json
from crestgate.service.errors import invalid_request
from crestgate.stores.port import Op
from crestgate.testing import FakeClock
from unit.rules.memory_repository import MemoryRepository

LONG = "x" * 1025


@pytest.fixture
def limiter() -> Iterator[AsyncLimiter]:
    clock = FakeClock(1_700_000_000)
    repository = MemoryRepository(clock)
    repository.write([Edit("plan", "gold", {"limits": ["10/second"]})], Actor("test"))
    catalog = Catalog([repository], 3600)
    yield AsyncLimiter("memory://", clock=clock, catalog=catalog)
    catalog.close()


@pytest.mark.parametrize(
    ("check", "field"),
    [
        ({}, ""),
        ({"key": "a", "cost": -1}, "cost"),
        ({"key": "a", "cost": 2**31}, "cost"),
        ({"key": ""}, "key"),
        ({"key": LONG}, "key"),
        ({"key": LONG, "plans": ["gold"]}, "key"),
        ({"key": "a", "plans": ["gold"], "cost": -1}, "cost"),
        ({"key": "a", "plans": []}, "plans"),
        ({"key": "a", "plans": ["gold", "10/minute"]}, "plans[1]"),
        ({"key": "a", "plans": ["gold"] * 21}, "plans"),
        ({"key": "a", "dimension": "USER"}, "dimension"),
        ({"key": "a", "plans": ["gold"], "endpoint": "/x"}, "endpoint"),
        ({"plans": ["gold"]}, ""),
        ({"dimension": "USER"}, "identifier"),
        ({"dimension": "USER", "identifier": ""}, "identifier"),
        ({"dimension": "USER", "identifier": LONG}, "identifier"),
        ({"dimension": "API_KEY", "identifier": LONG}, "identifier"),
        ({"dimension": "planet", "identifier": "mars"}, "dimension"),
        ({"dimension": "USER", "identifier": "1", "method": ""}, "method"),
        ({"dimension": "USER", "identifier": "1", "endpoint": "/" + "x" * 8192}, "endpoint"),
        ({"dimension": "USER", "identifier": "1", "plans": ["gold"]}, "plans"),
        ({"context": {"user": LONG}}, "context.user"),
        ({"context": {"attributes": {"org": LONG}}}, "context.attributes.org"),
        ({"context": {"attributes": {"Org": "acme"}}}, "context.attributes"),
        ({"context": {"attributes": {"user": "42"}}}, "context.attributes"),
        ({"context": {"attributes": {f"a{n}": "1" for n in range(17)}}}, "context.attributes"),
        ({"context": {"path": "/" + "x" * 8192}}, "context.path"),
        ({"context": {"user": "1"}, "cost": -1}, "cost"),
        ({"context": {}, "key": "a"}, "key"),
        ({"context": {}, "method": "GET"}, "method"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_invalid_form_names_the_field(limiter: AsyncLimiter, check: dict[str, Any], field: str) -> None:
    parsed = read_check(json.dumps(check).encode())
    with pytest.raises(InvalidRequestError) as caught:
        prepare_check(limiter, Op.TAKE, parsed)
    assert caught.value.field == field
    assert caught.value.inside("checks[3]").field == (f"checks[3].{field}" if field else "checks[3]")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"key": 5}', "key"),
        (b'{"key": "a", "cost": 1.5}', "cost"),
        (b'{"key": "a", "cost": true}', "cost"),
        (b'{"key": "a", "cost": "1"}', "cost"),
        (b'{"key": "a", "colour": 1}', "colour"),
        (b'{"context": {"colour": 1}}', "context.colour"),
        (b'{"context": {"user": ""}}', "context.user"),
        (b'{"key": "a", "timestamp": "now"}', "timestamp"),
        (b'{"key": "a", "plans": "gold"}', "plans"),
        (b"[]", ""),
        (b"", ""),
        (b'{"key": NaN}', ""),
        (b'\xff"', ""),
    ],
)
def test_invalid_body_names_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_check(body)
    assert caught.value.field == field


def test_error_in_batch_names_the_check() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_batch(b'{"checks": [{"key": "a"}, {"key": "a", "cost": "1"}]}')
    assert caught.value.field == "checks[1].cost"
    with pytest.raises(InvalidRequestError, match="has 1001 checks; the maximum is 1000"):
        read_batch(json.dumps({"checks": [{"key": "a"}] * 1001}).encode())
    with pytest.raises(InvalidRequestError) as caught:
        read_batch(b'{"check": []}')
    assert caught.value.field in ("check", "checks")


@pytest.mark.parametrize(
    ("body", "field"),
    [({"clientId": LONG}, "clientId"), ({"clientId": "a", "apiName": "/" + "x" * 8192}, "apiName")],
    ids=["clientId", "apiName"],
)
def test_verify_errors_name_its_own_fields(limiter: AsyncLimiter, body: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepare_verify(limiter, read_verify(json.dumps(body).encode()))
    assert caught.value.field == field


@pytest.mark.parametrize("dimension", ["USER", "user", "IP", "API_KEY", "apikey", "Client", "KEY", "API", "GLOBAL"])
def test_dimension_is_case_insensitive(limiter: AsyncLimiter, dimension: str) -> None:
    body = json.dumps({"dimension": dimension, "identifier": "/a", "endpoint": "/a", "method": "GET"}).encode()
    assert prepare_check(limiter, Op.TAKE, read_check(body)) is not None


class NoDecoder:
    def decode(self, body: bytes) -> Any:
        pytest.fail("it was decoded")


def test_body_of_too_many_objects_is_refused_undecoded() -> None:
    body = b'{"checks": [' + b", ".join([b"{}"] * MAX_OBJECTS) + b"]}"
    with pytest.raises(InvalidRequestError, match="more than 24,000 objects"):
        decode_json(NoDecoder(), body, "")
    largest = {"checks": [{"counters": [{"key": "{a}", "limit": "1/s"}] * 10}] * 1000}
    assert len(read_batch(json.dumps(largest).encode()).checks) == 1000


@pytest.mark.parametrize(
    "check",
    [
        {"key": "a", "plans": ["x" * 100_000]},
        {"x" * 100_000: 1},
        {"dimension": "x" * 100_000, "identifier": "a"},
        {"key": "a", "context": {"x" * 100_000: 1}},
    ],
)
def test_errors_repeat_little_of_a_long_text(limiter: AsyncLimiter, check: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        prepare_check(limiter, Op.TAKE, read_check(json.dumps(check).encode()))
    error = invalid_request(refused.value)
    assert error.status == 400
    assert len(error.detail) < 610
    assert sum(len(text) for entry in error.members["problems"] for text in entry.values()) < 610
    assert any(hint in error.detail for hint in ("POST /api/v1/plans", "{key, plans}", "must be one of USER"))
