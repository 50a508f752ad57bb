"""Traces in files: CSV with the header ``time_s,bandwidth_bps``, and Mahimahi's packet-delivery schedules.

Both readers parse many lines at once and look at single ones only when that fails, to name the line.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray
from thalweg.middleware.errors import TraceError, UsageError
from thalweg.middleware.files import read_bounded, whole

ENVIRONMENT_VARIABLE = "THALWEG_TRACES"  # names the folder of a collection of data sets
HEADER = "time_s,bandwidth_bps"
CSV_SUFFIX = ".csv"
MAHIMAHI_SUFFIXES = frozenset({".mahi", ".up", ".down", ".trace"})
MAHIMAHI_PACKET_BYTES = 1500  # mahimahi's mm-link(1): each line is an opportunity to deliver one MTU
MAHIMAHI_STEP_S = 1.0
MAX_BYTES = 64 * 1024 * 1024
MAX_LINES = 4_000_000  # two weeks in steps of 0.3 s; of a schedule, five minutes of 150 Mbit/s
MAX_CSV_BYTES, MAX_CSV_LINES = 1 << 30, 20_000_000  # of a CSV file, which is read some lines at a time
BLOCK_BYTES, ROWS = 1 << 20, 50_000  # that are read and written at a time
MAX_BINS = 10_000_000  # a mistaken time stamp must not fill the memory


def read_csv(
    path: str | Path, *, name: str | None = None, rebase: bool = False, tell: Callable[[int, int], None] | None = None
) -> BandwidthTrace:
    """The trace in a CSV file; it lasts its last time plus the median step.

    ``name``: default the file's name without ``.csv``. ``rebase``: shift times that do not start at 0 so that they do.
    ``tell``: told how many bytes of how many have been read. A row takes 16 bytes of memory, and 16 more meanwhile.
    Raises TraceError naming file and line: text in a number column, negative, nan or infinite values, times
    unsorted or repeated, no rows, another header, not UTF-8.
    """
    path = Path(path)
    blocks = _blocks(path)
    most, total_bytes = next(blocks)
    header, _, first = next(blocks).partition(b"\n")
    words = _decoded(path, 1, header).removeprefix("\ufeff").strip()
    if words != HEADER:
        raise TraceError(f"{path}:1: the header is {shown(words)}, not {HEADER!r}; is this a bandwidth trace?")
    times, rates, rows, done = np.empty(most), np.empty(most), 0, len(header)
    for block in chain((first,), blocks):
        if not block:
            continue
        before = times[rows - 1] if rows else None
        found = _csv_fast(block)
        if found is None or not _in_order(found[0], before, rebase):
            found = _csv_careful(path, rows + 2, block, before, rebase)
        end = rows + len(found[0])
        times[rows:end], rates[rows:end] = found
        rows, done = end, done + len(block)
        if tell is not None:
            tell(done, total_bytes)
    if not rows:
        raise TraceError(f"{path}: no rows after the header; a trace needs at least one")
    for column in (times, rates):
        column.resize(rows, refcheck=False)
    times -= times[0]
    for column in (times, rates):
        column.flags.writeable = False  # so that the trace need not copy it
    return BandwidthTrace(_name(path) if name is None else name, times, rates)


def _blocks(path: Path) -> Iterator[Any]:
    """First how many lines the file has at most, and its bytes; then whole lines, some at a time, the last of them
    without its end and without blank lines after it."""
    try:
        with path.open("rb") as file:
            size = count = 0
            while piece := file.read(BLOCK_BYTES):
                size, count = size + len(piece), count + piece.count(b"\n")
                if size > MAX_CSV_BYTES or count > MAX_CSV_LINES:
                    raise TraceError(f"{path} has more than {MAX_CSV_LINES} lines or {MAX_CSV_BYTES} bytes; divide it")
            yield count + 1, size
            file.seek(0)
            kept = b""
            while piece := file.read(BLOCK_BYTES):
                text = (kept + piece).replace(b"\r\n", b"\n")
                cut = text.rstrip().rfind(b"\n") + 1
                if len(text) - cut > 2 * BLOCK_BYTES:
                    raise TraceError(f"{path} has a line of more than {BLOCK_BYTES} bytes; is this a bandwidth trace?")
                if cut:
                    yield text[: cut - 1]
                kept = text[cut:]
            yield kept.rstrip()
    except OSError as error:
        _cannot_read(error)


def _csv_fast(block: bytes) -> tuple[FloatArray, FloatArray] | None:
    """Times and rates of flawless plain rows, else None."""
    rows = block.count(b"\n") + 1
    if block.translate(None, b"0123456789.+-eE") != (b",\n" * rows)[:-1]:
        return None  # this keeps out nan and inf, and whatever has not two columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it only warns of what is no number, and stops there
        values = np.fromstring(block.replace(b"\n", b",").decode("ascii"), sep=",")
    if len(values) != 2 * rows or not np.isfinite(values).all() or (values[1::2] < 0).any():
        return None
    return values[::2], values[1::2]


def _in_order(times: FloatArray, before: float | None, rebase: bool) -> bool:
    begins = (rebase or times[0] == 0.0) if before is None else times[0] > before
    return bool(begins and (times[1:] > times[:-1]).all())


def _decoded(path: Path, first: int, data: bytes) -> str:
    """Lines as text, of which the ``first`` has this number."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise TraceError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8, or name another") from error


def _csv_careful(
    path: Path, first: int, block: bytes, before: float | None, rebase: bool
) -> tuple[FloatArray, FloatArray]:
    """The rows one by one: spaces around numbers are fine, anything else is a TraceError naming the line.

    ``first``: the number of the block's first line; ``before``: the time of the row before it.
    """
    lines = _decoded(path, first, block).split("\n")
    times: list[float] = [] if before is None else [before]
    rates: list[float] = []
    for number, line in enumerate(lines, first):
        at = f"{path}:{number}"
        fields = line.split(",")
        if len(fields) != 2:
            raise TraceError(f"{at}: {shown(line)} has {len(fields)} column(s), not the 2 of {HEADER!r}")
        time_s, rate_bps = (_number(at, *pair) for pair in zip(HEADER.split(","), fields, strict=True))
        if rate_bps < 0:
            raise TraceError(f"{at}: bandwidth_bps is {fields[1].strip()}, below 0; an outage is 0")
        if not times and time_s != 0 and not rebase:
            raise TraceError(
                f"{at}: the first time is {fields[0].strip()}, not 0;"
                " `thalweg traces import` shifts such files to start at 0"
            )
        if times and time_s <= times[-1]:
            what = "repeats" if time_s == times[-1] else "is earlier than"
            raise TraceError(f"{at}: time_s {fields[0].strip()} {what} the row before's; sort rows, one a time")
        times.append(time_s)
        rates.append(rate_bps)
    return np.array(times[-len(rates) :]), np.array(rates)


def _number(at: str, column: str, text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise TraceError(f"{at}: {column} is {shown(text.strip())}, not a number")
    if not math.isfinite(value):
        raise TraceError(f"{at}: {column} is {shown(text.strip())}; it must be finite")
    return value


def read_mahimahi(path: str | Path, *, name: str | None = None, step_s: float = MAHIMAHI_STEP_S) -> BandwidthTrace:
    """The mean rate, every ``step_s``, of a Mahimahi schedule: one whole millisecond a line, at each of which
    one packet of 1500 bytes may leave; it starts over at its last time stamp, which is the trace's duration.

    A remainder shorter than ``step_s`` at the end joins the last step, so that no byte is lost.
    ``name``: default the file's name. Raises TraceError naming file and line; UsageError for a bad step.
    """
    if not 0.0 < step_s < math.inf:
        raise UsageError(f"step_s is {step_s}; it must be finite and above 0")
    path = Path(path)
    lines = text_lines(path)
    if lines == [""]:
        raise TraceError(f"{path}: no time stamps; a Mahimahi file has one millisecond a line")
    stamps = _mahimahi_stamps(path, lines)
    duration_s = int(stamps[-1]) / 1000.0
    if duration_s == 0.0:
        raise TraceError(f"{path}:{len(lines)}: the last time stamp is 0 ms; the schedule must last some time")
    if duration_s / step_s > MAX_BINS:
        raise TraceError(
            f"{path}:{len(lines)}: {duration_s:g} s in steps of {step_s:g} s are too many; check the units"
        )
    bins = max(1, math.floor(duration_s / step_s + 1e-9))
    edges = np.append(np.arange(bins) * step_s, duration_s)
    # A stamp on an edge opens the bin that starts there; the last stamp of all closes the schedule.
    owner = np.minimum(np.searchsorted(edges, stamps / 1000.0, side="right") - 1, bins - 1)
    packets = np.bincount(owner, minlength=bins)
    rates = packets * (MAHIMAHI_PACKET_BYTES * 8) / np.diff(edges)
    return BandwidthTrace(path.name if name is None else name, edges[:-1], rates, duration_s)


def _mahimahi_stamps(path: Path, lines: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if all(map(str.isdigit, lines)) and "".join(lines).isascii() and max(map(len, lines)) < 16:
        stamps = np.array(list(map(int, lines)), dtype=np.int64)
        if (stamps[1:] >= stamps[:-1]).all():
            return stamps
    found: list[int] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise TraceError(f"{path}:{number}: {shown(text)} is not a time stamp in whole milliseconds")
        if found and int(text) < found[-1]:
            raise TraceError(
                f"{path}:{number}: time stamp {text} is earlier than the one before, {found[-1]}; sort them"
            )
        found.append(int(text))
    return np.array(found, dtype=np.int64)


def sniff_format(path: str | Path) -> Literal["csv", "mahimahi"]:
    """The format of a file: ``*.csv`` is CSV; others are CSV if their first line has a comma, else Mahimahi."""
    path = Path(path)
    if path.suffix.lower() == CSV_SUFFIX:
        return "csv"
    try:
        with path.open("rb") as file:
            return "csv" if b"," in file.readline(256) else "mahimahi"
    except OSError as error:
        _cannot_read(error)


def read_trace(path: str | Path, *, name: str | None = None, step_s: float = MAHIMAHI_STEP_S) -> BandwidthTrace:
    """The trace in a file of either format; see sniff_format, read_csv and read_mahimahi."""
    if sniff_format(path) == "csv":
        return read_csv(path, name=name)
    return read_mahimahi(path, name=name, step_s=step_s)


def pool_files(path: str | Path) -> dict[str, Path]:
    """Name and path of every trace under ``path``, sorted by name (relative to it, CSV without ``.csv``).

    A file stands for itself; a folder for all ``*.csv``, ``*.mahi``, ``*.up``, ``*.down`` and ``*.trace`` in it and
    the folders in it; a folder that has a folder ``bandwidth`` for that one. Raises TraceError when there are none.
    """
    root = Path(path)
    if os.path.isfile(root):
        return {_name(root): root}
    if not os.path.isdir(root):
        raise TraceError(f"no trace file or folder {str(path)!r}; `thalweg traces generate` makes traces")
    if os.path.isdir(root / "bandwidth"):
        root = root / "bandwidth"
    files: dict[str, Path] = {}
    for folder, _, names in os.walk(root, onerror=_cannot_read, followlinks=True):
        for file in names:
            suffix = os.path.splitext(file)[1].lower()
            if (suffix == CSV_SUFFIX or suffix in MAHIMAHI_SUFFIXES) and not file.startswith("."):
                where = Path(folder, file)
                files[where.relative_to(root).with_name(_name(where)).as_posix()] = where
    if not files:
        raise TraceError(
            f"no traces under {str(path)!r}; expected *.csv ({HEADER}) or Mahimahi's"
            " *.mahi, *.up, *.down, *.trace; `thalweg traces generate` makes some"
        )
    return dict(sorted(files.items()))


def load_pool(path: str | Path, *, step_s: float = MAHIMAHI_STEP_S) -> list[BandwidthTrace]:
    """Every trace of ``pool_files(path)``, sorted by name. ``step_s``: for Mahimahi files."""
    return [read_trace(file, name=name, step_s=step_s) for name, file in pool_files(path).items()]


def write_csv(trace: BandwidthTrace, path: str | Path) -> None:
    """Write ``trace`` so that ``read_csv`` gives the same rates over the same duration; replaces the file at once.

    The format has no place for a duration (it is the last time plus the median step), so a last row that
    holds for another time is divided into rows of the same rate. Raises UsageError when the file cannot be written.
    """
    path = Path(path)
    times, rates = _with_closing_rows(trace)
    with whole(path, "choose another --out", error=UsageError) as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{HEADER}\n")
            for begin in range(0, len(times), ROWS):
                some = (column[begin : begin + ROWS].tolist() for column in (times, rates))
                file.write("".join(f"{_text(t)},{_text(r)}\n" for t, r in zip(*some, strict=True)))


def _with_closing_rows(trace: BandwidthTrace) -> tuple[FloatArray, FloatArray]:
    """The trace's rows, and more of its last rate where last time + median step is not its duration."""
    times, rates, rows = trace.times_s, trace.rates_bps, len(trace)
    last = float(times[-1])

    def candidates() -> Iterator[FloatArray]:  # one at a time: there may be millions of rows
        yield times
        if rows > 1:
            yield np.append(times, trace.duration_s - float(np.median(np.diff(times))))
        # Equal parts of the last row outnumber all other rows, so theirs is the median step.
        yield np.append(times, np.linspace(last, trace.duration_s, rows + 2)[1:-1])

    for found in candidates():
        steps = np.diff(found)
        if steps.size and (steps > 0).all():
            duration_s = found[-1] + np.median(steps)
            if math.isclose(duration_s, trace.duration_s, rel_tol=1e-12):
                return found, np.append(rates, np.full(len(found) - rows, rates[-1]))
    raise TraceError(f"trace {trace.name!r}: its last row is too short ({trace.duration_s - last} s) to be written")


def _cannot_read(error: OSError) -> NoReturn:
    raise TraceError(f"cannot read {error.filename}: {error.strerror}") from error


def text_lines(path: Path) -> list[str]:
    """The file's lines without line ends and without blank lines at the end; at least one, if only ''.

    Raises TraceError for a file that cannot be read or is not text.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
    except OSError as error:
        _cannot_read(error)
    if (count := data.count(b"\n")) > MAX_LINES:
        raise TraceError(f"{path} has {count} lines, more than {MAX_LINES}; divide it")
    text = _decoded(path, 1, data).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").rstrip().split("\n")


def _name(path: Path) -> str:
    return path.stem if path.suffix.lower() == CSV_SUFFIX else path.name


def _text(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)


def shown(text: str) -> str:
    """The beginning of what stands in a file, for an error."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
