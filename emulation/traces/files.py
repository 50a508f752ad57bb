"""Traces in files: CSV with the header ``time_s,bandwidth_bps``, and Mahimahi's packet-delivery schedules.

Both readers parse a whole file at once and look at single lines only when that fails, to name the line.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal, NoReturn

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
MAX_BINS = 10_000_000  # a mistaken time stamp must not fill the memory


def read_csv(path: str | Path, *, name: str | None = None, rebase: bool = False) -> BandwidthTrace:
    """The trace in a CSV file; it lasts its last time plus the median step.

    ``name``: default the file's name without ``.csv``. ``rebase``: shift times that do not start at 0 so that they do.
    Raises TraceError naming file and line: text in a number column, negative, nan or infinite values, times
    unsorted or repeated, no rows, another header, not UTF-8.
    """
    path = Path(path)
    lines = text_lines(path)
    if lines[0].strip() != HEADER:
        raise TraceError(f"{path}:1: the header is {shown(lines[0])}, not {HEADER!r}; is this a bandwidth trace?")
    if len(lines) == 1:
        raise TraceError(f"{path}: no rows after the header; a trace needs at least one")
    rows = _csv_fast(lines[1:], rebase)
    if rows is None:
        rows = _csv_careful(path, lines, rebase)
    times, rates = rows
    return BandwidthTrace(_name(path) if name is None else name, times - times[0], rates)


def _csv_fast(lines: list[str], rebase: bool) -> tuple[FloatArray, FloatArray] | None:
    """Times and rates of flawless plain rows, else None."""
    text = ",".join(lines)
    if text.encode("utf-8").translate(None, b"0123456789.,+-eE") or any(line.count(",") != 1 for line in lines):
        return None  # this keeps out nan, inf and the underscores that float() would take
    try:
        values = np.array(list(map(float, text.split(","))))
    except ValueError:
        return None
    times, rates = values[::2].copy(), values[1::2].copy()
    sound = np.isfinite(values).all() and (rates >= 0).all() and (times[1:] > times[:-1]).all()
    return (times, rates) if sound and (rebase or times[0] == 0.0) else None


def _csv_careful(path: Path, lines: list[str], rebase: bool) -> tuple[FloatArray, FloatArray]:
    """The rows one by one: spaces around numbers are fine, anything else is a TraceError naming the line."""
    times: list[float] = []
    rates: list[float] = []
    for number, line in enumerate(lines[1:], 2):
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
    return np.array(times), np.array(rates)


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
    rows = "".join(f"{_text(t)},{_text(r)}\n" for t, r in zip(times.tolist(), rates.tolist(), strict=True))
    with whole(path, "choose another --out", error=UsageError) as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(f"{HEADER}\n{rows}", encoding="utf-8", newline="\n")


def _with_closing_rows(trace: BandwidthTrace) -> tuple[FloatArray, FloatArray]:
    """The trace's rows, and more of its last rate where last time + median step is not its duration."""
    times, rates, rows = trace.times_s, trace.rates_bps, len(trace)
    last = float(times[-1])
    candidates = [times]
    if rows > 1:
        candidates.append(np.append(times, trace.duration_s - float(np.median(np.diff(times)))))
    # Equal parts of the last row outnumber all other rows, so theirs is the median step.
    candidates.append(np.append(times, np.linspace(last, trace.duration_s, rows + 2)[1:-1]))
    for found in candidates:
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
        if (count := data.count(b"\n")) > MAX_LINES:
            raise TraceError(f"{path} has {count} lines, more than {MAX_LINES}; divide it")
        text = data.decode("utf-8-sig")
    except OSError as error:
        _cannot_read(error)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8, or name another") from error
    return text.replace("\r\n", "\n").rstrip().split("\n")


def _name(path: Path) -> str:
    return path.stem if path.suffix.lower() == CSV_SUFFIX else path.name


def _text(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)


def shown(text: str) -> str:
    """The beginning of what stands in a file, for an error."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
