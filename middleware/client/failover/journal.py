"""Journal of a client's runs, from which a later client resumes them: a folder with an SQLite file and a mark.

Rules:

R1. Every entry has a checksum of its own, and several entries of each kind are kept. If an entry is damaged, the last
    whole entry before it counts, and the damage is reported.
R2. One client at a time has the folder.
R3. A partition counts as had when the application takes the next partition. If the application commits partitions of a
    sink, a partition of the sink counts as had when it is committed.
R4. If nothing is left to be had of a run, only this fact is kept, for the newest ``MOST_OVER`` such runs.
R5. A file that cannot be used at present, for example because the disk is full, is left as it is.
R6. The mark (``mark``) says which entries the file needs of every run that is not over. An entry is in the file before
    the mark says so. If the file lacks a needed entry, or the mark is missing, the run has a gap. The gap is reported
    when the run is resumed.
R7. An entry is on the disk before the write returns. New entries about replicas alone are an exception, because an
    older entry about replicas is as right.
R8. An entry that cannot be written waits. The write is tried again every ``RETRY_S``, and the mark counts the entry
    meanwhile. With the entry, the file also gets the partitions that had no entries of their own (kind ``gap``).
R9. If neither the file nor the mark can be written, for example because the folder was removed, the commit raises an
    error.
R10. Only the owner has rights to the files. No link is followed, and no file is truncated that another user may have
    made.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from thalweg.middleware.client.failover.mark import LiveRun, Mark, MarkedEntries
from thalweg.middleware.client.failover.salvage import (
    CREATE_ENTRIES,
    INSERT_ENTRY,
    Row,
    checksum_of,
    salvage,
    sibling,
    whole_rows,
)
from thalweg.middleware.client.steering.run_options import Networks
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import JournalError, UsageError, one_line
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.planning import Stripe
from thalweg.middleware.platform.files import lock, open_private, others_may, owner, sync
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

VERSION = 2
FILE, LOCK, MARK = "journal.sqlite", "lock", "mark"
LAST = 8  # entries of each run and kind that are kept
PRUNE = 64  # entries of a run and kind before older entries are removed
MOST_OVER = 256  # finished runs that are remembered
RETRY_S = 1.0  # time between two tries to write waiting entries
OPEN_S, BUSY_S = 1.0, 0.05  # greatest wait for another process's lock of the file
HOLDER = "process "  # beginning of the lock file's content
SOUND = {  # errors that say nothing about the content of the file
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
}  # fmt: skip
_PRUNE = (
    "DELETE FROM entries WHERE number IN"
    " (SELECT number FROM entries WHERE run=? AND kind=? ORDER BY number DESC LIMIT -1 OFFSET ?)"
)
_FORGET = "DELETE FROM entries WHERE run=? AND kind<>'over'"
_FORGET_OVER = (
    "DELETE FROM entries WHERE kind='over' AND number NOT IN"
    " (SELECT number FROM entries WHERE kind='over' ORDER BY number DESC LIMIT ?)"
)
_DAMAGED = "the journal {} is damaged: its last whole entries count"


class ResumableStream(msgspec.Struct, frozen=True):
    """State from which a client resumes a stream over several trees that an earlier client has begun.

    ``trees``: the present trees. ``start``: the first partition. ``end``: the partition after the last, if it is known.
    The remaining fields are as for ``Client.run``.
    """

    client: str
    trees: tuple[Stripe, ...]
    start: int
    end: int | None = None
    window: int | None = None
    ahead: int = 1
    label: str = ""
    call_timeout_s: float | None = None
    failover: m.Failover | None = None


class JournaledQuery(msgspec.Struct, frozen=True):
    """Query that was attached to a run and has begun: its graph, and the names of its nodes in the run.

    ``shared``: nodes that the run had before. ``first``: the query's first partition.
    """

    dataflow: Dataflow
    names: dict[str, str]
    shared: tuple[str, ...]
    first: int

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the query's sinks in the run."""
        return tuple([self.names[name] for name in self.dataflow.sinks])


class JournaledRun(msgspec.Struct, frozen=True):
    """Entries of a run in the journal: the state to resume from, and the last partition of every sink that was had.

    ``said``: the damage, if there is damage. ``by``: the name of the placement with which the run was begun, if it had
    a name. ``asked``: the networks with which the run was begun. ``queries``: by number, attached queries that go on.
    ``left``: numbers of queries that are over, with 0 for the query that the run began with. ``missing``: by sink, the
    partitions [first, until) that were had, but have no entries in the file (R6). ``had`` counts these partitions.
    ``lost``: kinds of further entries that are missing. ``doubt``: reason why more entries may be missing. ``term``:
    the run's latest term in the mark.
    """

    kept: e.ResumableRun | ResumableStream
    had: dict[str, int]
    said: str = ""
    by: str = ""
    asked: Networks | None = None
    queries: dict[int, JournaledQuery] = {}
    left: frozenset[int] = frozenset()
    missing: dict[str, tuple[int, int]] = {}
    lost: tuple[str, ...] = ()
    doubt: str = ""
    term: int = 0

    def next_of(self, sink: str) -> int:
        """Return the partition with which a sink goes on."""
        if isinstance(self.kept, ResumableStream):
            return max(self.kept.start, self.had.get(sink, -1) + 1)
        bases = [self.kept.bases.get(name, 0) for name in self.kept.install.dataflow.below(sink)]
        return self.had.get(sink, min(bases) - 1) + 1


_kept = msgspec.msgpack.Decoder(e.ResumableRun)
_stream = msgspec.msgpack.Decoder(ResumableStream)
_asked = msgspec.msgpack.Decoder(Networks)
_query = msgspec.msgpack.Decoder(JournaledQuery | None)
_Entry = TypeVar("_Entry")


class Journal:
    """Journal in a folder. A missing folder is created. Raises UsageError if the journal cannot be used.

    ``said``: the damage of the journal, or empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logbook = Logbook("")  # the client's logbook, once the client has it
        self._news = threading.Condition()
        self._counts: dict[tuple[str, str], int] = {}
        self._over: dict[str, None] = {}  # R4: finished runs of this client, in order
        self._shapes: dict[str, bytes] = {}  # R7: by run, the state apart from replicas
        self._later: dict[str, tuple[bytes, bytes]] = {}  # R7: by run, entries about replicas that wait for the lock
        self._behind: dict[tuple[str, str], Row] = {}  # R8: waiting entries, the last of each kind
        self._behind_from: dict[str, dict[str, int]] = {}  # R8: partitions that were had before the first wait
        self._retries = self._markless = False
        self._trouble = self._unsafe = ""  # reasons why the file, and also the mark (R9), cannot be written
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _close_to_others(folder)
            descriptor, _ = open_private(folder / LOCK)
        except OSError as error:
            raise UsageError(f"the journal {folder} cannot be used: {one_line(error.strerror or error)}") from None
        self._held: IO[bytes] = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            before = self._take_lock()
            self.said = ""
            fresh = not before and not any((folder / name).exists() for name in (FILE, MARK))
            self._file = self._open(folder / FILE)
        except UsageError:
            self._held.close()
            raise
        self._sync_full = True
        try:
            self._begin(fresh=fresh)
        except (OSError, sqlite3.Error) as error:
            self._file.close()
            self._held.close()
            raise UsageError(f"the journal {folder} cannot be used: {one_line(error)}") from None

    def _take_lock(self) -> bytes:
        """Lock the folder for this client, and return the previous content of the lock file (R2)."""
        try:
            lock(self._held.fileno())
        except OSError:
            holder = self._held.read(64).decode(errors="replace").strip() or "another process"
            why = f"the journal {self.folder} is in use by {holder}; end that client, or use another folder"
            raise UsageError(why) from None
        before = self._held.read(64)
        if before and not before.startswith(HOLDER.encode()):  # R10: another program's file
            raise UsageError(f"the journal {self.folder} cannot be used: its file {LOCK} is not that of a journal")
        with contextlib.suppress(OSError):  # R5: only a second client would read the text
            self._held.seek(0)
            self._held.write(f"{HOLDER}{os.getpid()}".ljust(24).encode())
        return before

    def _open(self, path: Path, *, again: bool = False) -> sqlite3.Connection:
        try:
            self._make_room(path)
            file = sqlite3.connect(path, timeout=OPEN_S, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise UsageError(f"the journal {path} cannot be used: {one_line(error)}") from None
        try:
            if file.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise sqlite3.DatabaseError("it contradicts itself")
            [(version,)] = file.execute("PRAGMA user_version").fetchall()
            if version in (0, VERSION):
                file.execute("PRAGMA journal_mode=WAL")
                file.execute("PRAGMA synchronous=FULL")  # R7: entries are on the disk
                file.execute(CREATE_ENTRIES)
                file.execute(f"PRAGMA user_version={VERSION}")
                file.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
                return file
            why = f"is of version {version}, and this client writes version {VERSION}; use another folder"
        except sqlite3.DatabaseError as error:
            file.close()
            # R5: the file may be sound, and is left as it is
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in SOUND:
                raise UsageError(f"the journal {path} cannot be used: {one_line(error)}") from None
            if not again and salvage(path):  # R1: the whole entries count
                self.said = _DAMAGED.format(path)
                return self._open(path, again=True)
            why = f"is damaged, and nothing of it can be read ({one_line(error)}); use another folder"
        file.close()
        raise UsageError(f"the journal {path} {why}")

    def _make_room(self, path: Path) -> None:
        """Create a file with rights for the owner alone (R10). SQLite takes over the rights for its further files."""
        if path.is_dir():  # SQLite reports a folder itself
            return
        descriptor, _ = open_private(path)
        empty = not os.fstat(descriptor).st_size
        os.close(descriptor)
        for tail in ("-wal", "-shm"):
            beside = path.with_name(path.name + tail)
            if beside.is_symlink():
                raise OSError(f"{beside.name} is a symbolic link")
            if empty and tail == "-wal" and beside.exists() and beside.stat().st_size:  # SQLite would remove the log
                beside.replace(sibling(path, f"damaged{tail}"))

    def _begin(self, *, fresh: bool) -> None:
        """Read the mark, and count the entries of the file beyond the mark (R6)."""
        has_mark = (self.folder / MARK).exists()
        self._mark = Mark(self.folder / MARK)
        sync(self.folder)
        status = os.stat(self.folder / FILE)
        self._ident = status.st_dev, status.st_ino
        rows, odd = whole_rows(self._file)
        count = self._mark.found
        self._count = MarkedEntries() if count is None else count
        doubt = ""
        if count is None and not fresh:
            doubt = f"its file {MARK} is {'damaged' if has_mark else 'missing'}"
            self._count.doubt = doubt
        if odd:
            self.said = _DAMAGED.format(self.folder / FILE)
        for number, run, kind, body, _ in rows:
            if number > self._count.number or count is None:
                self._note(number, run, kind, body)
        for live in self._count.live.values() if doubt else ():
            live.doubt = doubt
        self._count.number = max(self._count.number, max((row[0] for row in rows), default=0))
        self._mark.write(self._count, sync=True)

    # --- writing --------------------------------------------------------------------------------------

    def keep(self, run: str, kept: e.ResumableRun | ResumableStream) -> None:
        """Write the state from which a later client resumes a run.

        While a commit is being synced, the commit writes an entry about replicas alone, because sockets are not to wait
        for a disk.
        """
        if isinstance(kept, ResumableStream):
            self._write(run, "stream", msgspec.msgpack.encode(kept))
            return
        install, term = kept.install, kept.install.run.term
        shape = msgspec.msgpack.encode((install.dataflow, install.history_gaps, sorted(kept.bases.items()), term))
        body = msgspec.msgpack.encode(kept)
        if self._shapes.get(run) != shape:
            self._write(run, "kept", body, shape, term)
        elif self._news.acquire(blocking=False):
            try:
                self._write(run, "kept", body, shape)
            finally:
                self._news.release()
        else:
            self._later[run] = body, shape

    def begun(self, run: str, by: str, asked: Networks | None = None) -> None:
        """Write the name of the placement with which a run was begun, if it has a name, and the requested networks."""
        if by:
            self._write(run, "by", by.encode())
        if asked is not None and asked.networks:
            self._write(run, "asked", msgspec.msgpack.encode(asked))

    def had(self, run: str, sink: str, index: int) -> None:
        """Write that the application has had a partition and all before (R3). The last entry of a sink counts."""
        self._write(run, f"had {sink}", str(index).encode())

    def query(self, run: str, number: int, query: JournaledQuery | None) -> None:
        """Write that a query of the run has begun, or, if ``query`` is None, that nothing is left to be had of it."""
        self._write(run, f"query {number}", msgspec.msgpack.encode(query))

    def over(self, run: str) -> None:
        """Write that nothing is left to be had of a run (R4)."""
        self._write(run, "over", b"")
        for key in [key for key in self._counts if key[0] == run]:
            del self._counts[key]
        self._shapes.pop(run, None)
        self._over[run] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]

    def check(self) -> None:
        """Raise JournalError if the latest entry is known to this process alone (R9)."""
        if self._unsafe:
            raise JournalError(
                f"the journal {self.folder} cannot be written: {self._unsafe};"
                " the committed partitions are not recorded, and come again if this client ends now"
            )

    def _write(self, run: str, kind: str, body: bytes, shape: bytes = b"", term: int = 0) -> None:
        with self._news:
            if self._held.closed or run in self._over:
                return
            soft = bool(shape) and self._shapes.get(run) == shape  # R7: an entry about replicas alone
            if shape:
                self._shapes[run] = shape
            self._count.number += 1
            before = -1 if soft else self._note(self._count.number, run, kind, body, term)
            row = self._count.number, run, kind, body, checksum_of(run, kind, body)
            if self._behind or not self._insert([row], full=not soft):
                if not self._behind:
                    self._behind_from = {name: live.had.copy() for name, live in self._count.live.items()}
                    if kind.startswith("had "):
                        self._behind_from[run][kind[4:]] = before
                self._behind.pop((run, kind), None)
                self._behind[run, kind] = row
                if kind == "over":
                    self._behind = {key: row for key, row in self._behind.items() if key[0] != run or key[1] == kind}
                self._try_again()
            if not soft or self._behind:
                self._mark_it()
            while not soft and self._later:
                other, about = self._later.popitem()
                self._write(other, "kept", *about)

    def _note(self, number: int, run: str, kind: str, body: bytes, term: int = 0) -> int:
        """Count an entry as needed (R6). Return the last partition of the sink that was had before, or -1."""
        if kind == "over":
            self._count.live.pop(run, None)
            return -1
        live, before = self._count.live.setdefault(run, LiveRun()), -1
        live.term = max(live.term, term)
        if kind.startswith("had "):
            before = live.had.get(kind[4:], -1)
            live.had[kind[4:]] = int(body)
        elif kind != "gap":
            live.last[kind] = number
        return before

    def _insert(self, rows: Sequence[Row], *, full: bool = True) -> bool:
        """Write entries, all or none. Return False with the reason in ``_trouble`` if the write fails.

        Args:
            full: wait until the entries are on the disk.
        """
        file = self._file
        try:
            self._check_there()
            if full != self._sync_full:
                file.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
                self._sync_full = full
            file.execute("BEGIN IMMEDIATE")
            file.executemany(INSERT_ENTRY, rows)
            for _, run, kind, _, _ in rows:
                count = self._counts[run, kind] = self._counts.get((run, kind), 0) + 1
                if kind == "over":
                    file.execute(_FORGET, (run,))
                    file.execute(_FORGET_OVER, (MOST_OVER,))
                elif count % PRUNE == 0:
                    file.execute(_PRUNE, (run, kind, LAST))
            file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                if file.in_transaction:
                    file.execute("ROLLBACK")
            self._trouble = one_line(error)
            return False
        return True

    def _check_there(self) -> None:
        """Raise OSError if the file has left the folder (R9). SQLite would go on and write to the removed file."""
        try:
            status = os.stat(self.folder / FILE)
        except OSError:
            raise OSError(f"{FILE} was removed") from None
        if (status.st_dev, status.st_ino) != self._ident:
            raise OSError(f"{FILE} was replaced")

    def _mark_it(self) -> None:
        """Write the counted entries to the mark (R6, R8)."""
        unsafe = ""
        try:
            if not self._mark.is_there:
                self._check_there()
                self._mark.close()
                self._mark = Mark(self.folder / MARK)
                self._log(f"its file {MARK} was removed, and is made anew")
            self._mark.write(self._count, sync=bool(self._behind))
        except OSError as error:
            unsafe = (self._trouble if self._behind else "") or one_line(error)
            if not self._behind and not self._markless:
                self._log(f"its file {MARK} cannot be written: {unsafe}", unsafe)
        self._markless = bool(unsafe)
        if self._behind and unsafe and not self._unsafe:
            then = "the commits of the application are not recorded"
            self._log(f"it cannot be written: {unsafe}; {then}", unsafe, event="journal-failed")
        self._unsafe = unsafe if self._behind else ""

    def _try_again(self) -> None:
        """Start the thread that writes waiting entries as soon as possible, if it does not run (R8)."""
        if self._retries:
            return
        then = f"the write is tried again every {RETRY_S:g} s, and its file {MARK} counts the entries meanwhile"
        self._log(f"it cannot be written: {self._trouble}; {then}", self._trouble)
        self._retries = True
        threading.Thread(target=self._retry, name="thalweg-journal", daemon=True).start()

    def _retry(self) -> None:
        with self._news:
            while self._behind and not self._held.closed:
                self._news.wait(RETRY_S)
                self._catch_up()
            self._retries = False

    def _catch_up(self) -> None:
        """Write the waiting entries, and the partitions that had no entries of their own (R8).

        The caller holds the lock.
        """
        if not self._behind or self._held.closed:
            return
        rows, number = list(self._behind.values()), self._count.number
        for run, live in self._count.live.items():
            before = self._behind_from.get(run, {})
            gap = {sink: (before.get(sink, -1) + 1, index + 1) for sink, index in live.had.items()}
            gap = {sink: (first, until) for sink, (first, until) in gap.items() if first < until}
            if gap:
                number, body = number + 1, msgspec.msgpack.encode(gap)
                rows.append((number, run, "gap", body, checksum_of(run, "gap", body)))
        if self._insert(rows):
            self._count.number = number
            self._behind.clear()
            self._mark_it()
            self._news.notify_all()
            self._log(
                "it can be written again, and has all partitions that were committed meanwhile", event="journal-mended"
            )

    def _log(self, text: str, reason: str = "", event: str = "journal-trouble") -> None:
        self.logbook.write(event, f"the journal {self.folder}: {text}", reason=reason)

    # --- reading --------------------------------------------------------------------------------------

    def runs(self) -> Mapping[str, JournaledRun | None]:
        """Return the runs in the order in which the runs were begun, with None for a run that is over (R1)."""
        rows, damaged = self._read()
        records: dict[str, JournaledRun | None] = {}
        for run in dict.fromkeys(row[1] for row in rows):
            own = [row for row in rows if row[1] == run]
            live = self._count.live.get(run)
            if live is None or any(row[2] == "over" for row in own):
                records[run] = None
            elif (recovery := _kept_of(own)) is not None:
                records[run] = _found(recovery, own, live, damaged)
        return records

    def gone(self) -> dict[str, LiveRun]:
        """Return the mark's entries of runs that are not over, but that cannot be resumed from the file (R6)."""
        known = self.runs()
        return {run: live for run, live in self._count.live.items() if run not in known}

    @property
    def doubt(self) -> str:
        """Reason why there may be runs that the journal does not know. Empty: there are none (R6)."""
        return self._count.doubt

    def accept_doubt(self) -> None:
        """Accept that there may be runs that the journal does not know (R6)."""
        with self._news:
            self._count.doubt = ""
            self._mark_it()

    def accept(self, run: str) -> None:
        """Accept that entries of a run are missing, and need only the present entries (R6)."""
        rows, _ = self._read()
        with self._news:
            live = self._count.live[run]
            whole = {row[2]: row[0] for row in rows if row[1] == run}
            live.last = {kind: number for kind, number in whole.items() if not kind.startswith(("had ", "gap"))}
            live.doubt = ""
        for sink, index in live.had.items():
            self.had(run, sink, index)

    def _read(self) -> tuple[list[Row], str]:
        """Return all whole entries, including waiting entries, and the warning about damage."""
        with self._news:
            rows, odd = whole_rows(self._file)
            rows += self._behind.values()
        if odd:
            self.said = _DAMAGED.format(self.folder / FILE)
        return rows, self.said

    def forked(self) -> None:
        """Release the folder in a fork of the client's process. The client may end before its fork."""
        self._news = threading.Condition()
        self._mark.close()
        self._held.close()

    def close(self) -> None:
        """Write the waiting entries, and release the folder for another client."""
        with self._news:
            if self._held.closed:
                return
            self._catch_up()
            with contextlib.suppress(OSError):
                self._mark.write(self._count, sync=True)
            self._file.close()
            self._mark.close()
            self._held.close()
            self._news.notify_all()


def _close_to_others(folder: Path) -> None:
    """Remove the rights of other users to the owner's folder, unless it has foreign files (R10). Raises OSError."""
    status = folder.stat()
    names = {path.name.partition(".damaged")[0].removesuffix("-wal").removesuffix("-shm") for path in folder.iterdir()}
    if status.st_uid == owner() and others_may(status, 0o077) and names <= {FILE, Path(FILE).stem, LOCK, MARK}:
        folder.chmod(0o700)


def _kept_of(own: Iterable[Row]) -> e.ResumableRun | ResumableStream | None:
    """Return the state from which a client resumes a run, or None if no entry has the state."""
    entries = [(kind, body) for _, _, kind, body, _ in own]
    return _last(entries, "stream", _stream) or _last(entries, "kept", _kept)


def _found(kept: e.ResumableRun | ResumableStream, own: Sequence[Row], live: LiveRun, damaged: str) -> JournaledRun:
    """Return the run with these entries (R1), and the entries that are missing (R6)."""
    entries = [(kind, body) for _, _, kind, body, _ in own]
    committed = {kind[4:]: int(body) for kind, body in entries if kind.startswith("had ")}
    newest = {kind: number for number, _, kind, _, _ in own}
    lost = tuple([kind for kind, number in live.last.items() if newest.get(kind, 0) < number])
    by = next((body.decode() for kind, body in entries if kind == "by"), "")
    record = JournaledRun(kept, committed, damaged, by, _last(entries, "asked", _asked), *_queries(entries))
    missing = {
        sink: (record.next_of(sink), index + 1) for sink, index in live.had.items() if committed.get(sink, -1) < index
    }
    return msgspec.structs.replace(
        record, had=live.had.copy(), missing=missing, lost=lost, doubt=live.doubt, term=live.term
    )


def _queries(entries: list[tuple[str, bytes]]) -> tuple[dict[int, JournaledQuery], frozenset[int]]:
    """Return the attached queries that go on, and the numbers of queries that are over."""
    going, left = dict[int, JournaledQuery](), set[int]()
    for kind in dict.fromkeys(kind for kind, _ in entries if kind.startswith("query ")):
        number, last = int(kind.removeprefix("query ")), _last(entries, kind, _query)
        if last is None:
            left.add(number)
        else:
            going[number] = last
    return going, frozenset(left)


def _last(entries: Iterable[tuple[str, bytes]], kind: str, decoder: msgspec.msgpack.Decoder[_Entry]) -> _Entry | None:
    """Return the last readable entry of a kind, or None (R1)."""
    last = None
    for known, body in entries:
        if known == kind:
            with contextlib.suppress(msgspec.DecodeError, UsageError, RecursionError):
                last = decoder.decode(body)
    return last
