"""The mark of a journal: its file where there is no room for it, and its descriptor."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from thalweg.middleware.client import mark
from thalweg.middleware.client.journal import MARK, Journal
from thalweg.middleware.client.mark import Count, Mark


def refuse(descriptor: int, size_bytes: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_files() -> set[str]:
    return {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_mark_without_room_leaves_neither_a_file_nor_a_descriptor(
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


def test_a_closed_mark_closes_nobody_elses_file(tmp_path: Path) -> None:
    closed = Mark(tmp_path / MARK)
    closed.close()
    with (tmp_path / "other").open("wb", buffering=0) as other:  # which gets the same descriptor
        closed.close()
        other.write(b"still open")
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.write(Count(), sync=True)


def test_a_journal_whose_mark_cannot_be_made_anew_writes_it_when_there_is_room(
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
