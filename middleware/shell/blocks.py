"""Changes between two states of an operator that reports only whole states, as the blocks of bytes that differ.

Rules:

- R1: A change belongs to one state. Its digest is the CRC-32 of its bytes, begun with the digest of that state or of
  the change before. Applied to a different state, or damaged, a change is refused.
- R2: A state below ``LEAST_BYTES`` is sent whole. So is a state of which more than half has changed.

A change has the number of whole blocks before the rest, the number of changed blocks, their positions, the blocks
themselves, and the rest.
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
SIGN = "blocks "  # of digests of changes that are found here, and not reported by an operator
_HEAD = struct.Struct("<QQ")


def changed(before: bytes, now: bytes) -> bytes | None:
    """Return the change that leads from one state to the next. None: the next state is to be sent whole (R2)."""
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
    """Return the digest of a change of the state that has ``digest`` (R1)."""
    return f"{SIGN}{zlib.crc32(delta, int(digest.removeprefix(SIGN), 16)):08x}"


def patched(state: bytes, digest: str, deltas: Sequence[Inherited]) -> bytes:
    """Return the state with ``digest`` after these changes.

    Raises OperatorError if a change belongs to a different state (R1).
    """
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
        del rows  # a bytearray with a view cannot grow
        now += delta.state[blocks + count * BLOCK_BYTES :]
    return bytes(now)
