# mypyc: compile
"""Reads header blocks (RFC 7541): indices into the tables, literals, and changes of the table.

Many clients send a header that differs in every call, such as a trace's id or a deadline, and add it to the table. All
indices shift then, so no block is like another, and every one is read. The `hpack` package took four times as long as
the rest of a call for that; the tests hold this to it, block for block and error for error.
"""

from __future__ import annotations

import re
from typing import Final, final

from crestgate.service.grpc.transport.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2ConnectionError
from crestgate.service.grpc.transport.header_table import HeaderField, HeaderTable, field_with_name
from crestgate.service.grpc.transport.huffman import decode_huffman

__all__ = ["MAX_HEADER_BYTES", "BlockReader"]

MAX_HEADER_BYTES: Final = 16_384
"""Of all headers of a block, decoded."""
MAX_INTEGER_BYTES: Final = 5
"""Behind the first one."""
_RESIZES: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")
"""Three table size updates in a row, where two are enough (RFC 7541, section 4.2)."""


@final
class BlockReader:
    """Reads the header blocks of one connection."""

    def __init__(self) -> None:
        self.changed_table = False
        """Whether the last block has changed the table."""
        self._table = HeaderTable()
        self._block = b""
        """The block that is read, and the offset of what comes next."""
        self._offset = 0

    def read(self, block: bytes) -> list[HeaderField]:
        """The fields of a block. Every block of a connection must be read, in order; Http2ConnectionError if it is
        invalid."""
        if _RESIZES.match(block):
            raise Http2ConnectionError(COMPRESSION_ERROR, "too many HPACK table size updates")
        try:
            return self._read_fields(block)
        except (IndexError, ValueError):
            raise Http2ConnectionError(COMPRESSION_ERROR, "invalid header block") from None

    def _read_fields(self, block: bytes) -> list[HeaderField]:
        """The fields of a block (RFC 7541, section 6); IndexError or ValueError if it is invalid."""
        self._block = block
        self._offset = 0
        self.changed_table = False
        table = self._table
        fields: list[HeaderField] = []
        size = 0
        while self._offset < len(block):
            first = block[self._offset]
            if first >= 0x80:
                field = table.get(self._read_integer(0x7F))
            elif first >= 0x40:
                self.changed_table = True
                field = self._read_literal(0x3F)
                table.add(field)
            elif first >= 0x20:
                self.changed_table = True
                if fields:
                    raise ValueError("table size update behind a field")
                table.resize(self._read_integer(0x1F))
                continue
            else:
                field = self._read_literal(0x0F)
            fields.append(field)
            size += field.size
            if size > MAX_HEADER_BYTES:
                raise Http2ConnectionError(ENHANCE_YOUR_CALM, "header list too large")
        self._block = b""
        return fields

    def _read_literal(self, prefix: int) -> HeaderField:
        index = self._read_integer(prefix)
        if index:
            named = self._table.get(index)
            return HeaderField(named.name, self._read_string(), named.kind)
        name = self._read_string()
        return field_with_name(name, self._read_string())

    def _read_string(self) -> bytes:
        """Section 5.2."""
        block = self._block
        coded = block[self._offset] >= 0x80
        size = self._read_integer(0x7F)
        offset = self._offset
        end = offset + size
        if end > len(block):
            raise ValueError("string longer than the block")
        self._offset = end
        data = block[offset:end]
        return decode_huffman(data) if coded else data

    def _read_integer(self, prefix: int) -> int:
        """Section 5.1."""
        block = self._block
        offset = self._offset
        value = block[offset] & prefix
        offset += 1
        if value == prefix:
            end = offset + MAX_INTEGER_BYTES
            shift = 0
            more = 0x80
            while more >= 0x80:
                if offset == end:
                    raise ValueError("integer too long")
                more = block[offset]
                offset += 1
                value += (more & 0x7F) << shift
                shift += 7
        self._offset = offset
        return value
