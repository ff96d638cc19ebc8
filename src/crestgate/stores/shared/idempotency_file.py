"""Layout of the file of idempotency records next to a counter file; creating and opening it.

    header      magic, layout version, geometry, the salt of the counter file                4,096 bytes
      entered   from byte 2,048, 64 bytes per stripe: when its ring last entered each of its 8 segments, in microseconds
    stripes     one after the other, each:
      head      8 bytes: bytes written to its ring since it was created
      buckets   8 bytes each: the position of the newest record of the bucket, plus one; zero: none
      ring      the records (see idempotency.py)

It is called `<counter file>.once`, and created when the first idempotent request arrives. Its size is derived from the
counter file's `max_keys`, and never changes.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from mmap import mmap
from typing import NamedTuple

from crestgate.errors import StoreError
from crestgate.stores.shared.layout import HEADER_BYTES, create_file, open_regular

__all__ = ["ENTERED_AT", "RECORD_STRIPES", "SEGMENTS", "RingGeometry", "open_records"]

MAGIC = b"CRSTGATI"
VERSION = 2
RECORD_STRIPES = 16
"""As many locks of every counter file are reserved for records."""
MIN_STRIPE_BYTES = 576 * 1024
"""Room for two records of MAX_RECORD_BYTES."""
BYTES_PER_KEY = 512
"""Room for about three records of one check each, for each counter that the other file has room for."""
BYTES_PER_BUCKET = 256
PAGE_BYTES = 4096
SEGMENTS = 8
"""Parts of a ring for which the time of writing is known."""
ENTERED_AT = 2048
_HEADER = struct.Struct("=8sIIqq16s")
_CRC = struct.Struct("=I")
_SALT = slice(_HEADER.size - 16, _HEADER.size)


class RingGeometry(NamedTuple):
    """Sizes of the stripes. Derived from `max_keys`, and stored in the header."""

    stripe_bytes: int
    buckets: int

    @classmethod
    def for_keys(cls, max_keys: int) -> RingGeometry:
        pages = -(-max_keys * BYTES_PER_KEY // (RECORD_STRIPES * PAGE_BYTES))
        stripe_bytes = max(MIN_STRIPE_BYTES, pages * PAGE_BYTES)
        return cls(stripe_bytes, stripe_bytes // BYTES_PER_BUCKET)

    @property
    def ring_at(self) -> int:
        """Offset of the ring in its stripe."""
        return 8 + 8 * self.buckets

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + RECORD_STRIPES * self.stripe_bytes


def open_records(
    path: str, max_keys: int, salt: bytes, require_owner: bool, like: os.stat_result
) -> tuple[mmap, RingGeometry]:
    """Map the file at `path`. Created if it is missing, or belonged to an earlier counter file.

    Called under the lock of the counter file's header, so that only one process creates it.
    """
    rings = RingGeometry.for_keys(max_keys)
    try:
        try:
            file = open_regular(path, require_owner)
            header = os.pread(file, HEADER_BYTES, 0)
            if header.startswith(MAGIC) and header[_SALT] != salt:
                os.close(file)
                file = _create(path, rings, salt, require_owner, like)
        except FileNotFoundError:
            file = _create(path, rings, salt, require_owner, like)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreError(
                f"shared store {path}: no room for {rings.file_bytes / 1_000_000:.0f} MB of idempotency records; "
                "choose another folder or a smaller max_keys"
            ) from error
        raise StoreError(f"shared store {path}: cannot open the idempotency records: {error.strerror}") from error
    try:
        rings = _read_header(path, os.pread(file, HEADER_BYTES, 0), os.fstat(file).st_size)
        return mmap(file, rings.file_bytes), rings
    finally:
        os.close(file)


def _create(path: str, rings: RingGeometry, salt: bytes, require_owner: bool, like: os.stat_result) -> int:
    fixed = _HEADER.pack(MAGIC, VERSION, 0, rings.stripe_bytes, rings.buckets, salt)
    create_file(path, rings.file_bytes, {0: fixed + _CRC.pack(zlib.crc32(fixed))}, os.replace, like)
    return open_regular(path, require_owner)


def _read_header(path: str, header: bytes, size: int) -> RingGeometry:
    if not header.startswith(MAGIC):
        raise StoreError(f"shared store {path}: this is not a Crestgate file of idempotency records; move it away")
    if len(header) < HEADER_BYTES:
        raise StoreError(f"shared store {path}: the file was truncated; delete it while nobody uses it")
    _, version, _, stripe_bytes, buckets, _ = _HEADER.unpack_from(header)
    if version != VERSION:
        raise StoreError(
            f"shared store {path}: created by another Crestgate (layout {version}, this one reads {VERSION}); "
            "use that version, or delete the file while nobody uses it"
        )
    rings = RingGeometry(stripe_bytes, buckets)
    if _CRC.unpack_from(header, _HEADER.size)[0] != zlib.crc32(header[: _HEADER.size]) or size != rings.file_bytes:
        raise StoreError(f"shared store {path}: the file is corrupt; delete it while nobody uses it")
    return rings
