"""Tables of the ablation: the effect of each part of ``thalweg``, and the gap that is left above the bound.

Every row is ``thalweg`` with one change (see ``variants``), on the same configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from thalweg.experiments.papers.study import Column, Pooled, spread
from thalweg.experiments.papers.tables import Cells, Result, mean, text

GROUPS = {  # placements and variants, in the order of the table
    "yardsticks": ("one-shot", "global", "global-period"),
    "cost and shape": ("fixed-path", "fixed", "fixed-searched", "busiest", "thalweg"),
    "how often it plans": ("thalweg-once", "every-600", "every-300", "every-120", "every-30", "every-10"),
    "what is worth a change": ("gain-0", "gain-20"),
    "what it goes by": ("timed-out", "last", "no-probes", "ahead", "exact", "once-exact", "steady"),
    "forecaster": ("forecaster-last", "forecaster-mean", "forecaster-median", "forecaster-exponential"),
}
SAYS = {
    "global": "global: given tree, critical path, every 10 min",
    "thalweg": "thalweg: periods, every minute, 5 %, forecasts",
    "thalweg-once": "thalweg-once",
}


def grouped(result: Result) -> Iterator[tuple[str, Any]]:
    """Yield every row with its group: the rows of ``GROUPS`` in order, then the remaining rows."""
    rows = {row.arm.variant or row.arm.placement: row for row in result.rows}
    for group, names in GROUPS.items():
        for name in names:
            if name in rows:
                yield group, rows.pop(name)
    for row in rows.values():
        yield "others", row


def says(row: Any) -> str:
    """Return the description of a row."""
    return str(row.label if row.arm.variant else SAYS.get(row.arm.placement, row.label))


def grouped_rows(result: Result) -> list[Any]:
    """Return the rows in the order of reading."""
    return [row for _, row in grouped(result)]


COLUMNS = (
    Column("variant", lambda row, result: says(row)),
    Column("mean s", lambda row, result: mean(row.interarrival_s, 1)),
    Column("of global", lambda row, result: mean(row.of_global, 2)),
    Column("of thalweg", lambda row, result: text(row.of_thalweg, 2)),
    Column("plans", lambda row, result: mean(row.plans, 1)),
    Column("trees", lambda row, result: mean(row.reshapings, 1)),
    Column("moves", lambda row, result: mean(row.relocations, 1)),
    Column("probes MB", lambda row, result: mean(row.probe_bytes, 1, 1e-6)),
    Column("ms a plan", lambda row, result: mean(row.planning_s, 0, 1e3)),
)


Steps = Sequence[tuple[str, str, str, str, str]]
STEPS: Steps = (  # name, why it is longer than the step before, and the series, column and variant with the value
    ("bound, links as they begin", "", "thalweg", "bound_s", "steady"),
    ("best tree found, as predicted", "one tree for a mixture; growing images", "thalweg", "predicted_s", "steady"),
    ("it, on links that stay so", "transfers of a host that do not interlock", "thalweg", "interarrival_s", "steady"),
    ("exact knowledge of the next 5 min", "links that change", "thalweg", "interarrival_s", "ahead"),
    ("thalweg", "what is not known of them", "thalweg", "interarrival_s", ""),
    ("thalweg-once", "not planning again", "thalweg-once", "interarrival_s", ""),
)


class Step(msgspec.Struct, frozen=True):
    """Time between images on the way from the bound up, and the reason why it is longer than the step before."""

    says: str
    why: str
    value: Pooled


def steps(result: Result, asked: Steps = STEPS) -> list[Step]:
    """Return the steps in the results, from the bound to the time that is reached, and on to less capable variants."""
    listed = [(says, why, result.value(of, column, variant=variant)) for says, why, of, column, variant in asked]
    return [Step(says, why, value) for says, why, value in listed if value is not None]


def gap_cells(result: Result, asked: Steps = STEPS) -> Cells:
    """Return heads and rows of the parts of the gap between the bound and the time that is reached."""
    rows, before = [], None
    for step in steps(result, asked):
        more = "" if before is None else f"{step.value.mean - before:+.1f}"
        rows.append([step.says, spread(step.value, 1), more, step.why])
        before = step.value.mean
    return ["from the bound up", "mean s", "adds", "for"], rows
