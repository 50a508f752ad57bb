"""Sweep of many fault plans, here or on Spark. Plans that fail are made minimal and printed as commands.

``sweep_faults`` is for ``thalweg sweep --faults``, ``replay`` for ``thalweg sweep --replay-faults``. ``trials`` says
what a trial is, and which outcomes it may have.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, TypeVar

import msgspec

from thalweg.emulation.virtual.faults import OVER_ALL, Fault, FaultPlan, OfMessage
from thalweg.experiments.command import Tell
from thalweg.experiments.faults.generated_plans import drawn_plan
from thalweg.experiments.faults.trials import TrialResult, run_trial
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded

T = TypeVar("T")
Run = Callable[[FaultPlan], tuple[TrialResult, tuple[OfMessage, ...]]]

FOLDER = Path("runs") / "faults"
FEW_TRIALS = 50  # plans at most that run here: Spark takes longer to start
MINIMIZED = 3  # failed plans that are made minimal; further plans are kept as drawn
MAX_RUNS = 1000  # to make a plan minimal
MAX_EVENTS = 500_000  # of all these runs: half a minute; a stalled trial has thousands
FEW = 5  # faults of a plan that is small enough to read
SHARES = (0.3, 0.5, 0.7, 0.9)  # of the remaining faults, tried at random


class Kind(msgspec.Struct, frozen=True):
    """Kind of the drawn plans: of trees, of graphs, of streams over several trees, of several networks.

    ``lasting``: all runs outlive their hosts. Otherwise the seed draws which runs do. Raises UsageError for two kinds
    that do not go together.
    """

    graph: bool = False
    lasting: bool = False
    stripes: bool = False
    networks: bool = False

    def __post_init__(self) -> None:
        if self.stripes and (self.graph or self.networks):
            other = "--graphs" if self.graph else "--networks"
            raise UsageError(f"--stripes and {other} do not go together; leave one away")

    def plan(self, seed: int) -> FaultPlan:
        """Draw the fault plan of a seed."""
        return drawn_plan(seed, **msgspec.structs.asdict(self), gray=True)


TREES = Kind()


class Failure(msgspec.Struct, frozen=True):
    """Failed plan: its error, the file of the (minimal) plan, and the command that replays the plan."""

    seed: int
    what: str
    plan: str
    faults: int
    command: str


class FaultsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of ``faults`` plans, counted.

    - ``unheard``: runs of ``ended`` whose client was not notified of a move: the lost host held nothing any more.
    - ``nothing``: values of graphs that were ``NOTHING``. ``missing``: how often a sink lost a source or got it back.
    - ``moves``: relocations. ``recoveries``: how often runs began anew. ``shapes``: changes of the tree.
    - ``queries``: outcomes of queries. ``done``: faults by kind.
    - ``silent_s``: longest time of a fault in which a stream stood still and no message named the fault.
    """

    faults: int
    first_seed: int
    out: str
    delivered: int
    ended: int
    unheard: int
    abandoned: int
    failed: int
    partitions: int
    nothing: int
    missing: int
    lost: int
    duplicate: int
    out_of_order: int
    relocations: int
    moves: dict[str, int]
    recoveries: int
    shapes: dict[str, int]
    queries: dict[str, int]
    done: dict[str, int]
    silent_s: float
    events: int
    failures: tuple[Failure, ...]
    wall_s: float


# --- many plans ---------------------------------------------------------------------------------------


def sweep_faults(
    count: int,
    *,
    first_seed: int,
    out: Path,
    master: str,
    tell: Tell,
    run: Run = run_trial,
    kind: Kind = TREES,
) -> FaultsSummary:
    """Run the plans, count their outcomes, and write each plan that failed into the folder ``out``.

    Raises PlansStopped if anything but an error ends the sweep, such as SIGTERM.
    """
    begun = time.perf_counter()
    seeds = range(first_seed, first_seed + count)
    results: list[TrialResult] = []

    def take(some: Sequence[TrialResult]) -> None:
        results.extend(some)
        tell("fault plans", len(results), count)

    failures: list[Failure] = []
    try:
        take([])
        if count <= FEW_TRIALS or run is not run_trial:
            for seed in seeds:
                take([run(kind.plan(seed))[0]])
        else:
            _on_spark([FaultTrial(configuration=seed, drawn=kind) for seed in seeds], master, take)
        failed = _failed(results)
        for number, result in enumerate(failed):
            tell("making failed plans minimal", number, len(failed))
            plan = kind.plan(result.seed)
            failures.append(_keep(result, minimize(plan, run) if number < MINIMIZED else plan, out))
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        failures += [_keep(result, kind.plan(result.seed), out) for result in _failed(results)[len(failures) :]]
        done = {result.seed for result in results}
        following = next((seed for seed in seeds if seed not in done), seeds.stop)
        summary = _summary(results, failures, first_seed, out, begun) if results else None
        raise PlansStopped(summary, following, seeds.stop - following) from error
    return _summary(results, failures, first_seed, out, begun)


class PlansStopped(Exception):
    """Stop of a sweep of fault plans, with its results so far, the next seed, and the number of plans left."""

    def __init__(self, summary: FaultsSummary | None, next_seed: int, left: int) -> None:
        super().__init__(f"{left} plans from seed {next_seed} are left")
        self.summary, self.next_seed, self.left = summary, next_seed, left


def _failed(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the results of plans that failed, by seed."""
    return sorted((result for result in results if result.outcome == "failed"), key=lambda result: result.seed)


def _summary(
    results: Sequence[TrialResult], failures: Sequence[Failure], first_seed: int, out: Path, begun: float
) -> FaultsSummary:
    """Return the outcomes of plans, counted. There is at least one plan."""
    outcomes = Counter(result.outcome for result in results)
    moves, shapes, queries, done = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        moves.update(result.moves)
        shapes.update(result.shapes)
        queries.update(result.queries)
        done.update(result.faults)
    return FaultsSummary(
        faults=len(results),
        first_seed=first_seed,
        out=str(out),
        delivered=outcomes["delivered"],
        ended=outcomes["ended"],
        unheard=sum(result.kind == "unheard" for result in results),
        abandoned=outcomes["abandoned"],
        failed=outcomes["failed"],
        partitions=sum(result.delivered for result in results),
        nothing=sum(result.nothing for result in results),
        missing=sum(result.missing for result in results),
        lost=sum(result.lost for result in results),
        duplicate=sum(result.duplicate for result in results),
        out_of_order=sum(result.out_of_order for result in results),
        relocations=sum(moves.values()),
        moves=dict(sorted(moves.items())),
        recoveries=sum(result.recoveries for result in results),
        shapes=dict(sorted(shapes.items())),
        queries=dict(sorted(queries.items())),
        done=dict(sorted(done.items())),
        silent_s=max(result.silent_s for result in results),
        events=sum(result.events for result in results),
        failures=tuple(failures),
        wall_s=round(time.perf_counter() - begun, 3),
    )


class FaultTrial(Trial, frozen=True, kw_only=True):
    """Trial of one seed for Spark. The seed is its ``configuration``."""

    drawn: Kind = TREES
    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.faults.sweep:run_seed"


class FaultOutcome(Outcome, frozen=True, kw_only=True):
    """Outcome of a fault trial."""

    result: TrialResult | None = None


FaultTrial.outcome = FaultOutcome


def run_seed(trial: FaultTrial) -> FaultOutcome:
    """Run the plan of a seed, and return its outcome."""
    return FaultOutcome(result=run_trial(trial.drawn.plan(trial.configuration))[0])


def _on_spark(trials: Sequence[FaultTrial], master: str, take: Callable[[list[TrialResult]], None]) -> None:
    """Run the plans on Spark. ``take`` gets the results as they arrive."""
    from thalweg.experiments.sweeps.jobs import run_on_spark

    def finished(batch: list[tuple[Trial, Outcome]]) -> None:
        for trial, outcome in batch:
            if outcome.failed is not None:
                raise RunError(f"Spark could not run the plan of seed {trial.configuration}: {outcome.failed}")
        take([outcome.result for _, outcome in batch if isinstance(outcome, FaultOutcome) and outcome.result])

    run_on_spark(list(trials), finished, master=master)


def _keep(result: TrialResult, plan: FaultPlan, folder: Path) -> Failure:
    path = folder / f"plan-{result.seed}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; take another folder with --out") from error
    command = f"thalweg sweep --replay-faults {shlex.quote(str(path))}"
    return Failure(result.seed, f"{result.kind}: {result.what}", str(path), len(plan.faults), command)


def told(summary: FaultsSummary) -> str:
    """Return the summary as lines for people."""
    moved = {kind: count for kind, count in summary.moves.items() if kind.startswith("moved")}
    stayed = {kind: count for kind, count in summary.moves.items() if kind not in moved}
    nothing = f", {summary.nothing} values of them NOTHING" * bool(summary.nothing)
    return (
        f"{summary.faults} fault plans from seed {summary.first_seed} in {summary.wall_s:.1f} s:"
        f" {summary.delivered} delivered all, {summary.ended} ended naming a host that had gone"
        f" ({summary.unheard} of them without notice of a move),"
        f" {summary.abandoned} lost their client, {summary.failed} failed\n"
        f"{summary.partitions} partitions delivered{nothing}: {summary.lost} lost, {summary.duplicate} duplicate,"
        f" {summary.out_of_order} out of order\n"
        f"{summary.relocations} relocations: {_listed(moved)}, {_listed(stayed)}\n"
        f"begun anew: {summary.recoveries} times; other trees: {_listed(summary.shapes)}\n"
        f"queries that came: {_listed(summary.queries)}\n"
        f"what went wrong: {_listed(summary.done)}\n"
        f"longest standstill in a fault that no message named: {summary.silent_s:.1f} s"
    )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


# --- one plan -----------------------------------------------------------------------------------------


def replay(what: str, kind: Kind = TREES) -> tuple[TrialResult, str]:
    """Run one plan again, of a seed and ``kind`` or of a file. Return its result, also as lines for people.

    Raises UsageError for a file without a plan.
    """
    plan = kind.plan(int(what)) if what.isdecimal() else load_plan(Path(what))
    result, _ = run_trial(plan, digest=True)
    why = f"; {result.kind}: {result.what}" if result.kind else f"; {result.what}" if result.what else ""
    return result, (
        f"seed {plan.seed}, {len(plan.faults)} faults: {result.outcome},"
        f" {result.delivered} of {result.expected} partitions{why}\n"
        f"{_listed(result.moves)}; queries: {_listed(result.queries)}; {result.events} events, {result.digest}"
    )


def load_plan(path: Path) -> FaultPlan:
    """Return the plan in a file. Raise UsageError if the file cannot be read or has no plan."""
    try:
        return msgspec.json.decode(read_bounded(path, MAX_JSON_BYTES), type=FaultPlan)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; give a seed or the file of a plan") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no fault plan: {error}") from None


# --- a minimal plan -----------------------------------------------------------------------------------


def minimize(plan: FaultPlan, run: Run = run_trial) -> FaultPlan:
    """Return the plan with the fewest faults found that makes the trial fail in the same way.

    The effects of a storm are treated as faults of single messages. Delta debugging (Zeller, Hildebrandt, 2002) leaves
    a plan without a single fault to spare. But one fault more or less changes everything after it, so much smaller
    plans may exist. Random parts of the remaining faults are therefore tried as well. There are at most ``MAX_RUNS``
    runs, of about ``MAX_EVENTS`` events in total.
    """
    first, done = run(plan)
    if first.outcome != "failed":
        return plan
    explicit: list[Fault] = [fault for fault in plan.faults if not isinstance(fault, OVER_ALL)]
    explicit += [fault for fault in done if fault not in explicit]
    runs = events = 0

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal runs, events
        runs += 1
        if events >= MAX_EVENTS:
            return False
        result, _ = run(msgspec.structs.replace(plan, faults=tuple(faults)))
        events += result.events
        return (result.outcome, result.kind) == ("failed", first.kind)

    if not fails(explicit):  # possible if two storms affect one message
        return plan
    dice = Random(f"{plan.seed} minimal")
    left = shrink(explicit, fails, MAX_RUNS)
    while runs < MAX_RUNS and len(left) > 1:
        share = dice.choice(SHARES)
        part = [fault for fault in left if dice.random() < share]
        if 0 < len(part) < len(left) and fails(part):
            left = shrink(part, fails, MAX_RUNS - runs)
        elif len(left) <= FEW:
            break
    return msgspec.structs.replace(plan, faults=tuple(left))


def shrink(items: Sequence[T], fails: Callable[[Sequence[T]], bool], max_runs: int) -> list[T]:
    """Return a part of ``items``, which fail together, that still fails: in their order, with none to spare."""
    left, parts, runs = list(items), 2, 1
    if fails([]):
        return []
    while len(left) > 1 and runs < max_runs:
        size = math.ceil(len(left) / parts)
        pieces = [left[at : at + size] for at in range(0, len(left), size)]
        rests = [[item for other in pieces if other is not piece for item in other] for piece in pieces]
        for number, fewer in enumerate((*pieces, *rests) if len(pieces) > 2 else pieces):
            runs += 1
            if fails(fewer):
                parts = 2 if number < len(pieces) else max(parts - 1, 2)
                left = fewer
                break
            if runs >= max_runs:
                return left
        else:
            if parts >= len(left):
                break
            parts = min(2 * parts, len(left))
    return left
