"""Data sets by name: round-trip times and throughput between named sites, and bandwidth traces that name their sites.

A grid is a CSV file, either square (``node,n0,n1,…``, then a row for every node; empty: never measured) or of pairs
(``src,dst,rtt_ms`` or ``src,dst,bandwidth_bps``). A trace whose name is ``SOURCE__DESTINATION``, with ``b1_`` before
it or ``__1`` behind it, belongs to that pair of sites. Sets are looked for beside the file that names them, then in
the folder that the environment variable ``THALWEG_TRACES`` names (``bandwidth/``, ``latency/``, ``throughput/``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from thalweg.emulation.traces.columns import shown
from thalweg.emulation.traces.files import ENVIRONMENT_VARIABLE, text_lines
from thalweg.emulation.traces.pool import read_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError, nearest
from thalweg.middleware.files.reading import open_text

GENERATED = "generated"
Kind = Literal["bandwidth", "latency", "throughput"]
# A grid's column, and what makes its values SI.
_COLUMNS: dict[Kind, tuple[str, float]] = {"latency": ("rtt_ms", 1e-3), "throughput": ("bandwidth_bps", 1.0)}
MAX_SITES = 4096
_PROVIDERS = ("aws", "azure", "gcp", "ibm")
_SERIES = re.compile(r"(?:(b\d+)_)?(.+?)__(.+?)(?:__(\d+))?")


def place(site: str) -> tuple[str, str]:
    """A site's region and provider, however they are written: ``aws:eu-west-1``, ``eu-west-1_aws``.

    The provider is empty where the name has none.
    """
    head, colon, rest = site.partition(":")
    if colon and head in _PROVIDERS:
        return rest, head
    start, _, last = site.rpartition("_")
    return (start, last) if start and last in _PROVIDERS else (site, "")


class Sites:
    """The names of a data set's sites, found in any of the ways to write them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(self.names)
        self._places: dict[str, list[tuple[str, str]]] = {}
        for name in self.names:
            region, provider = place(name)
            self._places.setdefault(region, []).append((provider, name))

    def find(self, site: str) -> str | None:
        """What this set calls ``site``: the same name, or the same region of the same or an unnamed provider."""
        if site in self._known:
            return site
        region, provider = place(site)
        known = self._places.get(region, [])
        found = [name for one, name in known if one == provider or not one or not provider]
        return found[0] if len(found) == 1 else None


def near_miss(word: str, known: Iterable[str]) -> str:
    """``did you mean …?`` with up to three names, or what there is: names of sites are much alike."""
    return nearest(word, known, most=3, cutoff=0.7)


class Grid:
    """One value for every directed pair of sites: seconds (``latency``: round trips) or bit/s (``throughput``).

    ``values``: shape (sites, sites), nan where nothing was measured.
    """

    def __init__(self, name: str, kind: Kind, sites: Iterable[str], values: npt.NDArray[np.float64]) -> None:
        self.name, self.kind, self.sites, self.values = name, kind, Sites(sites), values
        self._index = {site: i for i, site in enumerate(self.sites.names)}

    def value(self, source: str, target: str) -> float | None:
        """What was measured from ``source`` to ``target`` (names of this set), None if nothing was.

        Of a round trip that was measured from the other end only, that does as well.
        """
        i, j = self._index[source], self._index[target]
        found = float(self.values[i, j])
        if np.isnan(found) and self.kind == "latency":
            found = float(self.values[j, i])
        return None if np.isnan(found) else found

    @cached_property
    def measured(self) -> npt.NDArray[np.float64]:
        """All that was measured between two different sites."""
        values = self.values[~np.eye(len(self.values), dtype=bool)]
        return values[~np.isnan(values)]

    @property
    def median(self) -> float:
        return float(np.median(self.measured))

    @property
    def mean(self) -> float:
        return float(self.measured.mean())


class TraceSet:
    """A pool of traces, and which of them belong to a pair of sites."""

    def __init__(self, name: str, pool: Iterable[BandwidthTrace]) -> None:
        self.name, self.pool = name, list(pool)
        self.pairs: dict[tuple[str, str], dict[str, BandwidthTrace]] = {}  # by measurement: b1, b2, …
        for trace in self.pool:
            if match := _SERIES.fullmatch(trace.name.rpartition("/")[2]):
                batch, source, target, number = match.groups()
                self.pairs.setdefault((source, target), {})[batch or number or ""] = trace
        self.sites = Sites(sorted({site for pair in self.pairs for site in pair}))
        self.batches = sorted({batch for found in self.pairs.values() for batch in found})


def read_grid(path: Path, kind: Kind) -> Grid:
    """The grid in a CSV file, latencies in seconds. Raises TraceError naming file and line."""
    column, unit = _COLUMNS[kind]
    rows = text_lines(path)
    header = [cell.strip() for cell in rows[0].split(",")]
    if header[:2] == ["src", "dst"]:
        if header[2:] != [column]:
            raise TraceError(f"{path}:1: the header is {shown(rows[0])}, not 'src,dst,{column}'; is this of {kind}?")
        sites, values = _pairs(path, rows)
    else:
        sites, values = _square(path, rows, header)
    if len(set(sites)) != len(sites) or not all(sites):
        raise TraceError(f"{path}:1: every site needs a name of its own")
    if np.isinf(values).any() or (values < 0).any():
        i, j = np.argwhere(np.isinf(values) | (values < 0))[0]
        raise TraceError(f"{path}: {column} of {sites[i]} → {sites[j]} is {values[i, j]:g}; it must be at least 0")
    grid = Grid(path.stem, kind, sites, values * unit)
    if not grid.measured.size:
        raise TraceError(f"{path}: nothing is measured between two sites; is this a {kind} data set?")
    return grid


def grid_kind(path: Path) -> Kind | None:
    """What a file is a grid of, by its first line; None when it is none. A square one is of round trips."""
    try:
        with open_text(path, encoding="utf-8-sig") as file:
            header = file.readline(4096).strip()
    except (OSError, UnicodeDecodeError):
        return None
    kind = next((kind for kind, (column, _) in _COLUMNS.items() if header == f"src,dst,{column}"), None)
    return "latency" if header.startswith("node,") else kind


def _square(path: Path, rows: list[str], header: list[str]) -> tuple[list[str], npt.NDArray[np.float64]]:
    sites = header[1:]
    if len(rows) != len(sites) + 1:
        raise TraceError(
            f"{path}: a header of {len(sites)} sites and {len(rows) - 1} rows; a grid is square, or has the header"
            " src,dst,rtt_ms or src,dst,bandwidth_bps"
        )
    values = _room(path, len(sites))
    for i, row in enumerate(rows[1:]):
        name, _, rest = row.partition(",")
        cells = rest.split(",")
        if name.strip() != sites[i] or len(cells) != len(sites):
            raise TraceError(f"{path}:{i + 2}: this is not the row of {sites[i]!r} with {len(sites)} values")
        try:
            values[i] = [_number(cell.strip()) for cell in cells]
        except ValueError as error:
            raise TraceError(f"{path}:{i + 2}: {error}") from None
    return sites, values


def _number(cell: str) -> float:
    """What a cell says; nan where it is empty, and nothing was measured."""
    value = float(cell or "nan")
    if cell and np.isnan(value):
        raise ValueError(f"{cell!r} is no number; leave empty what was never measured")
    return value


def _room(path: Path, sites: int) -> npt.NDArray[np.float64]:
    if sites > MAX_SITES:
        raise TraceError(f"{path}: {sites} sites, more than {MAX_SITES}; leave out those that nobody stands at")
    return np.full((sites, sites), np.nan)


def _pairs(path: Path, rows: list[str]) -> tuple[list[str], npt.NDArray[np.float64]]:
    numbers: dict[str, int] = {}
    found: dict[tuple[int, int], float] = {}
    for line, row in enumerate(rows[1:], 2):
        cells = [cell.strip() for cell in row.split(",")]
        try:
            source, target, value = cells
            pair = (numbers.setdefault(source, len(numbers)), numbers.setdefault(target, len(numbers)))
            if pair in found:
                raise TraceError(f"{path}:{line}: the pair {source} → {target} stands there twice")
            found[pair] = _number(value)
        except ValueError:
            raise TraceError(f"{path}:{line}: {shown(row)} is not source,destination,number") from None
    values = _room(path, len(numbers))
    for pair, one in found.items():
        values[pair] = one
    return list(numbers), values


def read_traces(path: Path | None, seed: int, mean_bps: float | None = None) -> TraceSet:
    """The pool of traces in a folder; None: generated ones, by the seed. ``mean_bps``: what they are scaled to."""
    return TraceSet(GENERATED if path is None else path.name, read_pool(path, seed, mean_bps))


def find_set(name: str, kind: Kind, folder: Path) -> Path:
    """Where the data set ``name`` is: a path (from ``folder``), or a name in the collection of the environment.

    Raises UsageError with the nearest names, or what to do.
    """
    ending = "" if kind == "bandwidth" else ".csv"
    beside = folder / name
    wanted = [beside, beside.with_name(beside.name + ending)] if beside.name else [beside]
    collection = os.environ.get(ENVIRONMENT_VARIABLE)
    if collection:
        wanted += [Path(collection, kind, name + end) for end in dict.fromkeys((ending, ""))]
    for path in wanted:
        if path.exists() and not (ending and path.is_dir()):
            return path
    if not collection:
        raise UsageError(
            f"there is no {beside}, and no collection of data sets; set {ENVIRONMENT_VARIABLE} to its folder"
        )
    raise UsageError(f"no {kind} data set {name!r}, neither {beside} nor in {collection}; {_near_set(name, kind)}")


def _near_set(name: str, kind: Kind) -> str:
    other = next((one for one in ("bandwidth", "latency", "throughput") if name in known_sets(one)), None)
    if other is not None:
        key = "traces" if other == "bandwidth" else other
        return f"it is a set for {key} = {name!r}"
    return near_miss(name, known_sets(kind))


def known_sets(kind: str) -> Mapping[str, Path]:
    """The sets of one kind in the collection of the environment, by name."""
    collection = Path(os.environ.get(ENVIRONMENT_VARIABLE) or os.devnull, kind)
    if not collection.is_dir():
        return {}
    found = sorted(path for path in collection.iterdir() if not path.name.startswith("."))
    if kind == "bandwidth":
        return {path.name: path for path in found if path.is_dir()}
    return {path.stem: path for path in found if path.suffix == ".csv"}
