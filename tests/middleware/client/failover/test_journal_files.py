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


def test_of_runs_that_are_over_the_journal_keeps_that_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A journal with a run of which 100 partitions were had."""
    made = Journal(tmp_path / "folder" / "journal")
    made.keep("r", ResumableStream("c", (), 0))
    for index in range(100):
        made.had("r", "sink", index)
    yield made
    made.close()


def test_the_last_entries_of_each_kind_are_left_when_earlier_ones_are_pruned(book: Journal) -> None:
    """The number of entries is such that the last one was just followed by pruning."""
    for index in range(100, 2 * journal.PRUNE):
        book.had("r", "sink", index)
    again = Journal(copied(book))
    kinds = [kind for _, _, kind, _, _ in again._read()[0]]
    assert (kinds.count("had sink"), find(again, None)[1].had) == (journal.LAST, {"sink": 2 * journal.PRUNE - 1})
    assert find(again, None)[1].missing == {}
    again.close()


def copied(book: Journal) -> Path:
    """A copy of the folder as a process that is killed now leaves it."""
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
def test_a_damaged_tail_of_the_journal_is_a_gap_with_its_range(book: Journal, spoil: Callable[[Path], None]) -> None:
    folder = copied(book)
    spoil(folder / f"{FILE}-wal")
    again = Journal(folder)
    with pytest.raises(JournalGapError) as caught:
        find(again, None)
    ((first, until),) = caught.value.missing.values()
    assert 0 < first < until == 100
    assert f"start={first} gives those again" in str(caught.value)
    assert find(again, None, start=first)[1].had == {"sink": 99}
    assert find(again, None, accept_loss=True)[1].had == {"sink": 99}
    assert find(again, None)[1].missing == {}, "it was accepted"
    again.close()


def test_an_entry_that_says_something_else_than_was_written_does_not_count(book: Journal) -> None:
    folder = copied(book)
    with sqlite3.connect(folder / FILE) as file:
        file.execute("UPDATE entries SET body=? WHERE number=(SELECT max(number) FROM entries)", (b"7",))
    file.close()
    again = Journal(folder)
    with pytest.raises(JournalGapError) as caught:
        find(again, None)
    assert caught.value.missing == {"sink": (99, 100)}, "the entry before it counts"
    assert "is damaged: what it says last, and whole, counts" in again.said
    again.close()


def test_that_the_last_entry_of_a_query_is_lost_is_said_though_an_earlier_one_is_there(book: Journal) -> None:
    """The query had left, and would go on."""
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
def test_of_a_missing_file_with_all_entries_it_is_known_which_run_was_in_it(book: Journal, name: str) -> None:
    folder = copied(book)
    (folder / name).unlink()
    again = Journal(folder)
    with pytest.raises(JournalGapError, match=r"lost all entries of run r: .* up to 99 .*start=100") as caught:
        find(again, None)
    assert caught.value.missing == {"sink": (0, 100)}
    with pytest.raises(JournalGapError, match="lost all entries of run r"):
        find(again, "r", accept_loss=True)
    again.close()


def test_a_journal_without_its_mark_cannot_show_that_it_is_complete(book: Journal) -> None:
    folder = copied(book)
    (folder / MARK).unlink()
    Journal(folder).close()
    again = Journal(folder)  # and not because another client has opened it meanwhile
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


def test_what_a_killed_process_has_written_in_part_is_no_gap(book: Journal) -> None:
    folder = copied(book)
    tail = folder / f"{FILE}-wal"
    data = tail.read_bytes()
    tail.write_bytes(data + data[-4120:-2000])
    again = Journal(folder)
    assert (find(again, None)[1].had, again.said) == ({"sink": 99}, "")
    again.close()


def test_a_full_disk_is_retried_and_the_gap_is_written_down(
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
    assert "cannot be written: database or disk is full; it is tried again every 0.02 s" in caplog.text
    assert "is written again, and has all that was committed meanwhile" in caplog.text


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
    """As when a commit is synced by another thread: a socket's thread goes on, and the commit writes the entry."""
    kept = e.ResumableRun(m.Install(run_of("s"), FLOW, (), (), "c"), {}, (), {})
    book.keep("s", kept)
    with ThreadPoolExecutor(1) as pool, book._news:
        pool.submit(book.keep, "s", kept).result(patience(10))


@pytest.mark.parametrize("gone", ["folder", "file"])
def test_a_journal_that_is_removed_under_its_client_is_noticed(
    book: Journal, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    aside = book.folder.with_name("aside")
    (book.folder if gone == "folder" else book.folder / FILE).rename(aside)
    book.had("r", "sink", 100)
    if gone == "folder":
        assert "journal.sqlite was removed; what the application commits is not written down" in caplog.text
        with pytest.raises(JournalError, match=r"cannot be written: journal.sqlite was removed; what was committed"):
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


def test_the_mark_is_made_anew_where_it_is_removed(book: Journal) -> None:
    (book.folder / MARK).unlink()
    book.had("r", "sink", 100)
    book.check()
    again = Journal(copied(book))
    assert find(again, None)[1].had == {"sink": 100}
    again.close()


def test_what_was_committed_is_on_the_disk_and_what_is_of_replicas_alone_need_not_be(tmp_path: Path) -> None:
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


def test_the_files_of_a_journal_are_their_owners_alone(book: Journal) -> None:
    modes = {each.name: each.stat().st_mode & 0o777 for each in book.folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert {FILE, f"{FILE}-wal", LOCK, MARK} <= modes.keys()
    assert book.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_nothing_but_a_journal_is_its_owners_alone(tmp_path: Path) -> None:
    for name, files, mode in (("empty", (), 0o700), ("used", (FILE, LOCK, MARK), 0o700), ("shared", ("notes",), 0o755)):
        folder = tmp_path / name
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        for file in files:
            (folder / file).touch()
        Journal(folder).close()
        assert folder.stat().st_mode & 0o777 == mode


def test_files_of_a_journal_that_others_may_read_are_closed_to_them(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    for name in (FILE, LOCK, MARK):
        (tmp_path / name).chmod(0o644)
    Journal(tmp_path).close()
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("name", [LOCK, MARK, FILE, f"{FILE}-wal"])
def test_no_file_of_a_journal_is_a_link_to_another(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("do not lose this")
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=rf"cannot be used: .*{name} is a symbolic link"):
        Journal(folder)
    assert (tmp_path / "precious").read_text() == "do not lose this"


def test_a_file_that_is_no_lock_of_a_journal_is_left_as_it_is(tmp_path: Path) -> None:
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
def test_what_is_no_journal_of_this_version_is_refused(tmp_path: Path, spoil: Any, why: str) -> None:
    Journal(tmp_path).close()
    spoil(tmp_path / FILE)
    with pytest.raises(UsageError) as caught:
        Journal(tmp_path)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_journal_that_cannot_be_used_now_is_left_as_it_is(tmp_path: Path) -> None:
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


def test_where_no_run_is_left_to_go_on_with_it_says_so(tmp_path: Path) -> None:
    empty = Journal(tmp_path)
    with pytest.raises(UsageError, match="has no run that is not over: begin one"):
        find(empty, None)
    empty.close()


def test_one_client_at_a_time_has_the_journal(tmp_path: Path) -> None:
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
