"""Moves of operators, changes of the tree, plannings and estimates of a run, as its records tell of them.

Seconds are emulated unless a name says ``wall``. A *move* is a record ``relocated`` whose outcome is ``moved`` (one
that names no outcome is a move, too); with another outcome an operator *stayed*. The record ``arrived`` of the host
that the operator came to is the move's counterpart of the same version. A record ``reshaped`` is a change of the tree,
or with another outcome one that did not come about.
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

BIN_S = 0.25  # of the throughput around a move, wall clock; exact in binary
SPAN_S = 2.0  # wall seconds shown before and after a suspension
BINS = 16
PHASES = ("decided", "suspended", "state_out", "state_in", "resumed", "first_output")
OLD_HOST = 3  # so many phases the old host tells of, the rest the new one
PROTOCOLS = ("barrier", "epoch")
PROPOSALS = ("committed", "aborted", "superseded")
DECISIONS = ("propose", "move", "stay")  # a planner at the client proposes, an operator's own host moves
HOW = ("passive", "probe")


class Move(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One handover of an operator. ``at_s``: when it was suspended (settled, where it never was)."""

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
    """The tree changed, or with another outcome than ``reshaped`` it was to and did not.

    ``at_s``: when its first partition came (it was given up); ``drained_s``: when the old tree's last one had come.
    ``tree`` has every operator and, last, the sink; in one that did not change too: what it was to be.
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
        """Where the nodes of the tree are, but for its sources."""
        return {name: host for name, _, host in self.tree}

    @property
    def inputs(self) -> dict[str, list[str]]:
        return {name: inputs for name, inputs, _ in self.tree}

    @property
    def operators(self) -> dict[str, str]:
        """Where the tree has its operators: all but the sink."""
        return {name: host for name, _, host in self.tree[:-1]}


def read_moves(folder: Path) -> list[Move]:
    """Every handover of a run, those that stayed too, by placement and then in the order of time."""
    return moves_of(read_log(folder, "relocated"))


def moves_of(rows: Iterable[Row]) -> list[Move]:
    """The same from records ``relocated``, but for those of no placement."""
    moves = []
    for row in rows:
        if row.placement is not None:
            said = row.detail
            moves.append(
                Move(
                    row.placement, row.node or "", row.host, row.peer or "",
                    row.t_s - (said.ago.get("suspended") or 0.0), row.t_s,
                    said.outcome or "moved", said.protocol, said.reason, said.why, row.duration_s, row.size_bytes,
                )
            )  # fmt: skip
    return sorted(moves, key=lambda move: (move.placement, move.at_s, move.settled_s))


def read_changes(folder: Path) -> list[TreeChange]:
    """Every change of the tree in a run, those that did not come about too, by placement and then in order of time."""
    return changes_of(read_log(folder, "reshaped"))


def changes_of(rows: Iterable[Row]) -> list[TreeChange]:
    """The same from records ``reshaped``, but for those of no placement."""
    changes = []
    for row in rows:
        if row.placement is not None:
            said, at_s = row.detail, row.t_s - (row.detail.ago.get("first") or 0.0)
            drained_s = at_s if row.duration_s is None else at_s - max(0.0, row.duration_s)
            told = (said.outcome or "stayed", said.reason, said.why, said.after)
            changes.append(TreeChange(row.placement, at_s, drained_s, row.duration_s, *told))
    return sorted(changes, key=lambda change: (change.placement, change.at_s))


# --- figures ----------------------------------------------------------------------------------------


class Spread(msgspec.Struct, frozen=True):
    """How long something took: how often it was seen, median and 99th percentile."""

    count: int
    p50_s: float | None
    p99_s: float | None


class AroundMoves(msgspec.Struct, frozen=True):
    """Deliveries at the client around a suspension, mean of up to ``moves`` moves; see ``around_moves``.

    ``offset_s``: where each bin of ``bin_s`` wall seconds begins, relative to the suspension.
    ``deliveries_per_s``: per wall second; None where no move has that bin.
    """

    bin_s: float
    offset_s: list[float]
    deliveries_per_s: list[float | None]
    moves: int


class Plannings(msgspec.Struct, frozen=True):
    """How often a planner (``plan``) or an operator's host (``epoch``) decided, how long planning took at the
    median (plans only), and what they decided."""

    count: int
    median_duration_s: float | None
    decisions: dict[str, int]


class Monitoring(msgspec.Struct, frozen=True):
    """What the monitor cost: bytes of piggybacked news and of probes, and their shares of all bytes sent."""

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
    """The same over all of a run's estimates that have a truth, and by how they were measured."""

    passive: Errors = Errors()
    probe: Errors = Errors()


def move_figures(said: Mapping[str, Sequence[Row]], time_scale: float) -> dict[str, Any]:
    """What one placement's records, by kind, tell of its moves: the fields of ``PlacementSummary`` by their names."""
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
    """How often each of these names was seen, and no other."""
    counts = Counter(seen)
    return {name: counts[name] for name in names}


def _phases(moved: Sequence[Row], arrived: Sequence[Row]) -> dict[str, Spread]:
    """Time from each phase of a move to the one named; of several arrivals of a version the first counts."""
    there: dict[tuple[str | None, int], dict[str, float]] = {}
    for row in arrived:
        if row.detail.version is not None:
            first = there.setdefault((row.node, row.detail.version), {})
            for phase, at_s in _when(row, PHASES[OLD_HOST:]).items():
                first[phase] = min(at_s, first.get(phase, at_s))
    steps: dict[str, list[float]] = {phase: [] for phase in PHASES[1:]}
    for row in moved:
        at = _when(row, PHASES[:OLD_HOST])
        if row.detail.version is not None:
            at |= there.get((row.node, row.detail.version), {})
        for before, phase in itertools.pairwise(PHASES):
            if before in at and phase in at:
                steps[phase].append(at[phase] - at[before])
    return {name: Spread(len(some), quantile(some, 0.5), quantile(some, 0.99)) for name, some in steps.items()}


def _when(row: Row, phases: Sequence[str]) -> dict[str, float]:
    """When those of these phases were that the record tells of; the first output is the record ``arrived`` itself."""
    ago = row.detail.ago | ({"first_output": 0.0} if row.kind == "arrived" else {})
    return {phase: row.t_s - seconds for phase in phases if (seconds := ago.get(phase)) is not None}


def _monitoring(rows: Sequence[Row]) -> Monitoring:
    news, probes = sum(row.detail.news_bytes for row in rows), sum(row.detail.probe_bytes for row in rows)
    sent = sum(row.detail.bytes_sent for row in rows)
    return Monitoring(news, probes, sent, *(part / sent if sent else None for part in (news, probes)))


def moves_wall(said: Mapping[str, Sequence[Row]], time_scale: float) -> AroundMoves | None:
    """Deliveries around the moves of one placement, from its records by kind."""
    suspended = [
        row.wall_s - ago / time_scale
        for row in said["relocated"]
        if _moved(row) and (ago := row.detail.ago.get("suspended")) is not None
    ]
    return around_moves(np.array(suspended), np.array([row.wall_s for row in said["delivered"]]))


def around_moves(
    suspended_wall: npt.NDArray[np.float64], deliveries_wall: npt.NDArray[np.float64]
) -> AroundMoves | None:
    """Deliveries per wall second around the moments of suspension (both in Unix time), averaged over the moves.

    Bin *i* of ``BINS`` takes the deliveries from ``i * BIN_S - SPAN_S`` seconds after a suspension up to, but
    without, ``BIN_S`` later. A move counts in those of its bins that lie between the placement's first
    delivery and its last: outside nothing could be delivered, moves or not. None when no move has such a bin.
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
    """How it was measured, the value, and the truth (bit/s) of every estimate that has a truth."""
    for row in rows:
        truth_bps = row.detail.truth_bps
        if row.value is not None and truth_bps is not None and truth_bps > 0:
            yield row.detail.how, row.value, truth_bps


def estimate_errors(rows: Iterable[Row]) -> EstimateErrors:
    """How far a run's estimates were from the truth, where there is one."""
    errors: dict[str, list[float]] = {}
    for how, value, truth_bps in judged(rows):
        errors.setdefault(how, []).append(abs(value - truth_bps) / truth_bps)
    overall = _errors([error for some in errors.values() for error in some])
    return EstimateErrors(*msgspec.structs.astuple(overall), *(_errors(errors.get(how, [])) for how in HOW))


def _errors(some: list[float]) -> Errors:
    return Errors(len(some), quantile(some, 0.5), quantile(some, 0.95))


def quantile(some: Sequence[float] | npt.NDArray[np.float64], share: float) -> float | None:
    """By linear interpolation; None of no values."""
    return float(np.quantile(some, share)) if len(some) else None
