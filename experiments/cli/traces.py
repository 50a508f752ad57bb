"""``thalweg traces``: list, describe, import and generate bandwidth traces."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich import box
from rich.table import Table

from thalweg.emulation.links.units import format_rate, format_time, parse_rate, seconds
from thalweg.emulation.scenarios.data_sets import Grid, Kind, grid_kind, read_grid
from thalweg.emulation.traces import holes
from thalweg.emulation.traces.cells import Decimal
from thalweg.emulation.traces.chosen import MEANT
from thalweg.emulation.traces.columns import DELAY, LOSS, RATE
from thalweg.emulation.traces.files import (
    ENVIRONMENT_VARIABLE,
    MAHIMAHI_STEP_S,
    Format,
    import_trace,
    load_pool,
    read_link_trace,
    write_csv,
)
from thalweg.emulation.traces.foreign import Missing, Reading
from thalweg.emulation.traces.generator import DEFAULT_S, LinkClass, TraceModel, generate_pool
from thalweg.emulation.traces.link import LinkTrace
from thalweg.emulation.traces.summaries import pooled_figures, pooled_means, quantiles
from thalweg.emulation.traces.trace import CHANGE_WINDOW_S, BandwidthTrace, TraceSummary
from thalweg.experiments.cli.commands import group
from thalweg.experiments.cli.console import JsonOption, followed, new_table, output, print_json, progress
from thalweg.experiments.cli.options import quantity, takes
from thalweg.experiments.command import Option, Tell
from thalweg.middleware.errors import UsageError, counted

_MODEL = TraceModel()
TRACES, MODEL = "Traces", "Model"
COLUMNS, ROWS = "Columns of CSV files", "Rows"

app = group(
    "traces",
    """List, describe, import and generate bandwidth traces.

    The traces of a folder: thalweg traces list traces/

    Traces from a CSV file of your own: thalweg traces import drive.csv --time timestamp --rate dl_mbps
    --out traces/drive

    Traces from a model: thalweg traces generate --count 72 --duration 21600 --seed 1 --out traces/generated
    """,
)

COLUMN = "COLUMN[:UNIT]"
HOLE_STEPS = f"{holes.HOLE_STEPS:g} median steps"
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write the CSV files into.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
StepOption = Annotated[
    float, quantity(seconds, "--step", "Mahimahi files: time over which each rate is averaged.", shown="1s")
]
PathArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        envvar=ENVIRONMENT_VARIABLE,
        help="Folder of traces, searched with the folders in it, or one trace file.",
        show_default=False,
    ),
]


@app.command("list")
def list_traces(
    directory: PathArgument = None, as_json: JsonOption = False, step_s: StepOption = MAHIMAHI_STEP_S
) -> None:
    """List the traces in a folder.

    If the folder has several data sets, each data set has a line. Otherwise each trace has a line. A collection's round
    trips and throughput between sites are listed as well, and scenario files can name them.

    Example: thalweg traces list ../shared/traces
    """
    root = _given(directory)
    grids = _grids(root)
    summaries = _summaries(load_pool(root, step_s=step_s), quiet=as_json)
    sets: dict[str, list[TraceSummary]] = {}
    for summary in summaries:
        sets.setdefault(summary.name.rpartition("/")[0] or ".", []).append(summary)
    if as_json:
        print_json(
            {
                "path": str(root),
                "sets": [{"name": name, **pooled_means(members)} for name, members in sets.items()],
                "traces": [
                    {"name": summary.name, "duration_s": summary.duration_s, "mean_bps": summary.mean_bps}
                    for summary in summaries
                ],
                "grids": grids,
            }
        )
    elif len(sets) == 1:
        _print_traces(summaries)
    else:
        table = new_table("data set", "traces", "median hours", "mean rate", "change s", "zeros")
        table.caption = "change s: mean seconds between changes of at least 10 %"
        for name, members in sets.items():
            means = pooled_means(members)
            table.add_row(
                name,
                str(len(members)),
                f"{means['median_duration_s'] / 3600:.2f}",
                format_rate(means["mean_bps"]),
                _or_dash(means["mean_change_s"]),
                f"{means['zero_share']:.1%}",
            )
        output().print(table)
    if grids and not as_json:
        _print_grids(grids)
        output().print("latency: round trips; for scenario files (`thalweg traces describe FILE` names the sites)")


@app.command()
def describe(path: PathArgument = None, as_json: JsonOption = False, step_s: StepOption = MAHIMAHI_STEP_S) -> None:
    """Describe a trace, the traces of a folder, or a grid between sites.

    Quantiles of rates, and the time between changes of at least 10 %, are computed from averages over 10 s.

    Example: thalweg traces describe ../shared/traces/bandwidth/wanify_aws
    """
    root = _given(path)
    if (kind := grid_kind(root)) is not None:
        _describe_grid(root, kind, as_json=as_json)
        return
    more: dict[str, dict[str, float]] = {}
    if root.is_file():
        link = read_link_trace(root, step_s=step_s)
        more = {field: quantiles(link.figures[field]) for field in (DELAY, LOSS) if field in link.figures}
        pool = [] if link.rate is None else [link.rate]
    else:
        pool = load_pool(root, step_s=step_s)
    summaries = _summaries(pool, quiet=as_json)
    pooled = pooled_figures(pool, summaries) if pool else {}
    if as_json:
        print_json({"path": str(root), "averages_s": CHANGE_WINDOW_S, "pool": pooled, "traces": summaries, **more})
        return
    if len(summaries) > 1:
        _print_traces(summaries)
    table = Table("all together" if len(summaries) > 1 else "trace", str(root), box=box.SIMPLE_HEAD)
    if pooled:
        table.caption = f"median, p5 and p95 rates, and changes: those of {CHANGE_WINDOW_S:g} s averages"
        rates = [(f"{key} rate", format_rate(pooled[f"{key}_bps"])) for key in ("mean", "median", "p5", "p95")]
        for label, text in [
            ("traces", str(pooled["traces"])),
            ("duration, median", f"{pooled['median_duration_s']:g} s"),
            *rates,
            ("mean time between changes >= 10 %", f"{_or_dash(pooled['mean_change_s'])} s"),
            ("median time between changes >= 10 %", f"{_or_dash(pooled['median_change_s'])} s"),
            ("time at rate 0", f"{pooled['zero_share']:.1%}"),
        ]:
            table.add_row(label, text)
    for field, figures in more.items():
        noun, show = _FIGURES[field]
        for key, value in figures.items():
            table.add_row(f"{key} {noun}", show(value))
    output().print(table)


def _column(help: str) -> Option:
    return Option(help, metavar=COLUMN, panel=COLUMNS)


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of CSV files, choices for rows and holes, and the format."""

    time: Annotated[str | None, _column("Times, if not time_s: timestamp, t:ms, Date+Clock.")] = None
    rate: Annotated[str | None, _column("Rates: bandwidth, mbps, 3:mbit.")] = None
    bytes: Annotated[str | None, _column("Bytes instead of rates. They need --per.")] = None
    per: Annotated[str | None, _column("Interval of the bytes, ending at the row's time; or a time: 1s.")] = None
    delay: Annotated[str | None, _column("One-way delays: owd:ms.")] = None
    rtt: Annotated[str | None, _column("Round trips, twice the delay: rtt_ms.")] = None
    loss: Annotated[str | None, _column("Shares of packets that are lost: loss:%.")] = None
    missing: Annotated[
        Missing | None,
        Option(
            "Cells that are empty, - or NaN: drop the row, hold the value before, zero.", shown="refuse", panel=ROWS
        ),
    ] = None
    sort: Annotated[bool, Option("Sort the rows. Rows of one time become one row, their mean.", panel=ROWS)] = False
    hole: Annotated[
        holes.Become, Option("Holes: hold the row before, make an outage, or refuse the file.", panel=ROWS)
    ] = "hold"
    hole_over_s: Annotated[
        float | None,
        Option("Longest step that is no hole.", flag="--hole-over", unit=seconds, shown=HOLE_STEPS, panel=ROWS),
    ] = None
    decimal: Annotated[
        Decimal | None, Option("Decimal mark of CSV files.", shown="guessed and printed", panel=ROWS, common=False)
    ] = None
    format: Annotated[Format | None, Option("Format of the files.", shown="guessed by the first line")] = None
    step_s: Annotated[
        float,
        Option("Mahimahi files: time over which each rate is averaged.", flag="--step", unit=seconds, shown="1s"),
    ] = MAHIMAHI_STEP_S


@app.command("import")
@takes(ImportOptions)
def import_traces(
    options: ImportOptions,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files to import.", show_default=False)],
    out: OutOption,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check trace files and write them as CSV.

    Files are CSV with any separator, pairs of seconds and Mbit/s (Pensieve), schedules of Mahimahi, or JSON of iperf3.
    The written files have the column time_s, and bandwidth_bps, delay_s and loss as far as the input has them.

    A column is given by its name in the first line, or by its number. A unit may follow: ms, s, kbit, mbit, kbps
    (bytes), %. Times may be dates, times of day, or numbers, and are shifted to start at 0. Each guess is printed. The
    last line has the duration, the median step and the longest hole. If one file is unsound, no file is written.

    Example: thalweg traces import drive.csv --time timestamp --rate dl_mbps --rtt rtt:ms --out traces/drive
    """
    words = {option: word for option in MEANT if (word := getattr(options, option[2:])) is not None}
    if words and options.format not in (None, "csv"):
        name = {"mahimahi": "Mahimahi file", "pensieve": "file of Pensieve", "iperf3": "report of iperf3"}[
            options.format
        ]
        raise UsageError(f"a {name} has no columns to choose; leave out {', '.join(words)}")
    notes: dict[str, list[Path]] = {}
    with progress() as tell:
        pool = [_read(file, options, words, notes, tell) for file in files]
    for note, noted in notes.items():
        rest = f" and {counted(len(noted) - 1, 'more file')}" if len(noted) > 1 else ""
        print(f"note: {noted[0]}{rest}: {note}", file=sys.stderr)
    counts = [holes.steps(trace, options.hole_over_s) for trace in pool]
    pool = [
        holes.filled(trace, options.hole, options.hole_over_s, file) for trace, file in zip(pool, files, strict=True)
    ]
    named = {trace.name: count for trace, count in zip(pool, counts, strict=True)}
    steps = [{"name": name, **count._asdict(), "hole": options.hole} for name, count in named.items()]
    _write_pool(pool, out, force=force, as_json=as_json, more={"steps": steps})
    if not as_json:
        output().print(holes.told(named, options.hole), soft_wrap=True)


class GenerateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Number of traces, and the parameters of the model (``TraceModel``)."""

    count: Annotated[int, Option("Number of traces.", least=1, panel=TRACES)] = 100
    duration_s: Annotated[
        float,
        Option("Duration of each trace.", flag="--duration", unit=seconds, shown=format_time(DEFAULT_S), panel=TRACES),
    ] = DEFAULT_S
    seed: Annotated[int, Option("Seed. The same seed gives the same files.", panel=TRACES)] = 1
    classes: Annotated[
        tuple[str, ...],
        Option(
            "Class of links with its two levels and its share: us:160kbit:800kbit:0.375. Give one for every class.",
            flag="--link-class",
            metavar="NAME:LOW:HIGH:SHARE",
            panel=TRACES,
            shown=" ".join(f"{c.name}:{c.low_bps:g}:{c.high_bps:g}:{c.share:g}" for c in _MODEL.classes),
        ),
    ] = ()
    mean_s_per_kb: Annotated[
        float,
        Option(
            "Mean of 1/bandwidth that the pool is scaled to, in seconds per 1024 bytes. 0 leaves the levels.",
            panel=TRACES,
        ),
    ] = _MODEL.mean_s_per_kb or 0.0
    stretch: Annotated[
        float, Option("Factor by which the logarithms of levels are stretched about the pivot.", panel=MODEL)
    ] = _MODEL.stretch
    pivot_bps: Annotated[
        float, Option("Rate that stretching leaves alone.", flag="--pivot", unit=parse_rate, panel=MODEL)
    ] = _MODEL.pivot_bps
    big_sigma: Annotated[float, Option("Big jumps: sigma of the log-normal factor.", panel=MODEL, common=False)] = (
        _MODEL.big_sigma
    )
    big_hold_s: Annotated[
        float,
        Option("Big jumps: mean time that one holds.", flag="--big-hold", unit=seconds, panel=MODEL, common=False),
    ] = _MODEL.big_hold_s
    small_sigma: Annotated[float, Option("Small jumps: sigma of the log-normal factor.", panel=MODEL, common=False)] = (
        _MODEL.small_sigma
    )
    small_hold_s: Annotated[
        float,
        Option("Small jumps: mean time that one holds.", flag="--small-hold", unit=seconds, panel=MODEL, common=False),
    ] = _MODEL.small_hold_s
    jitter: Annotated[float, Option("Sigma of the factor of every sample.", panel=MODEL, common=False)] = _MODEL.jitter
    step_s: Annotated[float, Option("Time of a sample.", flag="--step", unit=seconds, panel=MODEL, common=False)] = (
        _MODEL.step_s
    )

    def model(self) -> TraceModel:
        """Return the model that the traces are drawn from."""
        values = msgspec.structs.asdict(self) | {
            "classes": tuple(map(_link_class, self.classes)) or _MODEL.classes,
            "mean_s_per_kb": self.mean_s_per_kb or None,
        }
        return TraceModel(**{field: values[field] for field in TraceModel.__struct_fields__})


@app.command()
@takes(GenerateOptions)
def generate(options: GenerateOptions, out: OutOption, force: ForceOption = False, as_json: JsonOption = False) -> None:
    """Generate traces from a model of a wide-area network.

    By default they have the statistics of the network that Ranganathan et al. measured in 1998.

    Example: thalweg traces generate --count 72 --duration 21600 --seed 1 --out traces/generated
    """
    model = options.model()
    traces = generate_pool(model, options.count, options.seed, options.duration_s)
    pool = [LinkTrace.of_rates(trace) for trace in traces]
    _write_pool(pool, out, force=force, as_json=as_json, more={"seed": options.seed, "model": model})


_FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    RATE: ("rate", format_rate),
    DELAY: ("delay", format_time),
    LOSS: ("loss", lambda share: f"{share:.2%}"),
}


def _given(path: Path | None) -> Path:
    if path is None:
        raise UsageError(f"no traces are named: give a folder or file, or set {ENVIRONMENT_VARIABLE}")
    return path


def _read(
    file: Path, options: ImportOptions, words: Mapping[str, str], notes: dict[str, list[Path]], tell: Tell
) -> LinkTrace:
    label = f"reading {file.name}"
    tell(label, 0, 0)

    def so_far(done: int, total: int) -> None:
        tell(label, done, total)

    def note(text: str) -> None:
        notes.setdefault(text.removeprefix(f"{file}: "), []).append(file)

    reading = Reading(options.missing, options.sort, options.decimal)
    return import_trace(file, options.format, words, reading=reading, note=note, step_s=options.step_s, tell=so_far)


def _link_class(text: str) -> LinkClass:
    parts = text.split(":")
    try:
        name, low, high, share = parts
        return LinkClass(name, parse_rate(low), parse_rate(high), float(share))
    except ValueError as error:
        raise UsageError(
            f"--link-class {text!r} is not NAME:LOW:HIGH:SHARE, for example us:160kbit:800kbit:0.375"
        ) from error


def _write_pool(
    pool: Sequence[LinkTrace], out: Path, *, force: bool, as_json: bool, more: dict[str, Any] | None = None
) -> None:
    """Write every trace as ``out/<name>.csv``. If a file would be overwritten, raise UsageError and write nothing."""
    paths = _free_paths(pool, out, force=force)
    for trace, path in followed(list(zip(pool, paths, strict=True)), "writing", quiet=as_json):
        write_csv(trace, path)
    means = _means(pool)
    if as_json:
        rates = [rate for trace in pool if (rate := trace.rate) is not None]
        pooled = pooled_figures(rates, [trace.summary() for trace in rates]) if rates else None
        figures = {f"mean_{field}": mean for field, mean in means.items() if field != RATE}
        answer = {"out": str(out), **(more or {}), "pool": pooled, **figures}
        print_json({**answer, "files": [path.name for path in paths]})
    else:
        texts = [f"a mean {_FIGURES[field][0]} of {_FIGURES[field][1](mean)}" for field, mean in means.items()]
        output().print(f"{len(pool)} traces with {' and '.join(texts)} in {out}", soft_wrap=True)


def _free_paths(pool: Sequence[LinkTrace], out: Path, *, force: bool) -> list[Path]:
    """Return the path of each trace's file. Raise UsageError if a file would be written twice or overwritten."""
    twice = [name for name, times in Counter(trace.name for trace in pool).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} would be written twice; rename one of the files, or import them separately")
    if os.path.exists(out) and not os.path.isdir(out):
        raise UsageError(f"--out {str(out)!r} is a file; name a folder")
    paths = [out / f"{trace.name}.csv" for trace in pool]
    present = [path for path in paths if os.path.lexists(path)]
    if present and not force:
        rest = f" and {len(present) - 1} more" if len(present) > 1 else ""
        raise UsageError(f"{str(present[0])!r}{rest} exists already; choose another --out, or overwrite with --force")
    return paths


def _means(pool: Sequence[LinkTrace]) -> dict[str, float]:
    """Return the mean of each figure over the traces with this figure."""
    return {
        field: fmean(trace.mean(field) for trace in pool if field in trace.figures)
        for field in _FIGURES
        if any(field in trace.figures for trace in pool)
    }


# --- figures and output -----------------------------------------------------------------------------


def _summaries(pool: Sequence[BandwidthTrace], *, quiet: bool) -> list[TraceSummary]:
    return [trace.summary() for trace in followed(pool, "measuring", quiet=quiet)]


def _print_traces(summaries: Sequence[TraceSummary]) -> None:
    table = new_table("trace", "hours", "mean", "5 %", "median", "95 %", "change s", "zeros")
    table.caption = (
        f"rates in Mbit/s, quantiles of {CHANGE_WINDOW_S:g} s averages; change s: mean seconds between changes >= 10 %"
    )
    for summary in summaries:
        rates = [_mbit(rate) for rate in (summary.mean_bps, summary.p5_bps, summary.median_bps, summary.p95_bps)]
        change = _or_dash(summary.mean_change_s)
        table.add_row(summary.name, f"{summary.duration_s / 3600:.2f}", *rates, change, f"{summary.zero_share:.1%}")
    output().print(table)


def _grids(root: Path) -> list[dict[str, Any]]:
    """Return the figures of a collection's grids, in seconds of a round trip or in bit/s."""
    kinds = list[Kind](("latency", "throughput"))
    return [_grid(read_grid(path, kind)) for kind in kinds for path in sorted((root / kind).glob("*.csv"))]


def _grid(grid: Grid) -> dict[str, Any]:
    low, middle, high = np.percentile(grid.measured, [5, 50, 95]).tolist()
    size = {"sites": len(grid.sites.names), "pairs": len(grid.measured)}
    return {"name": grid.name, "kind": grid.kind, **size, "p5": low, "median": middle, "p95": high}


def _describe_grid(path: Path, kind: Kind, *, as_json: bool) -> None:
    grid = read_grid(path, kind)
    if as_json:
        print_json({"path": str(path), **_grid(grid), "sites": grid.sites.names})
        return
    _print_grids([_grid(grid)])
    output().print(", ".join(grid.sites.names), soft_wrap=False)


def _print_grids(grids: Sequence[dict[str, Any]]) -> None:
    table = new_table("between sites", "kind", "sites", "pairs", "5 %", "median", "95 %")
    for grid in grids:
        show = format_rate if grid["kind"] == "throughput" else format_time
        figures = [show(grid[key]) for key in ("p5", "median", "p95")]
        table.add_row(grid["name"], grid["kind"], str(grid["sites"]), str(grid["pairs"]), *figures)
    output().print(table)


def _mbit(rate_bps: float) -> str:
    rate = rate_bps / 1e6
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
