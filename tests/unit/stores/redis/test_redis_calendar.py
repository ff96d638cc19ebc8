"""The windows of calendar limits that a client sends to Redis: around its time, and again as time goes on."""

from __future__ import annotations

import struct
from uuid import uuid4

import pytest

from crestgate.stores.port import Member, Op, Request
from crestgate.stores.redis.codec import SERVER_TIME, BatchEncoder
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.stores.redis.store_requests import limit, peek, store_at, take

DAY = 86_400
NOON = 1_774_778_400.0  # of 2026-03-29 in Berlin, which has 23 hours
MONTH = limit("5/calendar month")


def segments(encoder: BatchEncoder, now: int = SERVER_TIME) -> list[tuple[int, int]]:
    """The windows in an encoded batch: start and length in days."""
    request = Request(Op.TAKE, [Member("a", MONTH, 1)])
    body = encoder.encode([request], now)[0][-1]
    assert isinstance(body, bytes)
    count = struct.unpack_from(">q", body, 12 + 37)[0]
    pairs = [struct.unpack_from(">2q", body, 12 + 45 + 16 * i) for i in range(count)]
    return [(start // 1_000_000, length // 1_000_000 // DAY) for start, length in pairs]


def test_windows_are_sent_around_now_and_refreshed() -> None:
    clock = FakeClock(NOON)
    encoder = BatchEncoder("cg", clock=clock)
    first = segments(encoder)
    assert [days for _, days in first] == [31, 30, 31, 30, 31]  # March to July
    clock.advance(49 * DAY)
    assert segments(encoder) == first
    clock.advance(2 * DAY)
    assert [days for _, days in segments(encoder)] == [31, 30, 31]  # May, June, and July with August
    clock.advance(5 * 365 * DAY)
    later = segments(encoder)
    assert later[0][0] < clock.now() - 10 * DAY
    assert clock.now() + 100 * DAY < later[-1][0] + 62 * DAY


def test_given_time_decides_and_not_the_clock() -> None:
    encoder = BatchEncoder("cg", clock=FakeClock(NOON))
    assert segments(encoder, 0)[0][0] <= 0


def test_cached_limits_are_shared_by_equal_batches() -> None:
    encoder = BatchEncoder("cg", clock=FakeClock(NOON))
    assert encoder.encode_limit(MONTH)[0] is encoder.encode_limit(MONTH)[0]
    assert MONTH not in encoder.limits


@pytest.mark.parametrize("side", ["sync", "async"])
def test_limiter_that_lives_for_years(redis_server: RedisServer | GivenServer, side: str) -> None:
    """Every month has its own quota, in every year, and one microsecond before its end denies."""
    clock = FakeClock(NOON)
    opened = store_at(redis_server.url, clock, prefix=uuid4())
    store = opened if side == "sync" else AsyncStoreAdapter(opened)
    month = limit("5/calendar month in Europe/Berlin")
    for _ in range(30):
        assert take(store, month, cost=5).allowed
        denied = take(store, month)
        assert denied.retry_after is not None
        clock.advance(denied.retry_after - 0.000001)
        assert not take(store, month).allowed
        clock.advance(0.000001)
    store.close()


def test_clock_far_from_the_client_still_limits(redis_server: RedisServer | GivenServer) -> None:
    """Outside the windows that were sent, windows of the nearest length go on: nothing is unlimited."""
    clock = FakeClock(NOON)
    store = store_at(redis_server.url, clock, prefix=uuid4())
    encoder = store._encoder  # no public way makes a client's clock wrong by years
    for years in (-20, 20):
        wrong = BatchEncoder("cg", clock=FakeClock(NOON + years * 365 * DAY))
        far = wrong.encode_limit(MONTH)
        encoder.calendars[MONTH] = clock.ticks(), (far[0], encoder.encode_limit(MONTH)[1])
        assert take(store, MONTH, f"{years}", cost=5).allowed
        denied = take(store, MONTH, f"{years}")
        assert denied.retry_after is not None
        assert 0 < denied.retry_after <= 31 * DAY
        clock.advance(denied.retry_after)
        assert peek(store, MONTH, f"{years}").remaining == 5
    store.close()
