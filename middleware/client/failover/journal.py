"""What a client writes down of its runs, so that another can go on with them: a folder with an SQLite file and a mark.

Rules:

R1. Every entry has a checksum of its own, and several of each kind are kept: of what is damaged the last entry before
    counts that is whole, which is said.
R2. One client at a time has the folder.
R3. A partition counts as had when the application takes the next one, or, where it says of a sink itself what it is
    done with, when it says so.
R4. Of a run of which nothing is left to be had there is that alone, and of the newest ``MOST_OVER`` of these.
R5. A file that cannot be used as it is now, as the disk is full, is left as it is.
R6. The mark (``mark``) says which entries the file needs of every run that is not over. An entry is in the file before
    the mark says so. If the file lacks one of them, or the mark is missing, the run has a gap, which is said to whoever
    resumes it.
R7. An entry is on the disk before its writing returns. New entries about replicas alone are an exception: an older one
    of them is as right.
R8. An entry that cannot be written waits, and is tried again every ``RETRY_S``; the mark counts it meanwhile. When it
    is written, the file also says which partitions had no entries of their own (kind ``gap``).
R9. What can be written neither to the file nor to the mark, as the folder was removed, is an error of who commits.
R10. The files are their owner's alone. No link is followed, and no file is truncated that another may have made.
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
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import JournalError, UsageError, one_line
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning import Stripe
from thalweg.middleware.platform.files import lock, open_private, others_may, owner, sync
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

VERSION = 2
FILE, LOCK, MARK = "journal.sqlite", "lock", "mark"
LAST = 8  # entries of a run and kind that are kept
PRUNE = 64  # of them, before that is seen to
MOST_OVER = 256  # runs of which it is known that they are over
RETRY_S = 1.0  # between two tries to write what could not be written
OPEN_S, BUSY_S = 1.0, 0.05  # how long another process that has locked the file is waited for
HOLDER = "process "  # how the lock's content begins
SOUND = {  # errors that say nothing of what is in the file
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
_DAMAGED = "the journal {} is damaged: what it says last, and whole, counts"


class ResumableStream(msgspec.Struct, frozen=True):
    """What a client has to know to go on with a stream over several trees that another has begun.

    ``trees``: as they are now; ``start``: the first partition, ``end``: the one after the last, if that was said. The
    others are as for ``Client.run``.
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
    """A query that was attached to a run and has begun: its graph, and what its nodes are called in the run.

    ``shared``: nodes that the run had before; ``first``: its first partition.
    """

    dataflow: Dataflow
    names: dict[str, str]
    shared: tuple[str, ...]
    first: int

    @property
    def sinks(self) -> tuple[str, ...]:
        """By their names in the run."""
        return tuple([self.names[name] for name in self.dataflow.sinks])


class RequestedNetworks(msgspec.Struct, frozen=True):
    """The further networks with which a run was begun, as for ``Client.run``."""

    networks: dict[str, Network]
    wanted_hz: float | None
    hops: int


class JournaledRun(msgspec.Struct, frozen=True):
    """What the journal has of a run: what is needed to go on, and of every sink the last partition that was had.

    ``said``: what was damaged; ``by``: the name of the placement with which it was begun, if that had one; ``asked``:
    the networks with which it was. ``queries``: by number those that go on of the attached ones; ``left``: numbers of
    those that are over, 0 for what the run began with. ``missing``: by sink the partitions that were had, of which the
    file has no entries (R6), as [first, until); ``had`` counts them. ``lost``: kinds of other entries that are missing;
    ``doubt``: why there may be more. ``term``: the latest term of the run that the mark or the file has.
    """

    kept: e.ResumableRun | ResumableStream
    had: dict[str, int]
    said: str = ""
    by: str = ""
    asked: RequestedNetworks | None = None
    queries: dict[int, JournaledQuery] = {}
    left: frozenset[int] = frozenset()
    missing: dict[str, tuple[int, int]] = {}
    lost: tuple[str, ...] = ()
    doubt: str = ""
    term: int = 0

    def next_of(self, sink: str) -> int:
        """The partition with which a sink goes on."""
        if isinstance(self.kept, ResumableStream):
            return max(self.kept.start, self.had.get(sink, -1) + 1)
        bases = [self.kept.bases.get(name, 0) for name in self.kept.install.dataflow.below(sink)]
        return self.had.get(sink, min(bases) - 1) + 1


_kept = msgspec.msgpack.Decoder(e.ResumableRun)
_stream = msgspec.msgpack.Decoder(ResumableStream)
_asked = msgspec.msgpack.Decoder(RequestedNetworks)
_query = msgspec.msgpack.Decoder(JournaledQuery | None)
_Entry = TypeVar("_Entry")


class Journal:
    """The journal in a folder, which is made if it is not there. Raises UsageError for one that cannot be used.

    ``said``: what is to be said of it, as it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logbook = Logbook("")  # that of the client, once it has one
        self._news = threading.Condition()
        self._counts: dict[tuple[str, str], int] = {}
        self._over: dict[str, None] = {}  # R4: of this client's, in order
        self._shapes: dict[str, bytes] = {}  # R7: by run, what has to be known of it beside replicas
        self._later: dict[str, tuple[bytes, bytes]] = {}  # R7: entries about replicas, by run, for who has the lock
        self._behind: dict[tuple[str, str], Row] = {}  # R8: entries that wait, the last of each kind
        self._behind_from: dict[str, dict[str, int]] = {}  # R8: what had been had before
        self._retries = self._markless = False
        self._trouble = self._unsafe = ""  # why nothing can be written to the file; nor to the mark (R9)
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
        """R2: have the folder, and return what the lock said before."""
        try:
            lock(self._held.fileno())
        except OSError:
            holder = self._held.read(64).decode(errors="replace").strip() or "another process"
            why = f"the journal {self.folder} is in use by {holder}; end that client, or use another folder"
            raise UsageError(why) from None
        before = self._held.read(64)
        if before and not before.startswith(HOLDER.encode()):  # R10: another program's file
            raise UsageError(f"the journal {self.folder} cannot be used: its file {LOCK} is not that of a journal")
        with contextlib.suppress(OSError):  # R5: it is for who comes meanwhile
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
            if not again and salvage(path):  # R1: the entries that are whole count
                self.said = _DAMAGED.format(path)
                return self._open(path, again=True)
            why = f"is damaged, and nothing of it can be read ({one_line(error)}); use another folder"
        file.close()
        raise UsageError(f"the journal {path} {why}")

    def _make_room(self, path: Path) -> None:
        """R10: have a file that is the owner's alone, from which SQLite takes the rights of its other files."""
        if path.is_dir():  # which SQLite says in its own words
            return
        descriptor, _ = open_private(path)
        empty = not os.fstat(descriptor).st_size
        os.close(descriptor)
        for tail in ("-wal", "-shm"):
            beside = path.with_name(path.name + tail)
            if beside.is_symlink():
                raise OSError(f"{beside.name} is a symbolic link")
            if empty and tail == "-wal" and beside.exists() and beside.stat().st_size:  # SQLite would remove it
                beside.replace(sibling(path, f"damaged{tail}"))

    def _begin(self, *, fresh: bool) -> None:
        """R6: read the mark, and count what the file has beyond it."""
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
        """Write what is needed to go on with a run.

        If a commit is being synced, an entry about replicas alone is left to it: sockets are not to wait for a disk.
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

    def begun(self, run: str, by: str, asked: RequestedNetworks | None = None) -> None:
        """Write down that a run was begun with the placement of that name, if it has one, and these networks."""
        if by:
            self._write(run, "by", by.encode())
        if asked is not None and asked.networks:
            self._write(run, "asked", msgspec.msgpack.encode(asked))

    def had(self, run: str, sink: str, index: int) -> None:
        """R3: write down that the application has had a partition, and all before. The last entry of a sink counts."""
        self._write(run, f"had {sink}", str(index).encode())

    def query(self, run: str, number: int, query: JournaledQuery | None) -> None:
        """Write down that a query of the run has begun, or, if it is None, that nothing is left of it to be had."""
        self._write(run, f"query {number}", msgspec.msgpack.encode(query))

    def over(self, run: str) -> None:
        """R4: write down that nothing is left of a run to be had."""
        self._write(run, "over", b"")
        for key in [key for key in self._counts if key[0] == run]:
            del self._counts[key]
        self._shapes.pop(run, None)
        self._over[run] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]

    def check(self) -> None:
        """R9: raise JournalError if what was written last is known to this process alone."""
        if self._unsafe:
            raise JournalError(
                f"the journal {self.folder} cannot be written: {self._unsafe};"
                " what was committed is not written down, and comes again if this client ends now"
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
        """R6: count an entry as needed, and return the last partition of its sink that was had before; else -1."""
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
        """Write entries, all or none; False with the reason in ``_trouble``.

        Args:
            full: wait until they are on the disk.
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
        """R9: raise OSError if the file is not in the folder any more, where SQLite would go on to write to it."""
        try:
            status = os.stat(self.folder / FILE)
        except OSError:
            raise OSError(f"{FILE} was removed") from None
        if (status.st_dev, status.st_ino) != self._ident:
            raise OSError(f"{FILE} was replaced")

    def _mark_it(self) -> None:
        """R6, R8: have the mark say what was counted."""
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
            then = "what the application commits is not written down"
            self._log(f"it cannot be written: {unsafe}; {then}", unsafe, event="journal-failed")
        self._unsafe = unsafe if self._behind else ""

    def _try_again(self) -> None:
        """R8: have a thread write what waits as soon as that can be done."""
        if self._retries:
            return
        then = f"it is tried again every {RETRY_S:g} s, and its file {MARK} counts meanwhile"
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
        """R8: write what waits, and which partitions had no entries of their own; under the lock."""
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
            self._log("it is written again, and has all that was committed meanwhile", event="journal-mended")

    def _log(self, text: str, reason: str = "", event: str = "journal-trouble") -> None:
        self.logbook.write(event, f"the journal {self.folder}: {text}", reason=reason)

    # --- reading --------------------------------------------------------------------------------------

    def runs(self) -> Mapping[str, JournaledRun | None]:
        """R1: return the runs in the order in which they were begun; None for a run that is over."""
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
        """R6: return the mark's entries of runs that are not over, and of which nothing is left to go on with."""
        known = self.runs()
        return {run: live for run, live in self._count.live.items() if run not in known}

    @property
    def doubt(self) -> str:
        """R6: the reason why there may be runs that the journal does not know; empty if there are none."""
        return self._count.doubt

    def accept_doubt(self) -> None:
        """R6: stop asking for runs that the journal may not know."""
        with self._news:
            self._count.doubt = ""
            self._mark_it()

    def accept(self, run: str) -> None:
        """R6: stop asking for the entries that are missing of a run."""
        rows, _ = self._read()
        with self._news:
            live = self._count.live[run]
            whole = {row[2]: row[0] for row in rows if row[1] == run}
            live.last = {kind: number for kind, number in whole.items() if not kind.startswith(("had ", "gap"))}
            live.doubt = ""
        for sink, index in live.had.items():
            self.had(run, sink, index)

    def _read(self) -> tuple[list[Row], str]:
        """Return all entries that are whole, also those that wait, and the warning about the others."""
        with self._news:
            rows, odd = whole_rows(self._file)
            rows += self._behind.values()
        if odd:
            self.said = _DAMAGED.format(self.folder / FILE)
        return rows, self.said

    def forked(self) -> None:
        """Let go of the folder in a fork of the process that has it, which may end before this one."""
        self._news = threading.Condition()
        self._mark.close()
        self._held.close()

    def close(self) -> None:
        """Let another client have the folder."""
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
    """R10: close a folder of the owner's to others, unless there are other files in it. Raises OSError."""
    status = folder.stat()
    names = {path.name.partition(".damaged")[0].removesuffix("-wal").removesuffix("-shm") for path in folder.iterdir()}
    if status.st_uid == owner() and others_may(status, 0o077) and names <= {FILE, Path(FILE).stem, LOCK, MARK}:
        folder.chmod(0o700)


def _kept_of(own: Iterable[Row]) -> e.ResumableRun | ResumableStream | None:
    """Return what is needed to go on with a run; None if there is nothing."""
    entries = [(kind, body) for _, _, kind, body, _ in own]
    return _last(entries, "stream", _stream) or _last(entries, "kept", _kept)


def _found(kept: e.ResumableRun | ResumableStream, own: Sequence[Row], live: LiveRun, damaged: str) -> JournaledRun:
    """Return what the entries of a run say, and R6: what is missing of them."""
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
    """Those that go on, and the numbers of those that are over."""
    going, left = dict[int, JournaledQuery](), set[int]()
    for kind in dict.fromkeys(kind for kind, _ in entries if kind.startswith("query ")):
        number, last = int(kind.removeprefix("query ")), _last(entries, kind, _query)
        if last is None:
            left.add(number)
        else:
            going[number] = last
    return going, frozenset(left)


def _last(entries: Iterable[tuple[str, bytes]], kind: str, decoder: msgspec.msgpack.Decoder[_Entry]) -> _Entry | None:
    """R1: the last entry of that kind that can be read."""
    last = None
    for known, body in entries:
        if known == kind:
            with contextlib.suppress(msgspec.DecodeError, UsageError, RecursionError):
                last = decoder.decode(body)
    return last
