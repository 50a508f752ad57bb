"""What came out of a run: its figures, from one pass over its event log.

Seconds are those of the emulated network unless a name says ``wall``. An *inter-arrival time* is the
difference between two consecutive deliveries at the client (Ranganathan et al., section 5); the first
image's latency is kept apart as ``first_image_s``.
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

SINK = "sink"  # of records that do not name one
BASELINE = "download-all"  # what every speed-up is measured against
PROOF_FLOOR_BPS = 500_000.0  # below it a proof lasts for a handful of packets only and says little
COUNTED = ("duplicate", "repeated", "rejected", "fault")
KINDS = (
    "delivered", "placed", "host_load", "log", "bill", "proof", "replay", "estimate",
    "relocated", "arrived", "proposal", "reshaped", "recovered", "befallen",
    "plan", "epoch", "monitor", "missing", "nothing", "late", "left-out", "relayed", *COUNTED,
)  # fmt: skip

Said = Mapping[str, Sequence[Row]]  # the records of one placement by their kinds, in the log's order


class HostLoad(msgspec.Struct, frozen=True):
    """A host's load under one placement: mean CPU share (1.0 is one core) and largest resident memory."""

    mean_cpu: float | None
    max_rss_bytes: int | None


class QuerySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink was given under one placement. Seconds are emulated.

    ``nothing``: how many of the indices ``delivered`` had no value. ``latency_*``: of those with a value, from when the
    last of the sources that they are made of had produced that index until it was delivered at the sink (Karimov et al.
    (2018), Benchmarking distributed stream data processing systems, section IV: an output's event time is the latest
    of what it is made of).
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
    """One placement of one run. Seconds are emulated; None where there is nothing to tell from.

    ``images`` were asked, ``delivered`` counts the different ones that came, ``lost`` those that did not,
    ``duplicate`` the deliveries of one that had come before, ``out_of_order`` those after a later one.
    Where there are several sinks an index has come when all have it; ``queries`` tells of each sink.
    ``digest`` is the ``sequence_digest`` of what came, ``digest_ok`` whether it is the run's reference.
    ``speedup`` is the baseline's mean inter-arrival time over this one's. ``messages``: how many records there are of
    the kinds in ``COUNTED``; ``nothing``: by node, how many indices had no value there; ``late_rows``: by operator, how
    many rows it left out as they came too late; ``skipped_rows`` and ``skipped_partitions``: by operator with
    ``on_error``, what it left out as it could not compute it. ``log_digest``: of every event of a simulated placement.

    ``pause_*``: from suspension until the old host knew that the operator ran again, of those that moved.
    ``protocols``: moves by protocol. ``state_bytes``: state that travelled. ``proposals``: the client's
    barriers by outcome. ``phases``: time from each phase of a move to the one named; empty without moves.
    ``timeline_wall``: deliveries around the moves. ``monitor``: None when no host recorded it. ``reshapes``: how often
    the tree changed, ``unshaped``: how often it was to and did not; ``reshape_pause_*``: from the last partition of
    the old tree to the first of the new. ``recoveries``: how it went on when hosts were lost. ``moves`` lists the
    moves only where that was asked for. ``missing``: by source the partitions of which it was missing, [first, until),
    of a run that went on without it; ``reference_digest``: then of what one machine gives so. ``bill``: of networks
    that have prices. ``relayed``: what hosts passed on for others.
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
    """What the links delivered against what was asked of them, in rates really on the wire.

    ``checked`` links were asked at least ``PROOF_FLOOR_BPS``; ``worst_rate_error`` is the largest
    |delivered - asked| / asked among them and ``worst_link`` where it was (``h1>h2``). Of links with delays and
    losses: how far the worst delay was from the one asked, one way and on the wall, and how many lost more or less
    than 99 % of such links would. ``worst_window``: the most that a link let through in any tenth of a second of the
    run, of what it was asked; ``lag_max_s`` (wall): the latest that a step of a trace or an event took effect.
    ``stalled``: the largest share of a link's proof in which the machine let nothing pass (``LinkProof.stalled``).
    ``unproved``: the links that were asked less than ``PROOF_FLOOR_BPS``, and what was asked of them; 0 of one that
    was cut.
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
    """One run, in the shape the command line prints as JSON."""

    run: str
    out: str
    testbed: str
    seed: int
    reference_digest: str | None
    placements: dict[str, PlacementSummary]
    links: LinkSummary
    estimates: EstimateErrors
    missing: list[str] = []  # of the hosts' logs, one line each
    item: str = "image"  # what is delivered, in a word


@contextmanager
def reading_log(folder: Path) -> Iterator[None]:
    """Raise UsageError with the name of the log if its readers fail on damaged records."""
    try:
        yield
    except FileNotFoundError:  # nothing is wrong with the log: it is elsewhere
        raise
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = one_line(error)[:200] or type(error).__name__
        raise UsageError(f"{folder / EVENTS} is damaged ({type(error).__name__}: {what}); run it again") from None


def summarize_run(folder: Path, info: RunInfo | None = None) -> RunSummary:
    """Summarise one run folder (``info``: what ``load_run`` told of it).

    Raises UsageError when it is not one, or a record is damaged.
    """
    info = info or load_run(folder)
    said: defaultdict[str | None, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in read_log(folder, *KINDS):
        said[row.placement][row.kind].append(row)
    transfers: defaultdict[str, list[LinkSum]] = defaultdict(list)
    for (name, host, peer), carried in sum_links(folder, "transfer", "size_bytes").items():
        if host != peer:
            transfers[name].append(carried)
    more = sorted(name for name, own in said.items() if name is not None and own["delivered"])
    names = dict.fromkeys([*info.placements, *more])
    produced = last_produced(folder, info.queries)
    made = {name: _placement(info, name, said[name], transfers[name], produced) for name in names}
    base_s = made[BASELINE].mean_interarrival_s if BASELINE in made else None
    for name, summary in made.items():
        own_s = summary.mean_interarrival_s
        made[name] = msgspec.structs.replace(summary, speedup=base_s / own_s if base_s and own_s else None)
    links = _links(info, [row for own in said.values() for kind in ("proof", "replay") for row in own[kind]])
    errors = estimate_errors(row for own in said.values() for row in own["estimate"])
    about = info.run, str(folder), info.testbed, info.seed, info.reference_digest
    return RunSummary(*about, made, links, errors, gaps(folder, said[None]["missing"]), info.item)


def _placement(
    info: RunInfo, name: str, said: Said, transfers: Sequence[LinkSum], produced: Mapping[str, Latest]
) -> PlacementSummary:
    rows = sorted(said["delivered"], key=lambda row: row.t_s)  # of equal times the log's order counts
    by_sink = _by_sink(rows, info.queries)
    references = info.references_of(name)
    queries = {
        sink: _query(references.get(sink), own, produced.get(sink, {}).get(name, {})) for sink, own in by_sink.items()
    }
    came = complete(rows, len(queries))
    delivered = len({row.index for row in came})
    reference = whole_digest(references) if name in info.references else info.reference_digest
    digest = whole_digest({sink: each.digest for sink, each in queries.items() if each.digest is not None})
    return PlacementSummary(
        images=info.images,
        delivered=delivered,
        lost=max(0, info.images - delivered),
        duplicate=len(rows) - sum(each.delivered for each in queries.values()),
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
    """Return the deliveries at each sink, with an empty list for a sink that had none."""
    by_sink: dict[str, list[Row]] = {sink: [] for sink in sinks}
    for row in rows:
        by_sink.setdefault(row.node or SINK, []).append(row)
    return by_sink


def _wall_s(came: Sequence[Row], time_scale: float) -> float | None:
    """Return the wall time from the placement's start to the last delivery. None without deliveries."""
    if not came:
        return None
    # the placement's start on the wall clock is t_s = 0, which is told from the first delivery
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
    """Of the rows that tell what came to a sink; ``produced_s``: of every index."""
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
    """Of what came to a sink and has a value: how long after the last of its sources had produced that index."""
    known = ((row.t_s, produced_s.get(-1 if row.index is None else row.index)) for row in came if row.size_bytes)
    return [at_s - since_s for at_s, since_s in known if since_s is not None]


def complete(rows: Iterable[Row], sinks: int) -> list[Row]:
    """The deliveries, of records in the order of time, with which all ``sinks`` had an index."""
    had: defaultdict[int | None, set[str | None]] = defaultdict(set)
    found = []
    for row in rows:
        had[row.index].add(row.node)
        if len(had[row.index]) >= sinks:
            found.append(row)
    return found


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
    """From the records of proofs, and of how links were replayed."""
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
    delayed = [one for one in details if one.delivered_delay_s is not None]
    delays = [abs(one.delivered_delay_s - one.asked_delay_s) for one in delayed if one.delivered_delay_s is not None]

    def largest(name: str) -> float | None:
        return max((value for one in details if (value := getattr(one, name)) is not None), default=None)

    return LinkSummary(
        checked=len(errors),
        worst_rate_error=None if worst is None else errors[worst],
        worst_link=worst,
        delay_emulated=info.delay_emulated,
        worst_delay_error_s=max(delays, default=None),
        loss_off=sum(not one.lost_low <= one.lost <= one.lost_high for one in delayed),
        worst_window=largest("worst_window"),
        lag_max_s=largest("lag_max_s"),
        stalled=largest("stalled"),
        unproved={link: unproved[link] for link in sorted(unproved, key=natural)},
    )


def failures(summary: RunSummary) -> list[str]:
    """One line for every placement that lost, repeated or reordered images or has another digest; no lines
    mean that the run did what it promised."""
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
    """The same with every placement's ``moves``, read from the run folder."""
    moves = read_moves(Path(summary.out))
    placements = {
        name: msgspec.structs.replace(row, moves=[move for move in moves if move.placement == name])
        for name, row in summary.placements.items()
    }
    return msgspec.structs.replace(summary, placements=placements)


def write_summary(folder: Path, summary: RunSummary) -> Path:
    """Write ``folder/summary.json``, whole or not at all; RunError when it cannot be."""
    target = folder / SUMMARY
    with whole(target, f"make {folder} writable") as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return target


def natural(name: str) -> tuple[Any, ...]:
    """A sort key that puts ``h2`` before ``h10``."""
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name)))
