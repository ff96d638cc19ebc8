"""CL.THROTTLE answers as redis-cell does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from crestgate.core.plans import INLINE_PREFIX
from crestgate.stores.port import Outcome, Request
from flaky_store import Flaky
from unit.service.resp.clients import Client
from unit.service.worker import ADMIN, Worker

USAGE = (
    "ERR wrong number of arguments for 'cl.throttle' command: write CL.THROTTLE key max_burst count period [quantity]"
)
TOO_LONG = "ERR key: is 1025 bytes long; the maximum is 1024: use a digest of what it is made from"


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker({("plan", "gold"): {"limits": "3/minute"}})
    yield started
    started.close()


@pytest.fixture
def client(worker: Worker) -> Client:
    return Client(worker)


def test_documented_answer(client: Client) -> None:
    assert client.call("CL.THROTTLE", "user123", 15, 30, 60) == [0, 16, 15, -1, 2]
    assert client.call("cl.throttle", "user123", 15, 30, 60, 1) == [0, 16, 14, -1, 4]


def test_answers_over_time(worker: Worker, client: Client) -> None:
    """Five at once, one more each second: milliseconds since the start, quantity, and the reply to it."""
    cases = [
        (0, 6, [1, 5, 5, -1, 0]),  # more than there can ever be
        (0, 1, [0, 5, 4, -1, 1]),
        (0, 1, [0, 5, 3, -1, 2]),
        (0, 1, [0, 5, 2, -1, 3]),
        (0, 1, [0, 5, 1, -1, 4]),
        (0, 1, [0, 5, 0, -1, 5]),
        (0, 1, [1, 5, 0, 1, 5]),
        (3000, 1, [0, 5, 2, -1, 3]),
        (3100, 1, [0, 5, 1, -1, 4]),  # 3.9 s, rounded up
        (4000, 1, [0, 5, 1, -1, 4]),
        (8000, 1, [0, 5, 4, -1, 1]),
        (9500, 1, [0, 5, 4, -1, 1]),
        (9500, 0, [0, 5, 4, -1, 1]),  # a look
        (9500, 2, [0, 5, 2, -1, 3]),
        (9500, 5, [1, 5, 2, 3, 3]),
    ]
    start = worker.clock.now()
    for milliseconds, quantity, expected in cases:
        worker.clock.advance(start + milliseconds / 1000 - worker.clock.now())
        reply = client.call("CL.THROTTLE", "foo", 4, 1, 1, quantity)
        assert reply == expected, (milliseconds, quantity)


def test_wait_is_never_too_short(worker: Worker, client: Client) -> None:
    """Who waits as long as it says passes, to the second."""
    assert client.call("CL.THROTTLE", "k", 0, 1, 2)[0] == 0
    worker.clock.advance(0.0005)
    limited, _, _, wait, _ = client.call("CL.THROTTLE", "k", 0, 1, 2)
    assert (limited, wait) == (1, 2)
    worker.clock.advance(wait)
    assert client.call("CL.THROTTLE", "k", 0, 1, 2)[0] == 0


def test_no_burst_at_all(client: Client) -> None:
    assert client.call("CL.THROTTLE", "k", 0, 1, 2) == [0, 1, 0, -1, 2]
    assert client.call("CL.THROTTLE", "k", 0, 1, 2) == [1, 1, 0, 2, 2]


def test_changed_limit_keeps_what_was_used(client: Client) -> None:
    """One key is one counter, whatever the limit."""
    for _ in range(3):
        client.call("CL.THROTTLE", "k", 9, 10, 60)
    assert client.call("CL.THROTTLE", "k", 4, 10, 60, 0)[:3] == [0, 5, 2]
    assert client.call("CL.THROTTLE", "other", 4, 10, 60, 0)[:3] == [0, 5, 5]


def test_counter_is_inline(worker: Worker, client: Client) -> None:
    """It is none of a rule or plan, and over HTTP the inline counter `cl.throttle`."""
    client.call("CL.THROTTLE", "k", 4, 5, 60)
    counters = [{"key": "k", "name": "cl.throttle", "limit": "5/minute using gcra"}]
    answer = worker.post("/api/v1/check/batch", {"checks": [{"counters": counters, "op": "peek"}]})
    assert answer["decisions"][0]["remaining"] == 4
    assert (
        worker.post("/api/v1/check/batch", {"checks": [{"key": "k", "plans": ["gold"]}]})["decisions"][0]["remaining"]
        == 2
    )
    (member,) = client.service.commands.throttle([b"CL.THROTTLE", b"k", b"4", b"5", b"60"], False).members
    assert member.algorithm.name.startswith(INLINE_PREFIX)
    assert member.algorithm.inline


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("k",), USAGE),
        (("k", 1, 2, 3, 4, 5), USAGE),
        (("k", -1, 2, 3), "ERR max_burst: must be a whole number of 0 or more, not '-1'"),
        (("k", "x", 2, 3), "ERR max_burst: must be a whole number of 0 or more, not 'x'"),
        (("k", 1, 0, 3), "ERR count: must be a whole number of 1 or more, not '0'"),
        (("k", 1, 2, 0), "ERR period: must be a whole number of 1 or more, not '0'"),
        (("k", 1, 2, "1.5"), "ERR period: must be a whole number of 1 or more, not '1.5'"),
        (("k", 1, 2, 3, -1), "ERR quantity: must be a whole number from 0 to 2147483647, not '-1'"),
        (("k", 1, 2, "9" * 99), f"ERR period: must be a whole number of 1 or more, not '{'9' * 40}…'"),
        (("", 1, 2, 3), "ERR key: must not be empty: name what is limited, for example 'user:42'"),
        (("k" * 1025, 1, 2, 3), TOO_LONG),
        ((b"\xff", 1, 2, 3), "ERR key: must be text in UTF-8, not '�'"),
    ],
)  # fmt: skip
def test_errors(client: Client, arguments: tuple[object, ...], error: str) -> None:
    assert client.error("CL.THROTTLE", *arguments) == error


def test_limit_that_cannot_be_counted(client: Client) -> None:
    assert "is too large to count exactly" in client.error("CL.THROTTLE", "k", 2**53, 1, 10**6)


def test_counters_that_last_for_years_need_the_scope_write(client: Client) -> None:
    command = ("CL.THROTTLE", "k", 1000, 1, 86_400)
    assert "has counters that last 1,001 days, and 367 is the most without the scope write" in client.error(*command)
    client.call("AUTH", ADMIN)
    assert client.call(*command)[:3] == [0, 1001, 1000]
    client.call("RESET")
    assert "without the scope write" in client.error(*command)


class CountedStore(Flaky):
    """Remembers how many requests came at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.sizes.append(len(batch))
        return super().apply(batch)


def test_pipeline_is_one_call_of_the_store() -> None:
    store = CountedStore()
    worker = Worker(store=store)
    replies = Client(worker).pipeline(
        [("CL.THROTTLE", "k", 4, 5, 60), ("PING",), ("CL.THROTTLE", "k", "x", 5, 60), ("RL.PEEK", "k", "5/min")] * 4
    )
    worker.close()
    assert store.sizes == [8]
    assert [reply[2] for reply in replies[::4]] == [4, 3, 2, 1]
    assert replies[1::4] == ["PONG"] * 4
    assert {str(reply) for reply in replies[2::4]} == {"ERR max_burst: must be a whole number of 0 or more, not 'x'"}
    assert [reply[2] for reply in replies[3::4]] == [5] * 4
