"""Layout of the shared counter file; creating and opening it.

    header      magic, layout version, geometry, salt, clock                         4,096 bytes
    stamps      8 bytes per lock: who took it last (see lock_holders.py)
    refs        8 bytes per lock: the stripe whose journal covers an unfinished chain here, plus one; zero: none
    journals    2,048 bytes per stripe: what a chain is about to change (see journal.py)
    stripes     one after the other, each with room for `slots` counters:
      digests   16 bytes per slot: which counter it holds; first 8 bytes zero: none
      meta      16 bytes per slot: expiry and last use, in microseconds; the last use of an inline limit (one that the
                request itself carried) is 2**62 less, so that it is the least recent of all
      states    200 bytes per slot: a commit word and two copies of the state (see slot.py)
      rings     192 bytes per slot: 12 cells for the entries of a small sliding log (see log_blocks.py)
    owners      8 bytes per log block: the log it belongs to (see arena.py); zero: free
    blocks      512 bytes per log block: entries of larger sliding logs

All numbers are native 64-bit words at multiples of 8, so one store instruction writes one of them whole. The file is
created under a temporary name and linked when it is complete, and never changes its size. A file of another layout
version is rejected.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from mmap import mmap
from typing import Final, NamedTuple

from crestgate.errors import ConfigError, StoreError
from crestgate.runtime.clock import wall_minus_monotonic

__all__ = [
    "BLOCK_BYTES",
    "COPY_WORDS",
    "DEFAULT_MAX_KEYS",
    "INLINE_USE",
    "JOURNAL_BYTES",
    "OTHER_LOCKS",
    "RING_CELLS",
    "STATE_BYTES",
    "Geometry",
    "boot_id",
    "create_file",
    "load_or_reset_clock_offset",
    "open_file",
    "open_regular",
    "same_boot",
]

MAGIC = b"CRSTGATE"
VERSION = 2
HEADER_BYTES = 4096
OTHER_LOCKS: Final = 32
"""Locks besides those of stripes, which have a stamp, too: see locks.py and idempotency_file.py."""
JOURNAL_BYTES: Final = 2048
COPY_WORDS: Final = 12
STATE_BYTES: Final = 8 + 2 * COPY_WORDS * 8
INLINE_USE: Final = -(1 << 62)
"""Added to the last use of a counter of an inline limit."""
RING_CELLS: Final = 12
RING_BYTES = RING_CELLS * 16
BLOCK_BYTES = 512
MIN_BLOCKS = 2048
KEYS_PER_BLOCK = 4
DEFAULT_MAX_KEYS = 50_000
SLOTS_PER_STRIPE = 256
KEYS_PER_STRIPE = 170
"""A stripe is filled to two thirds on average: at 256 slots an overflow is then more than six sigma away."""

_HEADER = struct.Struct("=8sIIqqqq16s")
_CRC = struct.Struct("=I")
_CRC_AT = _HEADER.size
_ANCHOR = struct.Struct("@q16s")
_ANCHOR_AT = 256
MAX_TIME_US = 7_258_118_400_000_000
"""The year 2200: no clock is later, and what is computed from it stays below 2**53."""


_ADVICE = {
    errno.ENOENT: "create the folder first, or choose another path",
    errno.EISDIR: "name a file in this folder",
    errno.ELOOP: "it is a link; remove it, or choose another name",
}


class Geometry(NamedTuple):
    """Sizes and offsets of a file. Derived from `max_keys`, and stored in the header."""

    max_keys: int
    stripes: int
    slots: int
    blocks: int
    salt: bytes

    @classmethod
    def for_keys(cls, max_keys: int) -> Geometry:
        small = max_keys <= KEYS_PER_STRIPE  # one stripe: exactly so many slots, evicted in LRU order
        stripes = 1 if small else -(-max_keys // KEYS_PER_STRIPE)
        slots = max_keys if small else SLOTS_PER_STRIPE
        return cls(max_keys, stripes, slots, max(MIN_BLOCKS, max_keys // KEYS_PER_BLOCK), os.urandom(16))

    @property
    def stripe_bytes(self) -> int:
        return self.slots * (16 + 16 + STATE_BYTES + RING_BYTES)

    @property
    def stamps_at(self) -> int:
        return HEADER_BYTES

    @property
    def refs_at(self) -> int:
        return self.stamps_at + 8 * (self.stripes + OTHER_LOCKS)

    @property
    def journals_at(self) -> int:
        return self.refs_at + 8 * (self.stripes + OTHER_LOCKS)

    @property
    def stripes_at(self) -> int:
        return self.journals_at + self.stripes * JOURNAL_BYTES

    @property
    def owners_at(self) -> int:
        return self.stripes_at + self.stripes * self.stripe_bytes

    @property
    def blocks_at(self) -> int:
        return -(-(self.owners_at + 8 * self.blocks) // BLOCK_BYTES) * BLOCK_BYTES

    @property
    def file_bytes(self) -> int:
        return self.blocks_at + self.blocks * BLOCK_BYTES


def open_file(path: str, max_keys: int | None, require_owner: bool) -> tuple[int, mmap, Geometry]:
    """Open and map the counter file at `path`; created if it is missing.

    `require_owner` rejects a file of another user: anybody may create files in the folder of named stores.
    """
    try:
        try:
            descriptor = open_regular(path, require_owner)
        except FileNotFoundError:
            _create(path, Geometry.for_keys(max_keys or DEFAULT_MAX_KEYS))
            descriptor = open_regular(path, require_owner)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            megabytes = Geometry.for_keys(max_keys or DEFAULT_MAX_KEYS).file_bytes / 1_000_000
            raise StoreError(
                f"shared store {path}: no room for {megabytes:.0f} MB; choose another folder or a smaller max_keys"
            ) from error
        advice = _ADVICE.get(error.errno or 0, "choose another path, or make this one accessible")
        raise StoreError(f"shared store {path}: cannot open the file: {error.strerror}; {advice}") from error
    try:
        geometry = _read_header(path, os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size)
        if max_keys is not None and max_keys != geometry.max_keys:
            raise ConfigError(
                f"shared store {path} was created with max_keys={geometry.max_keys}, not {max_keys}: "
                "use that number, omit it, or delete the file while nobody uses it"
            )
        return descriptor, mmap(descriptor, geometry.file_bytes), geometry
    except BaseException:
        os.close(descriptor)
        raise


def open_regular(path: str, require_owner: bool) -> int:
    """Open a regular file, which must belong to this user if `require_owner`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_NOFOLLOW if require_owner else 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"shared store {path}: this is not a regular file; choose another path")
        if require_owner and os.fstat(descriptor).st_uid != os.geteuid():
            raise StoreError(f"shared store {path}: the file belongs to another user; choose another name")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(path: str, geometry: Geometry) -> None:
    fixed = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        geometry.max_keys,
        geometry.stripes,
        geometry.slots,
        geometry.blocks,
        geometry.salt,
    )
    parts = {0: fixed + _CRC.pack(zlib.crc32(fixed)), _ANCHOR_AT: _ANCHOR.pack(wall_minus_monotonic(), boot_id())}
    create_file(path, geometry.file_bytes, parts, _link)


def create_file(
    path: str,
    size: int,
    parts: Mapping[int, bytes],
    publish: Callable[[str, str], None],
    like: os.stat_result | None = None,
) -> None:
    """Write a complete file under a temporary name, then `publish` it under its own. Its group and mode are those of
    `like`."""
    descriptor, temporary = tempfile.mkstemp(prefix=".crestgate-", dir=os.path.dirname(path) or ".")
    try:
        # With all its blocks: touching a mapped page for which there is no disk space would kill the process.
        os.posix_fallocate(descriptor, 0, size)
        for offset, part in parts.items():
            os.pwrite(descriptor, part, offset)
        if like is not None:
            with suppress(PermissionError):  # not a member of that group
                os.fchown(descriptor, -1, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        publish(temporary, path)
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _link(temporary: str, path: str) -> None:
    """If several processes create the file at once, the first one wins."""
    with suppress(FileExistsError):
        os.link(temporary, path)


def _read_header(path: str, header: bytes, size: int) -> Geometry:
    if not header.startswith(MAGIC):
        raise StoreError(f"shared store {path}: this is not a Crestgate counter file; choose another path")
    if len(header) < HEADER_BYTES:
        raise StoreError(f"shared store {path}: the file was truncated; delete it to start with fresh counters")
    version = struct.unpack_from("=I", header, len(MAGIC))[0]
    if version != VERSION:
        which = "a newer" if version > VERSION else "an older"
        raise StoreError(
            f"shared store {path}: created by {which} Crestgate (layout {version}, this one reads {VERSION}); "
            "use that version, or delete the file to start with fresh counters"
        )
    fixed = header[:_CRC_AT]
    if _CRC.unpack_from(header, _CRC_AT)[0] != zlib.crc32(fixed):
        raise StoreError(f"shared store {path}: the header is corrupt; delete the file to start with fresh counters")
    _, _, _, max_keys, stripes, slots, blocks, salt = _HEADER.unpack(fixed)
    geometry = Geometry(max_keys, stripes, slots, blocks, salt)
    if size != geometry.file_bytes:
        raise StoreError(
            f"shared store {path}: the file has {size} bytes instead of {geometry.file_bytes}; "
            "it was truncated, delete it to start with fresh counters"
        )
    return geometry


def boot_id() -> bytes:
    """Identifies the current boot of the machine: the monotonic clock starts again with each."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().strip().replace(b"-", b"").decode())
    except OSError:
        # Not available: use the hour of the boot, computed from the clocks.
        return struct.pack("@qq", 0, (time.time_ns() - time.monotonic_ns()) // 3_600_000_000_000)


def same_boot(memory: mmap) -> bool:
    """Whether the anchor was set since the machine booted."""
    return bool(_ANCHOR.unpack_from(memory, _ANCHOR_AT)[1] == boot_id())


def load_or_reset_clock_offset(memory: mmap) -> int:
    """The microseconds that all processes add to their monotonic clock. Set again after a reboot, and when it is
    corrupt and gives an impossible time.

    Called under the header's lock. The boot id is written last: if this process is killed before, the next sets both.
    """
    anchor, boot = _ANCHOR.unpack_from(memory, _ANCHOR_AT)
    if boot != boot_id() or not 0 <= anchor + time.monotonic_ns() // 1000 < MAX_TIME_US:
        anchor = wall_minus_monotonic()
        struct.pack_into("@q", memory, _ANCHOR_AT, anchor)
        struct.pack_into("@16s", memory, _ANCHOR_AT + 8, boot_id())
    return int(anchor)
