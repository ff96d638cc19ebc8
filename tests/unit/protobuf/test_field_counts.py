"""Repeated fields are counted in the bytes of a message, exactly as the decoder would count them."""

from __future__ import annotations

from random import Random

import pytest

from crestgate.errors import InvalidRequestError
from crestgate.protobuf import messages
from crestgate.protobuf.field_counts import SMALL_BYTES, Repeated, check_counts
from crestgate.protobuf.messages import DecodeError
from unit.service.worker import Worker, status_of

ITEMS = Repeated(2, "descriptors", 250, "send fewer")
NESTED = Repeated(1, "entries", 10_000, "send fewer")
DOMAIN = b"\x0a\x04shop"
EMPTY = b"\x12\x00"
FILLER = b"\x7a\x88\x27" + b"\x12" * 5000
"""An unknown field filled with the tag's byte, larger than a small message."""


def item(value: bytes, tag: bytes = b"\x12") -> bytes:
    size = len(value)
    written = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    return tag + written + value


def test_message_at_the_maximum_passes() -> None:
    entries = item(b"\x0a\x00" * 10_000)
    check_counts(DOMAIN + FILLER + EMPTY * 249 + entries, ITEMS, NESTED)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (EMPTY * 251, "descriptors: has more than 250 descriptors: send fewer"),
        (EMPTY * 500_000, "descriptors: has more than 250 descriptors: send fewer"),
        (b"\x92\x00\x00" * 251, "descriptors: has more than 250 descriptors: send fewer"),
        (b"\x0b" + EMPTY * 251 + b"\x0c", "descriptors: has more than 250 descriptors: send fewer"),
        (
            EMPTY * 2 + item(b"\x0a\x00" * 10_001),
            "descriptors[2].entries: with these there are more than 10,000 entries: send fewer",
        ),
        (
            item(b"\x0a\x00" * 10_000) + item(b"\x8a\x80\x00\x00"),
            "descriptors[1].entries: with these there are more than 10,000 entries: send fewer",
        ),
        (b"\x78\x12" * 20_000, "the message has more fields than this method can use: send fewer"),
    ],
    ids=["251", "500,000", "long tags", "group", "one item", "two items", "unknown"],
)
def test_too_many_are_refused(message: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_counts(DOMAIN + FILLER + message, ITEMS, NESTED)
    assert str(caught.value) == problem


@pytest.mark.parametrize("end", [b"\x12", b"\x12\x05", b"\x79\x00", b"\x7d\x00", b"\x7e", b"\xff" * 11, b"\x12\xff"])
def test_malformed_message_is_refused(end: bytes) -> None:
    with pytest.raises(DecodeError):
        check_counts(DOMAIN + FILLER + end, ITEMS, NESTED)
    with pytest.raises(DecodeError):
        messages.RateLimitRequest.FromString(DOMAIN + FILLER + end)


def test_small_message_is_left_to_the_decoder() -> None:
    check_counts(EMPTY * (SMALL_BYTES // 2), ITEMS, NESTED)


def test_counts_are_those_of_the_decoder() -> None:
    """Random bytes and mutated messages: whatever the decoder accepts has the same counts."""
    random = Random(14)
    valid = messages.RateLimitRequest(domain="shop")
    for number in range(40):
        descriptor = valid.descriptors.add(is_negative_hits=bool(number % 2))
        for _ in range(number % 5):
            descriptor.entries.add(key="k" * random.randrange(20), value="v" * random.randrange(300))
    data = valid.SerializeToString()
    assert len(data) > SMALL_BYTES
    decoded = 0
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(random.randrange(3)):
            changed[random.randrange(len(data))] = random.choice(b"\x00\x0a\x12\x1a\x20\x8a\x92\x0b\x0c\xff")
        try:
            message = messages.RateLimitRequest.FromString(bytes(changed))
        except DecodeError:
            continue
        decoded += 1
        count = len(message.descriptors)
        entries = sum(len(descriptor.entries) for descriptor in message.descriptors)
        assert refused(bytes(changed), count - 1, entries)
        assert refused(bytes(changed), count, entries - 1)
    assert decoded > 500


def refused(message: bytes, max_items: int, max_nested: int) -> bool:
    try:
        check_counts(
            message, Repeated(2, "descriptors", max_items, "fewer"), Repeated(1, "entries", max_nested, "fewer")
        )
    except InvalidRequestError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "message", "problem"),
    [
        ("CheckRateLimitBatch", b"\x0a\x00" * 5000, "checks: has more than 1,000 checks: send them in several batches"),
        (
            "CheckRateLimitBatch",
            item(b"\x3a\x00" * 20_001, b"\x0a"),
            "checks[0].plans: with these there are more than 20,000 plans: send them in several batches",
        ),
        ("CheckRateLimit", b"\x3a\x00" * 5000, "plans: has more than 20 plans: send fewer"),
        ("GetRemainingQuota", b"\x3a\x00" * 5000, "plans: has more than 20 plans: send fewer"),
    ],
)
def test_methods_count_before_they_decode(name: str, message: bytes, problem: str) -> None:
    worker = Worker()
    # The last byte is half a field: the decoder would have refused it.
    assert status_of(worker, name, message + b"\x0a") == ("INVALID_ARGUMENT", problem)
    worker.close()
