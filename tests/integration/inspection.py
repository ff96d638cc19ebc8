"""Reads internals of a shared file that no API exposes: which log blocks are owned, and which are in use."""

from __future__ import annotations

import struct
import zlib

from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.layout import BLOCK_BYTES, COPY_WORDS
from crestgate.stores.shared.log_blocks import BLOCK_CELLS, SLOT_BITS, SLOT_MASK
from crestgate.stores.shared.slot import committed_block_list

__all__ = ["has_locked", "leaked_blocks", "log_entries", "owned_blocks", "used_blocks"]

_LOG = zlib.crc32(b"sliding_window_log")
_COPY = struct.Struct(f"@{COPY_WORDS}q")


def has_locked(store: SharedStore, pid: int) -> bool:
    """Whether the process was the last to take one of the locks."""
    first = store.locks.stamps_at
    stamps: list[int] = store.words[first : first + store.locks.threads.count].tolist()
    return any(stamp >> 32 & (1 << 22) - 1 == pid for stamp in stamps)


def owned_blocks(store: SharedStore) -> dict[int, int]:
    """The blocks owned by an existing block list: block to slot, numbered across all stripes."""
    geometry = store.geometry
    owners = struct.unpack_from(f"@{geometry.blocks}q", store.memory, geometry.owners_at)
    found = {}
    for block, word in enumerate(owners):
        if word:
            owner = (word & SLOT_MASK) - 1
            stripe, slot = owner // store.table.slots, owner % store.table.slots
            chain = committed_block_list(store.words, store.table.state_at(stripe, slot))
            if store.table.is_assigned(stripe, slot) and chain == word >> SLOT_BITS:
                found[block] = owner
    return found


def committed(store: SharedStore, stripe: int, slot: int) -> tuple[int, ...]:
    """The committed copy of a slot's state."""
    at = store.table.state_at(stripe, slot)
    commits = struct.unpack_from("@q", store.memory, at)[0]
    return _COPY.unpack_from(store.memory, at + 8 + (commits & 1) * _COPY.size)


def used_blocks(store: SharedStore) -> dict[int, int]:
    """The blocks reachable from the log of a live counter: block to slot. None is reached twice."""
    found: dict[int, int] = {}
    for stripe in range(store.table.stripes):
        for slot in range(store.table.slots):
            digest_at = store.table.stripes_at + stripe * store.table.stripe_bytes + slot * 16
            if not struct.unpack_from("@q", store.memory, digest_at)[0]:
                continue
            words = committed(store, stripe, slot)
            _, _, _, _, _, _, code, head, tail, entries, _, _ = words
            if code != _LOG or not tail:
                continue
            block = head // BLOCK_CELLS if entries else tail // BLOCK_CELLS
            while True:
                assert block not in found, f"block {block} is in two logs"
                found[block] = stripe * store.table.slots + slot
                if block == tail // BLOCK_CELLS:
                    break
                block = struct.unpack_from("@q", store.memory, store.geometry.blocks_at + block * BLOCK_BYTES)[0]
    return found


def log_entries(store: SharedStore, name: str, key: str) -> int:
    """How many entries the log of a counter holds."""
    location = store.digests.locate(name, key)
    digest, stripe = location.digest, location.stripe
    return committed(store, stripe, store.table.find(stripe, digest))[9]


def leaked_blocks(store: SharedStore) -> list[int]:
    """Owned blocks that no log reaches. Asserts that no log reaches a block that it does not own."""
    owned, used = owned_blocks(store), used_blocks(store)
    for block, slot in used.items():
        assert owned.get(block) == slot, f"block {block} is used by slot {slot} and owned by {owned.get(block)}"
    return sorted(set(owned) - set(used))
