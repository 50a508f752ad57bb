"""Round trips between hosts over time, in files with a row for a slice and a column ``A-B`` (ms) for a pair."""

from __future__ import annotations

import csv
import io
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import TraceError
from thalweg.middleware.files.reading import read_bounded, reason

MAX_BYTES = 64 * 1024 * 1024
Floats = npt.NDArray[np.float64]


class LatencySeries(msgspec.Struct, frozen=True):
    """Round trips between hosts over time.

    ``round_trip_s``: (slices, n, n), seconds, the same both ways, 0 from a host to itself.
    """

    hosts: tuple[str, ...]
    round_trip_s: Floats


def read_series(path: Path) -> LatencySeries:
    """Return the round trips in a file. A slice without a value has the last value before, or else the first value.

    Raises TraceError with file and line, or column, for a value that is no number above 0, or a pair that is never
    measured.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode()
        _, *columns = next(rows := csv.reader(io.StringIO(text, newline="")))
        cells = list(rows)
    except (OSError, UnicodeDecodeError, StopIteration, ValueError) as error:
        raise TraceError(
            f"{path} cannot be read as a series of round trips: {reason(error) or 'it is empty'}"
        ) from None
    pairs = [tuple(column.split("-")) for column in columns]
    hosts = tuple(sorted({host for pair in pairs for host in pair}))
    if {*map(frozenset, pairs)} != {*map(frozenset, combinations(hosts, 2))}:
        raise TraceError(f"{path} lacks pairs of its hosts; name columns n1-n2, n1-n3 and so on")
    measured = np.full((len(cells), len(columns)), np.nan)
    for number, (_, *row) in enumerate(cells):
        if len(row) != len(columns):
            raise TraceError(
                f"{path}, line {number + 2}: it has {len(row)} round trips, and the first line has {len(columns)}"
            )
        for column, cell in enumerate(row):
            try:
                measured[number, column] = float(cell or "nan") / 1000
            except ValueError:
                measured[number, column] = -1.0
            if not (measured[number, column] > 0 or np.isnan(measured[number, column])):
                raise TraceError(f"{path}, line {number + 2}: {columns[column]} is {cell!r}; give milliseconds above 0")
    round_trip_s = np.zeros((len(cells), len(hosts), len(hosts)))
    for column, (first, second) in enumerate(pairs):
        known = np.flatnonzero(~np.isnan(measured[:, column]))
        if not len(known):
            raise TraceError(f"{path}: {columns[column]} is never measured; leave out one of the two hosts")
        last = known[np.maximum(np.searchsorted(known, np.arange(len(cells)), side="right") - 1, 0)]
        a, b = hosts.index(first), hosts.index(second)
        round_trip_s[:, a, b] = round_trip_s[:, b, a] = measured[last, column]
    return LatencySeries(hosts, round_trip_s)
