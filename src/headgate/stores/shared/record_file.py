"""The file of records beside a counter file: what lies where, how it is made, and which files are refused.

    header      magic, layout version, geometry, the salt of the counter file                4,096 bytes
      entered   from byte 2,048, 64 bytes a stripe: when its ring was last written on to each eighth, in microseconds
    stripes     one after the other, each:
      head      8 bytes: how far its ring has been written, counted from the very beginning
      buckets   8 bytes each: the position of the newest record of the bucket, plus one; zero: none
      ring      the records (see records.py)

It is called `<counter file>.once`, and made when something is first to be decided once. Its size comes from the
counter file's `max_keys`, and never changes.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from mmap import mmap
from typing import NamedTuple

from headgate.errors import StoreError
from headgate.stores.shared.layout import HEADER_BYTES, make_file, open_regular

__all__ = ["ENTERED_AT", "RECORD_STRIPES", "SEGMENTS", "Rings", "open_records"]

MAGIC = b"HEADGATO"
VERSION = 2
RECORD_STRIPES = 16
"""As many locks are set aside for records beside every counter file."""
LEAST_STRIPE_BYTES = 576 * 1024
"""Room for two records of MOST_KEPT_BYTES."""
BYTES_PER_KEY = 512
"""Room for about three records of one check each, for each counter that the other file has room for."""
BYTES_PER_BUCKET = 256
PAGE_BYTES = 4096
SEGMENTS = 8
"""Parts of a ring for which it is known when they were written."""
ENTERED_AT = 2048
_HEADER = struct.Struct("=8sIIqq16s")
_CRC = struct.Struct("=I")
_SALT = slice(_HEADER.size - 16, _HEADER.size)


class Rings(NamedTuple):
    """How large the stripes are. Derived from `max_keys`, and kept in the header."""

    stripe_bytes: int
    buckets: int

    @classmethod
    def for_keys(cls, max_keys: int) -> Rings:
        pages = -(-max_keys * BYTES_PER_KEY // (RECORD_STRIPES * PAGE_BYTES))
        stripe_bytes = max(LEAST_STRIPE_BYTES, pages * PAGE_BYTES)
        return cls(stripe_bytes, stripe_bytes // BYTES_PER_BUCKET)

    @property
    def ring_at(self) -> int:
        """Where in a stripe its ring begins."""
        return 8 + 8 * self.buckets

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + RECORD_STRIPES * self.stripe_bytes


def open_records(path: str, max_keys: int, salt: bytes, ours_alone: bool, like: os.stat_result) -> tuple[mmap, Rings]:
    """Map the file at `path`. It is made if there is none, or one that belonged to an earlier counter file.

    Called under the lock of the counter file's header: of several makers one is first, and the others find its file.
    """
    rings = Rings.for_keys(max_keys)
    try:
        try:
            file = open_regular(path, ours_alone)
            header = os.pread(file, HEADER_BYTES, 0)
            if header.startswith(MAGIC) and header[_SALT] != salt:
                os.close(file)
                file = _create(path, rings, salt, ours_alone, like)
        except FileNotFoundError:
            file = _create(path, rings, salt, ours_alone, like)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreError(
                f"shared store {path}: no room for {rings.file_bytes / 1_000_000:.0f} MB of idempotency records; "
                "choose another folder or a smaller max_keys"
            ) from error
        raise StoreError(f"shared store {path}: cannot open the file of records: {error.strerror}") from error
    try:
        rings = _read_header(path, os.pread(file, HEADER_BYTES, 0), os.fstat(file).st_size)
        return mmap(file, rings.file_bytes), rings
    finally:
        os.close(file)


def _create(path: str, rings: Rings, salt: bytes, ours_alone: bool, like: os.stat_result) -> int:
    fixed = _HEADER.pack(MAGIC, VERSION, 0, rings.stripe_bytes, rings.buckets, salt)
    make_file(path, rings.file_bytes, {0: fixed + _CRC.pack(zlib.crc32(fixed))}, os.replace, like)
    return open_regular(path, ours_alone)


def _read_header(path: str, header: bytes, size: int) -> Rings:
    if not header.startswith(MAGIC):
        raise StoreError(f"shared store {path}: this is not a file of Headgate's idempotency records; move it away")
    if len(header) < HEADER_BYTES:
        raise StoreError(f"shared store {path}: the file was cut short; delete it while nobody uses it")
    _, version, _, stripe_bytes, buckets, _ = _HEADER.unpack_from(header)
    if version != VERSION:
        raise StoreError(
            f"shared store {path}: made by another Headgate (layout {version}, this one reads {VERSION}); "
            "use that version, or delete the file while nobody uses it"
        )
    rings = Rings(stripe_bytes, buckets)
    if _CRC.unpack_from(header, _HEADER.size)[0] != zlib.crc32(header[: _HEADER.size]) or size != rings.file_bytes:
        raise StoreError(f"shared store {path}: the file is damaged; delete it while nobody uses it")
    return rings
