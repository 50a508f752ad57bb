"""Sweeps: many trials on Spark, of several arms on many configurations, that can be stopped and resumed.

A sweep's folder holds ``sweep.toml``, with the whole grid and the versions of the start, and ``results/*.parquet``, one
row a trial (see ``results``). Spark's executors run trials without access to the folder. The process that runs the
sweep writes each batch when it comes back. If the process ends for any reason, only trials in flight are lost. The same
sweep on the same folder runs the remaining and the failed trials.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from thalweg.experiments.command import Tell
from thalweg.experiments.records.records import read_toml, to_toml
from thalweg.experiments.sweeps.grid import FORMAT, Sweep
from thalweg.experiments.sweeps.results import SWEEP_TOML, Results, read_results, row
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.files.writing import whole
from thalweg.middleware.platform.files import lock, open_folder

S = TypeVar("S", bound=Sweep)


# --- the folder -------------------------------------------------------------------------------------


def load_sweep(folder: Path, kind: type[S]) -> S:
    """Return a folder's ``sweep.toml``. Raise UsageError if it is missing, damaged or of a newer format."""
    path = folder / SWEEP_TOML
    try:
        return msgspec.convert(read_toml(path, "sweep", FORMAT), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is damaged: {error}; remove {folder} and sweep again") from None


def study_of(folder: Path) -> str | None:
    """Return the paper whose trials a folder's sweep has. None: the trials are simulations."""
    if not (folder / SWEEP_TOML).exists():
        return None
    study = read_toml(folder / SWEEP_TOML, "sweep", FORMAT).get("study")
    return study if isinstance(study, str) else None


def load_results(folder: Path, kind: type[Sweep]) -> pa.Table:
    """Return all results of the sweep in ``folder``, one row a trial. Raise UsageError for damaged results."""
    load_sweep(folder, kind)
    return read_results(folder, kind.trial)


def _same(folder: Path, there: Sweep, here: Sweep) -> None:
    """Raise UsageError, with the first difference, if the folder has a different sweep."""
    old, new = there.settled(), here.settled()
    for name in old | new:
        if old.get(name) != new.get(name):
            raise UsageError(
                f"{folder} is of another sweep: its {name} is {_say(old.get(name))}, not {_say(new.get(name))};"
                f" choose another --out, or remove {folder}"
            )


def _say(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)


def _check_folder(folder: Path, sweep: Sweep) -> None:
    """Raise UsageError if the folder cannot hold this sweep. The folder is not changed."""
    try:
        if (folder / SWEEP_TOML).exists():
            _same(folder, load_sweep(folder, type(sweep)), sweep)
        elif folder.exists() and any(not path.name.startswith(f".{SWEEP_TOML}.") for path in folder.iterdir()):
            raise UsageError(f"{folder} is not empty and no sweep's folder; choose another --out, or remove it")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror or error}; choose another --out") from None


@contextmanager
def _opened(folder: Path, sweep: Sweep, notes: list[str]) -> Iterator[Results]:
    """Make or open the folder of a sweep, lock it against other processes, and yield its results."""
    _check_folder(folder, sweep)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open_folder(folder, f".{SWEEP_TOML}.lock")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror or error}; choose another --out") from None
    try:
        try:
            lock(handle)
        except BlockingIOError:
            raise UsageError(
                f"another sweep writes to {folder} just now; wait for it, or choose another --out"
            ) from None
        if (folder / SWEEP_TOML).exists():
            existing = load_sweep(folder, type(sweep))
            _same(folder, existing, sweep)
            if (began := existing.versions.get("thalweg")) != (now := sweep.versions.get("thalweg")):
                notes.append(f"{folder} was begun with thalweg {began} and goes on with {now}")
        else:
            _save(folder, sweep)
        results = Results(folder, sweep.trial)
        results.open()
        yield results
    finally:
        os.close(handle)


def _save(folder: Path, sweep: Sweep) -> None:
    tree = msgspec.to_builtins(sweep)
    tree["parameters"] = sweep.all_parameters()
    with whole(folder / SWEEP_TOML, "choose another --out") as part:
        part.write_text(to_toml(tree), encoding="utf-8")


# --- running ----------------------------------------------------------------------------------------


class SweepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a sweep: ``done`` of ``runs`` trials have a result, ``skipped`` of these from before.

    ``reasons``: number of failures by reason, the most frequent first. A reason begins with the placement.
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
    sweep: Sweep, folder: Path, *, master: str = "local[*]", tell: Tell = lambda *_: None, function: str | None = None
) -> SweepOutcome:
    """Run the unfinished trials of ``sweep`` in ``folder`` on Spark.

    ``function``: import path of the function that runs a trial on the executors. None: the function of the trial's
    class. Raises UsageError before the first trial if the sweep cannot be run or the folder has different content.
    Raises RunError if results cannot be written or Spark ends; finished results are kept.
    """
    from thalweg.experiments.records.spark import check_master, require_spark
    from thalweg.experiments.sweeps.jobs import run_on_spark

    begun = time.monotonic()
    check_master(master)
    sweep.check()
    notes: list[str] = []
    trials = sweep.trials()
    _check_folder(folder, sweep)
    require_spark()
    with _opened(folder, sweep, notes) as results:
        notes += results.notes
        todo = [trial for trial in trials if trial.key not in results.finished]
        skipped = done = len(trials) - len(todo)
        reasons: Counter[str] = Counter()

        def finished(batch: list[tuple[Trial, Outcome]]) -> None:
            nonlocal done
            results.write(row(*pair) for pair in batch)
            failures = [f"{trial.says}: {outcome.failed}" for trial, outcome in batch if outcome.failed is not None]
            reasons.update(failures)
            done += len(batch) - len(failures)
            tell("simulating", done + reasons.total(), len(trials))

        if todo:
            tell("starting Spark", done, len(trials))
            try:
                run_on_spark(todo, finished, master=master, function=function, traces=sweep.traces)
            except RunError as error:
                progress = f"{done + reasons.total()} of {len(trials)} results are kept in {folder}"
                raise RunError(f"{error}; {progress}, and the same command resumes") from error
    return SweepOutcome(
        sweep=sweep.id,
        folder=folder,
        runs=len(trials),
        done=done,
        failed=reasons.total(),
        skipped=skipped,
        reasons=dict(reasons.most_common()),
        notes=notes,
        wall_s=time.monotonic() - begun,
    )
