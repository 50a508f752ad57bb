"""The pools of traces that sweeps draw their network configurations from.

A *configuration* of a pool is a network: the complete graph of a set of hosts, with a trace and a moment at which it
starts for every pair (``Pool.network``). The paper's traces are of round trips, so a pair of hosts has one bandwidth:
one trace and one start, drawn together and used in both directions.

``paper``: the generator calibrated to the paper; every pair draws from the whole pool. ``regions``: the same traces,
but every host draws its place from the hosts of the paper's study, and a pair draws from the class of link that
joins the two places. Either may be made otherwise, for how much hangs on the generator's values: ``paper:stretch=1.8``
or ``paper:big_hold_s=120,big_sigma=0.5`` (the fields of ``TraceModel``).
``real``: the measured traces of one data set. Any other name is that of a data set beside it, or
a folder of traces. Measured pools are scaled by one constant such that fetching the paper's images from eight servers,
one after the other, takes as long as the paper's download-all (on networks of their own, which no sweep draws);
their seed is of the draws only.

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
CALIBRATION_NETWORKS, FIRST_CALIBRATION = 40, 1 << 40  # the configurations that a measured pool is scaled on
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
    """The generator's class of link between two of STUDY_HOSTS: ``brazil`` with an end there, ``atlantic`` or ``us``.

    Links within Europe are taken to be like those within the USA: the model has no class for them.
    """
    continents = STUDY_HOSTS[one], STUDY_HOSTS[other]
    if "brazil" in continents:
        return "brazil"
    return "us" if continents[0] == continents[1] else "atlantic"


def open_pool(name: str, seed: int, traces: str | None = None) -> Pool:
    """The pool of that name; its traces are made or read once a process.

    ``traces``: the folder with the measured data sets, ``bandwidth`` or the one that holds it; None takes that of
    THALWEG_TRACES. A name that is a data set there is that data set, whatever the working directory holds. Raises
    UsageError for a name that is none, TraceError for traces that cannot be read.
    """
    check_number("pool seed", seed)
    kind, _, options = name.partition(":")
    if kind in GENERATED:
        made, noons = _generated(seed, _model(name, options)), (None,) * DEFAULT_TRACES
        if kind == "paper":
            return Pool(name, seed, made, noons)
        classes: dict[str, list[int]] = {}
        for number, trace in enumerate(made):
            classes.setdefault(trace.name.rpartition("_")[2], []).append(number)
        return Pool(name, seed, made, noons, tuple(STUDY_HOSTS), lambda one, other: classes[link_class(one, other)])
    return Pool(name, seed, *_measured(_folder(name, traces or os.environ.get(ENVIRONMENT_VARIABLE))))


# A sweep is worked off pool by pool: two are at hand, of about 20 MB each once all their sums are made.
@lru_cache(maxsize=2)
def _generated(seed: int, model: TraceModel) -> tuple[BandwidthTrace, ...]:
    return tuple(generate_pool(model, DEFAULT_TRACES, seed, DAY_S))


def _model(name: str, options: str) -> TraceModel:
    """How the pool of that name is made; UsageError for what is no number, or no field of the model."""
    given: dict[str, float] = {}
    for option in filter(None, options.split(",")):
        field, _, value = option.partition("=")
        known = [one for one in TraceModel.__struct_fields__ if one != "classes"]
        if field not in known:
            raise UsageError(f"pool {name!r}: {field!r} is nothing that traces are made by; {nearest(field, known)}")
        try:
            given[field] = float(value)
        except ValueError:
            raise UsageError(f"pool {name!r}: {field} is {value!r}; give a number, as in paper:stretch=1.8") from None
    return msgspec.structs.replace(TraceModel(), **given).check()


@lru_cache(maxsize=2)
def _measured(folder: str) -> tuple[tuple[BandwidthTrace, ...], tuple[float | None, ...]]:
    """The folder's traces, scaled together, and the first noon of each."""
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
    """Unix times at which series began, by data set and series, of the index beside the data sets; {} without one."""
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
    """The absolute path of a measured pool's traces."""
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
