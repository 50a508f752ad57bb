"""The files of a journal: gaps, full disks, locks, links, and other programs' files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows import chain
from patience import patience
from run_ids import R, run_of
from runtime_codes import blocks

from thalweg.middleware.client.failover import journal
from thalweg.middleware.client.failover.journal import FILE, LOCK, MARK, Journal, JournaledQuery, ResumableStream
from thalweg.middleware.client.failover.salvage import CREATE_ENTRIES, INSERT_ENTRY, salvage
from thalweg.middleware.client.resuming import find
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import JournalError, JournalGapError, UsageError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

FLOW = chain(blocks()["h1"], Code("running"))


def test_a_journal_keeps_a_single_entry_of_a_recent_run_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_OVER", 5)
    kept = e.ResumableRun(m.Install(run_of("r0"), FLOW, (), (), "client"), {}, (), {})
    book = Journal(tmp_path)
    for number in range(40):
        run = f"r{number}"
        book.begun(run, "global")
        for index in range(20):
            book.keep(run, kept)
            book.had(run, "t", index)
        if number:
            book.over(run)
            book.had(run, "t", 20)  # by an application that is late
    assert list(book.runs().items())[1:] == [(f"r{number}", None) for number in range(35, 40)]
    (first, *_) = book.runs().values()
    assert first is not None
    assert first.had == {"t": 19}
    (rows,) = book._file.execute("SELECT count(*) FROM entries").fetchone()
    assert rows == 1 + 2 * 20 + 5
    assert len(book._counts) + len(book._over) < 10
    book.close()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Journal]:
    """Yield a journal with a run of which 100 partitions are committed."""
    made = Journal(tmp_path / "folder" / "journal")
    made.keep("r", ResumableStream("c", (), 0))
    for index in range(100):
        made.had("r", "sink", index)
    yield made
    made.close()


def test_pruning_keeps_the_last_entries_of_every_kind(book: Journal) -> None:
    """The number of entries is chosen so that the journal prunes right after the last entry."""
    for index in range(100, 2 * journal.PRUNE):
        book.had("r", "sink", index)
    again = Journal(copied(book))
    kinds = [kind for _, _, kind, _, _ in again._read()[0]]
    assert (kinds.count("had sink"), find(again, None)[1].had) == (journal.LAST, {"sink": 2 * journal.PRUNE - 1})
    assert find(again, None)[1].missing == {}
    again.close()


def copied(book: Journal) -> Path:
    """Copy the folder as a process that is killed now would leave it."""
    copy = book.folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(book.folder, copy))


def spoil_a_commit(tail: Path) -> None:
    data = bytearray(tail.read_bytes())
    data[32 + (4096 + 24) * ((len(data) - 32) // 4120 // 2) + 500] ^= 0x10
    tail.write_bytes(data)


def cut_short(tail: Path) -> None:
    tail.write_bytes(tail.read_bytes()[: 32 + 4120 * 30])


@pytest.mark.parametrize("spoil", [spoil_a_commit, cut_short])
def test_a_damaged_tail_of_the_journal_raises_an_error_with_the_missing_range(
    book: Journal, spoil: Callable[[Path], None]
) -> None:
    folder = copied(book)
    spoil(folder / f"{FILE}-wal")
    again = Journal(folder)
    with pytest.raises(JournalGapError) as caught:
        find(again, None)
    ((first, until),) = caught.value.missing.values()
    assert 0 < first < until == 100
    assert f"and start={first} gives the missing partitions again" in str(caught.value)
    assert find(again, None, start=first)[1].had == {"sink": 99}
    assert find(again, None, accept_loss=True)[1].had == {"sink": 99}
    assert find(again, None)[1].missing == {}, "it was accepted"
    again.close()


def test_an_entry_with_changed_content_does_not_count(book: Journal) -> None:
    folder = copied(book)
    with sqlite3.connect(folder / FILE) as file:
        file.execute("UPDATE entries SET body=? WHERE number=(SELECT max(number) FROM entries)", (b"7",))
    file.close()
    again = Journal(folder)
    with pytest.raises(JournalGapError) as caught:
        find(again, None)
    assert caught.value.missing == {"sink": (99, 100)}, "the entry before it counts"
    assert "is damaged: its last whole entries count" in again.said
    again.close()


def test_the_loss_of_the_last_entry_of_a_query_is_reported_despite_an_earlier_entry(book: Journal) -> None:
    """The lost entry says that the query has left. Without that entry the query would go on."""
    book.query("r", 1, JournaledQuery(FLOW, {}, (), 3))
    book.query("r", 1, None)
    folder = copied(book)
    with sqlite3.connect(folder / FILE) as file:
        file.execute("DELETE FROM entries WHERE number=(SELECT max(number) FROM entries)")
    file.close()
    again = Journal(folder)
    found = again.runs()["r"]
    assert found is not None
    assert (found.lost, found.queries.keys()) == (("query 1",), {1})
    with pytest.raises(JournalGapError):
        find(again, None)
    again.close()


@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal"])
def test_the_error_for_a_journal_that_lost_all_entries_names_the_run(book: Journal, name: str) -> None:
    folder = copied(book)
    (folder / name).unlink()
    again = Journal(folder)
    with pytest.raises(JournalGapError, match=r"lost all entries of run r: .* up to 99 .*start=100") as caught:
        find(again, None)
    assert caught.value.missing == {"sink": (0, 100)}
    with pytest.raises(JournalGapError, match="lost all entries of run r"):
        find(again, "r", accept_loss=True)
    again.close()


def test_a_journal_without_a_mark_is_treated_as_possibly_incomplete(book: Journal) -> None:
    folder = copied(book)
    (folder / MARK).unlink()
    Journal(folder).close()
    again = Journal(folder)  # a client that has opened it meanwhile does not change that
    with pytest.raises(JournalGapError, match=r"as its file mark is missing: more may have been committed than .* 99"):
        find(again, "r")
    with pytest.raises(JournalGapError, match="cannot show that it has all of its runs"):
        find(again, "other")
    again.begun("later", "global")
    again.keep("later", ResumableStream("c", (), 7))
    with pytest.raises(JournalGapError, match="cannot show that it has all of its runs"):
        find(again, None)
    assert find(again, "later")[1].doubt == "", "it was begun since"
    again.over("later")
    assert find(again, None, accept_loss=True)[1].had == {"sink": 99}
    assert find(again, None)[1].doubt == ""
    again.close()


def test_a_write_that_a_killed_process_left_incomplete_is_no_gap(book: Journal) -> None:
    folder = copied(book)
    tail = folder / f"{FILE}-wal"
    data = tail.read_bytes()
    tail.write_bytes(data + data[-4120:-2000])
    again = Journal(folder)
    assert (find(again, None)[1].had, again.said) == ({"sink": 99}, "")
    again.close()


def test_a_write_to_a_full_disk_is_retried_and_the_gap_is_recorded(
    book: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "RETRY_S", 0.02)
    monkeypatch.setattr(journal, "PRUNE", 1 << 30)  # which makes room
    [(pages,)] = book._file.execute("PRAGMA page_count").fetchall()
    book._file.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own limit stands for that of the disk
    for index in range(100, 400):
        book.had("r", "sink", index)
        book.check()
    at_first = Journal(copied(book))
    with pytest.raises(JournalGapError) as caught:
        find(at_first, None)
    at_first.close()
    ((first, until),) = caught.value.missing.values()
    assert first >= 100
    assert until == 400
    with book._news:
        book._file.execute("PRAGMA max_page_count=100000")
        assert book._news.wait_for(lambda: not book._behind, patience(20)), "nobody has to write anything more"
    again = Journal(copied(book))
    assert find(again, None)[1].had == {"sink": 399}
    gaps = [msgspec.msgpack.decode(body) for _, _, kind, body, _ in again._read()[0] if kind == "gap"]
    assert gaps == [{"sink": [first, 400]}]
    again.close()
    assert "cannot be written: database or disk is full; the write is tried again every 0.02 s" in caplog.text
    assert "can be written again, and has all partitions that were committed meanwhile" in caplog.text


def test_a_locked_journal_does_not_slow_down_the_application(book: Journal) -> None:
    other = sqlite3.connect(book.folder / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    for index in range(100, 400):
        book.had("r", "sink", index)
    assert time.monotonic() - begun < patience(20), "it was a second each"
    other.execute("ROLLBACK")
    other.close()
    with book._news:
        book._catch_up()
    assert find(book, None)[1].had == {"sink": 399}


def test_an_entry_about_replicas_alone_does_not_wait_for_a_commit(book: Journal) -> None:
    """A thread that syncs a commit holds the lock. The thread of a socket goes on, and the commit writes the entry."""
    kept = e.ResumableRun(m.Install(run_of("s"), FLOW, (), (), "c"), {}, (), {})
    book.keep("s", kept)
    with ThreadPoolExecutor(1) as pool, book._news:
        pool.submit(book.keep, "s", kept).result(patience(10))


@pytest.mark.parametrize("gone", ["folder", "file"])
def test_a_journal_that_is_removed_and_restored_while_in_use_loses_no_commit(
    book: Journal, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    aside = book.folder.with_name("aside")
    (book.folder if gone == "folder" else book.folder / FILE).rename(aside)
    book.had("r", "sink", 100)
    if gone == "folder":
        assert "journal.sqlite was removed; the commits of the application are not recorded" in caplog.text
        with pytest.raises(
            JournalError,
            match=r"cannot be written: journal.sqlite was removed; the committed partitions are not recorded",
        ):
            book.check()
    else:
        book.check()  # the mark knows
    aside.rename(book.folder if gone == "folder" else book.folder / FILE)  # it was a mistake
    with book._news:
        book._catch_up()
    book.check()
    again = Journal(copied(book))
    assert find(again, None)[1].had == {"sink": 100}
    again.close()


def test_a_removed_mark_is_created_again(book: Journal) -> None:
    (book.folder / MARK).unlink()
    book.had("r", "sink", 100)
    book.check()
    again = Journal(copied(book))
    assert find(again, None)[1].had == {"sink": 100}
    again.close()


def test_commits_are_synced_to_the_disk_and_entries_about_replicas_alone_are_not(tmp_path: Path) -> None:
    book, synced = Journal(tmp_path), list[int]()
    kept = e.ResumableRun(m.Install(R, FLOW, (), (), "c"), {}, (), {})

    def write(what: Callable[[], None]) -> int:
        what()
        ((level,),) = book._file.execute("PRAGMA synchronous").fetchall()
        return int(level)

    full, normal = 2, 1
    synced.append(write(lambda: book.keep("r", kept)))
    synced.append(write(lambda: book.keep("r", msgspec.structs.replace(kept, known={"o": {4: ("h1",)}}))))
    synced.append(write(lambda: book.had("r", "t", 0)))
    synced.append(write(lambda: book.keep("r", msgspec.structs.replace(kept, bases={"u": 7}))))
    assert synced == [full, normal, full, full]
    book.close()


def test_only_the_owner_may_read_the_files_of_a_journal(book: Journal) -> None:
    modes = {each.name: each.stat().st_mode & 0o777 for each in book.folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert {FILE, f"{FILE}-wal", LOCK, MARK} <= modes.keys()
    assert book.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_nothing_but_a_journal_is_closed_to_other_users(tmp_path: Path) -> None:
    for name, files, mode in (("empty", (), 0o700), ("used", (FILE, LOCK, MARK), 0o700), ("shared", ("notes",), 0o755)):
        folder = tmp_path / name
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        for file in files:
            (folder / file).touch()
        Journal(folder).close()
        assert folder.stat().st_mode & 0o777 == mode


def test_world_readable_files_of_a_journal_are_closed_to_other_users(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    for name in (FILE, LOCK, MARK):
        (tmp_path / name).chmod(0o644)
    Journal(tmp_path).close()
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("name", [LOCK, MARK, FILE, f"{FILE}-wal"])
def test_a_journal_refuses_a_symbolic_link_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("do not lose this")
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=rf"cannot be used: .*{name} is a symbolic link"):
        Journal(folder)
    assert (tmp_path / "precious").read_text() == "do not lose this"


def test_a_foreign_file_named_like_a_journal_file_is_preserved(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("of another program")
    with pytest.raises(UsageError, match="its file lock is not that of a journal"):
        Journal(tmp_path)
    assert (tmp_path / LOCK).read_text() == "of another program"
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(UsageError, match="lock is no regular file"):
        Journal(tmp_path)
    (tmp_path / LOCK).unlink()
    (tmp_path / MARK).write_text("of another program")
    Journal(tmp_path).close()
    assert (tmp_path / f"{MARK}.damaged").read_text() == "of another program"


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=9")
    file.close()


def gone(path: Path) -> None:
    path.write_bytes(b"\x00" * 5000)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(other_version, "is of version 9, and this client writes version 2"), (gone, "is damaged, and nothing of it can")],
)
def test_a_damaged_journal_file_or_a_file_of_a_wrong_version_is_refused(tmp_path: Path, spoil: Any, why: str) -> None:
    Journal(tmp_path).close()
    spoil(tmp_path / FILE)
    with pytest.raises(UsageError) as caught:
        Journal(tmp_path)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_journal_that_is_locked_or_cannot_be_opened_is_left_unchanged(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    before = (tmp_path / FILE).read_bytes()
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("PRAGMA locking_mode=EXCLUSIVE")
        file.execute("CREATE TABLE IF NOT EXISTS other (number)")
        with pytest.raises(UsageError, match=r"journal.sqlite cannot be used: database is locked"):
            Journal(tmp_path)
    file.close()
    assert (before[:16], [*tmp_path.glob("*.damaged")]) == ((tmp_path / FILE).read_bytes()[:16], [])
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(UsageError, match=r"journal.sqlite cannot be used: unable to open"):
        Journal(tmp_path)


def test_resuming_from_an_empty_journal_is_refused(tmp_path: Path) -> None:
    empty = Journal(tmp_path)
    with pytest.raises(UsageError, match="has no run to resume: begin one"):
        find(empty, None)
    empty.close()


def test_a_journal_is_used_by_a_single_client_at_a_time(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(UsageError, match=rf"is in use by process {os.getpid()}; end that client"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        Journal(tmp_path / "file")


def test_a_damaged_file_without_a_whole_entry_is_kept_and_refused_every_time(tmp_path: Path) -> None:
    """It was replaced by an empty file, which the next client opened as a sound one."""
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as file:
        file.execute(CREATE_ENTRIES)
        file.execute(INSERT_ENTRY, (1, "r", "begun", b"body", 12345))  # the checksum is wrong
        file.commit()
    before = path.read_bytes()
    for _ in range(2):
        assert not salvage(path)
        assert path.read_bytes() == before
