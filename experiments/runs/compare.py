"""Comparison of simulation and emulation: the same runs in virtual time and on network namespaces.

Every seed has a folder of run folders: ``sim``, and for every placement ``netns-PLACEMENT`` (with repeats
``netns-PLACEMENT-1``, …). Each emulated placement has hosts of its own, because hosts remember measurements. In virtual
time placements always have hosts of their own. ``comparison.json`` is beside the seeds' folders, and ``thalweg report``
shows it. Runs of processes differ from each other, so they can be repeated. Then the median is compared, and the spread
is reported too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from thalweg.emulation.testbeds.open import NEEDS
from thalweg.experiments.command import Tell
from thalweg.experiments.records.analysis import QuerySummary, RunSummary, failures, summarize_run
from thalweg.experiments.records.comparisons import CLOSE, COMPARISON, Comparison, Latency, Query, Row, furthest
from thalweg.experiments.run_config import RunConfig, file_name
from thalweg.experiments.runs.folder import empty_folder, prepare_folder, versions
from thalweg.experiments.runs.session import Outcome
from thalweg.experiments.runs.strategies import MOVING, OF_MOVES, make_strategies
from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.writing import whole
from thalweg.middleware.platform import check_linux, load_average

BUSY = 0.5  # of the processors, before anything is run
Execute = Callable[[RunConfig, Path, Tell], Outcome]
Sides = tuple[Execute, Execute]
"""What simulates a run, and what emulates it."""


def compare(
    config: RunConfig,
    seeds: Sequence[int],
    folder: Path,
    tell: Tell,
    sides: Sides,
    *,
    limit: float = CLOSE,
    repeats: int = 1,
) -> Comparison:
    """Run ``config`` with every seed on both ``sides``, and return the comparison, which is saved after each seed.

    Raises UsageError before the first run if the comparison is impossible. Errors of the runs are raised too.
    """
    check(config, seeds, limit, repeats)
    fresh = prepare_folder(folder)
    rows: list[Row] = []
    notes, wrong = _busy(), list[str]()
    for seed in seeds:
        seeded = msgspec.structs.replace(config, seed=seed)
        try:
            ran = _run(seeded, folder / f"seed-{seed}", tell, repeats, sides)
        except UsageError:
            if not rows:  # refused before the first run: nothing is left
                empty_folder(folder, remove=fresh)
            raise
        summaries = {outcome.folder: summarize_run(outcome.folder) for outcomes in ran.values() for outcome in outcomes}
        wrong += [line for summary in summaries.values() for line in failures(summary)]
        rows += [_row(label, seed, outcomes, summaries) for label, outcomes in ran.items()]
        item = next(iter(summaries.values())).item
        comparison = _made(config, rows, notes, wrong, limit, repeats, item)
        with whole(folder / COMPARISON, "choose another --out") as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(comparison)) + b"\n")
    return comparison


def check(config: RunConfig, seeds: Sequence[int], limit: float, repeats: int) -> None:
    """Raise UsageError for an impossible comparison, and CapabilityError if the system is not Linux."""
    check_linux(NEEDS["netns"])
    make_strategies(msgspec.structs.replace(config, testbed="netns").check())
    if not seeds:
        raise UsageError("no --seed was given; try --seed 1")
    for seed in seeds:
        if list(seeds).count(seed) > 1:
            raise UsageError(f"--seed {seed} is given twice; to emulate the seed twice, give --repeats 2")
    if config.images < 2:
        raise UsageError(f"--images is {config.images}; give 2 or more, because times between images are compared")
    if not 0 < limit < 1:
        raise UsageError(f"--limit is {limit:g}; it must be between 0 and 1")
    if repeats < 1:
        raise UsageError(f"--repeats is {repeats}; it must be at least 1")


def _run(config: RunConfig, folder: Path, tell: Tell, repeats: int, sides: Sides) -> dict[str, list[Outcome]]:
    """Return the outcomes by placement: the simulated run first, then the emulated runs."""
    simulate, emulate = sides

    def side(execute: Execute, testbed: str, name: str, changes: Mapping[str, Any]) -> Outcome:
        changed = msgspec.structs.replace(config, testbed=testbed, **changes)
        where = f"seed {config.seed}, {testbed}: "
        return execute(changed, folder / name, lambda what, done, total: tell(where + what, done, total))

    simulated = side(simulate, "sim", "sim", {})
    ran: dict[str, list[Outcome]] = {}
    for label in config.placements:
        name = f"netns-{file_name(label)}"
        names = [f"{name}-{i + 1}" for i in range(repeats)] if repeats > 1 else [name]
        alone = _alone(label)
        ran[label] = [simulated, *(side(emulate, "netns", run_name, alone) for run_name in names)]
    return ran


def _alone(label: str) -> dict[str, Any]:
    """Return the changes to a run's options for this placement alone: options of moves that it lacks are removed."""
    kind = MOVING.get(label)
    foreign = [name for name in OF_MOVES if kind is None or name not in kind.__struct_fields__]
    return {"placements": (label,), **dict.fromkeys(foreign)}


def _row(label: str, seed: int, outcomes: Sequence[Outcome], summaries: Mapping[Path, RunSummary]) -> Row:
    """Return the row of a placement and seed. ``outcomes``: the simulated run first, then the emulated runs."""
    simulated, *emulated = [summaries[outcome.folder].placements[label] for outcome in outcomes]
    means = [run.mean_interarrival_s for run in emulated]
    known = [mean_s for mean_s in means if mean_s is not None]
    emulated_s = median(known) if len(known) == len(means) else None
    mean_s = simulated.mean_interarrival_s
    return Row(
        label,
        seed,
        mean_s,
        emulated_s,
        mean_s / emulated_s if mean_s is not None and emulated_s else None,
        emulated_each_s=means,
        spread=max(known) / min(known) - 1 if len(known) > 1 else None,
        same_start=all(outcome.found.placed[label] == outcomes[0].found.placed[label] for outcome in outcomes),
        simulated_moves=simulated.relocations,
        emulated_moves=[run.relocations for run in emulated],
        queries={
            sink: Query(_latency([own]), _latency([run.queries[sink] for run in emulated]))
            for sink, own in simulated.queries.items()
        },
    )


def _latency(runs: Sequence[QuerySummary]) -> Latency:
    """Return the medians of several runs. A figure that a run lacks is None."""

    def middle(each: Sequence[float | None]) -> float | None:
        known = [figure for figure in each if figure is not None]
        return median(known) if len(known) == len(each) else None

    return Latency(
        middle([run.latency_p50_s for run in runs]),
        middle([run.latency_p95_s for run in runs]),
        middle([run.latency_p99_s for run in runs]),
    )


def _made(
    config: RunConfig, rows: list[Row], notes: list[str], wrong: list[str], limit: float, repeats: int, item: str
) -> Comparison:
    options = {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}
    for name in ("testbed", "seed"):
        del options[name]
    return Comparison(
        rows=list(rows),
        worst=furthest(rows),
        limit=limit,
        repeats=repeats,
        notes=notes,
        failures=list(wrong),
        config=options,
        versions=versions(),
        item=item,
    )


def _busy() -> list[str]:
    """Return a note if the machine is busy. Emulated hosts then wait for processors, simulated hosts do not."""
    load = load_average()
    if load <= BUSY * (os.cpu_count() or 1):
        return []
    return [f"the machine was busy before the first run (load average {load:.1f}), which slows emulated hosts"]
