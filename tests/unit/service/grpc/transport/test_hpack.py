"""Header blocks, encoded and decoded; hpack's own encoder and decoder are the reference."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import Http2ConnectionError
from crestgate.service.grpc.transport.header_block import MAX_HEADER_BYTES
from crestgate.service.grpc.transport.headers import (
    HeaderDecoder,
    RequestHeaders,
    encode_headers,
    error_trailers,
)

TYPICAL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/M"),
    (b":authority", b"here"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


def decoded(*fields: tuple[bytes, bytes]) -> RequestHeaders:
    return HeaderDecoder().decode(encode_headers(fields))


def grpc_message(message: str) -> bytes:
    return unquote_to_bytes(dict(Decoder().decode(error_trailers(13, message), raw=True))[b"grpc-message"])


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 40_000])
def test_lengths_are_decoded_by_hpack(size: int) -> None:
    fields = [(b"n" * max(size, 1), b"v"), (b"n", b"v" * size)]
    assert Decoder(max_header_list_size=10**6).decode(encode_headers(fields), raw=True) == fields


@pytest.mark.parametrize("text", ["plain", "100 % sure", "two\r\nlines", "grüße \N{PILE OF POO}", "\0\x7f~", " "])
def test_status_messages_are_percent_encoded(text: str) -> None:
    block = error_trailers(13, text)
    assert grpc_message(text) == text.encode()
    assert all(0x20 <= byte <= 0x7E for byte in dict(Decoder().decode(block, raw=True))[b"grpc-message"])


def test_lone_surrogates_in_status_messages_are_replaced() -> None:
    assert grpc_message("a\udc80b") == b"a?b"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1S", 1), (b"0n", 0), (b"250m", 0.25), (b"3u", 3e-6), (b"2M", 120), (b"99999999H", 99_999_999 * 3600)],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    headers = decoded(*TYPICAL, (b"grpc-timeout", value))
    assert headers.timeout == pytest.approx(seconds)
    assert not headers.malformed


@pytest.mark.parametrize(
    "fields",
    [
        [*TYPICAL, (b"grpc-timeout", b"1")],
        [*TYPICAL, (b"grpc-timeout", b"123456789S")],
        [*TYPICAL, (b"grpc-timeout", b"-1S")],
        [*TYPICAL, (b"grpc-timeout", b"\xd9\xa1S")],
        [*TYPICAL, (b"Upper", b"1")],
        [*TYPICAL, (b"", b"1")],
        [*TYPICAL, (b"with space", b"1")],
        [*TYPICAL, (b"connection", b"close")],
        [*TYPICAL, (b"transfer-encoding", b"chunked")],
        [*TYPICAL, (b"te", b"gzip")],
        [*TYPICAL, (b"x", b"a\0b")],
        [*TYPICAL, (b"x", b"a\rb")],
        [*TYPICAL, (b"x", b"a\nb")],
        [(b":path", b"/a\nb"), *TYPICAL[:2], *TYPICAL[3:]],
        [*TYPICAL, (b":path", b"/late")],
        [*TYPICAL[:3], (b":path", b"/again"), *TYPICAL[3:]],
        [*TYPICAL[:3], (b":status", b"200"), *TYPICAL[3:]],
        [*TYPICAL[:2], (b":path", b""), *TYPICAL[3:]],
        TYPICAL[1:],
        [TYPICAL[0], *TYPICAL[2:]],
    ],
)
def test_malformed_headers_are_detected(fields: list[tuple[bytes, bytes]]) -> None:
    assert decoded(*fields).malformed


@pytest.mark.parametrize(
    ("content", "http_status"),
    [
        (b"application/grpc", b""),
        (b"application/grpc+proto", b""),
        (b"application/grpc;charset=utf-8", b""),
        (b"application/grpc-web", b"415"),
        (b"application/json", b"415"),
        (b"", b"415"),
    ],
)
def test_content_types(content: bytes, http_status: bytes) -> None:
    headers = decoded(*TYPICAL[:4], (b"content-type", content))
    assert (headers.http_status, headers.malformed) == (http_status, False)


def test_metadata_keeps_order_and_bytes() -> None:
    more = [(b"a", b"1"), (b"key-bin", b"AAEC/w=="), (b"a", b"2"), (b"latin", b"\xe4\xff")]
    assert decoded(*TYPICAL, *more).metadata == [*TYPICAL[4:], *more]


@pytest.mark.parametrize(
    ("block", "code"),
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
def test_invalid_and_oversized_blocks_are_errors(block: bytes, code: int) -> None:
    with pytest.raises(Http2ConnectionError) as error:
        HeaderDecoder().decode(block)
    assert error.value.code == code


def test_two_table_size_updates_are_valid() -> None:
    assert HeaderDecoder().decode(b"\x20\x3f\xe1\x1f" + encode_headers(TYPICAL)).path == b"/t.T/M"


def test_long_blocks_are_not_cached() -> None:
    header_decoder = HeaderDecoder()
    for size in range(1, 380):
        header_decoder.decode(b"\x82" * size)
    assert all(len(block) <= 256 for block in header_decoder._cache)
    assert len(header_decoder._cache) <= 64


def test_blocks_are_cached_until_the_table_changes() -> None:
    header_decoder, encoder = HeaderDecoder(), Encoder()
    first = encoder.encode(TYPICAL)
    assert not header_decoder._cache  # because all of it enters the table
    header_decoder.decode(first)
    path = NeverIndexedHeaderTuple(b":path", b"/t.T/Another")
    again = encoder.encode([field if field[0] != b":path" else path for field in TYPICAL])
    assert header_decoder.decode(again) is header_decoder.decode(again)
    assert header_decoder.decode(again).path == b"/t.T/Another"
    header_decoder.decode(encoder.encode([*TYPICAL, (b"x-new", b"1")]))
    assert not header_decoder._cache


fields = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"te"]), st.sampled_from([b"1", b"2", b"trailers", b"x" * 500])),
    min_size=1,
    max_size=4,
)
writing = st.tuples(fields, st.sampled_from([None, None, None, 0, 60, 200, 4096]), st.booleans(), st.booleans())


@given(st.lists(writing, min_size=1, max_size=30))
def test_cached_blocks_match_the_reference_decoder(
    blocks: list[tuple[list[tuple[bytes, bytes]], int | None, bool, bool]],
) -> None:
    header_decoder, encoder, decoder = HeaderDecoder(), Encoder(), Decoder(MAX_HEADER_BYTES)
    for headers, size, huffman, never in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode([NeverIndexedHeaderTuple(*one) if never else one for one in headers], huffman=huffman)
        assert header_decoder.decode(block).metadata == decoder.decode(block, raw=True) == headers
