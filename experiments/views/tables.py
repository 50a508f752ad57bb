"""Text tables of runs, at most 80 columns wide."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.emulation.links.units import format_rate, format_size
from thalweg.emulation.proofs.proof import STALLED
from thalweg.experiments.records.aggregates import PlacementAggregate, RunsSummary
from thalweg.experiments.records.analysis import (
    BASELINE,
    PROOF_FLOOR_BPS,
    LinkSummary,
    PlacementSummary,
    RunSummary,
)
from thalweg.experiments.records.comparisons import Comparison
from thalweg.experiments.records.moves import (
    EstimateErrors,
    Monitoring,
    Move,
    TreeChange,
    read_changes,
    read_moves,
)
from thalweg.experiments.records.trees import rows_as_line
from thalweg.middleware.errors import counted

MANY = 12  # most runs whose own tables are printed
NAMED = 6  # most unproved links that are all named
LISTED = 20  # most moves that are listed; of more only the number is printed, unless ``all_moves`` is set
NONE = "–"
WHAT = {
    "download-all": "every operator at the client",
    "one-shot": "operators placed once",
    "global": "the client moves operators",
    "local": "operators move by themselves",
    "thalweg": "the tree follows the network",
}
PICTURES = {
    "images/sheet.png": "what some servers hold, and the composites of it",
    "plots/arrivals.png": "when images came to the client",
    "plots/moves.png": "where the operators were, and when that changed",
}
TEXT: dict[str, Any] = {"overflow": "fold"}  # style of a column
WORD: dict[str, Any] = {"no_wrap": True}
FIGURE: dict[str, Any] = {"justify": "right", "no_wrap": True}
PADDING = (0, 1, 0, 1)


def print_runs(found: RunsSummary, console: Console | None = None, *, all_moves: bool = False) -> None:
    """Print the tables of every run, and for several runs the table over all (``console``: standard output).

    The moves of a single run are listed if they are at most ``LISTED``. With ``all_moves`` every run's moves are
    listed.
    """
    console = console or Console(highlight=False, soft_wrap=False)
    for summary in found.runs if len(found.runs) <= MANY else ():
        console.print(run_table(summary))
        for line in lines_of(summary):
            console.print(Text(line), soft_wrap=True)
        console.print()
        for table in (
            queries_table(summary), moves_table(summary), trees_table(summary), recoveries_table(summary)
        ):  # fmt: skip
            if table.rows:
                console.print(table)
                console.print()
    for summary in found.runs if all_moves or len(found.runs) == 1 else ():
        _print_listed(summary, console, all_moves=all_moves)
    if len(found.runs) > 1:
        console.print(aggregate_table(found.aggregate, len(found.runs)))


def lines_of(summary: RunSummary) -> list[str]:
    """Return lines about links, estimates, monitors, bills, relays and skipped data of a run."""
    lines = [links_line(summary), *unproved_lines(summary.links), *estimates_lines(summary.estimates)]
    monitors = {label: row.monitor for label, row in summary.placements.items()}
    lines += [monitor_line(label, monitor) for label, monitor in monitors.items() if monitor is not None]
    for label, row in summary.placements.items():
        gave = [f"{node} at {count} of the indices" for node, count in row.nothing.items()]
        late = [f"{node} left out {counted(count, 'late row')}" for node, count in row.late_rows.items()]
        late += [f"{node} skipped {counted(count, 'row')} that failed" for node, count in row.skipped_rows.items()]
        late += [f"{node} skipped {counted(count, 'partition')}" for node, count in row.skipped_partitions.items()]
        if row.bill is not msgspec.UNSET:
            lines.append(f"{label} cost {row.bill.text}")
        for route in row.relayed or ():
            lines.append(f"{label}: {', then '.join(route.relays)} passed on {route.text}")
        lines += [f"{label}: {text}" for text in (gave and f"nothing from {', '.join(gave)}", ", ".join(late)) if text]
    return lines


def seen_lines(summary: RunSummary) -> list[str]:
    """Return a text of a run's results, with a line for every placement and the paths of the pictures."""
    lines = ["", "what was seen, in the time of the emulated network:"]
    for label, row in summary.placements.items():
        described = f"{label} ({WHAT[label]})" if label in WHAT else label
        if row.mean_interarrival_s is None:
            lines.append(f"  {described}: too few {summary.item}s came")
            continue
        item = "an image" if summary.item == "image" else f"a {summary.item}"
        line = f"  {described}: {item} every {seconds(row.mean_interarrival_s)} s"
        if row.speedup is not None and label != BASELINE:
            line += f", {row.speedup:.1f} times as often as with {BASELINE}"
        changed = [(row.reshapes, "change", "of the tree"), (row.relocations, "move", "of operators")]
        changes = [f"{counted(count, word)} {whose}" for count, word, whose in changed if count]
        lines.append(line + (f"; {' and '.join(changes)} while {summary.item}s came" if changes else ""))
    drawn = {Path(summary.out) / name: caption for name, caption in PICTURES.items()}
    present = {str(path): caption for path, caption in drawn.items() if path.is_file()}
    if present:
        lines.append("pictures:")
        lines += [f"  {path:{max(map(len, present))}}  {caption}" for path, caption in present.items()]
    return lines


def run_table(summary: RunSummary) -> Table:
    """Return a table by placement: inter-arrival times in emulated seconds, speed-up, delivered, digest."""
    table = _table(f"{_name(summary)}: {summary.testbed}, seed {summary.seed}", "digest")
    for label, placement in summary.placements.items():
        table.add_row(
            Text(label),
            *_figures(placement),
            _delivered(placement.delivered, placement.images),
            _digest(placement.digest_ok),
        )
    return table


def queries_table(summary: RunSummary) -> Table:
    """Return a table by placement and sink: number of values, time between deliveries, and latency.

    Times are in emulated seconds. The latency begins when the last source has made its part of a value.
    """
    figures = dict.fromkeys(("values", "mean s", "p50 s", "p95 s", "p99 s"), FIGURE)
    table = framed(
        "queries: mean time between deliveries, and latency from source to sink",
        {"placement": TEXT, "sink": TEXT, **figures, "digest": WORD},
    )
    for label, placement in summary.placements.items():
        for sink, query in placement.queries.items():
            latency = (query.latency_p50_s, query.latency_p95_s, query.latency_p99_s)
            if query.latency_p50_s is not None:
                cells = map(seconds, (query.mean_interarrival_s, *latency))
                values = str(query.delivered - query.nothing)
                table.add_row(Text(label), Text(sink), values, *cells, _digest(query.digest_ok))
    return table


def aggregate_table(rows: dict[str, PlacementAggregate], runs: int) -> Table:
    """Return a table by placement: means over the runs, geometric mean of the speed-ups, sums of the images."""
    table = _table(f"all {runs} runs (means; speed-up: geometric mean)", "digests")
    for label, row in rows.items():
        table.add_row(Text(label), *_figures(row), _delivered(row.delivered, row.images), _digests(row))
    return table


def links_line(summary: RunSummary) -> str:
    """Return the result of the link proof in one line."""
    links = summary.links
    delay = "delays emulated" if links.delay_emulated else "rates only, no delays"
    if summary.testbed == "sim":
        return f"links: simulated, exactly as their traces; {delay}"
    if links.stalled is not None and links.stalled >= STALLED:
        delay += f"; held up by the machine for up to {links.stalled:.0%} of the time"
    if links.worst_rate_error is None:
        return f"links: none{f' of {len(links.unproved)}' if links.unproved else ''} proved; {delay}"
    of = f" of {links.checked + len(links.unproved)}" if links.unproved else ""
    parts = [f"{links.checked}{of} proved", f"worst rate error {links.worst_rate_error:.1%} ({links.worst_link})"]
    if links.worst_delay_error_s is not None:
        parts.append(f"delay error {links.worst_delay_error_s * 1e3:.1f} ms")
        parts.append(f"{links.loss_off} with other losses than asked")
    if links.worst_window is not None:
        parts.append(f"at most {links.worst_window:.0%} of what was asked in a tenth of a second")
    if links.lag_max_s is not None:
        parts.append(f"changes at most {links.lag_max_s * 1e3:.0f} ms late")
    return f"links: {', '.join(parts)}; {delay}"


def unproved_lines(links: LinkSummary) -> list[str]:
    """Return the links that were not proved, in a line for every reason."""
    slow = [link for link, asked_bps in links.unproved.items() if asked_bps]
    cut = [link for link, asked_bps in links.unproved.items() if not asked_bps]
    reasons = (
        (slow, f"below {format_rate(PROOF_FLOOR_BPS)} on the wire few packets pass in a proof's time"),
        (cut, "cut at the time of the proof"),
    )
    return [f"  not proved: {_named(names)}; {why}" for names, why in reasons if names]


def _named(links: Sequence[str]) -> str:
    """Return the names of links, or the first few names and the number of the remaining links."""
    few = links if len(links) <= NAMED else links[: NAMED - 1]
    more = [f"{len(links) - len(few)} others"] if len(few) < len(links) else []
    *most, last = [*few, *more]
    return f"{', '.join(most)} and {last}" if most else last


def estimates_lines(errors: EstimateErrors) -> list[str]:
    """Return the errors of bandwidth estimates: overall, then by kind of measurement. No estimates: no lines."""
    by = {name: some for name, some in (("passive", errors.passive), ("probe", errors.probe)) if some.count}
    rows = {"estimates": errors} | ({f"  {name}": some for name, some in by.items()} if len(by) > 1 else {})
    return [
        f"{name}: {some.count}, median error {some.median_error:.1%}, p95 {some.p95_error:.1%}"
        for name, some in rows.items()
        if some.median_error is not None and some.p95_error is not None
    ]


def monitor_line(label: str, monitor: Monitoring) -> str:
    """Return the monitor's share of the bytes under one placement, in one line."""
    if monitor.news_share is None or monitor.probe_share is None:
        return f"monitor, {label}: nothing was sent"
    return f"monitor, {label}: {monitor.news_share:.2%} of the bytes sent were news, {monitor.probe_share:.2%} probes"


def moves_table(summary: RunSummary) -> Table:
    """Return a table of the placements with moves, done or refused: counts, pauses in emulated seconds, state."""
    figures = dict.fromkeys(("moved", "stayed", "pause p50 s", "p99 s", "max s", "state"), FIGURE)
    table = framed("moves", {"placement": TEXT, **figures})
    for label, placement in summary.placements.items():
        if placement.relocations or placement.stayed:
            counts = (placement.relocations, placement.stayed)
            pauses = (placement.pause_p50_s, placement.pause_p99_s, placement.pause_max_s)
            table.add_row(Text(label), *map(str, counts), *map(seconds, pauses), format_size(placement.state_bytes))
    return table


def trees_table(summary: RunSummary) -> Table:
    """Return a table of the placements with changes of the tree, done or refused: counts, emulated pauses."""
    figures = dict.fromkeys(("changed", "stayed", "pause p50 s", "max s"), FIGURE)
    table = framed("changes of the tree", {"placement": TEXT, **figures})
    for label, placement in summary.placements.items():
        if placement.reshapes or placement.unshaped:
            counts = (placement.reshapes, placement.unshaped)
            pauses = (placement.reshape_pause_p50_s, placement.reshape_pause_max_s)
            table.add_row(Text(label), *map(str, counts), *map(seconds, pauses))
    return table


def recoveries_table(summary: RunSummary) -> Table:
    """Return a table of the recoveries from lost hosts: time, duration of every phase, partitions made again."""
    figures = dict.fromkeys(("at s", "found", "decided", "restored", "first", "still s", "again"), FIGURE)
    title = "recoveries: emulated seconds after a host was lost; partitions made again"
    table = framed(title, {"placement": WORD, "lost": WORD, **figures}, padding=(0, 1, 0, 0))
    for label, placement in summary.placements.items():
        for event in placement.recoveries:
            phases = [event.phases_s.get(name) for name in ("detected", "decided", "restored", "first_output")]
            cells = (f"{event.at_s:.2f}", *map(seconds, phases), seconds(event.stood_still_s), str(event.made_again))
            table.add_row(Text(label), Text(event.host), *cells)
    return table


def changes_table(title: str, changes: Sequence[TreeChange]) -> Table:
    """Return a table of the changes of the tree, done or refused: time, pause without an image, tree, reason."""
    table = framed(title, {"at s": FIGURE, "pause s": FIGURE, "tree": TEXT, "why": TEXT}, padding=(0, 1, 0, 0))
    for change in changes:
        why = change.reason if change.changed else f"stayed: {change.why}"
        cells = (f"{change.at_s:.2f}", seconds(change.pause_s), rows_as_line(change.tree), why)
        table.add_row(*map(Text, cells), style="" if change.changed else "dim")
    return table


def handovers_table(title: str, moves: Sequence[Move]) -> Table:
    """Return a table of the hand-overs, done or refused: time, operator, hosts, pause, state, protocol, reason."""
    table = framed(
        title,
        {
            "at s": FIGURE,
            "operator": TEXT,
            "from → to": TEXT,
            "pause s": FIGURE,
            "state": FIGURE,
            "by": WORD,
            "why": TEXT,
        },
        padding=(0, 1, 0, 0),
    )
    for move in moves:
        state = format_size(move.size_bytes) if move.moved and move.size_bytes is not None else NONE
        why = move.reason
        if not move.moved:
            why = f"stayed: {move.why}" + (f" (was to move: {why})" if why else "")
        way = f"{move.source} → {move.target}"
        cells = (f"{move.at_s:.2f}", move.node, way, seconds(move.pause_s), state, move.protocol or NONE, why)
        table.add_row(*map(Text, cells), style="" if move.moved else "dim")
    return table


def comparison_table(made: Comparison) -> Table:
    """Return a table by placement and seed: simulated and emulated time between items."""
    title = f"mean time between {made.item}s, emulated seconds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("placement", "seed", "simulated", "emulated", "ratio", "spread", "start", "moves"):
        table.add_column(name, justify="left" if name in ("placement", "start") else "right")
    for row in made.rows:
        moved = NONE if row.simulated_moves is None else row.simulated_moves
        tint = "green" if row.is_close(made.limit) else "bold red"
        table.add_row(
            Text(row.placement),
            str(row.seed),
            seconds(row.simulated_s),
            seconds(row.emulated_s),
            NONE if row.ratio is None else Text(f"{row.ratio:.3f}", tint),
            NONE if row.spread is None else f"{row.spread:.1%}",
            NONE if row.same_start is None else "same" if row.same_start else "differs",
            f"{moved} / {', '.join(map(str, row.emulated_moves)) or NONE}",
        )
    return table


def comparison_latencies(made: Comparison) -> Table:
    """Return a table by placement, seed and sink: simulated and emulated latency."""
    sides = dict.fromkeys((f"{side} {part}" for side in ("sim", "emu") for part in ("p50", "p95", "p99")), FIGURE)
    table = framed(
        "latency from source to sink, simulated and emulated, emulated seconds",
        {"placement": TEXT, "seed": FIGURE, "sink": TEXT, **sides},
    )
    for row in made.rows:
        for sink, query in row.queries.items():
            values = msgspec.structs.astuple(query.simulated) + msgspec.structs.astuple(query.emulated)
            if any(values):
                table.add_row(Text(row.placement), str(row.seed), Text(sink), *map(seconds, values))
    return table


def _print_listed(summary: RunSummary, console: Console, *, all_moves: bool) -> None:
    """Print the changes of the tree and the hand-overs of placements. Of many, print the number and a command."""
    rows, folder = summary.placements, Path(summary.out)
    changes = {name: row.reshapes + row.unshaped for name, row in rows.items()}
    moves = {name: row.relocations + row.stayed for name, row in rows.items()}
    kinds: tuple[tuple[dict[str, int], Callable[..., Sequence[Any]], Callable[..., Table], str, str], ...] = (
        (changes, read_changes, changes_table, "how the tree changed", "changes of the tree"),
        (moves, read_moves, handovers_table, "who moved", "handovers"),
    )
    for counts, read, listing, title, noun in kinds:
        listed = [name for name, count in counts.items() if count and (all_moves or count <= LISTED)]
        entries = read(folder) if listed else []
        for name, count in counts.items():
            if name in listed:
                own = [entry for entry in entries if entry.placement == name]
                console.print(listing(f"{_name(summary)}, {name}: {title}", own))
            elif count:
                where = f"thalweg analyze {_name(summary)} --moves"
                console.print(Text(f"{name}: {count} {noun}; {where} lists them"), soft_wrap=True)


def _name(summary: RunSummary) -> str:
    name = os.path.relpath(summary.out)
    return summary.out if name.startswith("..") else name


def framed(title: str, columns: Mapping[str, Mapping[str, Any]], padding: tuple[int, int, int, int] = PADDING) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for name, form in columns.items():
        table.add_column(name, **form)
    return table


def _table(title: str, last: str) -> Table:
    figures = dict.fromkeys(("mean s", "median s", "p95 s", "speed-up", "delivered"), FIGURE)
    return framed(title, {"placement": TEXT, **figures, last: WORD})


def _figures(row: PlacementSummary | PlacementAggregate) -> tuple[str, str, str, str]:
    return (
        seconds(row.mean_interarrival_s),
        seconds(row.median_interarrival_s),
        seconds(row.p95_interarrival_s),
        NONE if row.speedup is None else f"{row.speedup:.2f}",
    )


def seconds(value: float | None) -> str:
    """Return a number with about three significant digits, without an exponent. None: a dash."""
    if value is None:
        return NONE
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4
    return f"{value:.{places}f}"


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
