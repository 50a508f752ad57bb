"""Table of one stream over several trees at once, by interfaces and numbers of trees, beside the bound.

Every row is ``thalweg`` with a number of trees on one model of interfaces (see ``variants``), on the same
configurations. One tree is the yardstick of each model.
"""

from __future__ import annotations

from typing import Any

from thalweg.experiments.papers.ranganathan1998 import ablation
from thalweg.experiments.papers.study import Column, Pooled
from thalweg.experiments.papers.tables import Cells, Result, mean, text
from thalweg.experiments.sweeps.variants import PIPELINED, TREES, VARIANTS
from thalweg.experiments.views.tables import NONE

INTERFACES = ("single", "independent")
NAMES = {"1-pipelined": f"1, {PIPELINED} ahead", "auto": "as many as repay"}
STEPS = (  # from the bound up: name, what it adds, and the interfaces' variant and column with the value
    ("bound, links as they begin", "", "auto-steady", "bound_s"),
    ("best mixture found, as predicted", "few trees; images that grow; combining", "auto-steady", "predicted_s"),
    ("it, on links that stay so", "trees that wait for each other", "auto-steady", "interarrival_s"),
    ("exact knowledge of the next 5 min", "links that change", "auto-ahead", "interarrival_s"),
    ("as many trees as repay", "what is not known of them", "auto", "interarrival_s"),
    ("1 tree", "one tree for all of them", "1", "interarrival_s"),
)


def _of_one(row: Any) -> Pooled | None:
    """Return the row's time over the time of one tree on the same interfaces."""
    interface = row.arm.variant.partition("-")[0]
    ratio: Pooled | None = row.value(f"of_one_tree_{interface}") if interface in INTERFACES else None
    return ratio


def _of_bound(row: Any) -> str:
    if row.interarrival_s is None or row.bound_s is None:
        return NONE
    return f"{row.interarrival_s.mean / row.bound_s.mean:.1f}"


COLUMNS = (
    Column("interfaces and trees", lambda row, result: row.label),
    Column("mean s", lambda row, result: mean(row.interarrival_s, 1)),
    Column("p95 s", lambda row, result: mean(row.p95_s, 1)),
    Column("first s", lambda row, result: mean(row.first_s, 0)),
    Column("last s", lambda row, result: mean(row.last_s, 0)),
    Column("of one tree", lambda row, result: text(_of_one(row), 2)),
    Column("bound s", lambda row, result: mean(row.bound_s, 1)),
    Column("of the bound", lambda row, result: _of_bound(row)),
    Column("predicted s", lambda row, result: mean(row.predicted_s, 1)),
    Column("plans", lambda row, result: mean(row.plans, 1)),
    Column("changes of trees", lambda row, result: mean(row.reshapings, 1)),
    Column("probes MB", lambda row, result: mean(row.probe_bytes, 1, 1e-6)),
    Column("ms a plan", lambda row, result: mean(row.planning_s, 0, 1e3)),
)


def bars_of(result: Result, interface: str) -> list[tuple[str, Pooled, Pooled | None]]:
    """Return the time between images, and the bound if known, for every number of trees with results."""
    rows = []
    for number in TREES:
        variant = f"{interface}-{number}"
        placement = VARIANTS[variant].placement
        value = result.value(placement, "interarrival_s", variant=variant)
        if value is not None:
            rows.append((NAMES.get(number, number), value, result.value(placement, "bound_s", variant=variant)))
    return rows


def gap_cells(interface: str, result: Result) -> Cells:
    """Return heads and rows of the parts of the gap between the bound and one tree, on these interfaces."""
    steps = [(says, why, "thalweg", column, f"{interface}-{variant}") for says, why, variant, column in STEPS]
    return ablation.gap_cells(result, steps)
