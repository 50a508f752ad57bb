"""Traces in files: CSV with the header ``time_s,bandwidth_bps``, and Mahimahi's packet-delivery schedules.

CSV files may have delays and losses too. ``import_trace`` reads the files of other tools.
"""

from __future__ import annotations

import codecs
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np

from thalweg.emulation.traces import cells, columns, foreign, iperf
from thalweg.emulation.traces.cells import Note
from thalweg.emulation.traces.chosen import chosen, own_chosen
from thalweg.emulation.traces.columns import shown
from thalweg.emulation.traces.link import LinkTrace
from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray
from thalweg.middleware.errors import TraceError, UsageError
from thalweg.middleware.files.reading import read_bounded
from thalweg.middleware.files.writing import whole
from thalweg.middleware.platform.files import open_regular

ENVIRONMENT_VARIABLE = "THALWEG_TRACES"  # names the folder of a collection of data sets
HEADER = "time_s,bandwidth_bps"
CSV_SUFFIX = ".csv"
NAMELESS_SUFFIXES = frozenset({CSV_SUFFIX, ".tsv", ".json"})  # which a trace's name leaves out
MAHIMAHI_SUFFIXES = frozenset({".mahi", ".up", ".down", ".trace"})
MAHIMAHI_PACKET_BYTES = 1500  # mahimahi's mm-link(1): each line is an opportunity to deliver one MTU
MAHIMAHI_STEP_S = 1.0
MAX_STAMP_MS = 1e15
MAX_BYTES, MAX_LINES = 64 * 1024 * 1024, 4_000_000  # of a grid, which is read whole
ROWS = 50_000  # in one write
MAX_BINS = 10_000_000  # a mistaken time stamp must not fill the memory
Format = Literal["csv", "mahimahi", "pensieve", "iperf3"]


def read_csv(
    path: str | Path, *, name: str | None = None, rebase: bool = False, tell: columns.Tell | None = None
) -> BandwidthTrace:
    """Return the rates in a CSV file, without delays and losses. The trace lasts its last time plus the median step.

    ``name``: by default the file's name without ``.csv``. ``rebase``: shift times to start at 0. ``tell``: called with
    the bytes read so far and the total. A row takes 16 bytes of memory, and 16 more meanwhile. Raises TraceError with
    file and line. Causes are text in a number column, negative, nan or infinite values, times unsorted or repeated, no
    rows, another header, or text that is not UTF-8.
    """
    path = Path(path)
    times, (rates,) = columns.read(path, _rates_alone, rebase=rebase, tell=tell)
    return BandwidthTrace(_name(path) if name is None else name, times, rates)


def read_link_trace(
    path: str | Path,
    choose: columns.Choose | None = None,
    *,
    reading: foreign.Reading = foreign.STRICT,
    note: Note = foreign.quiet,
    step_s: float = MAHIMAHI_STEP_S,
    tell: columns.Tell | None = None,
) -> LinkTrace:
    """Return the rates, delays and losses of a link over time in a file.

    ``choose``: finds the columns of a file of another tool (see ``foreign``). ``reading`` and ``note``: for such a
    file. Without ``choose`` the file has our own header or is a Mahimahi schedule, as for ``read_csv`` and
    ``read_mahimahi``.
    """
    path = Path(path)
    if choose is not None:
        return LinkTrace(_name(path), *foreign.read(path, choose, reading, note, tell))
    if sniff_format(path) == "mahimahi":
        return LinkTrace.of_rates(read_mahimahi(path, step_s=step_s, tell=tell))
    fields: list[str] = []

    def remembered(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[columns.Column]:
        own = columns.own(path, header)
        fields.extend(column.field for column in own[1:])
        return own

    times, values = columns.read(path, remembered, tell=tell)
    return LinkTrace(_name(path), times, dict(zip(fields, values, strict=True)))


def import_trace(
    path: str | Path,
    format: Format | None = None,
    words: Mapping[str, str] | None = None,
    *,
    reading: foreign.Reading = foreign.STRICT,
    note: Note = foreign.quiet,
    step_s: float = MAHIMAHI_STEP_S,
    tell: columns.Tell | None = None,
) -> LinkTrace:
    """Return the trace in a file of a known format.

    ``format``: None guesses it. ``words``: the columns of a CSV file by option, as for ``chosen``. Without words the
    file has our own header. Raises TraceError and UsageError as the readers do.
    """
    path = Path(path)
    form = format or ("csv" if words else sniff_import(path))
    if form in ("iperf3", "mahimahi") and reading != foreign.STRICT:
        note(f"{path}: read as {form}, which has no cells; --missing, --sort and --decimal are without effect")
    if form == "iperf3":
        return LinkTrace(_name(path), *iperf.read(path, note))
    if form == "mahimahi":
        return LinkTrace.of_rates(read_mahimahi(path, step_s=step_s, tell=tell))
    if form == "pensieve":
        if format is None:
            note(f"{path}: pairs are read as seconds and Mbit/s, as Pensieve's; else write --time 1 --rate 2:UNIT")
        words = {"--time": "1:s", "--rate": "2:mbit"}
    choose = chosen(words, note) if words else own_chosen(note)
    return read_link_trace(path, choose, reading=reading, note=note, tell=tell)


def _rates_alone(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[columns.Column]:
    rates = [column for column in columns.own(path, header) if column.field in (columns.TIME, columns.RATE)]
    if len(rates) == 1:
        raise TraceError(f"{path}:1: {','.join(header)!r} has no rates, which are needed here; as a scenario's trace,"
                         " and to `testbed play`, it gives delays and losses")  # fmt: skip
    return rates


def read_mahimahi(
    path: str | Path,
    *,
    name: str | None = None,
    step_s: float = MAHIMAHI_STEP_S,
    tell: columns.Tell | None = None,
) -> BandwidthTrace:
    """Return the mean rates of a Mahimahi schedule in steps of ``step_s``.

    A line is a whole millisecond, at which one packet of 1500 bytes may leave. The schedule starts over at its last
    time stamp, which is the trace's duration. A remainder shorter than ``step_s`` at the end joins the last step, so no
    byte is lost. Memory grows with steps, not with lines. ``name``: by default the file's name. ``tell``: as for
    ``read_csv``. Raises TraceError with file and line, and UsageError for a bad step.
    """
    if not 0.0 < step_s < math.inf:
        raise UsageError(f"step_s is {step_s}; it must be finite and above 0")
    path = Path(path)
    packets = np.zeros(1)
    lines, last_ms, done = 0, 0.0, 0
    blocks = columns.blocks(path, "a schedule")
    _, total_bytes = next(blocks)
    for block in blocks:
        stamps = _stamps(path, lines, block if lines else block.removeprefix(codecs.BOM_UTF8), last_ms)
        if not stamps.size:
            continue
        lines, last_ms, done = lines + len(stamps), float(stamps[-1]), done + len(block)
        if last_ms / 1000.0 / step_s > MAX_BINS:
            raise TraceError(
                f"{path}:{lines}: {last_ms / 1000.0:g} s in steps of {step_s:g} s are too many; check the units"
            )
        # A stamp on an edge opens the bin that starts there.
        owner = np.floor(stamps / 1000.0 / step_s)
        owner += (stamps / 1000.0 >= (owner + 1) * step_s).astype(float) - (stamps / 1000.0 < owner * step_s)
        first, end = int(owner[0]), int(owner[-1]) + 1
        if end > len(packets):
            packets = np.concatenate((packets, np.zeros(max(end, 2 * len(packets)) - len(packets))))
        packets[first:end] += np.bincount((owner - first).astype(np.int64))
        if tell is not None:
            tell(done, total_bytes)
    if not lines:
        raise TraceError(f"{path}: no time stamps; a Mahimahi file has one millisecond a line")
    duration_s = last_ms / 1000.0
    if duration_s == 0.0:
        raise TraceError(f"{path}:{lines}: the last time stamp is 0 ms; the schedule must last some time")
    bins = max(1, math.floor(duration_s / step_s + 1e-9))
    edges = np.append(np.arange(bins) * step_s, duration_s)
    packets = np.append(packets, np.zeros(max(0, bins - len(packets))))
    packets[bins - 1] += packets[bins:].sum()  # also the last stamp, which closes the schedule
    rates = packets[:bins] * (MAHIMAHI_PACKET_BYTES * 8) / np.diff(edges)
    return BandwidthTrace(path.name if name is None else name, edges[:-1], rates, duration_s)


def _stamps(path: Path, before: int, block: bytes, last_ms: float) -> FloatArray:
    """Return the time stamps of a block of lines, after ``before`` lines with the last stamp ``last_ms``."""
    if not block.translate(None, b"0123456789\n"):
        stamps = np.fromstring(block.decode("ascii"), sep="\n")
        sound = len(stamps) == block.count(b"\n") + 1 and stamps[0] >= last_ms and stamps[-1] < MAX_STAMP_MS
        if sound and (stamps[1:] >= stamps[:-1]).all():
            return stamps
    values = list[int]()
    text = columns.decoded(path, before + 1, block)
    for number, line in enumerate(text.split("\n") if text or before else (), before + 1):
        stamp = line.strip()
        if not (stamp.isascii() and stamp.isdigit() and int(stamp[:20]) < MAX_STAMP_MS):
            raise TraceError(f"{path}:{number}: {shown(stamp)} is not a time stamp in whole milliseconds")
        if int(stamp) < last_ms:
            raise TraceError(
                f"{path}:{number}: time stamp {stamp} is earlier than the one before, {last_ms:.0f}; sort them"
            )
        last_ms = float(stamp)
        values.append(int(stamp))
    return np.array(values, dtype=np.float64)


def sniff_format(path: str | Path) -> Literal["csv", "mahimahi"]:
    """Return the format of a file: CSV for ``*.csv`` and for a comma in the first line, or else Mahimahi."""
    path = Path(path)
    if path.suffix.lower() == CSV_SUFFIX:
        return "csv"
    try:
        with open_regular(path) as file:
            return "csv" if b"," in file.readline(256) else "mahimahi"
    except OSError as error:
        _cannot_read(error)


def sniff_import(path: str | Path) -> Format:
    """Return the format of a file to import, by the first line that is no comment.

    JSON is iperf3's. Two numbers between blanks are Pensieve's. Files ``*.csv``, and lines with separators, are CSV.
    """
    path = Path(path)
    encoding = cells.encoding_of(path, foreign.quiet)
    with open_regular(path) as file:
        head = file.read(cells.HEAD_BYTES)
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    line = next((line.strip() for line in text.splitlines() if not cells.is_passed_over(line)), "")
    if line.startswith("{"):
        return "iperf3"
    parts = line.split()
    if len(parts) == 2 and all(map(cells.is_plain_number, parts)):
        return "pensieve"
    if path.suffix.lower() == CSV_SUFFIX or any(mark in line for mark in ",;\t"):
        return "csv"
    return "csv" if len(parts) > 1 and path.suffix.lower() not in MAHIMAHI_SUFFIXES else "mahimahi"


def read_trace(path: str | Path, *, name: str | None = None, step_s: float = MAHIMAHI_STEP_S) -> BandwidthTrace:
    """Return the trace in a file of either format (see ``sniff_format``, ``read_csv`` and ``read_mahimahi``)."""
    if sniff_format(path) == "csv":
        return read_csv(path, name=name)
    return read_mahimahi(path, name=name, step_s=step_s)


def pool_files(path: str | Path) -> dict[str, Path]:
    """Return name and path of every trace under ``path``, sorted by name (relative to ``path``, CSV without ``.csv``).

    A file stands for itself. A folder stands for all ``*.csv``, ``*.mahi``, ``*.up``, ``*.down`` and ``*.trace`` in it
    and in its subfolders, or in its folder ``bandwidth`` if there is one. Raises TraceError if there are no traces.
    """
    root = Path(path)
    if os.path.exists(root) and not os.path.isdir(root):
        return {_name(root): root}  # the reader refuses a file that is not regular
    if not os.path.isdir(root):
        raise TraceError(f"there is no trace file or folder {str(path)!r}; `thalweg traces generate` makes traces")
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
            f"there are no traces under {str(path)!r}; expected *.csv ({HEADER}) or Mahimahi's"
            " *.mahi, *.up, *.down, *.trace; `thalweg traces generate` makes some"
        )
    return dict(sorted(files.items()))


def load_pool(path: str | Path, *, step_s: float = MAHIMAHI_STEP_S) -> list[BandwidthTrace]:
    """Return every trace of ``pool_files(path)``, sorted by name. ``step_s``: for Mahimahi files."""
    return [read_trace(file, name=name, step_s=step_s) for name, file in pool_files(path).items()]


def write_csv(trace: BandwidthTrace | LinkTrace, path: str | Path) -> None:
    """Write a trace so that it reads back with the same figures and duration. An existing file is replaced at once.

    The format has no place for a duration, which is the last time plus the median step. A last row of another length is
    divided into rows of the same figures. Raises UsageError if the file cannot be written, and TraceError if the last
    row is too short.
    """
    path = Path(path)
    link = LinkTrace.of_rates(trace) if isinstance(trace, BandwidthTrace) else trace
    times = _with_closing_rows(link)
    more = len(times) - len(link.times_s)
    figures = [np.append(values, np.full(more, values[-1])) if more else values for values in link.figures.values()]
    with whole(path, "choose another --out", error=UsageError) as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{','.join((columns.TIME, *link.figures))}\n")
            for begin in range(0, len(times), ROWS):
                some = (column[begin : begin + ROWS].tolist() for column in (times, *figures))
                file.write("".join(f"{','.join(map(_text, row))}\n" for row in zip(*some, strict=True)))


def _with_closing_rows(trace: LinkTrace) -> FloatArray:
    """Return the times of the rows, and of more rows if last time + median step is not the duration."""
    times, rows = trace.times_s, len(trace.times_s)
    last = float(times[-1])

    def candidates() -> Iterator[FloatArray]:  # one at a time: there may be millions of rows
        yield times
        if rows > 1:
            yield np.append(times, trace.duration_s - float(np.median(np.diff(times))))
        # Equal parts of the last row outnumber the rows before, so the median step is the length of a part.
        yield np.append(times, np.linspace(last, trace.duration_s, rows + 2)[1:-1])

    for candidate in candidates():
        steps = np.diff(candidate)
        if steps.size and (steps > 0).all():
            duration_s = candidate[-1] + np.median(steps)
            if math.isclose(duration_s, trace.duration_s, rel_tol=1e-12):
                return candidate
    raise TraceError(f"trace {trace.name!r}: its last row is too short ({trace.duration_s - last} s) to be written")


def _cannot_read(error: OSError) -> NoReturn:
    raise TraceError(f"cannot read {error.filename}: {error.strerror}") from error


def text_lines(path: Path) -> list[str]:
    """Return the lines of a file without line ends and without blank lines at the end. An empty file has one line.

    Raises TraceError for a file that cannot be read, has too many lines, or is not text.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
    except OSError as error:
        _cannot_read(error)
    if (count := data.count(b"\n")) > MAX_LINES:
        raise TraceError(f"{path} has {count} lines, more than {MAX_LINES}; divide it")
    text = columns.decoded(path, 1, data).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").rstrip().split("\n")


def _name(path: Path) -> str:
    return path.stem if path.suffix.lower() in NAMELESS_SUFFIXES else path.name


def _text(value: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)
