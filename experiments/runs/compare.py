"""Simulation against emulation: the same runs, in virtual time and on network namespaces.

Every seed has a folder of run folders: ``sim``, and of every placement ``netns-PLACEMENT`` (of several
``netns-PLACEMENT-1``, …). A placement is emulated on hosts of its own, because hosts remember what they have measured,
and in virtual time they are always of its own. Beside the seeds' folders is ``comparison.json``, which
``thalweg report`` shows. A run of processes is never twice the same, so it can be repeated: compared is the median,
and how far those differ from each other is told as well.
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
    """Run ``config`` with every seed on either of the ``sides``; what is done is in ``folder`` after each seed.

    Raises UsageError before anything is run for what cannot be compared, and whatever the runs raise.
    """
    check(config, seeds, limit, repeats)
    fresh = prepare_folder(folder)
    rows: list[Row] = []
    notes, wrong = _busy(), list[str]()
    for seed in seeds:
        one = msgspec.structs.replace(config, seed=seed)
        try:
            ran = _run(one, folder / f"seed-{seed}", tell, repeats, sides)
        except UsageError:
            if not rows:  # refused before anything ran: nothing is left of it
                empty_folder(folder, remove=fresh)
            raise
        summaries = {outcome.folder: summarize_run(outcome.folder) for outcomes in ran.values() for outcome in outcomes}
        wrong += [line for summary in summaries.values() for line in failures(summary)]
        rows += [_row(label, seed, outcomes, summaries) for label, outcomes in ran.items()]
        item = next(iter(summaries.values())).item
        made = _made(config, rows, notes, wrong, limit, repeats, item)
        with whole(folder / COMPARISON, "choose another --out") as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    return made


def check(config: RunConfig, seeds: Sequence[int], limit: float, repeats: int) -> None:
    """Raise UsageError for a comparison that cannot be made, CapabilityError on another system than Linux."""
    check_linux(NEEDS["netns"])
    make_strategies(msgspec.structs.replace(config, testbed="netns").check())
    if not seeds:
        raise UsageError("no --seed was given; try --seed 1")
    for seed in seeds:
        if list(seeds).count(seed) > 1:
            raise UsageError(f"--seed {seed} is given twice; to emulate it twice say --repeats 2")
    if config.images < 2:
        raise UsageError(f"--images is {config.images}; between two there is a time to compare")
    if not 0 < limit < 1:
        raise UsageError(f"--limit is {limit:g}; it must be between 0 and 1")
    if repeats < 1:
        raise UsageError(f"--repeats is {repeats}; it must be at least 1")


def _run(config: RunConfig, folder: Path, tell: Tell, repeats: int, sides: Sides) -> dict[str, list[Outcome]]:
    """Of every placement the simulated run, and the emulated ones."""
    simulate, emulate = sides

    def side(execute: Execute, testbed: str, name: str, changes: Mapping[str, Any]) -> Outcome:
        one = msgspec.structs.replace(config, testbed=testbed, **changes)
        where = f"seed {config.seed}, {testbed}: "
        return execute(one, folder / name, lambda what, done, total: tell(where + what, done, total))

    simulated = side(simulate, "sim", "sim", {})
    ran: dict[str, list[Outcome]] = {}
    for label in config.placements:
        name = f"netns-{file_name(label)}"
        names = [f"{name}-{i + 1}" for i in range(repeats)] if repeats > 1 else [name]
        alone = _alone(label)
        ran[label] = [simulated, *(side(emulate, "netns", each, alone) for each in names)]
    return ran


def _alone(label: str) -> dict[str, Any]:
    """What of a run's options changes when it has this placement alone: those of others are not taken then."""
    kind = MOVING.get(label)
    others = [name for name in OF_MOVES if kind is None or name not in kind.__struct_fields__]
    return {"placements": (label,), **dict.fromkeys(others)}


def _row(label: str, seed: int, outcomes: Sequence[Outcome], summaries: Mapping[Path, RunSummary]) -> Row:
    """The simulated run first, then the emulated ones."""
    simulated, *emulated = [summaries[outcome.folder].placements[label] for outcome in outcomes]
    each = [one.mean_interarrival_s for one in emulated]
    known = [mean_s for mean_s in each if mean_s is not None]
    emulated_s = median(known) if len(known) == len(each) else None
    mean_s = simulated.mean_interarrival_s
    return Row(
        label,
        seed,
        mean_s,
        emulated_s,
        mean_s / emulated_s if mean_s is not None and emulated_s else None,
        emulated_each_s=each,
        spread=max(known) / min(known) - 1 if len(known) > 1 else None,
        same_start=all(outcome.found.placed[label] == outcomes[0].found.placed[label] for outcome in outcomes),
        simulated_moves=simulated.relocations,
        emulated_moves=[one.relocations for one in emulated],
        queries={
            sink: Query(_latency([own]), _latency([one.queries[sink] for one in emulated]))
            for sink, own in simulated.queries.items()
        },
    )


def _latency(runs: Sequence[QuerySummary]) -> Latency:
    """The medians of some runs; of a figure that one of them lacks none."""

    def middle(each: Sequence[float | None]) -> float | None:
        known = [one for one in each if one is not None]
        return median(known) if len(known) == len(each) else None

    return Latency(
        middle([run.latency_p50_s for run in runs]),
        middle([run.latency_p95_s for run in runs]),
        middle([run.latency_p99_s for run in runs]),
    )


def _made(
    config: RunConfig, rows: list[Row], notes: list[str], wrong: list[str], limit: float, repeats: int, item: str
) -> Comparison:
    given = {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}
    for name in ("testbed", "seed"):
        del given[name]
    return Comparison(
        rows=list(rows),
        worst=furthest(rows),
        limit=limit,
        repeats=repeats,
        notes=notes,
        failures=list(wrong),
        config=given,
        versions=versions(),
        item=item,
    )


def _busy() -> list[str]:
    """A note where other programs have the processors: emulated hosts then wait for them, simulated ones do not."""
    load = load_average()
    if load <= BUSY * (os.cpu_count() or 1):
        return []
    return [f"the machine was busy before the first run (load average {load:.1f}), which slows emulated hosts"]
