"""Figures of a run, from one pass over its event log.

Seconds are those of the emulated network unless a name says ``wall``. An *inter-arrival time* is the difference between
two consecutive deliveries at the client (Ranganathan et al., section 5). The latency of the first image is kept apart
as ``first_image_s``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.experiments.records.bills import Bill
from thalweg.experiments.records.log import Latest, LinkSum, Row, gaps, last_produced, read_log, sum_links
from thalweg.experiments.records.moves import (
    AroundMoves,
    EstimateErrors,
    Monitoring,
    Move,
    Plannings,
    Spread,
    estimate_errors,
    move_figures,
    quantile,
    read_moves,
)
from thalweg.experiments.records.records import EVENTS, SUMMARY, RunInfo, load_run, whole_digest
from thalweg.experiments.records.recoveries import Recovery, recoveries_of
from thalweg.experiments.records.relaying import Relaying, relayings
from thalweg.middleware.errors import UsageError, counted, one_line
from thalweg.middleware.files.writing import whole
from thalweg.middleware.protocol.absent_sources import Gap
from thalweg.operators.reference import sequence_digest

SINK = "sink"  # default of records without a sink
BASELINE = "download-all"  # placement that every speed-up refers to
PROOF_FLOOR_BPS = 500_000.0  # a proof of a lower rate is only a few packets, and too inexact
COUNTED = ("duplicate", "repeated", "rejected", "fault")
KINDS = (
    "delivered", "placed", "host_load", "log", "bill", "proof", "replay", "estimate",
    "relocated", "arrived", "proposal", "reshaped", "recovered", "befallen",
    "plan", "epoch", "monitor", "missing", "nothing", "late", "left-out", "relayed", *COUNTED,
)  # fmt: skip

Said = Mapping[str, Sequence[Row]]  # the records of one placement by their kinds, in the log's order


class HostLoad(msgspec.Struct, frozen=True):
    """Load of a host under one placement: mean CPU share (1.0 is one core) and largest resident memory."""

    mean_cpu: float | None
    max_rss_bytes: int | None


class QuerySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one sink under one placement. Seconds are emulated.

    ``nothing``: number of ``delivered`` indices without a value. ``latency_*``: for indices with a value, time from the
    production of the index at the last of the result's sources to the delivery at the sink. Karimov et al. (2018),
    Benchmarking distributed stream data processing systems, section IV, define the event time of an output in the same
    way: it is the latest event time of the output's inputs.
    """

    delivered: int
    nothing: int
    digest: str | None
    digest_ok: bool | None
    mean_interarrival_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None


class PlacementSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one placement of one run. Seconds are emulated. A figure without data is None.

    ``images``: number of requested partitions. ``delivered``: number of different partitions delivered. ``lost``:
    number of partitions not delivered. ``duplicate``: deliveries of a partition that was delivered before.
    ``out_of_order``: deliveries after a later partition. With several sinks, an index is delivered when all sinks have
    it. ``queries``: results by sink. ``digest``: ``sequence_digest`` of the deliveries. ``digest_ok``: whether the
    digest is the run's reference. ``speedup``: mean inter-arrival time of the baseline divided by that of this
    placement. ``messages``: number of records by kind in ``COUNTED``. ``nothing``: by node, number of indices without a
    value. ``late_rows``: by operator, number of late rows left out. ``skipped_rows``, ``skipped_partitions``: by
    operator with ``on_error``, number left out because of an error. ``log_digest``: digest of all events of a simulated
    placement.

    ``pause_*``: time from the suspension of a moved operator until the old host knew that the operator ran again.
    ``protocols``: moves by protocol. ``state_bytes``: bytes of state that were sent. ``proposals``: barriers of the
    client by outcome. ``phases``: time from each phase of a move to the named phase, empty without moves.
    ``timeline_wall``: deliveries around the moves. ``monitor``: None if no host recorded it. ``reshapes``: number of
    changes of the tree. ``unshaped``: number of failed changes. ``reshape_pause_*``: time from the last partition of
    the old tree to the first of the new tree. ``recoveries``: recoveries after the loss of hosts. ``moves``: present
    only on request. ``missing``: for a run that went on without a source, the source's missing partitions as [first,
    until). ``reference_digest``: digest of a single machine without these partitions. ``bill``: of networks that have
    prices. ``relayed``: partitions that hosts relayed.
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
    timeline_wall: AroundMoves | None
    plans: Plannings
    monitor: Monitoring | None
    reshapes: int
    unshaped: int
    reshape_pause_p50_s: float | None
    reshape_pause_max_s: float | None
    recoveries: list[Recovery]
    transfers: int
    bytes_moved: int
    probes: int
    planner: str | None
    predicted_s: float | None
    log_digest: str | None
    messages: dict[str, int]
    nothing: dict[str, int]
    late_rows: dict[str, int]
    skipped_rows: dict[str, int]
    skipped_partitions: dict[str, int]
    queries: dict[str, QuerySummary]
    hosts: dict[str, HostLoad]
    moves: list[Move] | msgspec.UnsetType = msgspec.UNSET
    missing: dict[str, list[Gap]] | msgspec.UnsetType = msgspec.UNSET
    reference_digest: str | msgspec.UnsetType | None = msgspec.UNSET
    bill: Bill | msgspec.UnsetType = msgspec.UNSET
    relayed: list[Relaying] | msgspec.UnsetType = msgspec.UNSET


class LinkSummary(msgspec.Struct, frozen=True):
    """Comparison of what links delivered with what the run asked of them, in rates on the wire.

    ``checked``: number of links that were asked at least ``PROOF_FLOOR_BPS``. ``worst_rate_error``: of these links,
    largest |delivered - asked| / asked. ``worst_link``: link with this error (``h1>h2``). ``worst_delay_error_s``: of
    links with delays and losses, largest difference between delivered and asked delay, one way and on the wall.
    ``loss_off``: number of such links with a loss outside the range of 99 % of such links. ``worst_window``: largest
    share of the asked rate that a link let through in a tenth of a second. ``lag_max_s`` (wall): largest lateness of a
    step of a trace or of an event. ``stalled``: largest share of a link's proof in which the machine let nothing pass
    (``LinkProof.stalled``). ``unproved``: asked rates of links below ``PROOF_FLOOR_BPS``, 0 for a link that was cut.
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
    unproved: dict[str, float] = {}


class RunSummary(msgspec.Struct, frozen=True):
    """Summary of one run, in the shape of the command line's JSON output."""

    run: str
    out: str
    testbed: str
    seed: int
    reference_digest: str | None
    placements: dict[str, PlacementSummary]
    links: LinkSummary
    estimates: EstimateErrors
    missing: list[str] = []  # lines about missing parts of the hosts' logs
    item: str = "image"  # noun for a delivered partition


@contextmanager
def reading_log(folder: Path) -> Iterator[None]:
    """Raise UsageError with the name of the log if its readers fail on damaged records."""
    try:
        yield
    except FileNotFoundError:  # the log is not damaged, but absent
        raise
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        problem = one_line(error)[:200] or type(error).__name__
        raise UsageError(f"{folder / EVENTS} is damaged ({type(error).__name__}: {problem}); run it again") from None


def summarize_run(folder: Path, info: RunInfo | None = None) -> RunSummary:
    """Return the summary of one run folder. ``info``: result of ``load_run``, if known.

    Raises UsageError if the folder is not a run folder, or a record is damaged.
    """
    info = info or load_run(folder)
    records: defaultdict[str | None, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in read_log(folder, *KINDS):
        records[row.placement][row.kind].append(row)
    transfers: defaultdict[str, list[LinkSum]] = defaultdict(list)
    for (name, host, peer), carried in sum_links(folder, "transfer", "size_bytes").items():
        if host != peer:
            transfers[name].append(carried)
    more = sorted(name for name, own in records.items() if name is not None and own["delivered"])
    names = dict.fromkeys([*info.placements, *more])
    produced = last_produced(folder, info.queries)
    placements = {name: _placement(info, name, records[name], transfers[name], produced) for name in names}
    base_s = placements[BASELINE].mean_interarrival_s if BASELINE in placements else None
    for name, summary in placements.items():
        own_s = summary.mean_interarrival_s
        placements[name] = msgspec.structs.replace(summary, speedup=base_s / own_s if base_s and own_s else None)
    links = _links(info, [row for own in records.values() for kind in ("proof", "replay") for row in own[kind]])
    errors = estimate_errors(row for own in records.values() for row in own["estimate"])
    about = info.run, str(folder), info.testbed, info.seed, info.reference_digest
    return RunSummary(*about, placements, links, errors, gaps(folder, records[None]["missing"]), info.item)


def _placement(
    info: RunInfo, name: str, said: Said, transfers: Sequence[LinkSum], produced: Mapping[str, Latest]
) -> PlacementSummary:
    rows = sorted(said["delivered"], key=lambda row: row.t_s)  # rows of equal times stay in the log's order
    by_sink = _by_sink(rows, info.queries)
    references = info.references_of(name)
    queries = {
        sink: _query(references.get(sink), own, produced.get(sink, {}).get(name, {})) for sink, own in by_sink.items()
    }
    came = complete(rows, len(queries))
    delivered = len({row.index for row in came})
    reference = whole_digest(references) if name in info.references else info.reference_digest
    digest = whole_digest({sink: query.digest for sink, query in queries.items() if query.digest is not None})
    return PlacementSummary(
        images=info.images,
        delivered=delivered,
        lost=max(0, info.images - delivered),
        duplicate=len(rows) - sum(query.delivered for query in queries.values()),
        out_of_order=sum(map(_out_of_order, by_sink.values())),
        digest=digest,
        digest_ok=None if reference is None else digest == reference,
        wall_s=info.wall_s.get(name, _wall_s(came, info.time_scale)),
        speedup=None,
        transfers=sum(link.rows for link in transfers),
        bytes_moved=int(sum(link.total for link in transfers)),
        log_digest=said["log"][0].detail.digest if said["log"] else None,
        messages={kind: len(said[kind]) for kind in COUNTED},
        queries=queries,
        hosts=_loads(said["host_load"]),
        missing=next((dict(row.detail.missing) for row in said["recovered"][::-1]), {}) or msgspec.UNSET,
        reference_digest=reference if name in info.references else msgspec.UNSET,
        recoveries=recoveries_of(said["recovered"], said["befallen"], came),
        bill=next((row.detail.bill for row in said["bill"] if row.detail.bill), msgspec.UNSET),
        relayed=relayings(said["relayed"]) or msgspec.UNSET,
        **_arrival_figures(came),
        **_plan_figures(said["placed"]),
        **_omission_figures(said),
        **move_figures(said, info.time_scale),
    )


def _by_sink(rows: Iterable[Row], sinks: Iterable[str]) -> dict[str, list[Row]]:
    """Return the deliveries at each sink, with an empty list for a sink without deliveries."""
    by_sink: dict[str, list[Row]] = {sink: [] for sink in sinks}
    for row in rows:
        by_sink.setdefault(row.node or SINK, []).append(row)
    return by_sink


def _wall_s(came: Sequence[Row], time_scale: float) -> float | None:
    """Return the wall time from the placement's start to the last delivery. None without deliveries."""
    if not came:
        return None
    # the placement's start is t_s = 0; its wall time follows from the first delivery
    return came[-1].wall_s - came[0].wall_s + came[0].t_s / time_scale


def _arrival_figures(came: Sequence[Row]) -> dict[str, Any]:
    """Return the fields of ``PlacementSummary`` about the times of complete deliveries."""
    waits = np.diff(np.array([row.t_s for row in came]))
    return {
        "mean_interarrival_s": float(waits.mean()) if waits.size else None,
        "median_interarrival_s": float(np.median(waits)) if waits.size else None,
        "p95_interarrival_s": quantile(waits, 0.95),
        "first_image_s": came[0].t_s if came else None,
        "elapsed_s": came[-1].t_s if came else None,
    }


def _plan_figures(placed: Sequence[Row]) -> dict[str, Any]:
    """Return the fields of ``PlacementSummary`` about the planning of the first placement."""
    plan = placed[0].detail if placed else None
    return {
        "probes": sum(row.detail.probed for row in placed),
        "planner": plan.planner if plan else None,
        "predicted_s": plan.predicted_s if plan else None,
    }


def _omission_figures(said: Said) -> dict[str, Any]:
    """Return the fields of ``PlacementSummary`` about indices without a value, and rows and partitions left out."""
    late = sorted({row.node or "" for row in said["late"]})
    skipped = Counter[str]()
    for row in said["left-out"]:
        skipped[row.node or ""] += int(row.value or 0)
    unmade = Counter(row.node or "" for row in said["left-out"] if row.value is None)
    return {
        "nothing": dict(sorted(Counter(row.node or "" for row in said["nothing"]).items())),
        "late_rows": {node: sum(int(row.value or 0) for row in said["late"] if row.node == node) for node in late},
        "skipped_rows": {node: count for node, count in sorted(skipped.items()) if count},
        "skipped_partitions": dict(sorted(unmade.items())),
    }


def _query(reference: str | None, came: Sequence[Row], produced_s: Mapping[int, float]) -> QuerySummary:
    """Return the results of one sink from its deliveries. ``produced_s``: time of production by index."""
    digests = [row.detail.digest for row in came if row.detail.digest is not None]
    digest = sequence_digest(digests) if digests else None
    known = latencies(came, produced_s)
    waits = np.diff([row.t_s for row in came])
    return QuerySummary(
        delivered=len({row.index for row in came}),
        nothing=sum(not row.size_bytes for row in came),
        digest=digest,
        digest_ok=None if reference is None else digest == reference,
        mean_interarrival_s=float(waits.mean()) if waits.size else None,
        latency_p50_s=quantile(known, 0.5),
        latency_p95_s=quantile(known, 0.95),
        latency_p99_s=quantile(known, 0.99),
    )


def latencies(came: Iterable[Row], produced_s: Mapping[int, float]) -> list[float]:
    """Return the latencies of a sink's deliveries that have a value.

    A latency begins when the last of the sink's sources has produced the index.
    """
    known = ((row.t_s, produced_s.get(-1 if row.index is None else row.index)) for row in came if row.size_bytes)
    return [at_s - since_s for at_s, since_s in known if since_s is not None]


def complete(rows: Iterable[Row], sinks: int) -> list[Row]:
    """Return the deliveries after which all ``sinks`` had the index. ``rows`` are in the order of time."""
    sinks_of: defaultdict[int | None, set[str | None]] = defaultdict(set)
    deliveries = []
    for row in rows:
        sinks_of[row.index].add(row.node)
        if len(sinks_of[row.index]) >= sinks:
            deliveries.append(row)
    return deliveries


def _out_of_order(rows: Sequence[Row]) -> int:
    indices = np.array([row.index for row in rows], dtype=np.int64)
    return int(np.count_nonzero(indices < np.maximum.accumulate(indices))) if len(rows) else 0


def _loads(rows: Sequence[Row]) -> dict[str, HostLoad]:
    of: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of[row.host].append(row)
    loads = {}
    for host in sorted(of, key=natural):
        cpu = [row.value for row in of[host] if row.value is not None]
        rss = [row.size_bytes for row in of[host] if row.size_bytes is not None]
        loads[host] = HostLoad(float(np.mean(cpu)) if cpu else None, max(rss, default=None))
    return loads


def _links(info: RunInfo, rows: Sequence[Row]) -> LinkSummary:
    """Return the summary of the links from records of proofs and of replayed traces."""
    errors: dict[str, float] = {}
    unproved: dict[str, float] = {}
    for row in rows:
        asked_bps = row.detail.asked_bps
        if row.kind != "proof" or asked_bps is None:
            continue
        link = f"{row.host}>{row.peer}" + (f" over {row.detail.via}" if row.detail.via else "")
        if asked_bps >= PROOF_FLOOR_BPS:
            errors[link] = abs((row.value or 0.0) / asked_bps - 1)
        else:
            unproved[link] = asked_bps
    worst = max(errors, key=lambda link: errors[link], default=None)
    details = [row.detail for row in rows]
    delayed = [proof for proof in details if proof.delivered_delay_s is not None]
    delays = [
        abs(proof.delivered_delay_s - proof.asked_delay_s) for proof in delayed if proof.delivered_delay_s is not None
    ]

    def largest(name: str) -> float | None:
        return max((value for proof in details if (value := getattr(proof, name)) is not None), default=None)

    return LinkSummary(
        checked=len(errors),
        worst_rate_error=None if worst is None else errors[worst],
        worst_link=worst,
        delay_emulated=info.delay_emulated,
        worst_delay_error_s=max(delays, default=None),
        loss_off=sum(not proof.lost_low <= proof.lost <= proof.lost_high for proof in delayed),
        worst_window=largest("worst_window"),
        lag_max_s=largest("lag_max_s"),
        stalled=largest("stalled"),
        unproved={link: unproved[link] for link in sorted(unproved, key=natural)},
    )


def failures(summary: RunSummary) -> list[str]:
    """Return a line for every placement that lost, repeated or reordered images, or has a wrong digest.

    An empty list means that the run was correct.
    """
    lines = []
    for name, placement in summary.placements.items():
        where = f"{summary.out}, {name}"
        if placement.lost:
            lines.append(f"{where}: {placement.lost} of {placement.images} {summary.item}s were not delivered")
        if placement.duplicate:
            count = placement.duplicate
            lines.append(
                f"{where}: {counted(count, summary.item)} {'was' if count == 1 else 'were'} delivered more than once"
            )
        if placement.out_of_order:
            lines.append(f"{where}: {counted(placement.out_of_order, summary.item)} came after a later one")
        if placement.digest_ok is False and not placement.lost:
            wanted = placement.reference_digest or summary.reference_digest
            lines.append(f"{where}: digest {placement.digest} differs from {wanted}")
    return lines


def with_moves(summary: RunSummary) -> RunSummary:
    """Return a copy in which every placement has its ``moves``, read from the run folder."""
    moves = read_moves(Path(summary.out))
    placements = {
        name: msgspec.structs.replace(row, moves=[move for move in moves if move.placement == name])
        for name, row in summary.placements.items()
    }
    return msgspec.structs.replace(summary, placements=placements)


def write_summary(folder: Path, summary: RunSummary) -> Path:
    """Write ``folder/summary.json``, whole or not at all. Raise RunError if it cannot be written."""
    target = folder / SUMMARY
    with whole(target, f"make {folder} writable") as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return target


def natural(name: str) -> tuple[Any, ...]:
    """Return a sort key that puts ``h2`` before ``h10``."""
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name)))
