"""Text tables of runs, at most 80 columns wide."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.emulation.proofs.proof import STALLED
from thalweg.experiments.records.analysis import (
    PlacementAggregate,
    PlacementSummary,
    RunSummary,
    aggregate,
)
from thalweg.experiments.records.moves import EstimateErrors, Monitoring, Move, read_moves
from thalweg.experiments.records.trees import Change, line_of, read_changes

MANY = 12  # runs; of more only what they say together is printed
LISTED = 20  # moves; of more only the number is printed, unless all are asked for
NONE = "–"


def print_runs(summaries: Sequence[RunSummary], console: Console | None = None, *, all_moves: bool = False) -> None:
    """Print each run's tables and, for several, the one over all of them (``console``: standard output).

    Of a single run its moves are listed as well, when they are at most ``LISTED``; with ``all_moves`` every
    run's are, however many.
    """
    console = console or Console(highlight=False, soft_wrap=False)
    if len(summaries) <= MANY:
        for summary in summaries:
            console.print(run_table(summary))
            console.print(Text(links_line(summary)), soft_wrap=True)
            for line in estimates_lines(summary.estimates):
                console.print(Text(line), soft_wrap=True)
            for label, placement in summary.placements.items():
                if placement.monitor is not None:
                    console.print(Text(monitor_line(label, placement.monitor)), soft_wrap=True)
            console.print()
            if any(placement.relocations or placement.stayed for placement in summary.placements.values()):
                console.print(moves_table(summary))
                console.print()
            if any(placement.reshapes or placement.unshaped for placement in summary.placements.values()):
                console.print(trees_table(summary))
                console.print()
    if all_moves or len(summaries) == 1:
        for summary in summaries:
            _print_handovers(summary, console, all_moves=all_moves)
    if len(summaries) > 1:
        console.print(aggregate_table(aggregate(summaries), len(summaries)))


def run_table(summary: RunSummary) -> Table:
    """One row a placement: inter-arrival times in emulated seconds, speed-up, delivered, digest."""
    table = _table(f"{_name(summary)}: {summary.testbed}, seed {summary.seed}", "digest")
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
        table.add_row(Text(label), *_figures(row), _delivered(row.delivered, row.images), _digests(row))
    return table


def links_line(summary: RunSummary) -> str:
    """What the link proof says, in one line."""
    links = summary.links
    if summary.testbed == "sim":
        return "links: simulated, exactly as their traces; rates only, no delays"
    delay = "delays emulated" if links.delay_emulated else "rates only, no delays"
    if links.stalled is not None and links.stalled >= STALLED:
        delay += f"; held up by the machine for up to {links.stalled:.0%} of the time"
    if links.worst_rate_error is None:
        return f"links: none proved; {delay}"
    parts = [f"{links.checked} proved", f"worst rate error {links.worst_rate_error:.1%} ({links.worst_link})"]
    if links.worst_delay_error_s is not None:
        parts.append(f"delay error {links.worst_delay_error_s * 1e3:.1f} ms")
        parts.append(f"{links.loss_off} with other losses than asked")
    if links.worst_window is not None:
        parts.append(f"at most {links.worst_window:.0%} of what was asked in a tenth of a second")
    if links.lag_max_s is not None:
        parts.append(f"changes at most {links.lag_max_s * 1e3:.0f} ms late")
    return f"links: {', '.join(parts)}; {delay}"


def estimates_lines(errors: EstimateErrors) -> list[str]:
    """How far bandwidth estimates were from the truth: overall, then by how they were measured; none: no lines."""
    by = {name: some for name, some in (("passive", errors.passive), ("probe", errors.probe)) if some.count}
    rows = {"estimates": errors} | ({f"  {name}": some for name, some in by.items()} if len(by) > 1 else {})
    return [
        f"{name}: {some.count}, median error {some.median_error:.1%}, p95 {some.p95_error:.1%}"
        for name, some in rows.items()
        if some.median_error is not None and some.p95_error is not None
    ]


def monitor_line(label: str, monitor: Monitoring) -> str:
    """What the monitor cost under one placement, in one line."""
    if monitor.news_share is None or monitor.probe_share is None:
        return f"monitor, {label}: nothing was sent"
    return f"monitor, {label}: {monitor.news_share:.2%} of the bytes sent were news, {monitor.probe_share:.2%} probes"


def moves_table(summary: RunSummary) -> Table:
    """One row a placement whose operators moved or might have: how many, pauses in emulated seconds, state."""
    table = _framed("moves")
    table.add_column("placement", overflow="fold")
    for name in ("moved", "stayed", "pause p50 s", "p99 s", "max s", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, placement in summary.placements.items():
        if placement.relocations or placement.stayed:
            counts = (placement.relocations, placement.stayed)
            pauses = (placement.pause_p50_s, placement.pause_p99_s, placement.pause_max_s)
            table.add_row(Text(label), *map(str, counts), *map(seconds, pauses), size(placement.state_bytes))
    return table


def trees_table(summary: RunSummary) -> Table:
    """One row a placement whose tree changed or was to: how often, and pauses in emulated seconds."""
    table = _framed("changes of the tree")
    table.add_column("placement", overflow="fold")
    for name in ("changed", "stayed", "pause p50 s", "max s"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, placement in summary.placements.items():
        if placement.reshapes or placement.unshaped:
            counts = (placement.reshapes, placement.unshaped)
            pauses = (placement.reshape_pause_p50_s, placement.reshape_pause_max_s)
            table.add_row(Text(label), *map(str, counts), *map(seconds, pauses))
    return table


def changes_table(title: str, changes: Sequence[Change]) -> Table:
    """When the tree changed, how long no image came, why, and what it was then; a change that was not, with its why."""
    table = _framed(title)
    table.padding = (0, 1, 0, 0)
    for name in ("at s", "pause s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("tree", "why"):
        table.add_column(name, overflow="fold")
    for change in changes:
        why = change.reason if change.changed else f"stayed: {change.why}"
        cells = (f"{change.at_s:.2f}", seconds(change.pause_s), line_of(change), why)
        table.add_row(*map(Text, cells), style="" if change.changed else "dim")
    return table


def handovers_table(title: str, moves: Sequence[Move]) -> Table:
    """Who moved where, when, at what cost and why; an operator that stayed with the reason for that, too."""
    table = _framed(title)
    table.padding = (0, 1, 0, 0)
    table.add_column("at s", justify="right", no_wrap=True)
    for name in ("operator", "from → to"):
        table.add_column(name, overflow="fold")
    for name in ("pause s", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True)
    table.add_column("why", overflow="fold")
    for move in moves:
        state = size(move.size_bytes) if move.moved and move.size_bytes is not None else NONE
        why = move.reason
        if not move.moved:
            why = f"stayed: {move.why}" + (f" (was to move: {why})" if why else "")
        way = f"{move.source} → {move.target}"
        cells = (f"{move.at_s:.2f}", move.node, way, seconds(move.pause_s), state, move.protocol or NONE, why)
        table.add_row(*map(Text, cells), style="" if move.moved else "dim")
    return table


def _print_handovers(summary: RunSummary, console: Console, *, all_moves: bool) -> None:
    """Each placement's changes of tree and handovers, or their number and where to find them when there are many."""
    _print_changes(summary, console, all_moves=all_moves)
    counts = {name: row.relocations + row.stayed for name, row in summary.placements.items()}
    if not any(counts.values()):
        return
    listed = {name for name, count in counts.items() if count > 0 and (all_moves or count <= LISTED)}
    handovers = read_moves(Path(summary.out)) if listed else []
    for name, count in counts.items():
        if name in listed:
            title = f"{_name(summary)}, {name}: who moved"
            console.print(handovers_table(title, [move for move in handovers if move.placement == name]))
        elif count:
            where = f"thalweg analyze {_name(summary)} --moves"
            console.print(Text(f"{name}: {count} handovers; {where} lists them"), soft_wrap=True)


def _print_changes(summary: RunSummary, console: Console, *, all_moves: bool) -> None:
    counts = {name: row.reshapes + row.unshaped for name, row in summary.placements.items()}
    listed = {name for name, count in counts.items() if count > 0 and (all_moves or count <= LISTED)}
    changes = read_changes(Path(summary.out)) if listed else []
    for name, count in counts.items():
        if name in listed:
            title = f"{_name(summary)}, {name}: how the tree changed"
            console.print(changes_table(title, [change for change in changes if change.placement == name]))
        elif count:
            where = f"thalweg analyze {_name(summary)} --moves"
            console.print(Text(f"{name}: {count} changes of the tree; {where} lists them"), soft_wrap=True)


def _name(summary: RunSummary) -> str:
    name = os.path.relpath(summary.out)
    return summary.out if name.startswith("..") else name


def _framed(title: str) -> Table:
    return Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=None,
    )


def _table(title: str, last: str) -> Table:
    table = _framed(title)
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


def size(value: int) -> str:
    """Bytes with their unit: 512 B, 1.5 KB, 20 MB (powers of 1,000)."""
    scaled, unit = float(value), "B"
    for larger in ("KB", "MB", "GB"):
        if scaled < 999.5:
            break
        scaled, unit = scaled / 1000, larger
    return f"{value} B" if unit == "B" else f"{scaled:.{1 if scaled < 9.95 else 0}f} {unit}"


def _delivered(came: int, asked: int) -> Text:
    return Text(f"{came}/{asked}", "" if came == asked else "bold red")


def _digests(row: PlacementAggregate) -> Text:
    if row.digests_wrong:
        return Text(f"{row.digests_wrong} differ", "bold red")
    return _digest(True if row.digests_known else None)


def _digest(good: bool | None) -> Text:
    if good is None:
        return Text(NONE)
    return Text("ok", "green") if good else Text("differs", "bold red")
