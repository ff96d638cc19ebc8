"""Header blocks are read as `hpack` reads them: the same fields, the same tables, the same errors."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import Http2ConnectionError
from crestgate.service.grpc.transport.header_block import MAX_HEADER_BYTES, BlockReader
from crestgate.service.grpc.transport.header_table import HeaderTable
from crestgate.service.grpc.transport.huffman import decode_huffman

CODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
Fields = list[tuple[bytes, bytes]]


def integer(value: int, prefix: int, pattern: int) -> bytes:
    """Section 5.1: in the bits of `prefix`, behind those of `pattern`."""
    if value < prefix:
        return bytes([pattern | value])
    encoded = bytearray([pattern | prefix])
    value -= prefix
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(text: bytes, coded: bool) -> bytes:
    data = CODER.encode(text) if coded else text
    return integer(len(data), 127, 128 * coded) + data


def literal(kind: tuple[int, int], index: int, name: bytes, value: bytes, coded: bool) -> bytes:
    pattern, prefix = kind
    return integer(index, prefix, pattern) + (b"" if index else string(name, coded)) + string(value, coded)


names = st.sampled_from([b"a", b"traceparent", b":path", b"grpc-timeout", b"", b"A b"]) | st.binary(max_size=12)
values = st.sampled_from([b"", b"1", b"trailers", b"x" * 300, b"v" * 4070, b"\xff\n"]) | st.binary(max_size=60)
indices = st.sampled_from([0, 1, 2, 61, 62, 63, 64, 70]) | st.integers(0, 200)
indexed = st.builds(integer, indices, st.just(0x7F), st.just(0x80))
patterns = st.sampled_from([(0x40, 0x3F), (0x00, 0x0F), (0x10, 0x0F)])
literals = st.builds(literal, patterns, st.just(0) | indices, names, values, st.booleans())
updates = st.builds(integer, st.sampled_from([0, 31, 64, 200, 4095, 4096, 4097, 2**20]), st.just(0x1F), st.just(0x20))
whole_blocks = st.builds(
    lambda size, fields: size + b"".join(fields), st.just(b"") | updates, st.lists(indexed | literals, max_size=8)
)
broken_blocks = st.lists(indexed | literals | updates | st.binary(max_size=3), max_size=8).map(b"".join)
cut_blocks = st.builds(lambda block, cut: block[: len(block) - cut], whole_blocks, st.integers(0, 8))


def read(reader: BlockReader, block: bytes) -> Fields | int:
    """The fields of a block, or the code of the error."""
    try:
        return [(field.name, field.value) for field in reader.read(block)]
    except Http2ConnectionError as error:
        return error.code


def read_by_hpack(decoder: Decoder, block: bytes) -> Fields | int:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except OversizedHeaderListError:
        return frames.ENHANCE_YOUR_CALM
    except (HPACKError, IndexError, ValueError):
        return frames.COMPRESSION_ERROR


def is_update(block: bytes) -> bool:
    return block[:1] != b"" and 0x20 <= block[0] < 0x40


@settings(max_examples=400)
@given(st.lists(whole_blocks | broken_blocks | cut_blocks, min_size=1, max_size=12))
def test_blocks_are_read_as_hpack_does(blocks: list[bytes]) -> None:
    reader, decoder = BlockReader(), Decoder(MAX_HEADER_BYTES)
    for block in blocks:
        expected = read_by_hpack(decoder, block)
        actual = read(reader, block)
        if expected != actual:  # more than two table size updates, which hpack reads
            assert is_update(block)
            assert actual == frames.COMPRESSION_ERROR
        if isinstance(actual, int):
            return  # the connection ends here


@settings(max_examples=300)
@given(st.binary(max_size=40) | st.binary(max_size=40).map(CODER.encode))
def test_strings_are_decoded_as_hpack_does(data: bytes) -> None:
    for padding in (b"", b"\xff", b"\xff\xff\xff\xff"):
        block = b"\x00\x01a" + integer(len(data + padding), 127, 128) + data + padding
        assert read(BlockReader(), block) == read_by_hpack(Decoder(MAX_HEADER_BYTES), block)


def test_each_symbol_is_decoded() -> None:
    for symbol in range(256):
        assert decode_huffman(CODER.encode(bytes([symbol]) * 3)) == bytes([symbol]) * 3


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xfc", b"\x00", b"\xff", b"\x1f\xff"])
def test_invalid_codes_are_errors(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"padding|end of strings"):
        decode_huffman(data)


def test_long_connections_are_read_as_hpack_does() -> None:
    """A header that differs in every call evicts all others now and then."""
    rng = random.Random(20)
    encoder, reader, decoder = Encoder(), BlockReader(), Decoder(MAX_HEADER_BYTES)
    for number in range(500):
        if number % 100 == 99:
            encoder.header_table_size = rng.choice([0, 100, 1000, 4096])
        fields = [
            (b":method", b"POST"),
            (b":path", b"/some.Service/Method"),
            (b"user-agent", b"a client"),
            (b"traceparent", b"00-%032x-%016x-01" % (rng.getrandbits(128), rng.getrandbits(64))),
            (b"grpc-timeout", b"%dm" % rng.randrange(10_000)),
        ]
        block = encoder.encode(fields, huffman=rng.random() < 0.7)
        assert read(reader, block) == fields == read_by_hpack(decoder, block)
        assert reader.changed_table


def test_tables_stay_within_their_size() -> None:
    reader, table = BlockReader(), HeaderTable()
    for number in range(1000):
        table.add(reader.read(literal((0x40, 0x3F), 0, b"n%d" % (number % 7), b"v" * (number % 500), False))[0])
        assert table.size == sum(field.size for field in table.added) <= 4096
    table.resize(100)
    assert table.size <= 100


def test_static_fields_are_those_of_hpack() -> None:
    for index in range(1, 62):
        block = integer(index, 0x7F, 0x80)
        assert read(BlockReader(), block) == read_by_hpack(Decoder(), block)


def test_blocks_of_indices_leave_the_table() -> None:
    reader = BlockReader()
    for block, changed in (
        (b"\x83", False),
        (b"\x40\x01a\x01b", True),
        (b"\xbe\x00\x01c\x01d", False),
        (b"\x20", True),
    ):
        reader.read(block)
        assert reader.changed_table is changed
