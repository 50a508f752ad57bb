"""Text tables of runs, at most 80 columns wide."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.experiments.analysis import (
    LinkSummary,
    PlacementAggregate,
    PlacementSummary,
    RunSummary,
    aggregate,
)

MANY = 12  # runs; of more only what they say together is printed
NONE = "–"


def print_runs(summaries: Sequence[RunSummary], console: Console | None = None) -> None:
    """Print each run's table and, for several, the one over all of them (``console``: standard output)."""
    console = console or Console(highlight=False, soft_wrap=False)
    if len(summaries) <= MANY:
        for summary in summaries:
            console.print(run_table(summary))
            console.print(Text(links_line(summary.links)), soft_wrap=True)
            console.print()
    if len(summaries) > 1:
        console.print(aggregate_table(aggregate(summaries), len(summaries)))


def run_table(summary: RunSummary) -> Table:
    """One row a placement: inter-arrival times in emulated seconds, speed-up, delivered, digest."""
    name = os.path.relpath(summary.out)
    name = summary.out if name.startswith("..") else name
    table = _table(f"{name}: {summary.testbed}, seed {summary.seed}", "digest")
    for label, placement in summary.placements.items():
        table.add_row(
            Text(label),
            *_figures(placement),
            _delivered(placement.delivered, placement.images),
            _digest(placement.digest_ok),
        )
    return table


def aggregate_table(rows: dict[str, PlacementAggregate], runs: int) -> Table:
    """One row a placement: means over the runs, the geometric mean of the speed-ups, sums of the images."""
    table = _table(f"all {runs} runs (means; speed-up: geometric mean)", "digests")
    for label, row in rows.items():
        wrong = Text("ok", "green") if not row.digests_wrong else Text(f"{row.digests_wrong} differ", "bold red")
        table.add_row(Text(label), *_figures(row), _delivered(row.delivered, row.images), wrong)
    return table


def links_line(links: LinkSummary) -> str:
    """What the link proof says, in one line."""
    delay = "delays emulated" if links.delay_emulated else "rates only, no delays"
    if links.worst_rate_error is None:
        return f"links: none proved; {delay}"
    worst = f"worst rate error {links.worst_rate_error:.1%} ({links.worst_link})"
    return f"links: {links.checked} proved, {worst}; {delay}"


def _table(title: str, last: str) -> Table:
    table = Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=None,
    )
    table.add_column("placement", overflow="fold")
    for name in ("mean s", "median s", "p95 s", "speed-up", "delivered"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(last, no_wrap=True)
    return table


def _figures(row: PlacementSummary | PlacementAggregate) -> tuple[str, str, str, str]:
    return (
        seconds(row.mean_interarrival_s),
        seconds(row.median_interarrival_s),
        seconds(row.p95_interarrival_s),
        NONE if row.speedup is None else f"{row.speedup:.2f}",
    )


def seconds(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return NONE
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4
    return f"{value:.{places}f}"


def _delivered(came: int, asked: int) -> Text:
    return Text(f"{came}/{asked}", "" if came == asked else "bold red")


def _digest(good: bool | None) -> Text:
    if good is None:
        return Text(NONE)
    return Text("ok", "green") if good else Text("differs", "bold red")
