"""``thalweg sweep``: simulations of many network configurations, or of many fault plans."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import msgspec
import typer

from thalweg.emulation.links.units import seconds
from thalweg.emulation.scenarios.data_sets import find_set, read_grid
from thalweg.experiments.cli.console import JsonOption, end, new_table, output, print_json, progress, say, spinner
from thalweg.experiments.cli.options import Given, find_own_code, make, takes
from thalweg.experiments.cli.stopping import Stopped
from thalweg.experiments.command import FAULTS, NETWORK, PLACEMENT, SWEEP_LIBRARIES, WORKLOAD, Option, flag
from thalweg.experiments.names import free_placement_names, run_cost_names, tree_names
from thalweg.experiments.papers.index import figure_names, pool_names
from thalweg.experiments.run_config import Allow, Latency, runs_elsewhere
from thalweg.middleware.errors import UsageError, counted, require

if TYPE_CHECKING:
    from thalweg.experiments.faults.sweep import PlansStopped
    from thalweg.experiments.papers.study import Figure, FigureData, Study
    from thalweg.experiments.sweeps.grid import PlacementResult, Sweep
    from thalweg.experiments.sweeps.sweep import SweepOutcome

CONFIGURATIONS = 300  # as many as in the paper
GRID = "Grid"
POOLS = 10  # a pool is one draw: fewer pools do not show how much draws differ
REASONS = 10  # reasons that are printed
TAKEN = {  # options that go with each kind of fault plans
    "faults": ("first_seed", "graphs", "lasting", "master", "networks", "out", "stripes"),
    "replay_faults": ("graphs", "lasting", "networks", "stripes"),
}
ONLY_WITH_FAULTS = {
    "graphs": "the graphs of a grid are trees",
    "lasting": "a grid loses no hosts",
    "stripes": "the streams of a grid go over one tree",
    "networks": "the hosts of a grid are joined by one network",
}
ON_TESTBEDS = {"testbed", "kernel"}
OF_TASKS = {"tasks", "reallocation_s"}
TAKEN_OF_PAPER = {"figure", "configurations", "pools", "pool", "first_pool", "master", "out"}


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``sweep``: the grid to simulate, or the fault plans to run (``faults``, ``replay_faults``)."""

    figure: Annotated[
        str | None,
        Option("Figure, of a paper or of ours, whose grid is swept.", names=figure_names, shown="none", panel=GRID),
    ] = None
    configurations: Annotated[
        int | None,
        Option(
            "Number of network configurations, spread evenly over the pools.",
            shown=f"the figure's, or {CONFIGURATIONS}",
            panel=GRID,
        ),
    ] = None
    pools: Annotated[
        int | None,
        Option(
            "Number of draws of the pool of traces.", shown=f"{POOLS}, at most one for each configuration", panel=GRID
        ),
    ] = None
    pool: Annotated[
        tuple[str, ...],
        Option(
            "Pool that networks are drawn from: a pool of this list, the name of a data set, or a folder of traces. A"
            " generated pool takes parameters of `traces generate`: paper:stretch=1.8. Figures sbon-5 and sbon-12 to"
            " -14 take a set of latencies. Several pools are swept in turn, each in a folder of its own.",
            names=pool_names,
            shown="paper; stripes: also wanify_aws and puffer_max60 if there are traces",
            panel=NETWORK,
        ),
    ] = ()
    first_pool: Annotated[
        int,
        Option("Seed of the first pool. The others have the next seeds.", least=0, panel=NETWORK, common=False),
    ] = 1001
    placements: Annotated[
        tuple[str, ...],
        Option(
            "Placement algorithm, as in `thalweg run`. Given placements are added to those of a figure.",
            flag="--placement",
            names=free_placement_names,
            own="package.module:Planner",
            shown="download-all, one-shot, local, global, thalweg-once, thalweg",
            panel=PLACEMENT,
        ),
    ] = ()
    servers: Annotated[
        tuple[int, ...],
        Option("Number of image servers.", shown="the figure's, or 8", least=1, panel=WORKLOAD),
    ] = ()
    trees: Annotated[
        tuple[str, ...],
        Option("Shape of the tree.", flag="--tree", names=tree_names, shown="the figure's, or binary", panel=WORKLOAD),
    ] = ()
    periods_s: Annotated[
        tuple[float, ...],
        Option(
            "Emulated time between two decisions of global, local and thalweg.",
            flag="--period",
            unit=seconds,
            shown="the figure's, or 600; thalweg: 60",
            panel=PLACEMENT,
        ),
    ] = ()
    ks: Annotated[
        tuple[int, ...],
        Option(
            "Local: number of random hosts that it considers.",
            flag="--k",
            shown="the figure's, or 0",
            panel=PLACEMENT,
            common=False,
        ),
    ] = ()
    images: Annotated[int, Option("Number of images to deliver in every run.", panel=WORKLOAD)] = 180
    interface: Annotated[
        Literal["single", "independent"],
        Option(
            "single: a host sends or receives one message at a time. independent: links do not share an interface.",
            panel=NETWORK,
            common=False,
        ),
    ] = "single"
    cost: Annotated[
        str,
        Option(
            "Cost model, which planners minimise, as in `thalweg run`.",
            names=run_cost_names,
            own="package.module:CostModel",
            panel=PLACEMENT,
            common=False,
        ),
    ] = "critical-path"
    view: Annotated[
        Literal["probe", "truth"],
        Option(
            "Rates of links that planners know: results of probes and measurements, or the true rates, before a run and"
            " during it. Local decides by measurements in either case.",
            panel=PLACEMENT,
            common=False,
        ),
    ] = "probe"
    testbed: Annotated[
        Literal["netns", "sim", "none"] | None,
        Option(
            "Figures sbon-13 and sbon-14: data flows between network namespaces, in virtual time, or (sbon-14) not at"
            " all.",
            shown="sbon-13: netns; sbon-14: none",
            panel=NETWORK,
            common=False,
        ),
    ] = None
    kernel: Annotated[
        Literal["host", "uml"],
        Option(
            "Figures sbon-13 and sbon-14: this machine's kernel, or a User-Mode Linux kernel, which emulates delays and"
            " needs no root.",
            panel=NETWORK,
            common=False,
        ),
    ] = "host"
    tasks: Annotated[
        int,
        Option(
            "Figures bimodal-8 and bimodal-9: tasks that arrive at a network. The paper has 500.",
            least=1,
            panel=WORKLOAD,
            common=False,
        ),
    ] = 200
    reallocation_s: Annotated[
        float,
        Option(
            "Figures bimodal-8 and bimodal-9: time between two allocations of links.",
            flag="--reallocation",
            unit=seconds,
            panel=NETWORK,
            common=False,
        ),
    ] = 60.0
    latency: Latency = None
    traces: Annotated[
        Path | None,
        Option(
            "Folder with bandwidth/NAME, for pools of measured traces.",
            metavar="DIR",
            envvar="THALWEG_TRACES",
            panel=NETWORK,
        ),
    ] = None
    allow: Allow = ()
    faults: Annotated[
        int | None,
        Option("Instead of a grid: number of seeded fault plans to run.", shown="none", least=1, panel=FAULTS),
    ] = None
    graphs: Annotated[
        bool,
        Option(
            "Fault plans over graphs with filters, windows and several sinks, not over trees.",
            panel=FAULTS,
            common=False,
        ),
    ] = False
    lasting: Annotated[
        bool,
        Option(
            "Fault plans in which every run outlives its hosts, and sources may have stand-ins or be missing. Otherwise"
            " three of ten runs outlive their hosts.",
            panel=FAULTS,
            common=False,
        ),
    ] = False
    stripes: Annotated[
        bool,
        Option(
            "Fault plans over streams that go over several trees at once, in half of the plans with operators above"
            " them.",
            panel=FAULTS,
            common=False,
        ),
    ] = False
    networks: Annotated[
        bool,
        Option(
            "Fault plans in which further networks join the hosts, with routes over relays. A fault may hit one network"
            " alone.",
            panel=FAULTS,
            common=False,
        ),
    ] = False
    first_seed: Annotated[
        int,
        Option("Seed of the first fault plan. The others have the next seeds.", least=0, panel=FAULTS, common=False),
    ] = 1
    replay_faults: Annotated[
        str | None,
        Option(
            "Run one fault plan again, of a seed or from a file.",
            metavar="SEED|FILE",
            shown="none",
            panel=FAULTS,
            common=False,
        ),
    ] = None
    master: Annotated[
        str, Option("Spark master. The package is sent to a cluster, and results come back here.", metavar="URL")
    ] = "local[*]"
    out: Annotated[
        Path | None,
        Option(
            "Folder of the sweep. With --faults: folder of the plans that fail.",
            metavar="DIR",
            shown="runs/<name of the sweep>",
        ),
    ] = None


@takes(SweepOptions)
def sweep(given: Given, as_json: JsonOption = False) -> None:
    """Simulate many network configurations on Spark.

    If a sweep was stopped, the same command with the same folder continues it. Failed runs are repeated,
    and finished runs are not. After a change of a planner, use a new folder. The exit status is 1 if runs failed.

    A figure of the paper: thalweg sweep --figure 6 --configurations 300 --out runs/fig6

    Your planner (planners.py, here) beside those of the figure: thalweg sweep --figure 6 --placement planners:Mine
    --out runs/mine

    A grid of your own: thalweg sweep --placement download-all --placement global --servers 8 --servers 16 --period 120
    --period 600 --configurations 40 --pools 2

    Faults in networks, with every invariant checked: thalweg sweep --faults 1000
    """
    _check_together(given)
    options = make(SweepOptions, given, "thalweg sweep")
    if options.faults is not None or options.replay_faults is not None:
        _fault_plans(options, as_json=as_json)
        return
    require(*SWEEP_LIBRARIES)
    sweeps = {pool: _sweep(options, given, pool) for pool in _pools(options)}
    alone, outcomes, answers = len(sweeps) == 1, [], {}
    if not alone:
        for asked in sweeps.values():
            asked.check()  # every sweep is checked before the first one begins
    for pool, asked in sweeps.items():
        folder = Path("runs") / asked.id if options.out is None else options.out
        if options.out is not None and not alone:
            folder /= Path(pool).name
        outcome = _run(asked, folder, options.master)
        outcomes.append(outcome)
        answers[pool] = _said(asked, outcome, options.master, as_json=as_json)
    if as_json:
        print_json(next(iter(answers.values())) if alone else {"sweeps": answers})
    else:
        print("next: thalweg report", *[outcome.folder for outcome in outcomes])
    end(line for outcome in outcomes for line in _failures(outcome))


def _check_together(given: Given) -> None:
    """Raise UsageError if an option does not go with the kind of the sweep."""
    flags = {name: flag(SweepOptions, name) for name in given.said}
    if "faults" in flags and "replay_faults" in flags:
        raise UsageError("--faults and --replay-faults do not go together; leave one away")
    for kind, allowed in TAKEN.items():
        if kind in flags:
            for name, option in flags.items():
                if name != kind and name not in allowed:
                    raise UsageError(f"{option} does not go with {flags[kind]}; leave one away")
            return
    if "first_seed" in flags:
        raise UsageError("--first-seed goes with --faults; the seed of the first pool is --first-pool")
    for name, why in ONLY_WITH_FAULTS.items():
        if name in flags:
            raise UsageError(f"{flags[name]} goes with --faults; {why}")


def _pools(options: SweepOptions) -> tuple[str, ...]:
    """Return the names of the pools that were asked for, without repetitions, or the pools of the figure.

    Raise UsageError if two pools have the same name.
    """
    from thalweg.experiments.papers.study import find_figure

    pools = tuple(dict.fromkeys(options.pool))
    names = Counter(Path(pool).name for pool in pools)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise UsageError(f"--pool names two pools {twice!r}, whose results would be in one folder; sweep one at a time")
    if pools or options.figure is None:
        return pools or ("paper",)
    _, figure = find_figure(options.figure)
    return ("paper", *figure.measured) if options.traces is not None else ("paper",)


def _sweep(options: SweepOptions, given: Given, pool: str) -> Sweep:
    """Return the sweep of a pool.

    Given values of the grid replace values of the figure, but placements are added. A figure of a further paper,
    PAPER:NUMBER, has trials of its own.
    """
    from thalweg.experiments.papers.study import FIRST_STUDY, find_figure
    from thalweg.experiments.runs.folder import versions

    study, figure = (None, None) if options.figure is None else find_figure(options.figure)
    configurations = options.configurations
    if configurations is None:
        configurations = CONFIGURATIONS if figure is None else figure.configurations
    drawn = {
        "pools": min(POOLS, max(configurations, 1)) if options.pools is None else options.pools,
        "first_pool": options.first_pool,
        "configurations": configurations,
        "versions": versions(),
    }
    if study is not None and figure is not None and study.name != FIRST_STUDY:
        return _sweep_of_study(study, figure, options, given, pool, drawn)
    for name in ON_TESTBEDS & {*given.said}:
        raise UsageError(f"{flag(SweepOptions, name)} goes with --figure sbon-13 or sbon-14, which run on a testbed")
    for name in OF_TASKS & {*given.said}:
        raise UsageError(f"{flag(SweepOptions, name)} goes with --figure bimodal-8 or bimodal-9")
    return _simulations(options, pool, drawn)


def _sweep_of_study(
    study: Study, figure: Figure, options: SweepOptions, given: Given, pool: str, drawn: Mapping[str, Any]
) -> Sweep:
    """Return the sweep of a figure whose study has trials of its own. ``drawn``: the fields of every sweep."""
    for name in given.said:
        if name not in TAKEN_OF_PAPER and name not in study.asked:
            raise UsageError(f"{flag(SweepOptions, name)} does not go with --figure {options.figure}; leave one away")
    pool = pool if "pool" in given.said else study.pool
    if study.pools and pool not in study.pools:
        raise UsageError(f"--pool is {pool}; --figure {options.figure} has {', '.join(study.pools)}")
    listed = [msgspec.structs.asdict(arm) for arm in figure.sweep.arms()]
    if "kernel" in given.said:  # refuses a kernel that does not fit the testbed
        runs_elsewhere(options.kernel, options.testbed or str(getattr(study.trial(), "testbed", "")))
    parameters = {name: getattr(options, name) for name in study.asked if name in given.said}
    fixed = {"study": study.name, "figure": figure.number, "listed": listed, "pool": pool}
    return make(study.sweep, {**fixed, "parameters": parameters, **drawn}, "thalweg sweep")


def _simulations(options: SweepOptions, pool: str, drawn: Mapping[str, Any]) -> Sweep:
    """Return the sweep of the first study's figure, or of the user's grid. ``drawn``: the fields of every sweep."""
    from thalweg.experiments.papers.ranganathan1998.study import FIGURES, OURS, PLACEMENTS
    from thalweg.experiments.sweeps.pools import GENERATED
    from thalweg.experiments.sweeps.simulations import Simulations

    placements = options.placements
    own = Simulations(placements=tuple(dict.fromkeys(placements)) or (*PLACEMENTS, *OURS))
    grid = own if options.figure is None else FIGURES[options.figure].sweep
    assert isinstance(grid, Simulations)
    grid = grid.with_more(*placements)
    find_own_code((*grid.placements, options.cost))
    folder = None if options.traces is None or pool.partition(":")[0] in GENERATED else os.path.abspath(options.traces)
    asked = {
        "figure": options.figure,
        "placements": grid.placements,
        "images": options.images,
        "pool": _pool(pool, folder),
        "traces": folder,
        "own_periods_s": () if options.periods_s else grid.own_periods_s,
        "variants": grid.variants,
        "made": grid.made,
        "parameters": {
            "interface": options.interface,
            "cost": options.cost,
            "view": options.view,
            "allow": list(options.allow),
            **({} if options.latency is None else {"latency": _latency(options.latency)}),
        },
        **drawn,
        **{
            name: tuple(dict.fromkeys(getattr(options, name) or getattr(grid, name)))
            for name in ("servers", "trees", "periods_s", "ks")
        },
    }
    return make(Simulations, asked, "thalweg sweep")


def _pool(name: str, traces: str | None) -> str:
    """Return a pool's name, or the absolute path of a folder. Executors have a different working directory."""
    from thalweg.experiments.sweeps.pools import GENERATED, REAL

    if name in (*GENERATED, REAL):
        return name
    roots = () if traces is None or os.path.basename(name) != name else (os.path.join(traces, "bandwidth"), traces)
    if any(os.path.isdir(os.path.join(root, name)) for root in roots):
        return name
    return os.path.abspath(name) if os.path.exists(name) else name


def _latency(name: str) -> str:
    """Return the absolute path of a latency matrix, which must be readable.

    Executors have a different working directory.
    """
    path = find_set(name, "latency", Path(os.curdir))
    read_grid(path, "latency")
    return str(path.absolute())


def _fault_plans(options: SweepOptions, *, as_json: bool) -> None:
    """Run fault plans and print their results. Exit with status 1 if a plan failed."""
    from thalweg.experiments.faults.sweep import FOLDER, Kind, PlansStopped, replay, sweep_faults, told

    kind = Kind(options.graphs, options.lasting, options.stripes, options.networks)
    if options.replay_faults is not None:
        result, text = replay(options.replay_faults, kind)
        say(as_json, result, text)
        if result.outcome == "failed":
            raise typer.Exit(1)
        return
    assert options.faults is not None
    try:
        with progress() as tell:
            summary = sweep_faults(
                options.faults,
                first_seed=options.first_seed,
                out=options.out or FOLDER,
                master=options.master,
                tell=tell,
                kind=kind,
            )
    except PlansStopped as stop:
        if stop.summary is not None:
            say(as_json, stop.summary, told(stop.summary))
        _stopped_plans(stop, options)
    say(as_json, summary, told(summary))
    end(f"seed {failure.seed} {failure.what}; {failure.command}" for failure in summary.failures)


def _stopped_plans(stop: PlansStopped, options: SweepOptions) -> NoReturn:
    """Print the failures of a stopped sweep and the command that continues it. Exit with the signal's status."""
    stopped = stop.__cause__ if isinstance(stop.__cause__, Stopped) else Stopped()
    sys.stdout.flush()
    failures = () if stop.summary is None else stop.summary.failures
    for failure in failures:
        print(f"thalweg: seed {failure.seed} {failure.what}; {failure.command}", file=sys.stderr)
    command = ["thalweg", "sweep", "--faults", str(stop.left), "--first-seed", str(stop.next_seed)]
    flags = {"--graphs": options.graphs, "--lasting": options.lasting, "--stripes": options.stripes}
    command += [name for name, is_given in {**flags, "--networks": options.networks}.items() if is_given]
    command += [] if options.out is None else ["--out", str(options.out)]
    done = 0 if stop.summary is None else stop.summary.faults
    how = f"go on with {shlex.join(command)}" if stop.left else "all plans are done"
    print(f"thalweg: stopped by {stopped.name} after {done} of {options.faults} plans; {how}", file=sys.stderr)
    raise typer.Exit(stopped.status)


def _run(asked: Sweep, folder: Path, master: str) -> SweepOutcome:
    """Run a sweep with a progress bar. If a signal stops the sweep, print one line and exit."""
    from thalweg.experiments.sweeps.sweep import run_sweep

    reached = 0, 0

    def followed(what: str, done: int, total: int) -> None:
        nonlocal reached
        reached = done, total
        tell(what, done, total)

    try:
        with progress() as tell:
            return run_sweep(asked, folder, master=master, tell=followed)
    except (Stopped, KeyboardInterrupt) as error:
        stopped = error if isinstance(error, Stopped) else Stopped()
        done, total = reached
        state = f"{done} of {total} results are kept in {folder}; the same command resumes" if total else "nothing ran"
        print(f"thalweg: stopped by {stopped.name}; {state}", file=sys.stderr)
        raise typer.Exit(stopped.status) from None


def _said(asked: Sweep, outcome: SweepOutcome, master: str, *, as_json: bool) -> dict[str, Any]:
    """Print the results of a sweep, or return them for ``--json``. The dictionary is empty if they are printed."""
    from thalweg.experiments.sweeps.grid import PaperSweep
    from thalweg.experiments.sweeps.sweep import load_results

    results = asked.summarize(load_results(outcome.folder, type(asked)))
    if as_json:
        for note in outcome.notes:
            print(f"note: {note}", file=sys.stderr)
        answer = {
            "sweep": outcome.sweep,
            "out": str(outcome.folder),
            "runs": outcome.runs,
            "done": outcome.done,
            "failed": outcome.failed,
            "skipped": outcome.skipped,
            "wall_s": round(outcome.wall_s, 3),
            "placements": results,
        }
        return answer | ({"figures": _figures(outcome, master)} if isinstance(asked, PaperSweep) else {})
    if isinstance(asked, PaperSweep):
        from thalweg.experiments.papers.tables import print_figures

        print_figures(_figures(outcome, master))
        _told(outcome)
    else:
        _table(asked, outcome, results)
    return {}


def _figures(outcome: SweepOutcome, master: str) -> FigureData[Any]:
    """Return the figures of a paper's own trials, with our values beside the published values."""
    from thalweg.experiments.papers.aggregation import aggregate
    from thalweg.experiments.records.spark import session

    with spinner("analysing the sweep"), session(master) as spark:
        return aggregate(spark, outcome.folder)


def _table(asked: Sweep, outcome: SweepOutcome, results: dict[str, PlacementResult]) -> None:
    from rich.text import Text

    from thalweg.experiments.views.tables import NONE, seconds

    drawn = f"{counted(asked.configurations, 'configuration')} of {counted(asked.pools, 'pool')} ({asked.pool})"
    title = f"{outcome.sweep}: {drawn}"
    table = new_table("placement", "runs", "failed", "mean s", "median speed-up", title=title)
    for label, result in results.items():
        speedup = NONE if result.median_speedup is None else f"{result.median_speedup:.2f}"
        failed = Text(str(result.failed), "bold red" if result.failed else "")
        table.add_row(Text(label), str(result.runs), failed, seconds(result.mean_interarrival_s), speedup)
    output().print(table)
    _told(outcome)


def _told(outcome: SweepOutcome) -> None:
    """Print the lines below the results of a sweep."""
    from thalweg.experiments.views.tables import seconds

    for note in outcome.notes:
        print(f"note: {note}")
    were = "was" if outcome.skipped == 1 else "were"
    skipped = f"{outcome.skipped} of them {were} there already"
    print(f"{counted(outcome.runs, 'run')} in {seconds(outcome.wall_s)} s, {skipped}")
    print(f"results: {outcome.folder}{os.sep}")


def _failures(outcome: SweepOutcome) -> list[str]:
    """Return a line for each reason of failures. Beyond ``REASONS``, the rarest are only counted."""
    runs = counted(outcome.runs, "run")
    lines = [f"{count} of {runs} failed: {reason}" for reason, count in outcome.reasons.items()]
    if len(lines) > REASONS:
        rest = sum(list(outcome.reasons.values())[REASONS:])
        reasons = counted(len(lines) - REASONS, "other reason")
        lines[REASONS:] = [f"{rest} of {runs} failed for {reasons}; see column failed"]
    return lines
