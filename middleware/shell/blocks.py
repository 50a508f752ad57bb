"""What has changed in a state, of which its operator tells only all: the blocks of bytes that are not what they were.

Rules:

- R1: A change is of one state, and is known by both: its digest is the CRC-32 of its bytes, begun with the digest of
  that state, or of the change that led to it. Applied to any other it is refused, as one that came damaged is.
- R2: A state of less than ``LEAST_BYTES``, and one of which more than half has changed, goes whole.

A change is how many whole blocks there are before the rest, how many of them changed, which, these, and the rest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.protocol.commands import Inherited

LEAST_BYTES = 65_536
BLOCK_BYTES = 4096
SIGN = "blocks "  # of digests of changes that no operator has told
_HEAD = struct.Struct("<QQ")


def changed(before: bytes, now: bytes) -> bytes | None:
    """What leads from one state to the next; None where the next is to go whole (R2)."""
    whole = min(len(before), len(now)) // BLOCK_BYTES
    if len(now) < LEAST_BYTES or not whole:
        return None
    words = [np.frombuffer(state, np.uint64, whole * BLOCK_BYTES // 8).reshape(whole, -1) for state in (before, now)]
    places = np.flatnonzero((words[0] != words[1]).any(axis=1))
    rest = now[whole * BLOCK_BYTES :]
    if len(places) * BLOCK_BYTES + len(rest) > len(now) // 2:
        return None
    return b"".join((_HEAD.pack(whole, len(places)), places.astype("<u8").tobytes(), words[1][places].tobytes(), rest))


def digest_after(delta: bytes, digest: str) -> str:
    """R1: of a change of the state that has ``digest``."""
    return f"{SIGN}{zlib.crc32(delta, int(digest.removeprefix(SIGN), 16)):08x}"


def patched(state: bytes, digest: str, deltas: Sequence[Inherited]) -> bytes:
    """The state after these changes of one that has ``digest``; OperatorError for what is none of it (R1)."""
    now = bytearray(state)
    for delta in deltas:
        if delta.digest != (digest := digest_after(delta.state, digest)):
            raise OperatorError(f"the {len(delta.state)} bytes of a change are not of the state that came")
        whole, count = _HEAD.unpack_from(delta.state)
        blocks = _HEAD.size + 8 * count
        places = np.frombuffer(delta.state, "<u8", count, _HEAD.size)
        del now[whole * BLOCK_BYTES :]
        rows = np.frombuffer(now, np.uint8).reshape(whole, BLOCK_BYTES)
        rows[places] = np.frombuffer(delta.state, np.uint8, count * BLOCK_BYTES, blocks).reshape(count, BLOCK_BYTES)
        del rows  # what is viewed cannot grow
        now += delta.state[blocks + count * BLOCK_BYTES :]
    return bytes(now)
