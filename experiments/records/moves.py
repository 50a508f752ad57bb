"""Moves of operators, changes of the tree, plannings and estimates of a run, from the run's records.

Seconds are emulated unless a name says ``wall``. A *move* is a record ``relocated`` with the outcome ``moved`` or
without an outcome. With a different outcome the operator *stayed*. The operator's new host writes the counterpart, a
record ``arrived`` of the same version. A record ``reshaped`` is a change of the tree. If its outcome is not
``reshaped``, the change failed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.experiments.records.log import Row, TreeRow, read_log

BIN_S = 0.25  # bin of the throughput around a move, wall clock; exact in binary
SPAN_S = 2.0  # wall seconds shown before and after a suspension
BINS = 16
PHASES = ("decided", "suspended", "state_out", "state_in", "resumed", "first_output")
OLD_HOST = 3  # the old host records so many phases, the new host the rest
PROTOCOLS = ("barrier", "epoch")
PROPOSALS = ("committed", "aborted", "superseded")
DECISIONS = ("propose", "move", "stay")  # a planner at the client proposes, an operator's own host moves
HOW = ("passive", "probe")


class Move(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """Hand-over of one operator, completed or not.

    ``at_s``: time of the suspension, or of the outcome if the operator was never suspended.
    """

    placement: str
    node: str
    source: str
    target: str
    at_s: float
    settled_s: float
    outcome: str
    protocol: str | None
    reason: str
    why: str
    pause_s: float | None
    size_bytes: int | None

    @property
    def moved(self) -> bool:
        return self.outcome == "moved"


class TreeChange(msgspec.Struct, frozen=True):
    """Change of the tree. If the outcome is not ``reshaped``, the change failed.

    ``at_s``: arrival of the new tree's first partition, or time at which the change was given up. ``drained_s``:
    arrival of the old tree's last partition. ``tree`` has every operator of the intended tree and, last, the sink.
    """

    placement: str
    at_s: float
    drained_s: float
    pause_s: float | None
    outcome: str
    reason: str
    why: str
    tree: tuple[TreeRow, ...]

    @property
    def changed(self) -> bool:
        return self.outcome == "reshaped"

    @property
    def hosts(self) -> dict[str, str]:
        """Host of every node of the tree, sources excepted."""
        return {name: host for name, _, host in self.tree}

    @property
    def inputs(self) -> dict[str, list[str]]:
        return {name: inputs for name, inputs, _ in self.tree}

    @property
    def operators(self) -> dict[str, str]:
        """Host of every operator of the tree: all nodes except sources and the sink."""
        return {name: host for name, _, host in self.tree[:-1]}


def read_moves(folder: Path) -> list[Move]:
    """Return all hand-overs of a run, failed hand-overs included, by placement and then by time."""
    return moves_of(read_log(folder, "relocated"))


def moves_of(rows: Iterable[Row]) -> list[Move]:
    """Return the hand-overs from records ``relocated``, by placement and time. Records of no placement are left out."""
    moves = []
    for row in rows:
        if row.placement is not None:
            note = row.detail
            moves.append(
                Move(
                    row.placement, row.node or "", row.host, row.peer or "",
                    row.t_s - (note.ago.get("suspended") or 0.0), row.t_s,
                    note.outcome or "moved", note.protocol, note.reason, note.why, row.duration_s, row.size_bytes,
                )
            )  # fmt: skip
    return sorted(moves, key=lambda move: (move.placement, move.at_s, move.settled_s))


def read_changes(folder: Path) -> list[TreeChange]:
    """Return all changes of the tree in a run, failed changes included, by placement and then by time."""
    return changes_of(read_log(folder, "reshaped"))


def changes_of(rows: Iterable[Row]) -> list[TreeChange]:
    """Return the tree's changes from records ``reshaped``, by placement and time, without records of no placement."""
    changes = []
    for row in rows:
        if row.placement is not None:
            detail, at_s = row.detail, row.t_s - (row.detail.ago.get("first") or 0.0)
            drained_s = at_s if row.duration_s is None else at_s - max(0.0, row.duration_s)
            outcome = (detail.outcome or "stayed", detail.reason, detail.why, detail.after)
            changes.append(TreeChange(row.placement, at_s, drained_s, row.duration_s, *outcome))
    return sorted(changes, key=lambda change: (change.placement, change.at_s))


# --- figures ----------------------------------------------------------------------------------------


class Spread(msgspec.Struct, frozen=True):
    """Distribution of a duration: number of samples, median and 99th percentile."""

    count: int
    p50_s: float | None
    p99_s: float | None


class AroundMoves(msgspec.Struct, frozen=True):
    """Deliveries at the client around a suspension, as the mean of up to ``moves`` moves (see ``around_moves``).

    ``offset_s``: start of each bin of ``bin_s`` wall seconds, relative to the suspension. ``deliveries_per_s``: per
    wall second, None for a bin that no move has.
    """

    bin_s: float
    offset_s: list[float]
    deliveries_per_s: list[float | None]
    moves: int


class Plannings(msgspec.Struct, frozen=True):
    """Decisions of a planner (records ``plan``) or of operators' hosts (``epoch``), counted by result.

    ``median_duration_s``: median time of planning, from records ``plan`` only.
    """

    count: int
    median_duration_s: float | None
    decisions: dict[str, int]


class Monitoring(msgspec.Struct, frozen=True):
    """Cost of the monitor: bytes of piggybacked news and of probes, and both as shares of all bytes sent."""

    news_bytes: int
    probe_bytes: int
    bytes_sent: int
    news_share: float | None
    probe_share: float | None


class Errors(msgspec.Struct, frozen=True):
    """Relative errors |estimate - truth| / truth of bandwidth estimates."""

    count: int = 0
    median_error: float | None = None
    p95_error: float | None = None


class EstimateErrors(Errors, frozen=True):
    """Relative errors of all bandwidth estimates of a run that have a truth, in total and by kind of measurement."""

    passive: Errors = Errors()
    probe: Errors = Errors()


def move_figures(said: Mapping[str, Sequence[Row]], time_scale: float) -> dict[str, Any]:
    """Return the fields of ``PlacementSummary`` about moves, from one placement's records by kind (``said``)."""
    moved = [row for row in said["relocated"] if _moved(row)]
    pauses = [row.duration_s for row in moved if row.duration_s is not None]
    changed = [row for row in said["reshaped"] if row.detail.outcome == "reshaped"]
    reshape_pauses = [row.duration_s for row in changed if row.duration_s is not None]
    planned = [*said["plan"], *said["epoch"]]
    planning = [row.duration_s for row in said["plan"] if row.duration_s is not None]
    return {
        "relocations": len(moved),
        "stayed": len(said["relocated"]) - len(moved),
        "pause_p50_s": quantile(pauses, 0.5),
        "pause_p99_s": quantile(pauses, 0.99),
        "pause_max_s": max(pauses, default=None),
        "protocols": _counted(PROTOCOLS, (row.detail.protocol for row in moved)),
        "state_bytes": sum(row.size_bytes or 0 for row in moved),
        "proposals": _counted(PROPOSALS, (row.detail.outcome for row in said["proposal"])),
        "phases": _phases(moved, said["arrived"]) if moved else {},
        "timeline_wall": moves_wall(said, time_scale),
        "plans": Plannings(
            len(planned), quantile(planning, 0.5), _counted(DECISIONS, (row.detail.decision for row in planned))
        ),
        "monitor": _monitoring(said["monitor"]) if said["monitor"] else None,
        "reshapes": len(changed),
        "unshaped": len(said["reshaped"]) - len(changed),
        "reshape_pause_p50_s": quantile(reshape_pauses, 0.5),
        "reshape_pause_max_s": max(reshape_pauses, default=None),
    }


def _moved(row: Row) -> bool:
    return (row.detail.outcome or "moved") == "moved"


def _counted(names: Iterable[str], seen: Iterable[str | None]) -> dict[str, int]:
    """Return the number of occurrences of each given name. Remaining values are not counted."""
    counts = Counter(seen)
    return {name: counts[name] for name in names}


def _phases(moved: Sequence[Row], arrived: Sequence[Row]) -> dict[str, Spread]:
    """Return the time from each phase of a move to the next phase, under the name of the next phase.

    If a version has several arrivals, the first time of each phase counts.
    """
    at_arrival: dict[tuple[str | None, int], dict[str, float]] = {}
    for row in arrived:
        if row.detail.version is not None:
            first = at_arrival.setdefault((row.node, row.detail.version), {})
            for phase, at_s in _when(row, PHASES[OLD_HOST:]).items():
                first[phase] = min(at_s, first.get(phase, at_s))
    steps: dict[str, list[float]] = {phase: [] for phase in PHASES[1:]}
    for row in moved:
        at = _when(row, PHASES[:OLD_HOST])
        if row.detail.version is not None:
            at |= at_arrival.get((row.node, row.detail.version), {})
        for before, phase in itertools.pairwise(PHASES):
            if before in at and phase in at:
                steps[phase].append(at[phase] - at[before])
    return {name: Spread(len(some), quantile(some, 0.5), quantile(some, 0.99)) for name, some in steps.items()}


def _when(row: Row, phases: Sequence[str]) -> dict[str, float]:
    """Return the times of the given phases, as far as the record has them.

    The time of the first output is the time of the record ``arrived`` itself.
    """
    ago = row.detail.ago | ({"first_output": 0.0} if row.kind == "arrived" else {})
    return {phase: row.t_s - seconds for phase in phases if (seconds := ago.get(phase)) is not None}


def _monitoring(rows: Sequence[Row]) -> Monitoring:
    news, probes = sum(row.detail.news_bytes for row in rows), sum(row.detail.probe_bytes for row in rows)
    sent = sum(row.detail.bytes_sent for row in rows)
    return Monitoring(news, probes, sent, *(part / sent if sent else None for part in (news, probes)))


def moves_wall(said: Mapping[str, Sequence[Row]], time_scale: float) -> AroundMoves | None:
    """Return the deliveries around the moves of one placement, from its records by kind."""
    suspended = [
        row.wall_s - ago / time_scale
        for row in said["relocated"]
        if _moved(row) and (ago := row.detail.ago.get("suspended")) is not None
    ]
    return around_moves(np.array(suspended), np.array([row.wall_s for row in said["delivered"]]))


def around_moves(
    suspended_wall: npt.NDArray[np.float64], deliveries_wall: npt.NDArray[np.float64]
) -> AroundMoves | None:
    """Return deliveries per wall second around the moments of suspension (both in Unix time), as the mean of the moves.

    Bin *i* of ``BINS`` covers ``BIN_S`` seconds from ``i * BIN_S - SPAN_S`` seconds after a suspension on, the end
    excluded. A move counts in a bin that lies between the placement's first and last delivery. Outside this span there
    are no deliveries anyway. The result is None if no move has such a bin.
    """
    if not suspended_wall.size or not deliveries_wall.size:
        return None
    came = np.sort(deliveries_wall)
    begins = np.arange(BINS) * BIN_S - SPAN_S
    ends = np.arange(1, BINS + 1) * BIN_S - SPAN_S
    moves, deliveries = np.zeros(BINS, dtype=int), np.zeros(BINS, dtype=int)
    for at in suspended_wall:
        inside = (at + begins >= came[0]) & (at + ends <= came[-1])
        near = came[np.searchsorted(came, at - SPAN_S - BIN_S) : np.searchsorted(came, at + SPAN_S + BIN_S)]
        bins = np.floor((near - at + SPAN_S) / BIN_S).astype(int)
        moves += inside
        deliveries += inside * np.bincount(bins[(bins >= 0) & (bins < BINS)], minlength=BINS)
    if not moves.any():
        return None
    rates = [int(came) / BIN_S / int(seen) if seen else None for came, seen in zip(deliveries, moves, strict=True)]
    return AroundMoves(BIN_S, begins.tolist(), rates, int(moves.max()))


def judged(rows: Iterable[Row]) -> Iterator[tuple[str, float, float]]:
    """Yield the kind of measurement, the value and the truth (bit/s) of every estimate that has a truth."""
    for row in rows:
        truth_bps = row.detail.truth_bps
        if row.value is not None and truth_bps is not None and truth_bps > 0:
            yield row.detail.how, row.value, truth_bps


def estimate_errors(rows: Iterable[Row]) -> EstimateErrors:
    """Return the relative errors of a run's estimates, for the estimates that have a truth."""
    errors: dict[str, list[float]] = {}
    for how, value, truth_bps in judged(rows):
        errors.setdefault(how, []).append(abs(value - truth_bps) / truth_bps)
    overall = _errors([error for some in errors.values() for error in some])
    return EstimateErrors(*msgspec.structs.astuple(overall), *(_errors(errors.get(how, [])) for how in HOW))


def _errors(some: list[float]) -> Errors:
    return Errors(len(some), quantile(some, 0.5), quantile(some, 0.95))


def quantile(some: Sequence[float] | npt.NDArray[np.float64], share: float) -> float | None:
    """Return a quantile by linear interpolation. The result is None without values."""
    return float(np.quantile(some, share)) if len(some) else None
