"""Sweeps: many simulations on Spark, of one grid on many network configurations, that can be stopped and resumed.

A sweep's folder holds ``sweep.toml``, the whole grid and the versions it was begun with, and ``results/*.parquet``, one
row a simulation (see ``results``). Spark's executors simulate and know nothing of the folder; the process that
runs the sweep writes each batch as it comes back. Ended at any moment, by whatever, it loses what is in flight; the
same sweep on the same folder goes on with the rest, and runs what failed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from thalweg.experiments.command import Tell
from thalweg.experiments.papers.ranganathan1998.definitions import ABLATION, Arm, Grid, minutes
from thalweg.experiments.records.records import read_toml, to_toml
from thalweg.experiments.runs.strategies import MOVING
from thalweg.experiments.sweeps.results import SWEEP_TOML, Results, read_results, row
from thalweg.experiments.sweeps.simulation import Simulated, Simulation, prepare
from thalweg.experiments.sweeps.task import SIMULATE
from thalweg.experiments.sweeps.variants import VARIANTS
from thalweg.middleware.errors import RunError, UsageError, nearest

FORMAT = 1  # of a sweep's folder; raised when an older reader would misread it
BASELINE = "download-all"
FIRST_POOL = 1001  # the pools that the generator was calibrated on have small seeds; what is reported has others
GENERATED = ("paper", "regions")  # pools that need no traces
_GRID = ("pool", "pool_seed", "configuration", "placement", "servers", "images", "tree", "period_s", "k", "variant")
MOVES = ("gate", "hysteresis")  # parameters that go only to placements which take them
_ABOUT = ("format", "versions")  # does not make it another sweep


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``sweep.toml`` holds: the grid that is run on every configuration, and the configurations.

    ``figure``: the paper's figure it is for, if any. ``periods_s`` and ``ks`` go to the placements that take them;
    empty: each placement's own default; ``own_periods_s`` go to ``thalweg`` besides, and ``variants`` are run as well.
    ``configurations`` is their number in all, spread evenly over ``pools`` draws
    of the pool named ``pool``, with seeds from ``first_pool``. ``traces``: where measured pools come from.
    ``parameters``: the other fields of Simulation, where they are not its defaults.
    """

    figure: str | None = None
    placements: tuple[str, ...]
    servers: tuple[int, ...] = (8,)
    trees: tuple[str, ...] = ("binary",)
    periods_s: tuple[float, ...] = ()
    ks: tuple[int, ...] = ()
    own_periods_s: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()
    images: int = 180
    pool: str = "paper"
    pools: int = 10
    first_pool: int = FIRST_POOL
    configurations: int = 300
    traces: str | None = None
    parameters: dict[str, Any] = {}
    format: int = FORMAT
    versions: dict[str, str] = {}

    @property
    def id(self) -> str:
        """Of what is swept: the same for the same sweep, anywhere."""
        digest = hashlib.sha256(msgspec.json.encode(_settled(self), order="sorted")).hexdigest()[:8]
        name = "sweep" if self.figure is None else self.figure if self.figure == ABLATION else f"fig{self.figure}"
        return f"{name}-{digest}"

    def arms(self) -> list[Arm]:
        """The ways in which every configuration is run."""
        return Grid(
            placements=self.placements,
            servers=self.servers,
            trees=self.trees,
            periods_s=self.periods_s or (None,),
            ks=self.ks or (None,),
            own_periods_s=self.own_periods_s,
            variants=self.variants,
        ).arms()

    def check(self) -> Sweep:
        """Return self, or raise UsageError naming what is out of range, unknown or not to be imported."""
        for name in ("placements", "servers", "trees"):
            if not getattr(self, name):
                raise UsageError(f"the sweep has no {name}; give at least one")
        if self.configurations < 1 or self.pools < 1:
            raise UsageError(f"--configurations {self.configurations} over --pools {self.pools}: give at least 1 each")
        if self.configurations < self.pools:
            raise UsageError(
                f"--configurations {self.configurations} cannot be spread over {self.pools} pools; give --pools 1"
                f" to {self.configurations}"
            )
        if self.first_pool < 0:
            raise UsageError(f"--first-pool is {self.first_pool}; it must be at least 0")
        if self.images < 2:
            raise UsageError(f"--images is {self.images}; between two there is a time to compare")
        for variant in self.variants:
            if variant not in VARIANTS:
                raise UsageError(f"unknown variant {variant!r}; {nearest(variant, list(VARIANTS))}")
        for name in self.parameters:
            if name in _GRID or name not in Simulation.__struct_fields__:
                raise UsageError(f"a sweep has no parameter {name!r}")
        for arm in self.arms():
            prepare(self.simulation(self.first_pool, 0, arm))  # planners named by import path are imported
        if self.pool not in GENERATED:
            from thalweg.experiments.sweeps.pools import open_pool

            open_pool(self.pool, self.first_pool, self.traces)
        return self

    def simulation(self, pool_seed: int, configuration: int, arm: Arm) -> Simulation:
        """One network configuration run in one way; raises UsageError for a parameter that does not fit."""
        moves = MOVING[arm.placement].__struct_fields__ if arm.placement in MOVING else ()
        given = {
            "pool": self.pool,
            "pool_seed": pool_seed,
            "configuration": configuration,
            "images": self.images,
            **{name: getattr(arm, name) for name in arm.__struct_fields__},
            **{name: value for name, value in self.parameters.items() if name not in MOVES or name in moves},
        }
        try:
            return msgspec.convert(given, Simulation)
        except msgspec.ValidationError as error:
            raise UsageError(f"an option does not fit: {error}; see thalweg sweep --help") from None


def expand(sweep: Sweep) -> list[Simulation]:
    """Every simulation of it, once, configuration by configuration: those of one network are planned alike."""
    whole, rest = divmod(sweep.configurations, sweep.pools)
    arms = sweep.arms()
    return [
        sweep.simulation(sweep.first_pool + number, configuration, arm)
        for number in range(sweep.pools)
        for configuration in range(whole + (number < rest))
        for arm in arms
    ]


# --- the folder -------------------------------------------------------------------------------------


def load_sweep(folder: Path) -> Sweep:
    """Read a folder's ``sweep.toml``. Raises UsageError when it has none, or it is damaged or of a newer format."""
    path = folder / SWEEP_TOML
    tree = read_toml(path, "sweep", FORMAT)
    try:
        return msgspec.convert(tree, Sweep)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is damaged: {error}; remove {folder} and sweep again") from None


def load_results(folder: Path) -> pa.Table:
    """All results there are of the sweep in ``folder``, one row a simulation; raises UsageError for damaged ones."""
    load_sweep(folder)
    return read_results(folder)


def _settled(sweep: Sweep) -> dict[str, Any]:
    """What makes it this sweep, flat, with the values that parameters have by default."""
    tree: dict[str, Any] = msgspec.to_builtins(sweep)
    defaults = msgspec.to_builtins(Simulation())
    for name in _ABOUT:
        del tree[name]
    given = tree.pop("parameters")
    tree |= {name: given.get(name, value) for name, value in defaults.items() if name not in _GRID}
    settled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(tree))  # tuples and lists are alike
    return settled


def _same(folder: Path, there: Sweep, here: Sweep) -> None:
    """Raise UsageError, with the first difference, when the folder's sweep is another."""
    theirs, ours = _settled(there), _settled(here)
    for name in theirs | ours:
        if theirs.get(name) != ours.get(name):
            raise UsageError(
                f"{folder} is of another sweep: its {name} is {_say(theirs.get(name))}, not {_say(ours.get(name))};"
                f" choose another --out, or remove {folder}"
            )


def _say(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)


@contextmanager
def _opened(folder: Path, sweep: Sweep, notes: list[str]) -> Iterator[Results]:
    """The folder of this sweep, made if it is not there, for this process alone."""
    try:
        if not (folder / SWEEP_TOML).exists():
            if folder.exists() and any(not path.name.startswith(f".{SWEEP_TOML}.") for path in folder.iterdir()):
                raise UsageError(f"{folder} is not empty and no sweep's folder; choose another --out, or remove it")
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror or error}; choose another --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another sweep writes to {folder} just now; wait for it, or choose another --out"
            ) from None
        if (folder / SWEEP_TOML).exists():
            there = load_sweep(folder)
            _same(folder, there, sweep)
            if (began := there.versions.get("thalweg")) != (now := sweep.versions.get("thalweg")):
                notes.append(f"{folder} was begun with thalweg {began} and goes on with {now}")
        else:
            _save(folder, sweep)
        results = Results(folder)
        results.open()
        yield results
    finally:
        os.close(handle)


def _save(folder: Path, sweep: Sweep) -> None:
    target, unfinished = folder / SWEEP_TOML, folder / f".{SWEEP_TOML}.{os.getpid()}"
    tree = msgspec.to_builtins(sweep)
    settled = _settled(sweep)
    tree["parameters"] = {name: settled[name] for name in Simulation.__struct_fields__ if name not in _GRID}
    try:
        unfinished.write_text(to_toml(tree), encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}; choose another --out") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


# --- running ----------------------------------------------------------------------------------------


class SweepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep came to. ``done`` of its ``runs`` have a result, ``skipped`` of them from before; ``reasons``:
    how many failed for each, which begins with the placement, the most frequent first.
    """

    sweep: str
    folder: Path
    runs: int
    done: int
    failed: int
    skipped: int
    reasons: dict[str, int]
    notes: list[str]
    wall_s: float


def run_sweep(
    sweep: Sweep, folder: Path, *, master: str = "local[*]", tell: Tell = lambda *_: None, simulate: str = SIMULATE
) -> SweepOutcome:
    """Run what is not finished of ``sweep`` in ``folder``, on Spark.

    ``simulate``: import path of what takes a Simulation and gives a Simulated, on the executors. Raises UsageError
    before anything is simulated for a sweep that cannot be run or a folder of something else, RunError when results
    cannot be written or Spark ends; what has come back by then is kept.
    """
    from thalweg.experiments.records.spark import check_master, find_java
    from thalweg.experiments.sweeps.jobs import run_on_spark

    begun = time.monotonic()
    check_master(master)
    sweep.check()
    find_java()
    notes: list[str] = []
    simulations = expand(sweep)
    with _opened(folder, sweep, notes) as results:
        notes += results.notes
        todo = [one for one in simulations if one.key not in results.finished]
        skipped = done = len(simulations) - len(todo)
        reasons: Counter[str] = Counter()

        def finished(batch: list[tuple[Simulation, Simulated]]) -> None:
            nonlocal done
            results.write(row(*one) for one in batch)
            failures = [f"{one.placement}: {made.failed}" for one, made in batch if made.failed is not None]
            reasons.update(failures)
            done += len(batch) - len(failures)
            tell("simulating", done + reasons.total(), len(simulations))

        if todo:
            tell("starting Spark", done, len(simulations))
            try:
                run_on_spark(todo, finished, master=master, simulate=simulate, traces=sweep.traces)
            except RunError as error:
                kept = f"{done + reasons.total()} of {len(simulations)} results are kept in {folder}"
                raise RunError(f"{error}; {kept}, and the same command resumes") from error
    return SweepOutcome(
        sweep=sweep.id,
        folder=folder,
        runs=len(simulations),
        done=done,
        failed=reasons.total(),
        skipped=skipped,
        reasons=dict(reasons.most_common()),
        notes=notes,
        wall_s=time.monotonic() - begun,
    )


# --- what came out ----------------------------------------------------------------------------------


class PlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running all configurations: the mean over them of the mean inter-arrival time, and the median of
    its speed-up over download-all on the same configuration. None where there is nothing to tell from.
    """

    runs: int
    failed: int
    mean_interarrival_s: float | None
    median_speedup: float | None


def summarize(sweep: Sweep, results: pa.Table) -> dict[str, PlacementResult]:
    """By placement, and by what else the sweep varies: ``global, 16 servers``."""
    columns = ("pool_seed", "configuration", "failed", "mean_interarrival_s", *Arm.__struct_fields__)
    base_s: dict[tuple[Any, ...], float] = {}
    by_arm: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in sweep.arms()}
    for one in results.select(columns).to_pylist():
        arm = Arm(**{name: one[name] for name in Arm.__struct_fields__})
        by_arm.setdefault(arm, []).append(one)
        if arm.placement == BASELINE and one["failed"] is None and one["mean_interarrival_s"]:
            base_s[_network(one)] = one["mean_interarrival_s"]
    return {_label(arm, by_arm): _result(rows, base_s) for arm, rows in by_arm.items()}


def _network(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["pool_seed"], one["configuration"], one["servers"], one["tree"]


def _result(rows: list[dict[str, Any]], base_s: Mapping[tuple[Any, ...], float]) -> PlacementResult:
    good = [one for one in rows if one["failed"] is None and one["mean_interarrival_s"]]
    speedups = [base_s[network] / one["mean_interarrival_s"] for one in good if (network := _network(one)) in base_s]
    return PlacementResult(
        runs=len(rows),
        failed=sum(one["failed"] is not None for one in rows),
        mean_interarrival_s=statistics.fmean(one["mean_interarrival_s"] for one in good) if good else None,
        median_speedup=statistics.median(speedups) if speedups else None,
    )


def _label(arm: Arm, among: Mapping[Arm, object]) -> str:
    """The placement, and what tells it from others of the same placement."""
    of_same = [other for other in among if (other.placement, other.variant) == (arm.placement, arm.variant)]
    texts = {
        "servers": f"{arm.servers} servers",
        "tree": arm.tree,
        "period_s": "its own period" if arm.period_s is None else minutes(arm.period_s),
        "k": "its own k" if arm.k is None else f"k = {arm.k}",
    }
    varied = [text for name, text in texts.items() if len({getattr(other, name) for other in of_same}) > 1]
    return ", ".join([VARIANTS[arm.variant].says if arm.variant else arm.placement, *varied])
