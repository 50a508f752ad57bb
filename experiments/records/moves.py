"""Moves, estimates and plannings of a run as its records tell them, by Spark SQL and without Spark.

Both ways stand side by side here and give the same figures. Seconds are emulated unless a name says ``wall``.
A record ``reshaped`` is a change of the tree, or with another outcome one that did not come about (``trees``).
A *move* is a record ``relocated`` whose outcome is ``moved`` (a record that names no outcome is one, too); any
other is an operator that *stayed*. The new host's record ``arrived`` is its counterpart of the same version.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thalweg.experiments.records.records import EVENTS
from thalweg.middleware.errors import UsageError

BIN_S = 0.25  # of the throughput around a move, wall clock; exact in binary, so every way of binning agrees
SPAN_S = 2.0  # wall seconds shown before and after a suspension
BINS = 16
PHASES = ("decided", "suspended", "state_out", "state_in", "resumed", "first_output")
PROTOCOLS = ("barrier", "epoch")
PROPOSALS = ("committed", "aborted", "superseded")
DECISIONS = ("propose", "move", "stay")  # a planner at the client proposes, an operator's own host moves
HOW = ("passive", "probe")
BATCH_ROWS = 16_384


class Spread(msgspec.Struct, frozen=True):
    """How long something took: how often it was seen, median and 99th percentile."""

    count: int
    p50_s: float | None
    p99_s: float | None


class Timeline(msgspec.Struct, frozen=True):
    """Deliveries at the client around a suspension, mean of up to ``moves`` moves; see ``timeline_wall``.

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


class MoveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one placement's moves were and cost.

    ``pause_*``: from suspension until the old host knew that the operator ran again, of those that moved.
    ``protocols``: moves by protocol. ``state_bytes``: state that travelled. ``proposals``: the client's
    barriers by outcome. ``phases``: time from each phase of a move to the one named; empty without moves.
    ``monitor``: None when no host recorded it. ``reshapes``: how often the tree changed, ``unshaped``: how often it was
    to and did not; ``reshape_pause_*``: from the last partition of the old tree to the first of the new.
    """

    relocations: int = 0
    stayed: int = 0
    pause_p50_s: float | None = None
    pause_p99_s: float | None = None
    pause_max_s: float | None = None
    protocols: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(PROTOCOLS, 0))
    state_bytes: int = 0
    proposals: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(PROPOSALS, 0))
    phases: dict[str, Spread] = {}
    timeline_wall: Timeline | None = None
    plans: Plannings = Plannings(0, None, dict.fromkeys(DECISIONS, 0))
    monitor: Monitoring | None = None
    reshapes: int = 0
    unshaped: int = 0
    reshape_pause_p50_s: float | None = None
    reshape_pause_max_s: float | None = None


class Errors(msgspec.Struct, frozen=True):
    """Relative errors |estimate - truth| / truth of bandwidth estimates."""

    count: int = 0
    median_error: float | None = None
    p95_error: float | None = None


class EstimateErrors(Errors, frozen=True):
    """The same over all of a run's estimates that have a truth, and by how they were measured."""

    passive: Errors = Errors()
    probe: Errors = Errors()


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


# --- with Spark -------------------------------------------------------------------------------------

_DETAIL = (
    "outcome string, protocol string, version bigint,"
    " ago struct<decided: double, suspended: double, state_out: double, state_in: double, resumed: double>"
)
_STEPS = tuple(itertools.pairwise(PHASES))

MOVES = f"""
WITH details AS (
  SELECT *, from_json(detail, '{_DETAIL}') AS d
  FROM events WHERE kind IN ('relocated', 'arrived') AND placement IS NOT NULL),
arrived AS (
  SELECT run, placement, node, d.version AS version, min(t_s - d.ago.state_in) AS state_in,
         min(t_s - d.ago.resumed) AS resumed, min(t_s) AS first_output
  FROM details WHERE kind = 'arrived' GROUP BY run, placement, node, d.version),
handovers AS (
  SELECT r.run, r.placement, coalesce(r.d.outcome, 'moved') = 'moved' AS moved, r.d.protocol AS protocol,
         r.duration_s, r.size_bytes, r.t_s - r.d.ago.decided AS decided, r.t_s - r.d.ago.suspended AS suspended,
         r.t_s - r.d.ago.state_out AS state_out, a.state_in, a.resumed, a.first_output
  FROM details r LEFT JOIN arrived a ON a.run = r.run AND a.placement = r.placement AND a.node = r.node
                                    AND a.version = r.d.version
  WHERE r.kind = 'relocated')
SELECT run, placement, count_if(moved) AS relocations, count_if(NOT moved) AS stayed,
       percentile(duration_s, array(0.5, 0.99)) FILTER (WHERE moved) AS pauses_s,
       max(duration_s) FILTER (WHERE moved) AS pause_max_s,
       coalesce(sum(size_bytes) FILTER (WHERE moved), 0) AS state_bytes,
       {", ".join(f"count_if(moved AND protocol = '{name}') AS by_{name}" for name in PROTOCOLS)},
       {", ".join(f"count({b} - {a}) FILTER (WHERE moved) AS n_{b}" for a, b in _STEPS)},
       {", ".join(f"percentile({b} - {a}, array(0.5, 0.99)) FILTER (WHERE moved) AS to_{b}" for a, b in _STEPS)}
FROM handovers GROUP BY run, placement
"""

# the same bins as timeline_wall; deliveries meet moves by buckets of the window's width, so that nothing
# is compared that is far apart
TIMELINE = f"""
WITH moves AS (
  SELECT run, placement,
         wall_s - CAST(get_json_object(detail, '$.ago.suspended') AS double) / time_scale AS at_wall
  FROM events JOIN scales USING (run)
  WHERE kind = 'relocated' AND placement IS NOT NULL
    AND coalesce(get_json_object(detail, '$.outcome'), 'moved') = 'moved'
    AND get_json_object(detail, '$.ago.suspended') IS NOT NULL),
delivered AS (SELECT run, placement, wall_s FROM events WHERE kind = 'delivered' AND placement IS NOT NULL),
windows AS (
  SELECT moves.*, first_wall, last_wall
  FROM moves JOIN (SELECT run, placement, min(wall_s) AS first_wall, max(wall_s) AS last_wall
                   FROM delivered GROUP BY run, placement) USING (run, placement)),
binned AS (
  SELECT run, placement, at_wall, first_wall, last_wall, bin, 1 AS moves, 0 AS deliveries
  FROM windows LATERAL VIEW explode(sequence(0, {BINS - 1})) AS bin
  UNION ALL
  SELECT run, placement, at_wall, first_wall, last_wall,
         CAST(floor((wall_s - at_wall + {SPAN_S}D) / {BIN_S}D) AS int) AS bin, 0 AS moves, 1 AS deliveries
  FROM (SELECT *, floor(wall_s / {2 * SPAN_S}D) AS bucket FROM delivered)
  JOIN (SELECT * FROM windows LATERAL VIEW explode(sequence(
          floor((at_wall - {SPAN_S}D) / {2 * SPAN_S}D), floor((at_wall + {SPAN_S}D) / {2 * SPAN_S}D))) AS bucket)
  USING (run, placement, bucket))
SELECT run, placement, bin, sum(moves) AS moves, sum(deliveries) AS deliveries
FROM binned
WHERE bin BETWEEN 0 AND {BINS - 1} AND at_wall + (bin * {BIN_S}D - {SPAN_S}D) >= first_wall
  AND at_wall + ((bin + 1) * {BIN_S}D - {SPAN_S}D) <= last_wall
GROUP BY run, placement, bin
"""

DECIDED = f"""
WITH said AS (
  SELECT run, placement, kind, duration_s, detail,
         get_json_object(detail, if(kind IN ('proposal', 'reshaped'), '$.outcome', '$.decision')) AS said
  FROM events WHERE kind IN ('proposal', 'reshaped', 'plan', 'epoch', 'monitor') AND placement IS NOT NULL)
SELECT run, placement, count_if(kind IN ('plan', 'epoch')) AS plannings,
       percentile(duration_s, 0.5) FILTER (WHERE kind = 'plan') AS planning_s,
       {", ".join(f"count_if(kind = 'proposal' AND said = '{name}') AS {name}" for name in PROPOSALS)},
       {", ".join(f"count_if(kind IN ('plan', 'epoch') AND said = '{name}') AS {name}" for name in DECISIONS)},
       count_if(kind = 'reshaped' AND said = 'reshaped') AS reshapes,
       count_if(kind = 'reshaped' AND said <> 'reshaped') AS unshaped,
       percentile(duration_s, 0.5) FILTER (WHERE kind = 'reshaped' AND said = 'reshaped') AS reshape_pause_s,
       max(duration_s) FILTER (WHERE kind = 'reshaped' AND said = 'reshaped') AS reshape_most_s,
       count_if(kind = 'monitor') AS monitors,
       sum(CAST(get_json_object(detail, '$.news_bytes') AS bigint)) FILTER (WHERE kind = 'monitor') AS news_bytes,
       sum(CAST(get_json_object(detail, '$.probe_bytes') AS bigint)) FILTER (WHERE kind = 'monitor') AS probe_bytes,
       sum(CAST(get_json_object(detail, '$.bytes_sent') AS bigint)) FILTER (WHERE kind = 'monitor') AS bytes_sent
FROM said GROUP BY run, placement
"""

ESTIMATES = """
WITH estimates AS (
  SELECT run, value, coalesce(get_json_object(detail, '$.how'), 'probe') AS how,
         CAST(get_json_object(detail, '$.truth_bps') AS double) AS truth
  FROM events WHERE kind = 'estimate')
SELECT run, how, count(*) AS count, percentile(abs(value - truth) / truth, array(0.5, 0.95)) AS errors
FROM estimates WHERE truth > 0 AND value IS NOT NULL
GROUP BY GROUPING SETS ((run), (run, how))
"""


def placed_rows(moves: Any, bins: Sequence[Any], decided: Any) -> MoveFigures:
    """One placement's rows of ``MOVES``, ``TIMELINE`` and ``DECIDED`` put together; None: no such records."""
    figures = MoveFigures()
    if moves is not None:
        pauses = moves.pauses_s or (None, None)
        phases = {b: Spread(moves[f"n_{b}"], *(moves[f"to_{b}"] or (None, None))) for b in PHASES[1:]}
        figures = MoveFigures(
            relocations=moves.relocations,
            stayed=moves.stayed,
            pause_p50_s=pauses[0],
            pause_p99_s=pauses[1],
            pause_max_s=moves.pause_max_s,
            protocols={name: moves[f"by_{name}"] for name in PROTOCOLS},
            state_bytes=moves.state_bytes,
            phases=phases if moves.relocations else {},
            timeline_wall=_timeline({row.bin: (row.moves, row.deliveries) for row in bins}),
        )
    if decided is None:
        return figures
    return msgspec.structs.replace(
        figures,
        proposals={name: decided[name] for name in PROPOSALS},
        plans=Plannings(decided.plannings, decided.planning_s, {name: decided[name] for name in DECISIONS}),
        monitor=_monitoring(decided.news_bytes or 0, decided.probe_bytes or 0, decided.bytes_sent or 0)
        if decided.monitors
        else None,
        reshapes=decided.reshapes,
        unshaped=decided.unshaped,
        reshape_pause_p50_s=decided.reshape_pause_s,
        reshape_pause_max_s=decided.reshape_most_s,
    )


def estimate_rows(rows: Iterable[Any]) -> EstimateErrors:
    """One run's rows of ``ESTIMATES``."""
    by = {row.how: Errors(row["count"], *row.errors) for row in rows}
    return _estimates(by.get(None, Errors()), by)


# --- without Spark ----------------------------------------------------------------------------------


class _Detail(msgspec.Struct):
    """What the figures need of a record's detail, whatever its kind."""

    outcome: str | None = None
    protocol: str | None = None
    reason: str = ""
    why: str = ""
    version: int | None = None
    ago: dict[str, float | None] = {}
    decision: str | None = None
    how: str = "probe"
    truth_bps: float | None = None
    news_bytes: int = 0
    probe_bytes: int = 0
    bytes_sent: int = 0

    @property
    def moved(self) -> bool:
        return (self.outcome or "moved") == "moved"


_decode = msgspec.json.Decoder(_Detail).decode


def read_rows(
    events: Path, columns: list[str], kinds: Sequence[str], *, placed: bool = True
) -> Iterator[tuple[Any, ...]]:
    """The rows of these kinds (``placed``: that belong to a placement), in the log's order and in bounded memory."""
    wanted = pa.array(kinds)
    with pq.ParquetFile(events) as file:
        for batch in file.iter_batches(columns=columns, batch_size=BATCH_ROWS):
            keep = pc.is_in(batch["kind"], wanted)
            kept = batch.filter(pc.and_(keep, pc.is_valid(batch["placement"])) if placed else keep)
            yield from zip(*(kept[column].to_pylist() for column in columns), strict=True)


def read_detail(events: Path, kind: str, text: str | None) -> _Detail:
    """A record's detail; UsageError when it does not have the fields of its kind."""
    try:
        return _decode(text or "{}")
    except msgspec.DecodeError as error:
        raise UsageError(f"{events}: the detail of a record {kind!r} is damaged ({error}); run it again") from None


def read_estimates(events: Path) -> Iterator[tuple[str, float, float]]:
    """How it was measured, the value, and the truth (bit/s) of every estimate that has a truth."""
    for kind, value, text in read_rows(events, ["kind", "value", "detail"], ["estimate"], placed=False):
        detail = read_detail(events, kind, text)
        if value is not None and detail.truth_bps is not None and detail.truth_bps > 0:
            yield detail.how, value, detail.truth_bps


def read_moves(folder: Path) -> list[Move]:
    """Every handover of a run, those that stayed too, by placement and then in the order of time."""
    events = folder / EVENTS
    columns = ["placement", "host", "t_s", "kind", "node", "peer", "size_bytes", "duration_s", "detail"]
    moves = []
    for placement, host, t_s, kind, node, peer, size_bytes, pause_s, text in read_rows(events, columns, ["relocated"]):
        detail = read_detail(events, kind, text)
        at_s = t_s - (detail.ago.get("suspended") or 0.0)
        outcome = detail.outcome or "moved"
        said = (outcome, detail.protocol, detail.reason, detail.why)
        moves.append(Move(placement, node or "", host, peer or "", at_s, t_s, *said, pause_s, size_bytes))
    return sorted(moves, key=lambda move: (move.placement, move.at_s, move.settled_s))


def move_figures(folder: Path, time_scale: float) -> dict[str, MoveFigures]:
    """What ``MOVES``, ``TIMELINE`` and ``DECIDED`` tell of one run, by placement, from one pass over its log."""
    events = folder / EVENTS
    found: dict[str, _Found] = {}
    columns = ["placement", "wall_s", "t_s", "kind", "node", "size_bytes", "duration_s", "detail"]
    kinds = ["delivered", "relocated", "arrived", "proposal", "reshaped", "plan", "epoch", "monitor"]
    for placement, wall_s, t_s, kind, node, size_bytes, duration_s, text in read_rows(events, columns, kinds):
        one = found.setdefault(placement, _Found())
        if kind == "delivered":
            one.deliveries_wall.append(wall_s)
        else:
            one.add(kind, read_detail(events, kind, text), wall_s, t_s, node, size_bytes, duration_s, time_scale)
    return {placement: one.figures() for placement, one in found.items()}


def estimate_errors(folder: Path) -> EstimateErrors:
    """What ``ESTIMATES`` tells of one run."""
    errors: dict[str, list[float]] = {}
    for how, value, truth in read_estimates(folder / EVENTS):
        errors.setdefault(how, []).append(abs(value - truth) / truth)
    everything = [error for some in errors.values() for error in some]
    return _estimates(_errors(everything), {how: _errors(some) for how, some in errors.items()})


class _Found:
    """One placement's records about moves, as they are read."""

    def __init__(self) -> None:
        self.deliveries_wall: list[float] = []
        self.suspended_wall: list[float] = []
        self.pauses: list[float] = []
        self.moved: list[tuple[tuple[str | None, int | None], dict[str, float]]] = []  # who and when
        self.arrived: dict[tuple[str | None, int | None], dict[str, float]] = {}
        self.stayed = 0
        self.state_bytes = 0
        self.protocols = dict.fromkeys(PROTOCOLS, 0)
        self.proposals = dict.fromkeys(PROPOSALS, 0)
        self.decisions = dict.fromkeys(DECISIONS, 0)
        self.plannings = 0
        self.planning_s: list[float] = []
        self.reshapes, self.unshaped = 0, 0
        self.reshape_pauses: list[float] = []
        self.monitors = 0
        self.monitored = [0, 0, 0]

    def add(
        self,
        kind: str,
        detail: _Detail,
        wall_s: float,
        t_s: float,
        node: str | None,
        size_bytes: int | None,
        duration_s: float | None,
        time_scale: float,
    ) -> None:
        when = {phase: t_s - ago for phase, ago in detail.ago.items() if ago is not None}
        if kind == "relocated" and detail.moved:
            self.moved.append(((node, detail.version), when))
            self.state_bytes += size_bytes or 0
            if duration_s is not None:
                self.pauses.append(duration_s)
            if detail.protocol in self.protocols:
                self.protocols[detail.protocol] += 1
            ago = detail.ago.get("suspended")
            if ago is not None:
                self.suspended_wall.append(wall_s - ago / time_scale)
        elif kind == "relocated":
            self.stayed += 1
        elif kind == "arrived" and detail.version is not None:
            known = self.arrived.setdefault((node, detail.version), {})
            for phase, at_s in (when | {"first_output": t_s}).items():
                known[phase] = min(at_s, known.get(phase, math.inf))
        elif kind == "proposal":
            if detail.outcome in self.proposals:
                self.proposals[detail.outcome] += 1
        elif kind == "reshaped":
            changed = detail.outcome == "reshaped"
            self.reshapes += changed
            self.unshaped += not changed
            if changed and duration_s is not None:
                self.reshape_pauses.append(duration_s)
        elif kind in ("plan", "epoch"):
            self.plannings += 1
            if detail.decision in self.decisions:
                self.decisions[detail.decision] += 1
            if kind == "plan" and duration_s is not None:
                self.planning_s.append(duration_s)
        elif kind == "monitor":
            self.monitors += 1
            parts = (detail.news_bytes, detail.probe_bytes, detail.bytes_sent)
            self.monitored = [total + part for total, part in zip(self.monitored, parts, strict=True)]

    def figures(self) -> MoveFigures:
        steps: dict[str, list[float]] = {phase: [] for phase in PHASES[1:]}
        for who, when in self.moved:
            at = {phase: when[phase] for phase in PHASES[:3] if phase in when}
            at |= {phase: at_s for phase, at_s in self.arrived.get(who, {}).items() if phase in PHASES[3:]}
            for before, phase in _STEPS:
                if before in at and phase in at:
                    steps[phase].append(at[phase] - at[before])
        phases = {name: Spread(len(some), _quantile(some, 0.5), _quantile(some, 0.99)) for name, some in steps.items()}
        return MoveFigures(
            relocations=len(self.moved),
            stayed=self.stayed,
            pause_p50_s=_quantile(self.pauses, 0.5),
            pause_p99_s=_quantile(self.pauses, 0.99),
            pause_max_s=max(self.pauses, default=None),
            protocols=self.protocols,
            state_bytes=self.state_bytes,
            proposals=self.proposals,
            phases=phases if self.moved else {},
            timeline_wall=timeline_wall(np.array(self.suspended_wall), np.array(self.deliveries_wall)),
            plans=Plannings(self.plannings, _quantile(self.planning_s, 0.5), self.decisions),
            monitor=_monitoring(*self.monitored) if self.monitors else None,
            reshapes=self.reshapes,
            unshaped=self.unshaped,
            reshape_pause_p50_s=_quantile(self.reshape_pauses, 0.5),
            reshape_pause_max_s=max(self.reshape_pauses, default=None),
        )


def timeline_wall(suspended_wall: npt.NDArray[np.float64], deliveries_wall: npt.NDArray[np.float64]) -> Timeline | None:
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
    counted = {i: (int(moves[i]), int(deliveries[i])) for i in range(BINS)}
    return _timeline(counted)


def _timeline(counted: Mapping[int, tuple[int, int]]) -> Timeline | None:
    """From each bin's number of moves and of deliveries."""
    if not any(moves for moves, _ in counted.values()):
        return None
    rates: list[float | None] = []
    for i in range(BINS):
        moves, deliveries = counted.get(i, (0, 0))
        rates.append(deliveries / BIN_S / moves if moves else None)
    offsets = [i * BIN_S - SPAN_S for i in range(BINS)]
    return Timeline(BIN_S, offsets, rates, max(moves for moves, _ in counted.values()))


def _monitoring(news_bytes: int, probe_bytes: int, bytes_sent: int) -> Monitoring:
    shares = [part / bytes_sent if bytes_sent else None for part in (news_bytes, probe_bytes)]
    return Monitoring(news_bytes, probe_bytes, bytes_sent, *shares)


def _estimates(overall: Errors, by: Mapping[str, Errors]) -> EstimateErrors:
    return EstimateErrors(
        overall.count, overall.median_error, overall.p95_error, *(by.get(how, Errors()) for how in HOW)
    )


def _errors(some: list[float]) -> Errors:
    return Errors(len(some), _quantile(some, 0.5), _quantile(some, 0.95))


def _quantile(some: Sequence[float], share: float) -> float | None:
    return float(np.quantile(some, share)) if some else None
