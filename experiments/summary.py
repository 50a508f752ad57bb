"""The summary ``thalweg run`` prints: the same figures as ``analyze``, of one run, without starting Spark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thalweg.experiments.analysis import (
    BASELINE,
    PROOF_FLOOR_BPS,
    HostLoad,
    LinkSummary,
    PlacementSummary,
    RunSummary,
)
from thalweg.experiments.moves import MoveFigures, estimate_errors, move_figures
from thalweg.experiments.records import EVENTS, RunInfo, load_run, sequence_digest

_COUNTED = ("duplicate", "repeated", "rejected", "fault")


def summarize_run(folder: Path) -> RunSummary:
    """Summarise one run folder; raises UsageError when it is not one."""
    info = load_run(folder)
    wanted = ("delivered", "placed", "transfer", "host_load", "proof", *_COUNTED)
    table = pq.read_table(folder / EVENTS)
    rows: list[dict[str, Any]] = table.filter(pc.is_in(table["kind"], pa.array(wanted))).to_pylist()
    by: dict[tuple[str | None, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        row["detail"] = msgspec.json.decode(row["detail"]) if row["detail"] else {}
        by[row["placement"], row["kind"]].append(row)
    moves, estimates = move_figures(folder, info.time_scale), estimate_errors(folder)
    made = {name: _placement(info, name, by, moves.get(name, MoveFigures())) for name in info.placements}
    base = made[BASELINE].mean_interarrival_s if BASELINE in made else None
    for name, summary in made.items():
        mean_s = summary.mean_interarrival_s
        speedup = base / mean_s if base and mean_s else None
        made[name] = msgspec.structs.replace(summary, speedup=speedup)
    proofs = [row for (_, kind), some in by.items() if kind == "proof" for row in some]
    links = _links(info, proofs)
    return RunSummary(info.run, str(folder), info.testbed, info.seed, info.reference_digest, made, links, estimates)


def _placement(
    info: RunInfo, name: str, by: dict[tuple[str | None, str], list[dict[str, Any]]], figures: MoveFigures
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
    digest = sequence_digest(row["detail"].get("digest", "") for row in came) if came else None
    plan = by[name, "placed"][0]["detail"] if by[name, "placed"] else {}
    loads: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in by[name, "host_load"]:
        loads[row["host"]].append(row)
    hosts = {
        host: HostLoad(float(np.mean([row["value"] for row in some])), max(row["size_bytes"] for row in some))
        for host, some in sorted(loads.items())
    }
    transfers = [row for row in by[name, "transfer"] if row["peer"] != row["host"]]
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
        wall_s=wall_s,
        speedup=None,
        transfers=len(transfers),
        bytes_moved=sum(row["size_bytes"] or 0 for row in transfers),
        probes=int(plan.get("probed", 0)),
        planner=plan.get("planner"),
        predicted_s=plan.get("predicted_s"),
        messages={kind: len(by[name, kind]) for kind in _COUNTED},
        hosts=hosts,
        **msgspec.structs.asdict(figures),
    )


def _links(info: RunInfo, proofs: list[dict[str, Any]]) -> LinkSummary:
    checked = [row for row in proofs if row["detail"]["asked_bps"] >= PROOF_FLOOR_BPS]
    errors = {f"{row['host']}>{row['peer']}": abs(row["value"] / row["detail"]["asked_bps"] - 1) for row in checked}
    worst = max(errors, key=lambda link: errors[link], default=None)
    return LinkSummary(len(checked), None if worst is None else errors[worst], worst, info.delay_emulated)
