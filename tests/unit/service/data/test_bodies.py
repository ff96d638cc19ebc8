"""Whatever is wrong with a check is told with the field that is wrong, before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import AsyncLimiter
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.port import Actor, Edit
from headgate.service.asgi import BadRequest
from headgate.service.data.bodies import (
    MAX_OBJECTS,
    decoded,
    prepare,
    prepare_verify,
    read_batch,
    read_check,
    read_verify,
)
from headgate.stores.port import Op
from headgate.testing import FakeClock
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
        ({"context": {"path": "/" + "x" * 8192}}, "context.path"),
        ({"context": {"user": "1"}, "cost": -1}, "cost"),
        ({"context": {}, "key": "a"}, "key"),
        ({"context": {}, "method": "GET"}, "method"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_does_not_make_a_check(limiter: AsyncLimiter, check: dict[str, Any], field: str) -> None:
    asked = read_check(json.dumps(check).encode())
    with pytest.raises(BadRequest) as caught:
        prepare(limiter, Op.TAKE, asked)
    assert caught.value.status == 400
    assert [problem["field"] for problem in caught.value.more["problems"]] == [field]
    with pytest.raises(BadRequest) as caught:
        prepare(limiter, Op.TAKE, asked, "checks[3]")
    assert caught.value.more["problems"][0]["field"] == (f"checks[3].{field}" if field else "checks[3]")


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
def test_what_is_no_check_at_all(body: bytes, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_check(body)
    assert caught.value.more["problems"][0]["field"] == field


def test_where_in_a_batch_it_is_wrong() -> None:
    with pytest.raises(BadRequest) as caught:
        read_batch(b'{"checks": [{"key": "a"}, {"key": "a", "cost": "1"}]}')
    assert caught.value.more["problems"][0]["field"] == "checks[1].cost"
    with pytest.raises(BadRequest, match="has 1001 checks, and may have 1000"):
        read_batch(json.dumps({"checks": [{"key": "a"}] * 1001}).encode())
    with pytest.raises(BadRequest) as caught:
        read_batch(b'{"check": []}')
    assert caught.value.more["problems"][0]["field"] in ("check", "checks")


@pytest.mark.parametrize(
    ("body", "field"),
    [({"clientId": LONG}, "clientId"), ({"clientId": "a", "apiName": "/" + "x" * 8192}, "apiName")],
    ids=["clientId", "apiName"],
)
def test_the_client_family_has_names_of_its_own(limiter: AsyncLimiter, body: dict[str, str], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        prepare_verify(limiter, read_verify(json.dumps(body).encode()))
    assert caught.value.more["problems"][0]["field"] == field


@pytest.mark.parametrize("dimension", ["USER", "user", "IP", "API_KEY", "apikey", "Client", "KEY", "API", "GLOBAL"])
def test_dimensions_in_any_case(limiter: AsyncLimiter, dimension: str) -> None:
    body = json.dumps({"dimension": dimension, "identifier": "/a", "endpoint": "/a", "method": "GET"}).encode()
    assert prepare(limiter, Op.TAKE, read_check(body)) is not None


class NoDecoder:
    def decode(self, body: bytes) -> Any:
        pytest.fail("it was decoded")


def test_body_of_too_many_objects_is_refused_undecoded() -> None:
    body = b'{"checks": [' + b", ".join([b"{}"] * MAX_OBJECTS) + b"]}"
    with pytest.raises(BadRequest, match="more than 24,000 objects"):
        decoded(NoDecoder(), body)
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
    with pytest.raises(BadRequest) as refused:
        prepare(limiter, Op.TAKE, read_check(json.dumps(check).encode()))
    error = refused.value
    assert len(error.detail) < 610
    assert sum(len(text) for entry in error.more["problems"] for text in entry.values()) < 610
    assert any(hint in error.detail for hint in ("POST /api/v1/plans", "{key, plans}", "must be one of USER"))
