"""Mark of a journal: a small file beside the journal that says which entries the journal must have.

Rules:

R1. The mark is overwritten in place. The file has its whole length from the beginning, so a full disk does not stop a
    write.
R2. The slot that was synced last is never the next to be written, so a power failure leaves one slot whole.
R3. A slot with a wrong checksum does not count. Of the remaining slots, the slot with the highest serial number counts.
R4. A file that is no mark is renamed (``mark.damaged``), and not overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import msgspec

from thalweg.middleware.errors import ThalwegError
from thalweg.middleware.platform.files import allocate, open_private, write_at

MAGIC = b"thalweg mark 1\n"
SLOTS, SLOT_BYTES = 3, 1 << 16
START = 4096  # offset of the first slot
DIGEST = 16
SYNC_S = 1.0  # greatest age of the mark after a power failure


class LiveRun(msgspec.Struct):
    """Entries that the journal must have of one run that is not over.

    Args:
        last: by kind, the number of the last entry that is needed.
        had: by sink, the last partition that the application is done with.
        doubt: reason why the journal cannot show that it has every entry of the run, or empty.
        term: the latest term of the run (``protocol.run_id``), even if the entry with the term is lost.
    """

    last: dict[str, int] = {}
    had: dict[str, int] = {}
    doubt: str = ""
    term: int = 0


class MarkedEntries(msgspec.Struct):
    """Content of a mark: the number of the journal's last entry, and the runs that are not over.

    Args:
        doubt: reason why there may be runs that the mark does not know.
    """

    serial: int = 0
    number: int = 0
    live: dict[str, LiveRun] = {}
    doubt: str = ""


_count = msgspec.msgpack.Decoder(MarkedEntries)


class Mark:
    """Mark at a path. A missing file is created. Raises OSError.

    ``found``: the content of the file, None if the file is new or damaged. ``made``: whether the file is new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self.made = open_private(path)
        self._serial, self._slot, self._synced = 0, 0, -1
        self._synced_s = -SYNC_S
        try:
            self.found = None if self.made else self._read()
            if self.found is None:
                self._make()
        except OSError:
            self.close()
            raise

    def _make(self) -> None:
        """Write an empty mark of the whole length (R1)."""
        if not self.made:  # R4: keep a damaged mark, or a file that is no mark
            self.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
            self._file, _ = open_private(self.path)
        try:
            allocate(self._file, START + SLOTS * SLOT_BYTES)
            write_at(self._file, MAGIC, 0)
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                self.path.unlink()  # half a mark would count as damaged
            raise

    def _read(self) -> MarkedEntries | None:
        os.lseek(self._file, 0, os.SEEK_SET)
        data = b""
        while len(data) < START + SLOTS * SLOT_BYTES and (part := os.read(self._file, 1 << 18)):
            data += part
        best = None
        for slot in range(SLOTS) if data.startswith(MAGIC) else ():
            count = _counted(data[START + slot * SLOT_BYTES : START + (slot + 1) * SLOT_BYTES])
            if count is not None and (best is None or count.serial > best.serial):  # R3: the newest slot counts
                best, self._slot, self._synced = count, slot, slot
        self._serial = 0 if best is None else best.serial
        return best

    @property
    def is_there(self) -> bool:
        """Return whether the path still names the open file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except OSError:
            return False

    def write(self, count: MarkedEntries, *, sync: bool) -> None:
        """Write the content of the mark. Raises OSError.

        Args:
            sync: wait until the content is on the disk. Otherwise the file is synced once in ``SYNC_S``.
        """
        self._serial += 1
        body = _encoded(msgspec.structs.replace(count, serial=self._serial))
        slot = (self._slot + 1) % SLOTS
        if slot == self._synced:  # R2: keep the slot that a power failure leaves whole
            slot = (slot + 1) % SLOTS
        head = len(body).to_bytes(4, "big") + hashlib.blake2b(body, digest_size=DIGEST).digest()
        at = START + slot * SLOT_BYTES
        if write_at(self._file, head + body, at) < len(head) + len(body):
            raise OSError("the mark was written in part")
        self._slot = slot
        now = time.monotonic()
        if sync or now - self._synced_s >= SYNC_S:
            getattr(os, "fdatasync", os.fsync)(self._file)
            self._synced, self._synced_s = slot, now

    def close(self) -> None:
        """Close the file. A second call does nothing, because the descriptor may then belong to another file."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _encoded(count: MarkedEntries) -> bytes:
    """Return the body of a slot. If the runs do not fit, leave out the oldest runs, and add a doubt."""
    most = SLOT_BYTES - 4 - DIGEST
    body = msgspec.msgpack.encode(count)
    while len(body) > most:
        names = [*count.live]
        newest = names[len(names) // 2 :] if len(names) > 1 else []
        doubt = "it has more unfinished runs than its mark has room for"
        count = msgspec.structs.replace(count, live={name: count.live[name] for name in newest}, doubt=doubt)
        body = msgspec.msgpack.encode(count)
    return body


def _counted(slot: bytes) -> MarkedEntries | None:
    """Return the content of a slot. None: the slot is damaged, or was never written."""
    size, digest = int.from_bytes(slot[:4], "big"), slot[4 : 4 + DIGEST]
    body = slot[4 + DIGEST : 4 + DIGEST + size]
    if not body or len(body) < size or hashlib.blake2b(body, digest_size=DIGEST).digest() != digest:
        return None
    try:
        return _count.decode(body)
    except (msgspec.DecodeError, ThalwegError):
        return None
