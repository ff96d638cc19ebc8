"""Headers, packed and unpacked; hpack's own encoder and decoder are what they are held against."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from headgate.service.rpc import frames
from headgate.service.rpc.frames import Broken
from headgate.service.rpc.headers import MOST_HEADER_BYTES, Head, Heads, block, refusal

USUAL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/M"),
    (b":authority", b"here"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


def head_of(*fields: tuple[bytes, bytes]) -> Head:
    return Heads().read(block(fields))


def told(message: str) -> bytes:
    return unquote_to_bytes(dict(Decoder().decode(refusal(13, message), raw=True))[b"grpc-message"])


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 40_000])
def test_lengths_are_written_as_others_read_them(size: int) -> None:
    fields = [(b"n" * max(size, 1), b"v"), (b"n", b"v" * size)]
    assert Decoder(max_header_list_size=10**6).decode(block(fields), raw=True) == fields


@pytest.mark.parametrize("text", ["plain", "100 % sure", "two\r\nlines", "grüße \N{PILE OF POO}", "\0\x7f~", " "])
def test_messages_of_a_status_can_hold_anything(text: str) -> None:
    packed = refusal(13, text)
    assert told(text) == text.encode()
    assert all(0x20 <= byte <= 0x7E for byte in dict(Decoder().decode(packed, raw=True))[b"grpc-message"])


def test_what_no_text_can_be_is_told_all_the_same() -> None:
    assert told("a\udc80b") == b"a?b"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1S", 1), (b"0n", 0), (b"250m", 0.25), (b"3u", 3e-6), (b"2M", 120), (b"99999999H", 99_999_999 * 3600)],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    head = head_of(*USUAL, (b"grpc-timeout", value))
    assert head.timeout == pytest.approx(seconds)
    assert not head.malformed


@pytest.mark.parametrize(
    "fields",
    [
        [*USUAL, (b"grpc-timeout", b"1")],
        [*USUAL, (b"grpc-timeout", b"123456789S")],
        [*USUAL, (b"grpc-timeout", b"-1S")],
        [*USUAL, (b"grpc-timeout", b"\xd9\xa1S")],
        [*USUAL, (b"Upper", b"1")],
        [*USUAL, (b"", b"1")],
        [*USUAL, (b"with space", b"1")],
        [*USUAL, (b"connection", b"close")],
        [*USUAL, (b"transfer-encoding", b"chunked")],
        [*USUAL, (b"te", b"gzip")],
        [*USUAL, (b"x", b"a\0b")],
        [*USUAL, (b"x", b"a\rb")],
        [*USUAL, (b"x", b"a\nb")],
        [(b":path", b"/a\nb"), *USUAL[:2], *USUAL[3:]],
        [*USUAL, (b":path", b"/late")],
        [*USUAL[:3], (b":path", b"/again"), *USUAL[3:]],
        [*USUAL[:3], (b":status", b"200"), *USUAL[3:]],
        [*USUAL[:2], (b":path", b""), *USUAL[3:]],
        USUAL[1:],
        [USUAL[0], *USUAL[2:]],
    ],
)
def test_malformed_headers_are_seen(fields: list[tuple[bytes, bytes]]) -> None:
    assert head_of(*fields).malformed


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"application/grpc", b""),
        (b"application/grpc+proto", b""),
        (b"application/grpc;charset=utf-8", b""),
        (b"application/grpc-web", b"415"),
        (b"application/json", b"415"),
        (b"", b"415"),
    ],
)
def test_content_types(content: bytes, wrong: bytes) -> None:
    head = head_of(*USUAL[:4], (b"content-type", content))
    assert (head.wrong, head.malformed) == (wrong, False)


def test_metadata_keep_their_order_and_their_bytes() -> None:
    more = [(b"a", b"1"), (b"key-bin", b"AAEC/w=="), (b"a", b"2"), (b"latin", b"\xe4\xff")]
    assert head_of(*USUAL, *more).metadata == [*USUAL[4:], *more]


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (b"\x80", frames.COMPRESSION_ERROR),
        (b"\xbe", frames.COMPRESSION_ERROR),
        (b"\x40", frames.COMPRESSION_ERROR),
        (b"\x00\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", frames.COMPRESSION_ERROR),
        (b"\x3f\xff\xff\x03", frames.COMPRESSION_ERROR),
        (b"\x82\x20", frames.COMPRESSION_ERROR),
        (b"\x20" * 16_000, frames.COMPRESSION_ERROR),
        (b"\x3f\xe1\x1f\x3f\xe1\x1f\x20", frames.COMPRESSION_ERROR),
        (b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 10, frames.ENHANCE_YOUR_CALM),
        (b"\x82" * 16_000, frames.ENHANCE_YOUR_CALM),
        (b"\x00\x01a\xff\x80\x02" + b"\xff" * 383, frames.COMPRESSION_ERROR),
    ],
)
def test_blocks_that_cannot_be_or_become_too_much(packed: bytes, code: int) -> None:
    with pytest.raises(Broken) as broken:
        Heads().read(packed)
    assert broken.value.code == code


def test_a_table_may_be_resized_twice_at_once() -> None:
    assert Heads().read(b"\x20\x3f\xe1\x1f" + block(USUAL)).path == b"/t.T/M"


def test_long_blocks_are_not_remembered() -> None:
    heads = Heads()
    for size in range(1, 380):
        heads.read(b"\x82" * size)
    assert all(len(packed) <= 256 for packed in heads._known)
    assert len(heads._known) <= 64


def test_blocks_that_leave_the_table_alone_are_remembered_until_it_changes() -> None:
    heads, encoder = Heads(), Encoder()
    first = encoder.encode(USUAL)
    assert not heads._known  # since all of it enters the table
    heads.read(first)
    path = NeverIndexedHeaderTuple(b":path", b"/t.T/Another")
    again = encoder.encode([field if field[0] != b":path" else path for field in USUAL])
    assert heads.read(again) is heads.read(again)
    assert heads.read(again).path == b"/t.T/Another"
    heads.read(encoder.encode([*USUAL, (b"x-new", b"1")]))
    assert not heads._known


fields = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"te"]), st.sampled_from([b"1", b"2", b"trailers", b"x" * 500])),
    min_size=1,
    max_size=4,
)
writing = st.tuples(fields, st.sampled_from([None, None, None, 0, 60, 200, 4096]), st.booleans(), st.booleans())


@given(st.lists(writing, min_size=1, max_size=30))
def test_what_is_remembered_is_what_a_block_means_now(
    blocks: list[tuple[list[tuple[bytes, bytes]], int | None, bool, bool]],
) -> None:
    heads, encoder, decoder = Heads(), Encoder(), Decoder(MOST_HEADER_BYTES)
    for headers, size, huffman, never in blocks:
        if size is not None:
            encoder.header_table_size = size
        packed = encoder.encode([NeverIndexedHeaderTuple(*one) if never else one for one in headers], huffman=huffman)
        assert heads.read(packed).metadata == decoder.decode(packed, raw=True) == headers
