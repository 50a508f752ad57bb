"""The mark of a journal: its file on a full disk, its descriptor, and its slots."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from thalweg.middleware.client.failover import mark
from thalweg.middleware.client.failover.journal import MARK, Journal
from thalweg.middleware.client.failover.mark import SLOT_BYTES, SLOTS, START, Mark, MarkedEntries


def refuse(descriptor: int, size_bytes: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_files() -> set[str]:
    return {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_mark_that_finds_no_room_leaves_neither_a_file_nor_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(mark, "allocate", refuse)
        with pytest.raises(OSError, match="No space left"):
            Mark(tmp_path / MARK)
    assert not (tmp_path / MARK).exists()
    assert not any(MARK in path for path in open_files())
    made = Mark(tmp_path / MARK)
    assert made.made, "half a mark would be a damaged one"
    made.close()


def test_closing_a_mark_twice_does_not_close_a_file_with_the_same_descriptor(tmp_path: Path) -> None:
    closed = Mark(tmp_path / MARK)
    closed.close()
    with (tmp_path / "other").open("wb", buffering=0) as other:  # which gets the same descriptor
        closed.close()
        other.write(b"still open")
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.write(MarkedEntries(), sync=True)


def test_a_mark_that_found_no_room_is_written_when_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = Journal(tmp_path)
    (tmp_path / MARK).unlink()
    with monkeypatch.context() as full:
        full.setattr(mark, "allocate", refuse)
        for index in range(3):
            book.had("r", "sink", index)
        book.check()  # the file has the entries
    assert "its file mark cannot be written: [Errno 28] No space left on device" in caplog.text
    assert not (tmp_path / MARK).exists()
    book.had("r", "sink", 3)
    assert (tmp_path / MARK).exists()
    book.close()
    again = Journal(tmp_path)
    assert (again.doubt, again._count.live["r"].had) == ("", {"sink": 3})
    again.close()


def slots(path: Path) -> list[int]:
    """Return the number in each slot of the mark, or -1 for a slot that is not whole."""
    data = path.read_bytes()
    found = [mark._counted(data[START + slot * SLOT_BYTES : START + (slot + 1) * SLOT_BYTES]) for slot in range(SLOTS)]
    return [-1 if count is None else count.number for count in found]


def test_the_last_synced_slot_stays_until_a_later_slot_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may spoil all slots that were written since."""
    monkeypatch.setattr(mark, "SYNC_S", 3600.0)
    made = Mark(tmp_path / MARK)
    made.write(MarkedEntries(number=1), sync=True)
    for number in range(2, 9):
        made.write(MarkedEntries(number=number), sync=False)
        assert {1, number} <= {*slots(tmp_path / MARK)}
    made.write(MarkedEntries(number=9), sync=True)
    made.write(MarkedEntries(number=10), sync=False)
    assert {9, 10} <= {*slots(tmp_path / MARK)}
    made.close()


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="needs fdatasync")
def test_a_mark_that_is_written_with_sync_is_synced_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(mark, "SYNC_S", 3600.0)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    made = Mark(tmp_path / MARK)
    counts = list[int]()
    for number, sync in enumerate((True, False, True, True, False)):
        made.write(MarkedEntries(number=number), sync=sync)
        counts.append(len(synced))
    assert counts == [1, 1, 2, 3, 3]
    made.close()


def test_a_slot_with_a_wrong_checksum_does_not_count(tmp_path: Path) -> None:
    """The slot can be read, but its checksum is wrong."""
    made = Mark(tmp_path / MARK)
    for number in (5, 6):
        made.write(MarkedEntries(number=number), sync=True)
    made.close()
    data = (tmp_path / MARK).read_bytes()
    word = b"number"
    assert data.count(word + bytes([6])) == 1
    (tmp_path / MARK).write_bytes(data.replace(word + bytes([6]), word + bytes([7])))
    again = Mark(tmp_path / MARK)
    assert again.found is not None
    assert again.found.number == 5
    again.close()
