"""Damages of a journal: a client that resumes continues after the last commit, or reports the damage.

``THALWEG_DAMAGES=1000 pytest -s --size long …/failover/test_journal_damages.py -k hundred`` tries 1,000.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flows import chain
from run_ids import run_of
from runtime_codes import ALLOW, blocks

from thalweg import Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.failover.journal import (
    FILE,
    MARK,
    Journal,
    JournaledQuery,
    JournaledRun,
    ResumableStream,
)
from thalweg.middleware.client.resuming import find
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import JournalGapError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.operators.reference import digest, reference_run

DAMAGES = int(os.environ.get("THALWEG_DAMAGES", "100"))
FLOW = chain(blocks()["h1"], Code("running"))
TAIL = f"{FILE}-wal"
RUN, SINKS = "run", ("t", "u")


class Application:
    """An application that writes a journal, and that remembers its own commits."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.book = Journal(folder)
        self.had: dict[str, int] = {}
        self.queries: set[int] = set()
        self.over: set[str] = set()
        self.older: list[Path] = []  # copies of the folder from before
        self.book.begun(RUN, "global")
        self.keep(0)

    def keep(self, known: int) -> None:
        install = m.Install(run_of(RUN), FLOW, (), (), "client")
        self.book.keep(RUN, e.ResumableRun(install, {"o": {known: ("h1", "h2")}}, (), {"u": 0}))

    def work(self, count: int) -> None:
        """Commit ``count`` partitions. Write the other entries of a client now and then."""
        for _ in range(count):
            sink = self.random.choice(SINKS)
            self.had[sink] = self.had.get(sink, -1) + 1
            self.book.had(RUN, sink, self.had[sink])
            if self.random.random() < 0.2:
                self.keep(self.had[sink])
            if self.random.random() < 0.03:
                number = len(self.queries) + 1
                self.book.query(RUN, number, JournaledQuery(FLOW, {name: name for name in FLOW.by_name}, (), number))
                self.queries.add(number)
            if self.random.random() < 0.05:
                other = f"other{len(self.over)}"
                self.book.keep(other, ResumableStream("client", (), 0))
                self.book.had(other, "t", 1)
                self.book.over(other)
                self.over.add(other)
            if self.random.random() < 0.02:
                self.book._file.execute("PRAGMA wal_checkpoint")
            if self.random.random() < 0.05:
                self.older.append(self.copied(f"older{len(self.older)}"))

    def copied(self, name: str) -> Path:
        """Return a copy of the folder, as it is left by a process that is killed now."""
        copy = self.folder.with_name(f"{self.folder.name}-{name}")
        shutil.copytree(self.folder, copy)
        return copy

    def is_right(self, found: JournaledRun) -> bool:
        return (found.had, {*found.queries}) == (self.had, self.queries)


def cut(path: Path, random: Random, _: Any) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])


def remove(path: Path, _: Random, __: Any) -> None:
    path.unlink()


def flip(path: Path, random: Random, _: Any) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def zero(path: Path, random: Random, _: Any) -> None:
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data)) // 4096 * 4096
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    path.write_bytes(data)


def put_back(path: Path, random: Random, application: Application) -> None:
    """Replace a file by an older copy. Remove the file if the older folder does not have it."""
    older = random.choice(application.older) / path.name
    if older.exists():
        shutil.copyfile(older, path)
    else:
        path.unlink()


DAMAGE: tuple[Callable[[Path, Random, Any], None], ...] = (cut, remove, flip, zero, put_back)


def fill_the_disk(application: Application) -> Callable[[], None]:
    """Limit the pages of the file, as a full disk would. Return a function that lifts the limit."""
    file = application.book._file
    [(pages,)] = file.execute("PRAGMA page_count").fetchall()
    file.execute(f"PRAGMA max_page_count={pages}")
    return lambda: file.execute("PRAGMA max_page_count=1000000")


def lock_the_file(application: Application) -> Callable[[], None]:
    other = sqlite3.connect(application.folder / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def release() -> None:
        other.execute("ROLLBACK")
        other.close()

    return release


def trial(folder: Path, seed: int) -> tuple[str, str]:
    """Damage a journal. Return the damage and the outcome: "right", "told", or a description of the fault."""
    random = Random(f"damage {seed}")
    application = Application(folder, random)
    application.work(random.randrange(30, 150))
    application.older.append(application.copied("last"))
    application.work(random.randrange(1, 80))
    kind = seed % 24
    name = FILE
    if kind < 4:  # windows in which nothing can be written to the file
        how = (fill_the_disk, lock_the_file)[kind % 2]
        release = how(application)
        application.work(random.randrange(1, 60))
        if kind < 2:
            release()
            with application.book._news:
                application.book._catch_up()
            application.work(random.randrange(1, 30))
        damaged = application.copied("killed")
        if kind >= 2:
            release()
        what = f"{how.__name__}, {'released' if kind < 2 else 'killed meanwhile'}"
    else:
        if random.random() < 0.3:
            application.book.close()
        damaged = application.copied("killed")
        present = [each for each in (FILE, TAIL, MARK) if (damaged / each).exists() and (damaged / each).stat().st_size]
        name, spoil = random.choice(present), DAMAGE[kind % len(DAMAGE)]
        spoil(damaged / name, random, application)
        what = f"{spoil.__name__} {name}"
    application.book.close()
    return what, outcome(application, damaged, sound=name != MARK)


def is_unreadable(error: UsageError) -> bool:
    return "is damaged, and nothing of it can be read" in str(error)


def outcome(application: Application, damaged: Path, *, sound: bool) -> str:
    """Return the outcome for a client with a damaged journal.

    With a ``sound`` mark no partition comes twice, even if a gap is accepted.
    """
    try:
        book = Journal(damaged)
    except UsageError as error:
        return "told" if is_unreadable(error) else f"refused: {error}"
    try:
        _, found = find(book, None)
        return "right" if application.is_right(found) else f"silent: {found.had} and not {application.had}"
    except JournalGapError as error:
        for sink, (first, until) in error.missing.items():
            if not first <= until - 1 <= application.had[sink]:
                return f"a wrong range: {error.missing} and not up to {application.had}"
        if RUN in book.gone():
            return "told"
        _, found = find(book, None, accept_loss=True)
        if sound and found.had != application.had:
            return f"accepted: {found.had} and not {application.had}"
        if any(index > application.had[sink] for sink, index in found.had.items()):
            return f"accepted, and left out: {found.had} and not {application.had}"
    finally:
        book.close()
    again = Journal(damaged)
    try:
        _, later = find(again, None)  # once is enough
        return "told" if later.had == found.had else f"accepted, and later {later.had} and not {found.had}"
    finally:
        again.close()


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if there is one. A shared disk may take seconds for a sync."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def try_damages(folder: Path, seeds: range) -> Counter[tuple[str, str]]:
    outcomes = Counter[tuple[str, str]]()
    for seed in seeds:
        what, came = trial(folder / str(seed) / "journal", seed)
        assert came in ("right", "told"), f"seed {seed}: {what}: {came}"
        outcomes[what, came] += 1
        shutil.rmtree(folder / str(seed))
    return outcomes


def left(client: Client, random: Random, copies: list[Path]) -> int:
    """Start a run, commit some of its partitions, and return their number."""
    assert client._journal is not None
    folder, count = client._journal.folder, random.randrange(10, 60)
    run = client.run(FLOW, {"o": "h2"}, partitions=80, failover=Failover(4))
    for partition in islice(run, count):
        run.commit(partition.index)
        if partition.index in (3, count // 2):
            copies.append(Path(shutil.copytree(folder, folder.with_name(f"copy{len(copies)}"))))
    copies.append(Path(shutil.copytree(folder, folder.with_name("killed"))))
    run._shut(over=False)
    return count


@pytest.mark.long
def test_clients_resume_damaged_journals_exactly_once_or_report_the_damage(quick_disk: Path) -> None:
    """The clients use processes and sockets, like an application."""
    values = [digest(value) for value in islice(reference_run(FLOW, 80, (*DEFAULT_ALLOW, *ALLOW)), 80)]
    outcomes = Counter[str]()
    with LocalCluster(2, allow=ALLOW) as cluster:
        for seed in range(DAMAGES):
            random, folder, copies = Random(f"client {seed}"), quick_disk / str(seed), list[Path]()
            with Client(cluster, allow=ALLOW, journal=folder / "journal") as client:
                count = left(client, random, copies)
            *older, damaged = copies
            present = [name for name in (FILE, TAIL, MARK) if (damaged / name).exists()]
            name, spoil = random.choice(present), random.choice((cut, remove, flip, zero))
            if seed % 5 == 4:
                shutil.copyfile(random.choice(older) / name, damaged / name)
            else:
                spoil(damaged / name, random, None)
            try:
                with Client(cluster, allow=ALLOW, journal=damaged) as client, client.resume() as again:
                    came = [(each.index, digest(each.value)) for each in islice(again, 5)]
                assert came == [(index, values[index]) for index in range(count, count + 5)], f"seed {seed}: {name}"
                outcomes["right"] += 1
            except JournalGapError:
                outcomes["told"] += 1
            except UsageError as error:
                outcomes["told" if is_unreadable(error) else f"seed {seed}, {name}: {error}"] += 1
            shutil.rmtree(folder)
    print(dict(outcomes))
    assert outcomes.keys() == {"right", "told"}
    assert min(outcomes["right"], outcomes["told"]) > DAMAGES / 10


def test_a_damaged_journal_is_complete_or_reports_the_damage(quick_disk: Path) -> None:
    outcomes = try_damages(quick_disk, range(24))
    assert {came for _, came in outcomes} == {"right", "told"}


@pytest.mark.long
def test_a_hundred_damages_leave_no_silent_gap(quick_disk: Path) -> None:
    outcomes = try_damages(quick_disk, range(24, 24 + DAMAGES))
    for (what, came), count in sorted(outcomes.items()):
        print(f"{what:40} {came:6} {count}")
    if DAMAGES >= 100:
        assert len({what for what, _ in outcomes}) >= 15
