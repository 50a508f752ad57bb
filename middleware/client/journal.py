"""What a client writes down of its runs, so that another can go on with them: a folder with an SQLite file.

Rules:

R1. Every entry has a checksum of its own, and several of each kind are kept: of what is damaged the last entry before
    counts that is whole, which is said.
R2. One client at a time has the folder.
R3. A partition counts as had when the application takes the next one, or, where it says of a sink itself what it is
    done with, when it says so.
R4. Of a run of which nothing is left to be had there is that alone, and of the newest ``MOST_OVER`` of these.
R5. A file that cannot be used as it is now, as the disk is full, is left as it is.
R6. What SQLite leaves out of what was written last (``-wal``), as it is damaged, is said as well: the entries before
    that count.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning import Stripe
from thalweg.middleware.platform.files import lock
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

VERSION = 1
FILE, LOCK = "journal.sqlite", "lock"
LAST = 8  # entries of a run and kind that are kept
PRUNE = 64  # of them, before that is seen to
MOST_ODD = 10_000  # entries that cannot be read, one after the other
MOST_OVER = 256  # runs of which it is known that they are over
MOST_BYTES = 1 << 30  # of a file that says it was longer
SOUND = {  # errors that say nothing of what is in the file
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
}  # fmt: skip
_ENTRIES = (
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, run TEXT, kind TEXT, body BLOB, checksum INTEGER)"
)
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


class Stream(msgspec.Struct, frozen=True):
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


class Query(msgspec.Struct, frozen=True):
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


class Asked(msgspec.Struct, frozen=True):
    """The further networks with which a run was begun, as for ``Client.run``."""

    networks: dict[str, Network]
    wanted_hz: float | None
    hops: int


class Found(msgspec.Struct, frozen=True):
    """What the journal has of a run: what is needed to go on, and of every sink the last partition that was had.

    ``said``: what was damaged; ``by``: the name of the placement with which it was begun, if that had one; ``asked``:
    the networks with which it was. ``queries``: by number those that go on of the attached ones; ``left``: numbers of
    those that are over, 0 for what the run began with.
    """

    kept: e.Kept | Stream
    had: dict[str, int]
    said: str = ""
    by: str = ""
    asked: Asked | None = None
    queries: dict[int, Query] = {}
    left: frozenset[int] = frozenset()

    def next_of(self, sink: str) -> int:
        """The partition with which a sink goes on."""
        if isinstance(self.kept, Stream):
            return max(self.kept.start, self.had.get(sink, -1) + 1)
        bases = [self.kept.bases.get(name, 0) for name in self.kept.install.dataflow.below(sink)]
        return self.had.get(sink, min(bases) - 1) + 1


_kept = msgspec.msgpack.Decoder(e.Kept)
_stream = msgspec.msgpack.Decoder(Stream)
_asked = msgspec.msgpack.Decoder(Asked)
_query = msgspec.msgpack.Decoder(Query | None)
_Entry = TypeVar("_Entry")


class Journal:
    """The journal in a folder, which is made if it is not there. Raises UsageError for one that cannot be used.

    ``said``: what is to be said of it, as it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logbook = Logbook("")  # that of the client, once it has one
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._over: dict[str, None] = {}  # R4: of this client's, in order
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._held: IO[str] = (folder / LOCK).open("a+")
        except OSError as error:
            raise UsageError(f"the journal {folder} cannot be used: {one_line(error)}") from None
        try:
            lock(self._held.fileno())
        except OSError:
            self._held.seek(0)
            who = self._held.read().strip() or "another process"
            self._held.close()
            why = f"the journal {folder} is in use by {who}; end that client, or use another folder"
            raise UsageError(why) from None
        with contextlib.suppress(OSError):  # R5: it is for who comes meanwhile
            os.ftruncate(self._held.fileno(), 0)
            os.write(self._held.fileno(), f"process {os.getpid()}".encode())
        self.said, self._full = "", False
        try:
            self._file = self._open(folder / FILE)
        except UsageError:
            self._held.close()
            raise

    def _open(self, path: Path, *, again: bool = False) -> sqlite3.Connection:
        written = _written_last(path)
        try:
            file = sqlite3.connect(path, timeout=1, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise UsageError(f"the journal {path} cannot be used: {one_line(error)}") from None
        try:
            if file.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise sqlite3.DatabaseError("it contradicts itself")
            [(version,)] = file.execute("PRAGMA user_version").fetchall()
            if version in (0, VERSION):
                file.execute("PRAGMA journal_mode=WAL")
                if written and file.execute("PRAGMA wal_checkpoint").fetchall()[0][1] != written:  # R6
                    self.said = _DAMAGED.format(path)
                file.execute("PRAGMA synchronous=NORMAL")
                file.execute(_ENTRIES)
                file.execute(f"PRAGMA user_version={VERSION}")
                return file
            why = f"is of version {version}, and this client writes version {VERSION}; use another folder"
        except sqlite3.DatabaseError as error:
            file.close()
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in SOUND:  # R5
                raise UsageError(f"the journal {path} cannot be used: {one_line(error)}") from None
            if not again and _salvage(path):  # R1
                self.said = _DAMAGED.format(path)
                return self._open(path, again=True)
            why = f"is damaged, and nothing of it can be read ({one_line(error)}); use another folder"
        file.close()
        raise UsageError(f"the journal {path} {why}")

    # --- writing --------------------------------------------------------------------------------------

    def keep(self, run: str, kept: e.Kept | Stream) -> None:
        """What is needed to go on with a run."""
        self._write(run, "stream" if isinstance(kept, Stream) else "kept", msgspec.msgpack.encode(kept))

    def begun(self, run: str, by: str, asked: Asked | None = None) -> None:
        """A run was begun with the placement of that name, if it has one, and these networks."""
        if by:
            self._write(run, "by", by.encode())
        if asked is not None and asked.networks:
            self._write(run, "asked", msgspec.msgpack.encode(asked))

    def had(self, run: str, sink: str, index: int) -> None:
        """R3: the application has had that partition, and all before."""
        self._write(run, f"had {sink}", str(index).encode())

    def query(self, run: str, number: int, query: Query | None) -> None:
        """A query of the run has begun; None: nothing is left of it to be had."""
        self._write(run, f"query {number}", msgspec.msgpack.encode(query))

    def over(self, run: str) -> None:
        """R4: nothing is left of a run to be had."""
        self._write(run, "over", b"")
        for key in [key for key in self._counts if key[0] == run]:
            del self._counts[key]
        self._over[run] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]

    def _write(self, run: str, kind: str, body: bytes) -> None:
        with self._lock:
            if self._held.closed or run in self._over:
                return
            row = run, kind, body, zlib.crc32(f"{run} {kind} ".encode() + body)
            count = self._counts[run, kind] = self._counts.get((run, kind), 0) + 1
            try:
                self._file.execute("INSERT INTO entries (run, kind, body, checksum) VALUES (?, ?, ?, ?)", row)
                if kind == "over":
                    self._file.execute(_FORGET, (run,))
                    self._file.execute(_FORGET_OVER, (MOST_OVER,))
                elif count % PRUNE == 0:
                    self._file.execute(_PRUNE, (run, kind, LAST))
            except sqlite3.Error as error:
                if not self._full:
                    reason, then = one_line(error), "runs go on, and cannot be resumed from here on"
                    text = f"the journal {self.folder} cannot be written: {reason}; {then}"
                    self.logbook.write("journal-trouble", text, run=run, reason=reason)
                self._full = True

    # --- reading --------------------------------------------------------------------------------------

    def runs(self) -> Mapping[str, Found | None]:
        """R1: the runs there are, in the order in which they were begun; None: it is over."""
        entries, damaged = self._read()
        found: dict[str, Found | None] = {}
        for run in dict.fromkeys(run for run, _, _ in entries):
            own = [(kind, body) for other, kind, body in entries if other == run]
            if any(kind == "over" for kind, _ in own):
                found[run] = None
                continue
            kept = _last(own, "stream", _stream) or _last(own, "kept", _kept)
            if kept is not None:
                had: dict[str, int] = {}
                for kind, body in own:
                    if kind.startswith("had "):
                        had[kind[4:]] = max(int(body), had.get(kind[4:], -1))
                by = next((body.decode() for kind, body in own if kind == "by"), "")
                about = damaged, by, _last(own, "asked", _asked)
                found[run] = Found(kept, had, *about, *_queries(own))
        return found

    def _read(self) -> tuple[list[tuple[str, str, bytes]], str]:
        """All entries that are whole, and what is to be said of the others."""
        with self._lock:
            rows, odd = _whole_rows(self._file)
        if odd:
            self.said = _DAMAGED.format(self.folder / FILE)
        return [(run, kind, body) for run, kind, body, _ in rows], self.said

    def forked(self) -> None:
        """This process is a fork of the one that has the folder: it has nothing of it, also when that one has ended."""
        self._lock = threading.Lock()
        self._held.close()

    def close(self) -> None:
        """Let another client have the folder."""
        with self._lock:
            if not self._held.closed:
                self._file.close()
                self._held.close()


def _whole_rows(file: sqlite3.Connection) -> tuple[list[tuple[str, str, bytes, int]], int]:
    """The entries that are whole, and how many are not."""
    rows: list[tuple[str, str, bytes, int]] = []
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
        number, run, kind, body, checksum = row
        whole = isinstance(run, str) and isinstance(kind, str) and isinstance(body, bytes)
        if whole and zlib.crc32(f"{run} {kind} ".encode() + body) == checksum:
            rows.append((run, kind, body, checksum))
            in_a_row = 0
        else:
            odd += 1
    return rows, odd


def _written_last(path: Path) -> int:
    """How many pages SQLite has said to be written, and not yet brought into the file; -1 where that cannot be told.

    So many of them does it read if all are whole. What a process that is killed has begun and not said does not count.
    Source: the SQLite file format, section 4.1.
    """
    try:
        with path.with_name(f"{path.name}-wal").open("rb") as file:
            head = file.read(32)
            page, salts = int.from_bytes(head[8:12], "big"), head[16:24]
            if len(head) < 32 or not 512 <= page <= 65_536:
                return -1 if head else 0
            frames = []  # of each page: whether something ends with it, and what is said of it and of the whole
            while len(frame := file.read(24 + page)) == 24 + page:
                frames.append((any(frame[4:8]), frame[8:16]))
    except OSError:
        return 0
    if frames and all(salt != salts for _, salt in frames):
        return -1
    return max((number for number, each in enumerate(frames, 1) if each == (True, salts)), default=0)


def _salvage(path: Path) -> bool:
    """Write a damaged file anew with the entries that are whole, and keep it beside as it was; False without any."""
    try:
        return _written_anew(path)
    except OSError as error:
        raise UsageError(f"the journal {path} is damaged, and cannot be written anew: {one_line(error)}") from None


def _written_anew(path: Path) -> bool:
    data = path.read_bytes()
    if data[:16] != b"SQLite format 3\x00":
        return False
    size = int.from_bytes(data[16:18], "big") * int.from_bytes(data[28:32], "big")
    copy, made = path.with_suffix(".damaged"), path.with_suffix(".new")
    copy.write_bytes(data + bytes(max(0, min(size, MOST_BYTES) - len(data))))  # what was cut off counts as empty
    made.unlink(missing_ok=True)
    file, new = sqlite3.connect(copy), sqlite3.connect(made)
    try:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        rows, _ = _whole_rows(file)
        new.execute(_ENTRIES)
        new.executemany("INSERT INTO entries (run, kind, body, checksum) VALUES (?, ?, ?, ?)", rows)
        new.execute(f"PRAGMA user_version={version}")
        new.commit()
    except sqlite3.DatabaseError:
        return False
    finally:
        file.close()
        new.close()
    for tail in ("-wal", "-shm"):
        path.with_name(path.name + tail).unlink(missing_ok=True)
    made.replace(path)
    return bool(rows)


def _queries(entries: list[tuple[str, bytes]]) -> tuple[dict[int, Query], frozenset[int]]:
    """Those that go on, and the numbers of those that are over."""
    going, left = dict[int, Query](), set[int]()
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
