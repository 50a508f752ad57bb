"""What came out of runs: Spark SQL over the event logs of any number of run folders.

Seconds are those of the emulated network unless a name says ``wall``. An *inter-arrival time* is the
difference between two consecutive deliveries at the client (Ranganathan et al., section 5); the first
image's latency is kept apart as ``first_image_s``.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from thalweg.experiments.records.moves import (
    DECIDED,
    ESTIMATES,
    MOVES,
    TIMELINE,
    EstimateErrors,
    Monitoring,
    Move,
    MoveFigures,
    Plannings,
    Spread,
    Timeline,
    estimate_rows,
    placed_rows,
    read_moves,
)
from thalweg.experiments.records.records import EVENTS, SCHEMA, SPARK_SCHEMA, SUMMARY, RunInfo, load_run
from thalweg.middleware.errors import RunError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASELINE = "download-all"  # what every speed-up is measured against
PROOF_FLOOR_BPS = 500_000.0  # below it a proof lasts for a handful of packets only and says little


class HostLoad(msgspec.Struct, frozen=True):
    """A host's load under one placement: mean CPU share (1.0 is one core) and largest resident memory."""

    mean_cpu: float | None
    max_rss_bytes: int | None


class PlacementSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One placement of one run. Seconds are emulated; None where there is nothing to tell from.

    ``images`` were asked, ``delivered`` counts the different ones that came, ``lost`` those that did not,
    ``duplicate`` the deliveries of one that had come before, ``out_of_order`` those after a later one.
    ``digest`` is the ``sequence_digest`` of what came, ``digest_ok`` whether it is the run's reference.
    ``speedup`` is the baseline's mean inter-arrival time over this one's. What the moves were and cost is
    explained at ``MoveFigures``; ``moves`` lists them only where that was asked for.
    """

    images: int
    delivered: int
    lost: int
    duplicate: int
    out_of_order: int
    digest: str | None
    digest_ok: bool | None
    mean_interarrival_s: float | None
    median_interarrival_s: float | None
    p95_interarrival_s: float | None
    first_image_s: float | None
    elapsed_s: float | None
    wall_s: float | None
    speedup: float | None
    relocations: int
    stayed: int
    pause_p50_s: float | None
    pause_p99_s: float | None
    pause_max_s: float | None
    protocols: dict[str, int]
    state_bytes: int
    proposals: dict[str, int]
    phases: dict[str, Spread]
    timeline_wall: Timeline | None
    plans: Plannings
    monitor: Monitoring | None
    reshapes: int
    unshaped: int
    reshape_pause_p50_s: float | None
    reshape_pause_max_s: float | None
    transfers: int
    bytes_moved: int
    probes: int
    planner: str | None
    predicted_s: float | None
    log_digest: str | None  # of every event of a simulated placement
    messages: dict[str, int]  # how many records of these kinds: duplicate, repeated, rejected, fault
    hosts: dict[str, HostLoad]
    moves: list[Move] | msgspec.UnsetType = msgspec.UNSET


class LinkSummary(msgspec.Struct, frozen=True):
    """What the links delivered against what was asked of them, in rates really on the wire.

    ``checked`` links were asked at least ``PROOF_FLOOR_BPS``; ``worst_rate_error`` is the largest
    |delivered - asked| / asked among them and ``worst_link`` where it was (``h1>h2``). Of links with delays and
    losses: how far the worst delay was from the one asked, one way and on the wall, and how many lost more or less
    than 99 % of such links would. ``worst_window``: the most that a link let through in any tenth of a second of the
    run, of what it was asked; ``lag_max_s`` (wall): the latest that a step of a trace or an event took effect.
    ``stalled``: the largest share of a link's proof in which the machine let nothing pass (``LinkProof.stalled``).
    """

    checked: int
    worst_rate_error: float | None
    worst_link: str | None
    delay_emulated: bool
    worst_delay_error_s: float | None = None
    loss_off: int = 0
    worst_window: float | None = None
    lag_max_s: float | None = None
    stalled: float | None = None


class RunSummary(msgspec.Struct, frozen=True):
    """One run, in the shape the command line prints as JSON."""

    run: str
    out: str
    testbed: str
    seed: int
    reference_digest: str | None
    placements: dict[str, PlacementSummary]
    links: LinkSummary
    estimates: EstimateErrors


class PlacementAggregate(msgspec.Struct, frozen=True):
    """One placement over several runs: means of the runs' values, the speed-up's geometric mean, sums of the moves.

    ``digests_known``: how many runs had a reference to compare their digest with.
    """

    runs: int
    images: int
    delivered: int
    lost: int
    digests_known: int
    digests_wrong: int
    mean_interarrival_s: float | None
    median_interarrival_s: float | None
    p95_interarrival_s: float | None
    speedup: float | None
    relocations: int
    stayed: int
    reshapes: int


class RunsSummary(msgspec.Struct, frozen=True):
    """Several runs and what they say together."""

    runs: list[RunSummary]
    aggregate: dict[str, PlacementAggregate]


ARRIVALS = """
WITH arrivals AS (
  SELECT run, placement, index, t_s, wall_s, row, get_json_object(detail, '$.digest') AS digest,
         t_s - lag(t_s) OVER (PARTITION BY run, placement ORDER BY t_s, row) AS gap_s,
         max(index) OVER (PARTITION BY run, placement ORDER BY t_s, row
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM events WHERE kind = 'delivered' AND placement IS NOT NULL)
SELECT run, placement, count(*) AS deliveries, size(collect_set(index)) AS delivered,
       count_if(index < highest) AS out_of_order,
       avg(gap_s) AS mean_s, percentile(gap_s, array(0.5, 0.95)) AS gaps_s,
       min(t_s) AS first_s, max(t_s) AS last_s,
       min_by(wall_s, struct(t_s, row)) AS first_wall_s, max_by(wall_s, struct(t_s, row)) AS last_wall_s,
       count(digest) AS digests,
       sha2(array_join(transform(array_sort(collect_list(struct(t_s, row, digest))), x -> x.digest), '\\n'),
            256) AS digest
FROM arrivals GROUP BY run, placement
"""

COUNTS = """
SELECT run, placement,
       count_if(kind = 'transfer' AND host <> peer) AS transfers,
       coalesce(sum(size_bytes) FILTER (WHERE kind = 'transfer' AND host <> peer), 0) AS bytes_moved,
       count_if(kind = 'duplicate') AS duplicate, count_if(kind = 'repeated') AS repeated,
       count_if(kind = 'rejected') AS rejected, count_if(kind = 'fault') AS fault,
       array_agg(detail) FILTER (WHERE kind = 'placed') AS placed,
       max(get_json_object(detail, '$.digest')) FILTER (WHERE kind = 'log') AS log_digest
FROM events
WHERE kind IN ('transfer', 'duplicate', 'repeated', 'rejected', 'fault', 'placed', 'log')
  AND placement IS NOT NULL
GROUP BY run, placement
"""

LOADS = """
SELECT run, placement, host, avg(value) AS cpu, max(size_bytes) AS rss
FROM events WHERE kind = 'host_load' AND placement IS NOT NULL GROUP BY run, placement, host
"""

PROOFS = """
WITH links AS (
  SELECT run, kind, host || '>' || peer AS link, coalesce(value, 0) AS got,
         CAST(get_json_object(detail, '$.asked_bps') AS double) AS asked,
         CAST(get_json_object(detail, '$.delivered_delay_s') AS double)
           - CAST(get_json_object(detail, '$.asked_delay_s') AS double) AS delay,
         CAST(get_json_object(detail, '$.lost') AS int) NOT BETWEEN CAST(get_json_object(detail, '$.lost_low') AS int)
           AND CAST(get_json_object(detail, '$.lost_high') AS int) AS off,
         CAST(get_json_object(detail, '$.worst_window') AS double) AS most,
         CAST(get_json_object(detail, '$.lag_max_s') AS double) AS lag,
         CAST(get_json_object(detail, '$.stalled') AS double) AS stalled
  FROM events WHERE kind IN ('proof', 'replay')),
checked AS (
  SELECT *, CASE WHEN kind = 'proof' AND asked >= {floor} THEN abs(got - asked) / asked END AS error FROM links)
SELECT run, size(collect_set(CASE WHEN error IS NOT NULL THEN link END)) AS checked, max(error) AS worst,
       max_by(link, error) AS worst_link, max(abs(delay)) AS delay,
       CAST(coalesce(sum(CASE WHEN off THEN 1 ELSE 0 END), 0) AS int) AS off, max(most) AS most, max(lag) AS lag,
       max(stalled) AS stalled
FROM checked GROUP BY run
"""


def load_runs(folders: Sequence[Path]) -> dict[Path, RunInfo]:
    """The ``RunInfo`` of every folder, each folder once, in the order given.

    Raises UsageError when one is not a run folder, its event log is damaged, or two hold the same run.
    """
    infos: dict[Path, RunInfo] = {}
    for folder in folders:
        if any(folder.resolve() == known.resolve() for known in infos):
            continue
        infos[folder] = load_run(folder)
        try:
            schema = pq.read_schema(folder / EVENTS)
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{folder / EVENTS} is damaged ({_line(error)}); run it again") from None
        if not schema.equals(SCHEMA):
            raise UsageError(f"{folder / EVENTS} has not the columns of an event log; run it again")
    seen: dict[str, Path] = {}
    for folder, info in infos.items():
        if info.run in seen:
            raise UsageError(f"{seen[info.run]} and {folder} hold the same run {info.run}; name only one")
        seen[info.run] = folder
    return infos


def analyze_runs(spark: SparkSession, runs: Mapping[Path, RunInfo]) -> list[RunSummary]:
    """Summarise every run (see ``load_runs``), in the order given; eight Spark queries however many runs.

    Raises RunError when Spark cannot read the logs, as when a cluster's workers do not see the folders.
    """
    from pyspark.errors import PySparkException

    try:
        _events(spark, [folder / EVENTS for folder in runs]).createOrReplaceTempView("events")
        scales = [(info.run, info.time_scale) for info in runs.values()]
        spark.createDataFrame(scales, "run string, time_scale double").createOrReplaceTempView("scales")
        proofs_query = PROOFS.format(floor=PROOF_FLOOR_BPS)
        queries = (ARRIVALS, COUNTS, LOADS, proofs_query, MOVES, TIMELINE, DECIDED, ESTIMATES)
        pool = ThreadPoolExecutor(len(queries))  # small logs: planning takes longer than running
        try:
            rows = list(pool.map(lambda query: spark.sql(query).collect(), queries))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupt does not wait for Spark
    except PySparkException as error:
        raise RunError(f"Spark cannot analyse these runs: {_line(error)}; do all its workers see them?") from error
    arrivals = {(row.run, row.placement): row for row in rows[0]}
    counts = {(row.run, row.placement): row for row in rows[1]}
    loads: dict[tuple[str, str], dict[str, HostLoad]] = {}
    for row in sorted(rows[2], key=lambda row: natural(row.host)):
        loads.setdefault((row.run, row.placement), {})[row.host] = HostLoad(row.cpu, row.rss)
    proofs = {row.run: row for row in rows[3]}
    moves, decided = ({(row.run, row.placement): row for row in some} for some in (rows[4], rows[6]))
    bins, estimates = _grouped(rows[5], "run", "placement"), _grouped(rows[7], "run")
    summaries = []
    for folder, info in runs.items():
        names = [*info.placements, *sorted(p for r, p in arrivals if r == info.run and p not in info.placements)]
        made = {
            name: _placement(
                info,
                name,
                arrivals.get((info.run, name)),
                counts.get((info.run, name)),
                loads.get((info.run, name), {}),
                placed_rows(moves.get((info.run, name)), bins[info.run, name], decided.get((info.run, name))),
            )
            for name in names
        }
        base = made[BASELINE].mean_interarrival_s if BASELINE in made else None
        made = {
            name: msgspec.structs.replace(summary, speedup=_ratio(base, summary.mean_interarrival_s))
            for name, summary in made.items()
        }
        proof = proofs.get(info.run)
        links = LinkSummary(
            proof.checked if proof else 0,
            proof.worst if proof else None,
            proof.worst_link if proof else None,
            info.delay_emulated,
            *((proof.delay, proof.off, proof.most, proof.lag, proof.stalled) if proof else ()),
        )
        errors = estimate_rows(estimates[info.run,])
        summaries.append(
            RunSummary(info.run, str(folder), info.testbed, info.seed, info.reference_digest, made, links, errors)
        )
    return summaries


def _grouped(rows: Iterable[Any], *columns: str) -> defaultdict[tuple[str, ...], list[Any]]:
    groups: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def _events(spark: SparkSession, files: Iterable[Path]) -> DataFrame:
    """The logs as one frame; ``row`` is a record's place in its file, which keeps each host's order."""
    paths = []
    for file in files:
        plain = str(file.resolve())
        paths.append("file://" + "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in plain))
    frame = spark.read.schema(SPARK_SCHEMA).parquet(*paths)
    return frame.selectExpr("*", "_metadata.row_index AS row")


def _placement(
    info: RunInfo, name: str, came: Any, counts: Any, hosts: dict[str, HostLoad], figures: MoveFigures
) -> PlacementSummary:
    """Put one placement's rows together; ``came`` and ``counts`` are None when there were no such records."""
    placed = [msgspec.json.decode(text) for text in counts.placed or ()] if counts else []
    plan: dict[str, Any] = placed[0] if placed else {}
    digest = f"sha256:{came.digest}" if came and came.digests else None
    gaps = (came.gaps_s if came else None) or [None, None]
    return PlacementSummary(
        images=info.images,
        delivered=came.delivered if came else 0,
        lost=max(0, info.images - (came.delivered if came else 0)),
        duplicate=came.deliveries - came.delivered if came else 0,
        out_of_order=came.out_of_order if came else 0,
        digest=digest,
        digest_ok=None if info.reference_digest is None else digest == info.reference_digest,
        mean_interarrival_s=came.mean_s if came else None,
        median_interarrival_s=gaps[0],
        p95_interarrival_s=gaps[1],
        first_image_s=came.first_s if came else None,
        elapsed_s=came.last_s if came else None,
        # the placement's start on the wall clock is t_s = 0, which is told from the first delivery
        wall_s=_wall_s(info, name, came),
        speedup=None,
        transfers=counts.transfers if counts else 0,
        bytes_moved=counts.bytes_moved if counts else 0,
        probes=sum(detail.get("probed", 0) for detail in placed),
        planner=plan.get("planner"),
        predicted_s=plan.get("predicted_s"),
        log_digest=counts.log_digest if counts else None,
        messages={k: counts[k] if counts else 0 for k in ("duplicate", "repeated", "rejected", "fault")},
        hosts=hosts,
        **msgspec.structs.asdict(figures),
    )


def _wall_s(info: RunInfo, name: str, came: Any) -> float | None:
    if name in info.wall_s:
        return info.wall_s[name]
    return came.last_wall_s - came.first_wall_s + came.first_s / info.time_scale if came else None


def failures(summary: RunSummary) -> list[str]:
    """One line for every placement that lost, repeated or reordered images or has another digest; no lines
    mean that the run did what it promised."""
    lines = []
    for name, placement in summary.placements.items():
        where = f"{summary.out}, {name}"
        if placement.lost:
            lines.append(f"{where}: {placement.lost} of {placement.images} images were not delivered")
        if placement.duplicate:
            count = placement.duplicate
            lines.append(f"{where}: {count} {'image was' if count == 1 else 'images were'} delivered more than once")
        if placement.out_of_order:
            count = placement.out_of_order
            lines.append(f"{where}: {count} image{'s' * (count != 1)} came after a later one")
        if placement.digest_ok is False and not placement.lost:
            lines.append(f"{where}: digest {placement.digest} differs from {summary.reference_digest}")
    return lines


def aggregate(summaries: Sequence[RunSummary]) -> dict[str, PlacementAggregate]:
    """What several runs say together, placement by placement, in the order they first appear."""
    found: dict[str, list[PlacementSummary]] = {}
    for summary in summaries:
        for name, placement in summary.placements.items():
            found.setdefault(name, []).append(placement)
    return {
        name: PlacementAggregate(
            runs=len(parts),
            images=sum(part.images for part in parts),
            delivered=sum(part.delivered for part in parts),
            lost=sum(part.lost for part in parts),
            digests_known=sum(part.digest_ok is not None for part in parts),
            digests_wrong=sum(part.digest_ok is False for part in parts),
            mean_interarrival_s=_mean(part.mean_interarrival_s for part in parts),
            median_interarrival_s=_mean(part.median_interarrival_s for part in parts),
            p95_interarrival_s=_mean(part.p95_interarrival_s for part in parts),
            speedup=_mean((part.speedup for part in parts), statistics.geometric_mean),
            relocations=sum(part.relocations for part in parts),
            stayed=sum(part.stayed for part in parts),
            reshapes=sum(part.reshapes for part in parts),
        )
        for name, parts in found.items()
    }


def with_moves(summary: RunSummary) -> RunSummary:
    """The same with every placement's ``moves``, read from the run folder."""
    moves = read_moves(Path(summary.out))
    placements = {
        name: msgspec.structs.replace(row, moves=[move for move in moves if move.placement == name])
        for name, row in summary.placements.items()
    }
    return msgspec.structs.replace(summary, placements=placements)


def to_json(summaries: Sequence[RunSummary]) -> bytes:
    """One JSON object: the run itself when there is one, ``runs`` and ``aggregate`` when there are several."""
    if len(summaries) == 1:
        return msgspec.json.encode(summaries[0])
    return msgspec.json.encode(RunsSummary(list(summaries), aggregate(summaries)))


def write_summary(folder: Path, summary: RunSummary) -> Path:
    """Write ``folder/summary.json``, whole or not at all; RunError when it cannot be."""
    target, part = folder / SUMMARY, folder / f".{SUMMARY}.{os.getpid()}"
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        part.replace(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}; make {folder} writable") from error
    return target


def natural(name: str) -> tuple[Any, ...]:
    """A sort key that puts ``h2`` before ``h10``."""
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name)))


def _ratio(base: float | None, own: float | None) -> float | None:
    return None if base is None or own is None or own <= 0 or not math.isfinite(base) else base / own


def _mean(values: Iterable[float | None], how: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    return how(known) if known else None


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
