"""The reader of replies, however they come in pieces."""

from __future__ import annotations

import pytest

from headgate.stores.redis.reply import ReplyReader

REPLIES: list[tuple[bytes, object]] = [
    (b"$5\r\nhello\r\n", b"hello"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"+OK\r\n", b"OK"),
    (b":42\r\n", 42),
    (b"*2\r\n$1\r\na\r\n:7\r\n", [b"a", 7]),
    (b"*0\r\n", []),
]


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_reply_in_two_pieces(data: bytes, value: object) -> None:
    for cut in range(1, len(data)):
        reader = ReplyReader()
        reader.expect(1, 1000, 10)
        assert not reader.feed(data[:cut])
        assert reader.feed(data[cut:])
        assert reader.replies == [value]


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_reply_byte_by_byte(data: bytes, value: object) -> None:
    reader = ReplyReader()
    reader.expect(1, 1000, 10)
    assert [reader.feed(data[at : at + 1]) for at in range(len(data))] == [False] * (len(data) - 1) + [True]
    assert reader.replies == [value]
