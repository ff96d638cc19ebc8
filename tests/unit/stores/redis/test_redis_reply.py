"""The RESP reader with replies split at any byte."""

from __future__ import annotations

import pytest

from crestgate.stores.redis.reply import ProtocolError, ReplyReader

REPLIES: list[tuple[bytes, object]] = [
    (b"$5\r\nhello\r\n", b"hello"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"+OK\r\n", b"OK"),
    (b":42\r\n", 42),
    (b"*2\r\n$1\r\na\r\n:7\r\n", [b"a", 7]),
    (b"*0\r\n", []),
]


BOUNDS = (1, 1000, 10)


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_reply_in_two_chunks(data: bytes, value: object) -> None:
    for cut in range(1, len(data)):
        reader = ReplyReader()
        assert not reader.feed(data[:cut], *BOUNDS)
        assert reader.feed(data[cut:], *BOUNDS)
        assert reader.replies == [value]


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_reply_byte_by_byte(data: bytes, value: object) -> None:
    reader = ReplyReader()
    complete = [reader.feed(data[at : at + 1], *BOUNDS) for at in range(len(data))]
    assert complete == [False] * (len(data) - 1) + [True]
    assert reader.replies == [value]


def test_bounds_apply_to_each_call() -> None:
    reader = ReplyReader()
    for _ in range(3):
        assert reader.feed(b"*2\r\n:1\r\n:2\r\n", 1, 12, 2)
        assert reader.replies == [[1, 2]]
    for bounds in ((1, 11, 2), (1, 12, 1)):
        with pytest.raises(ProtocolError):
            ReplyReader().feed(b"*2\r\n:1\r\n:2\r\n", *bounds)
