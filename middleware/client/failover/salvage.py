"""Rows of a journal's file: reading of the whole rows, and replacement of a damaged file by a file with these rows."""

from __future__ import annotations

import os
import sqlite3
import zlib
from pathlib import Path

from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.platform.files import open_private, open_regular, sync

MOST_ODD = 10_000  # unreadable entries in a row that end the reading
MOST_BYTES = 1 << 30  # greatest length to which a shortened file is filled up
CREATE_ENTRIES = (
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, run TEXT, kind TEXT, body BLOB, checksum INTEGER)"
)
INSERT_ENTRY = "INSERT OR REPLACE INTO entries (number, run, kind, body, checksum) VALUES (?, ?, ?, ?, ?)"
Row = tuple[int, str, str, bytes, int]  # number, run, kind, body, checksum


def checksum_of(run: str, kind: str, body: bytes) -> int:
    """Return the checksum of an entry: of its run, kind and body."""
    return zlib.crc32(f"{run} {kind} ".encode() + body)


def whole_rows(file: sqlite3.Connection) -> tuple[list[Row], int]:
    """Return the whole entries of a journal's file, and the number of damaged entries."""
    rows: list[Row] = []
    odd = in_a_row = number = 0
    select = "SELECT number, run, kind, body, checksum FROM entries WHERE number > ? ORDER BY number LIMIT 1"
    while in_a_row < MOST_ODD:
        try:
            row = file.execute(select, (number,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            odd, in_a_row, number = odd + 1, in_a_row + 1, number + 1
            continue
        if row is None:
            break
        if row[0] <= number:  # pages contradict each other, and SQLite would go round in a circle
            odd, in_a_row, number = odd + 1, in_a_row + 1, number + 1
            continue
        number, run, kind, body, checksum = row
        whole = isinstance(run, str) and isinstance(kind, str) and isinstance(body, bytes)
        if whole and checksum_of(run, kind, body) == checksum:
            rows.append(row)
            in_a_row = 0
        else:
            odd += 1
    return rows, odd


def sibling(path: Path, ending: str) -> Path:
    """Return the path of a journal's file with another ending. A file at this path is removed."""
    copy = path.with_suffix(f".{ending}")
    copy.unlink(missing_ok=True)
    return copy


def salvage(path: Path) -> bool:
    """Replace a damaged file by a file with its whole entries. Return False, and keep the file, if there are none.

    The damaged file is kept (``.damaged``). Raises UsageError if nothing can be written.
    """
    try:
        return _write_anew(path)
    except OSError as error:
        raise UsageError(f"the journal {path} is damaged, and cannot be written anew: {one_line(error)}") from None


def _whole(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _write_private(data: bytes, copy: Path) -> None:
    descriptor, _ = open_private(copy)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _write_anew(path: Path) -> bool:
    data, tail = _whole(path), path.with_name(f"{path.name}-wal")
    if data[:16] != b"SQLite format 3\x00":
        return False
    size = int.from_bytes(data[16:18], "big") * int.from_bytes(data[28:32], "big")
    copy, rebuilt = sibling(path, "damaged"), sibling(path, "new")
    _write_private(
        data + bytes(max(0, min(size, MOST_BYTES) - len(data))), copy
    )  # SQLite reads a missing page as empty
    if tail.exists():  # the newest entries are in the write-ahead log
        copy.with_name(f"{copy.name}-wal").unlink(missing_ok=True)
        _write_private(_whole(tail), copy.with_name(f"{copy.name}-wal"))
    _write_private(b"", rebuilt)
    file, new = sqlite3.connect(copy), sqlite3.connect(rebuilt)
    try:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        rows, _ = whole_rows(file)
        if not rows:  # an empty file would be opened as a sound one next time
            return False
        new.execute(CREATE_ENTRIES)
        new.executemany(INSERT_ENTRY, rows)
        new.execute(f"PRAGMA user_version={version}")
        new.commit()
    except sqlite3.DatabaseError:
        return False
    finally:
        file.close()
        new.close()
    sync(rebuilt)
    for ending in ("-wal", "-shm"):  # before the replacement, or SQLite would apply the old logs to the new file
        path.with_name(path.name + ending).unlink(missing_ok=True)
    rebuilt.replace(path)
    return True
