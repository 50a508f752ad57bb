"""The summary ``thalweg run`` prints: the same figures as ``analyze``, of one run, without starting Spark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thalweg.experiments.records.analysis import (
    BASELINE,
    PROOF_FLOOR_BPS,
    HostLoad,
    LinkSummary,
    PlacementSummary,
    RunSummary,
)
from thalweg.experiments.records.moves import MoveFigures, estimate_errors, move_figures
from thalweg.experiments.records.records import EVENTS, RunInfo, load_run, sequence_digest

_COUNTED = ("duplicate", "repeated", "rejected", "fault")


def summarize_run(folder: Path) -> RunSummary:
    """Summarise one run folder; raises UsageError when it is not one."""
    info = load_run(folder)
    kinds = ("delivered", "placed", "host_load", "proof", "replay", "log", *_COUNTED)
    rows: list[dict[str, Any]] = pq.read_table(folder / EVENTS, filters=pc.field("kind").isin(kinds)).to_pylist()
    by: dict[tuple[str | None, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        row["detail"] = msgspec.json.decode(row["detail"]) if row["detail"] else {}
        by[row["placement"], row["kind"]].append(row)
    moved = _moved(folder)
    moves, estimates = move_figures(folder, info.time_scale), estimate_errors(folder)
    made = {
        name: _placement(info, name, by, moves.get(name, MoveFigures()), moved.get(name, (0, 0)))
        for name in info.placements
    }
    base = made[BASELINE].mean_interarrival_s if BASELINE in made else None
    for name, summary in made.items():
        mean_s = summary.mean_interarrival_s
        speedup = base / mean_s if base and mean_s else None
        made[name] = msgspec.structs.replace(summary, speedup=speedup)
    proofs = [row for (_, kind), some in by.items() if kind == "proof" for row in some]
    links = _links(info, proofs, [row["detail"] for (_, kind), some in by.items() if kind == "replay" for row in some])
    return RunSummary(info.run, str(folder), info.testbed, info.seed, info.reference_digest, made, links, estimates)


def _moved(folder: Path) -> dict[str, tuple[int, int]]:
    """Transfers between hosts and their bytes, by placement; of these there are many."""
    between = (pc.field("kind") == "transfer") & (pc.field("peer") != pc.field("host"))
    columns = ["placement", "size_bytes"]
    table = pq.read_table(folder / EVENTS, columns=columns, filters=between)
    sums = table.group_by("placement").aggregate([([], "count_all"), ("size_bytes", "sum")])
    return {row["placement"]: (row["count_all"], row["size_bytes_sum"] or 0) for row in sums.to_pylist()}


def _placement(
    info: RunInfo,
    name: str,
    by: dict[tuple[str | None, str], list[dict[str, Any]]],
    figures: MoveFigures,
    moved: tuple[int, int],
) -> PlacementSummary:
    came = by[name, "delivered"]
    first: dict[int, dict[str, Any]] = {}
    out_of_order, highest = 0, -1
    for row in came:
        first.setdefault(row["index"], row)
        out_of_order += row["index"] < highest
        highest = max(highest, row["index"])
    times = np.array([row["t_s"] for row in came])
    gaps = np.diff(np.sort(times))
    digests = [row["detail"]["digest"] for row in came if "digest" in row["detail"]]
    digest = sequence_digest(digests) if digests else None
    logs = by[name, "log"]
    plan = by[name, "placed"][0]["detail"] if by[name, "placed"] else {}
    loads: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in by[name, "host_load"]:
        loads[row["host"]].append(row)
    hosts = {
        host: HostLoad(float(np.mean([row["value"] for row in some])), max(row["size_bytes"] for row in some))
        for host, some in sorted(loads.items())
    }
    transfers, bytes_moved = moved
    wall_s = None
    if came:
        wall_s = came[-1]["wall_s"] - came[0]["wall_s"] + float(times.min()) / info.time_scale
    return PlacementSummary(
        images=info.images,
        delivered=len(first),
        lost=max(0, info.images - len(first)),
        duplicate=len(came) - len(first),
        out_of_order=out_of_order,
        digest=digest,
        digest_ok=None if info.reference_digest is None else digest == info.reference_digest,
        mean_interarrival_s=float(gaps.mean()) if gaps.size else None,
        median_interarrival_s=float(np.median(gaps)) if gaps.size else None,
        p95_interarrival_s=float(np.quantile(gaps, 0.95)) if gaps.size else None,
        first_image_s=float(times.min()) if times.size else None,
        elapsed_s=float(times.max()) if times.size else None,
        wall_s=info.wall_s.get(name, wall_s),
        speedup=None,
        transfers=transfers,
        bytes_moved=bytes_moved,
        probes=int(plan.get("probed", 0)),
        log_digest=logs[0]["detail"]["digest"] if logs else None,
        planner=plan.get("planner"),
        predicted_s=plan.get("predicted_s"),
        messages={kind: len(by[name, kind]) for kind in _COUNTED},
        hosts=hosts,
        **msgspec.structs.asdict(figures),
    )


def _links(info: RunInfo, proofs: list[dict[str, Any]], replays: list[dict[str, Any]]) -> LinkSummary:
    checked = [row for row in proofs if row["detail"]["asked_bps"] >= PROOF_FLOOR_BPS]
    errors = {f"{row['host']}>{row['peer']}": abs(row["value"] / row["detail"]["asked_bps"] - 1) for row in checked}
    worst = max(errors, key=lambda link: errors[link], default=None)
    delayed = [row["detail"] for row in proofs if row["detail"].get("delivered_delay_s") is not None]
    return LinkSummary(
        len(checked),
        None if worst is None else errors[worst],
        worst,
        info.delay_emulated,
        max((abs(one["delivered_delay_s"] - one["asked_delay_s"]) for one in delayed), default=None),
        sum(not one["lost_low"] <= one["lost"] <= one["lost_high"] for one in delayed),
        max((one["worst_window"] for one in replays if "worst_window" in one), default=None),
        max((one["lag_max_s"] for one in replays if "lag_max_s" in one), default=None),
        max((row["detail"]["stalled"] for row in proofs if "stalled" in row["detail"]), default=None),
    )
