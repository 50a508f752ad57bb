"""Pools of traces from which sweeps draw their network configurations.

A *configuration* of a pool is a network: the complete graph of a set of hosts, with a trace and a starting moment for
every pair (``Pool.network``). The paper's traces are of round trips, so a pair of hosts has one bandwidth. Its trace
and start are drawn together and used in both directions.

- ``paper``: the generator calibrated to the paper. Every pair draws from the whole pool.
- ``regions``: the same traces. Every host draws its place from the hosts of the paper's study, and a pair draws from
  the class of link that joins the two places.
- Options change the generator of either pool, to test the influence of its values: ``paper:stretch=1.8`` or
  ``paper:big_hold_s=120,big_sigma=0.5`` (the fields of ``TraceModel``).
- ``real``: the measured traces of one data set. Any further name is a data set beside it, or a folder of traces.

Measured pools are scaled by one constant. With it, fetching the paper's images from eight servers, one after the other,
takes as long as the paper's download-all. The networks for this scaling are not used by any sweep. The seed of a
measured pool only concerns the draws.

Source: Ranganathan et al. (1998), section 4.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from thalweg.emulation.traces.files import ENVIRONMENT_VARIABLE, pool_files, read_trace
from thalweg.emulation.traces.generator import DEFAULT_TRACES, TraceModel, generate_pool
from thalweg.emulation.traces.pool import Pool, check_number, scale_pool_to_fetch
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError, nearest
from thalweg.middleware.files.reading import open_text, reason
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.problem.hints import PAPER_STARTUP_S

DAY_S = 24 * 3600.0
NOON_S = DAY_S / 2
REAL_DATA_SET = "puffer_max60"  # end-to-end rates of the Internet; the largest data set sampled often enough
PAPER_SERVERS, PAPER_IMAGES, PAPER_IMAGE_BYTES = 8, 180, 131_072  # section 4
PAPER_DOWNLOAD_ALL_S = 101.2  # mean inter-arrival time; section 5
CALIBRATION_NETWORKS, FIRST_CALIBRATION = 40, 1 << 40  # configurations used to scale a measured pool
INDEX = "bandwidth_index.csv"
GENERATED = ("paper", "regions")  # pools that need no traces
REAL = "real"

# Ranganathan et al., section 4: the hosts between which the study measured, and the continent of each.
STUDY_HOSTS: Mapping[str, str] = {
    "us-east": "us",
    "us-west": "us",
    "us-midwest": "us",
    "us-south": "us",
    "spain": "europe",
    "france": "europe",
    "austria": "europe",
    "brazil": "brazil",
}


def link_class(one: str, other: str) -> str:
    """Return the generator's class of a link between two of STUDY_HOSTS: ``brazil``, ``atlantic`` or ``us``.

    A link with an end in Brazil is ``brazil``. Links within Europe count as links within the USA, because the model has
    no class for them.
    """
    continents = STUDY_HOSTS[one], STUDY_HOSTS[other]
    if "brazil" in continents:
        return "brazil"
    return "us" if continents[0] == continents[1] else "atlantic"


def open_pool(name: str, seed: int, traces: str | None = None) -> Pool:
    """Return the named pool. Its traces are made or read once per process.

    ``traces``: the folder with the measured data sets, ``bandwidth`` or the folder that holds it. None: the folder of
    THALWEG_TRACES. A data set there comes before a folder of the same name in the working directory. Raises UsageError
    for an unknown name, TraceError for unreadable traces.
    """
    check_number("pool seed", seed)
    kind, _, options = name.partition(":")
    if kind in GENERATED:
        drawn, noons = _generated(seed, _model(name, options)), (None,) * DEFAULT_TRACES
        if kind == "paper":
            return Pool(name, seed, drawn, noons)
        classes: dict[str, list[int]] = {}
        for number, trace in enumerate(drawn):
            classes.setdefault(trace.name.rpartition("_")[2], []).append(number)
        return Pool(name, seed, drawn, noons, tuple(STUDY_HOSTS), lambda one, other: classes[link_class(one, other)])
    return Pool(name, seed, *_measured(_folder(name, traces or os.environ.get(ENVIRONMENT_VARIABLE))))


# A sweep runs pool by pool. Two pools are kept, of about 20 MB each with all sums.
@lru_cache(maxsize=2)
def _generated(seed: int, model: TraceModel) -> tuple[BandwidthTrace, ...]:
    return tuple(generate_pool(model, DEFAULT_TRACES, seed, DAY_S))


def _model(name: str, options: str) -> TraceModel:
    """Return the generator's model for a pool name.

    Raise UsageError for an unknown field or a value that is no number.
    """
    values: dict[str, float] = {}
    for option in filter(None, options.split(",")):
        field, _, value = option.partition("=")
        known = [candidate for candidate in TraceModel.__struct_fields__ if candidate != "classes"]
        if field not in known:
            raise UsageError(f"pool {name!r}: {field!r} is nothing that traces are made by; {nearest(field, known)}")
        try:
            values[field] = float(value)
        except ValueError:
            raise UsageError(f"pool {name!r}: {field} is {value!r}; give a number, as in paper:stretch=1.8") from None
    return msgspec.structs.replace(TraceModel(), **values).check()


@lru_cache(maxsize=2)
def _measured(folder: str) -> tuple[tuple[BandwidthTrace, ...], tuple[float | None, ...]]:
    """Return the folder's traces, scaled together, and the first noon of each."""
    starts = _start_times(folder)
    files = pool_files(folder)
    measured = [read_trace(path, name=name) for name, path in files.items()]
    noons = [
        _first_noon_s(starts.get((path.parent.name, path.stem)), trace.duration_s)
        for path, trace in zip(files.values(), measured, strict=True)
    ]
    pool = Pool("", 0, tuple(measured), tuple(noons))
    servers = [f"h{i + 1}" for i in range(PAPER_SERVERS)]
    networks = []
    for number in range(CALIBRATION_NETWORKS):
        links = pool.network([*servers, "client"], FIRST_CALIBRATION + number)
        networks.append([links[Link(server, "client")] for server in servers])
    scaled = scale_pool_to_fetch(
        measured, PAPER_DOWNLOAD_ALL_S, networks, PAPER_IMAGE_BYTES, PAPER_IMAGES, 2 * PAPER_STARTUP_S
    )
    return tuple(scaled), pool.noons_s


def _first_noon_s(start_unix_s: float | None, duration_s: float) -> float | None:
    if start_unix_s is None:
        return None
    noon_s = (NOON_S - start_unix_s) % DAY_S
    return noon_s if noon_s < duration_s else None


def _start_times(folder: str) -> dict[tuple[str, str], float]:
    """Return the Unix start times of series by data set and series, from the index beside the data sets.

    The result is empty without an index.
    """
    index = next((p for up in (Path(folder), *Path(folder).parents[:2]) if (p := up / INDEX).is_file()), None)
    if index is None:
        return {}
    starts: dict[tuple[str, str], float] = {}
    try:
        with open_text(index, newline="") as file:
            rows = csv.DictReader(file)
            for row in rows:
                if text := row.get("start_unix"):
                    starts[row.get("dataset", ""), row.get("series", "")] = _unix_s(text, f"{index}:{rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read {index}: {reason(error)}; repair it, or move the traces away from it") from error
    return starts


def _unix_s(text: str, at: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(
            f"{at}: start_unix is {text!r}, not a time in seconds since 1970; correct it or leave it empty"
        )
    return value


def _folder(name: str, traces: str | None) -> str:
    """Return the absolute path of a measured pool's traces."""
    real = name == REAL
    data_set = REAL_DATA_SET if real else name
    root = None if traces is None else Path(os.path.abspath(traces))
    if root is not None:
        if Path(data_set).name == data_set not in ("", ".."):
            for folder in (root / "bandwidth" / data_set, root / data_set):
                if folder.is_dir():
                    return str(folder)
        if real:
            if root.name == data_set and root.is_dir():
                return str(root)
            raise UsageError(
                f"pool 'real' needs the data set {data_set}, which {str(traces)!r} lacks;"
                f" set {ENVIRONMENT_VARIABLE} to the folder that holds bandwidth/{data_set}"
            )
    if real:
        raise UsageError(
            "pool 'real' needs measured traces;"
            f" set {ENVIRONMENT_VARIABLE} to the folder that holds bandwidth/{data_set}, or choose pool 'paper'"
        )
    if name and os.path.exists(name):
        return os.path.abspath(name)
    raise UsageError(
        f"no pool {name!r}: choose paper, regions, real, a folder of traces,"
        f" or a data set of {ENVIRONMENT_VARIABLE} ({_data_sets(root)})"
    )


def _data_sets(root: Path | None) -> str:
    if root is None:
        return "which is not set"
    try:
        within = root / "bandwidth" if (root / "bandwidth").is_dir() else root
        return ", ".join(sorted(folder.name for folder in within.iterdir() if folder.is_dir())) or "which has none"
    except OSError:
        return f"{str(root)!r} cannot be read"
