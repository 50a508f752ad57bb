"""Data sets by name: round-trip times and throughput between sites, and bandwidth traces with the names of sites.

A grid is a CSV file, square or of pairs. A square grid has the header ``node,n0,n1,…``, a row for every node, and empty
cells without a measurement. A grid of pairs has the header ``src,dst,rtt_ms`` or ``src,dst,bandwidth_bps``. A trace
named ``SOURCE__DESTINATION``, perhaps with ``b1_`` before or ``__1`` behind, belongs to this pair of sites. Sets are
looked up beside the scenario file, then in the folder of the environment variable ``THALWEG_TRACES`` (``bandwidth/``,
``latency/``, ``throughput/``).
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
# Column of a grid, and the factor that makes its values SI.
_COLUMNS: dict[Kind, tuple[str, float]] = {"latency": ("rtt_ms", 1e-3), "throughput": ("bandwidth_bps", 1.0)}
MAX_SITES = 4096
_PROVIDERS = ("aws", "azure", "gcp", "ibm")
_SERIES = re.compile(r"(?:(b\d+)_)?(.+?)__(.+?)(?:__(\d+))?")


def place(site: str) -> tuple[str, str]:
    """Return region and provider of a site, from a name such as ``aws:eu-west-1`` or ``eu-west-1_aws``.

    The provider is empty if the name has none.
    """
    head, colon, rest = site.partition(":")
    if colon and head in _PROVIDERS:
        return rest, head
    start, _, last = site.rpartition("_")
    return (start, last) if start and last in _PROVIDERS else (site, "")


class Sites:
    """Names of a data set's sites, with a lookup by every spelling of a name."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(self.names)
        self._places: dict[str, list[tuple[str, str]]] = {}
        for name in self.names:
            region, provider = place(name)
            self._places.setdefault(region, []).append((provider, name))

    def find(self, site: str) -> str | None:
        """Return the set's name of a site. None: there is no such site, or more than one.

        The name is the same, or has the same region and provider. A name without a provider fits every provider.
        """
        if site in self._known:
            return site
        region, provider = place(site)
        known = self._places.get(region, [])
        matches = [name for owner, name in known if owner == provider or not owner or not provider]
        return matches[0] if len(matches) == 1 else None


def near_miss(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` with up to three names, or else the known names. Names of sites are much alike."""
    return nearest(word, known, most=3, cutoff=0.7)


class Grid:
    """Value for every directed pair of sites: seconds (``latency``: round trips) or bit/s (``throughput``).

    ``values``: shape (sites, sites), nan without a measurement.
    """

    def __init__(self, name: str, kind: Kind, sites: Iterable[str], values: npt.NDArray[np.float64]) -> None:
        self.name, self.kind, self.sites, self.values = name, kind, Sites(sites), values
        self._index = {site: i for i, site in enumerate(self.sites.names)}

    def value(self, source: str, target: str) -> float | None:
        """Return the value from ``source`` to ``target`` (names of this set). None: nothing was measured.

        If a round trip was only measured from the other end, it counts for both directions.
        """
        i, j = self._index[source], self._index[target]
        value = float(self.values[i, j])
        if np.isnan(value) and self.kind == "latency":
            value = float(self.values[j, i])
        return None if np.isnan(value) else value

    @cached_property
    def measured(self) -> npt.NDArray[np.float64]:
        """Measured values between two different sites."""
        values = self.values[~np.eye(len(self.values), dtype=bool)]
        return values[~np.isnan(values)]

    @property
    def median(self) -> float:
        return float(np.median(self.measured))

    @property
    def mean(self) -> float:
        return float(self.measured.mean())


class TraceSet:
    """Pool of traces, and the traces of every pair of sites."""

    def __init__(self, name: str, pool: Iterable[BandwidthTrace]) -> None:
        self.name, self.pool = name, list(pool)
        self.pairs: dict[tuple[str, str], dict[str, BandwidthTrace]] = {}  # by measurement: b1, b2, …
        for trace in self.pool:
            if match := _SERIES.fullmatch(trace.name.rpartition("/")[2]):
                batch, source, target, number = match.groups()
                self.pairs.setdefault((source, target), {})[batch or number or ""] = trace
        self.sites = Sites(sorted({site for pair in self.pairs for site in pair}))
        self.batches = sorted({batch for batches in self.pairs.values() for batch in batches})


def read_grid(path: Path, kind: Kind) -> Grid:
    """Return the grid in a CSV file, with latencies in seconds. Raises TraceError with file and line."""
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
    """Return the kind of the grid in a file, by its first line. None: no grid. A square grid has round trips."""
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
            f"{path} has a header of {len(sites)} sites and {len(rows) - 1} rows; a grid is square, or has the header"
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
    """Return the number in a cell, or nan for an empty cell, which was not measured."""
    try:
        value = float(cell or "nan")
    except ValueError:
        value = np.nan
    if cell and np.isnan(value):
        raise ValueError(f"{cell!r} is no number; leave a cell empty if it was never measured")
    return value


def _room(path: Path, sites: int) -> npt.NDArray[np.float64]:
    if sites > MAX_SITES:
        raise TraceError(f"{path} has {sites} sites, more than {MAX_SITES}; leave out sites without a host")
    return np.full((sites, sites), np.nan)


def _pairs(path: Path, rows: list[str]) -> tuple[list[str], npt.NDArray[np.float64]]:
    numbers: dict[str, int] = {}
    measured: dict[tuple[int, int], float] = {}
    for line, row in enumerate(rows[1:], 2):
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != 3:
            raise TraceError(f"{path}:{line}: {shown(row)} is not source,destination,number")
        source, target, value = cells
        pair = (numbers.setdefault(source, len(numbers)), numbers.setdefault(target, len(numbers)))
        if pair in measured:
            raise TraceError(f"{path}:{line}: the pair {source} → {target} stands there twice")
        try:
            measured[pair] = _number(value)
        except ValueError as error:
            raise TraceError(f"{path}:{line}: {error}") from None
    values = _room(path, len(numbers))
    for pair, figure in measured.items():
        values[pair] = figure
    return list(numbers), values


def read_traces(path: Path | None, seed: int, mean_bps: float | None = None) -> TraceSet:
    """Return the traces in a folder. None: traces generated by the seed. ``mean_bps``: mean to scale the traces to."""
    return TraceSet(GENERATED if path is None else path.name, read_pool(path, seed, mean_bps))


def find_set(name: str, kind: Kind, folder: Path) -> Path:
    """Return the path of a data set. ``name``: a path from ``folder``, or a name in the collection.

    Raises UsageError with the nearest names, or with advice.
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
    raise UsageError(
        f"there is no {kind} data set {name!r}, neither {beside} nor in {collection}; {_near_set(name, kind)}"
    )


def _near_set(name: str, kind: Kind) -> str:
    other = next((known for known in ("bandwidth", "latency", "throughput") if name in known_sets(known)), None)
    if other is not None:
        key = "traces" if other == "bandwidth" else other
        return f"it is a set for {key} = {name!r}"
    return near_miss(name, known_sets(kind))


def known_sets(kind: str) -> Mapping[str, Path]:
    """Return the sets of one kind in the collection of ``THALWEG_TRACES``, by name."""
    collection = Path(os.environ.get(ENVIRONMENT_VARIABLE) or os.devnull, kind)
    if not collection.is_dir():
        return {}
    paths = sorted(path for path in collection.iterdir() if not path.name.startswith("."))
    if kind == "bandwidth":
        return {path.name: path for path in paths if path.is_dir()}
    return {path.stem: path for path in paths if path.suffix == ".csv"}
