"""Time line of a testbed's record: rows of bars and marks, in shares of the time shown.

No input or output.
"""

from __future__ import annotations

import math
import shlex
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from thalweg.emulation.links.units import format_rate, format_time
from thalweg.emulation.links.words import shape_text
from thalweg.emulation.recording.entries import LinkChange, Process
from thalweg.emulation.recording.recording import Cut, Recording
from thalweg.emulation.reports.process_text import ending, short_command
from thalweg.middleware.network.view import Link

CUT_ROWS = 12  # limit of rows of cuts. Beyond it, the last row has the remaining cuts
HOST_ROWS = 40
STACKED = 8  # limit of sub-rows of a host
BARS = 400  # limit of bars of a row
COMMAND_CHARS = 90
NAMED = 4  # limit of links of a group that are named
CRASHES = {  # Windows lacks some
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS")
}
TICKS = 6
CLOCK_S = 120.0  # later moments are in minutes and seconds
STEPS_S = (
    *(digit * 10.0**power for power in range(-3, 1) for digit in (1, 2, 5)),
    *(10.0, 20.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 30)),
    *(3600.0 * hours for hours in (1, 2, 6, 12, 24, 48, 168, 720)),
)


class Bar(msgspec.Struct, frozen=True):
    """Span of time in a row: begin and length in percent, and the number of its sub-row.

    ``tint``: a class. ``open``: the span has not ended.
    """

    left: float
    width: float
    tint: str
    title: str
    text: str = ""
    row: int = 0
    open: bool = False


class Row(msgspec.Struct, frozen=True):
    """Row of the time line. ``height``: number of sub-rows of bars. ``shades``: times of cuts."""

    name: str
    bars: list[Bar]
    height: int = 1
    shades: list[Bar] = []
    kind: str = ""


class Tick(msgspec.Struct, frozen=True):
    """Labelled moment of the axis, in percent."""

    at: float
    text: str


class Scale:
    """Scale of the time shown, from ``begin_s`` to ``end_s``."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s = begin_s, max(end_s, begin_s + 1e-3)

    def at(self, time_s: float) -> float:
        """Return the position of a time, in percent."""
        share = (time_s - self.begin_s) / (self.end_s - self.begin_s)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def bar(self, begin_s: float, end_s: float | None, tint: str, title: str, text: str = "", row: int = 0) -> Bar:
        """Return a bar for a span of time. ``end_s`` None: the span has not ended."""
        left = self.at(begin_s)
        right = 100.0 if end_s is None else self.at(end_s)
        return Bar(left, round(right - left, 3), tint, title, text, row, end_s is None)

    def ticks(self) -> list[Tick]:
        """Return at most about ``TICKS`` ticks, at round moments."""
        span_s = self.end_s - self.begin_s
        step_s = next((step for step in STEPS_S if span_s / step <= TICKS), STEPS_S[-1])
        first = math.ceil(self.begin_s / step_s - 1e-9)
        times = (number * step_s for number in range(first, math.floor(self.end_s / step_s + 1e-9) + 1))
        return [Tick(self.at(time_s), moment(time_s, step_s, clock=self.end_s >= CLOCK_S)) for time_s in times]


def moment(time_s: float, step_s: float = 0.001, *, clock: bool | None = None) -> str:
    """Return a moment for people: ``1.25 s``, or with ``clock`` (None: if it is late) ``1:02:03``."""
    if not (time_s >= CLOCK_S if clock is None else clock):
        places = max(0, -math.floor(math.log10(step_s) + 1e-9)) if step_s < 1 else 0
        return f"{time_s:.{min(places, 3)}f} s"
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# --- words ------------------------------------------------------------------------------------------


def command_text(process: Process, most: int = COMMAND_CHARS) -> str:
    """Return the command of a process without the folder of its program."""
    try:
        words = shlex.split(process.command)
    except ValueError:  # the command was shortened inside quotes
        words = process.command.split(" ")
    return short_command(words, most)


def ended_text(process: Process) -> str:
    """Return how a process ended: ``runs``, ``ended with 1``, ``ended by SIGTERM``."""
    if process.status is None:
        return "runs"
    return f"ended {ending(process.status)}"


def tint_of(process: Process) -> str:
    """Return the class of a process: runs, good, bad, or stopped by a signal from a different process."""
    if process.status is None:
        return "runs"
    if process.status > 0 or -process.status in CRASHES:
        return "bad"
    return "good" if process.status == 0 else "stopped"


def links_text(links: Sequence[Link]) -> str:
    """Return links in few words: ``a → b``, ``a ⇄ b``, ``16 links of a``, ``72 links``."""
    if len(links) == 2 and links[0].back == links[1]:
        first = links[0] if links[0].source < links[0].target else links[1]
        return f"{first.source} ⇄ {first.goal}"
    if len(links) <= NAMED:
        return ", ".join(link.text for link in links)
    ends = Counter(host for link in links for host in link.hosts)
    host, count = ends.most_common(1)[0]
    return f"{len(links)} links of {host}" if count == len(links) else f"{len(links)} links"


class Group(msgspec.Struct, frozen=True):
    """Equal changes of links that were requested together."""

    at_s: float
    by: str
    links: list[Link]
    text: str


def groups(record: Recording) -> Iterator[Group]:
    """Yield the changes made by people or events, in the order of time. Steps of traces are left out."""
    together: dict[tuple[int, str, str], list[LinkChange]] = {}
    for change in record.recent_changes():
        if not (change.by == "play" and change.of_rate_alone):
            together.setdefault((change.number, change.by, _change_text(change)), []).append(change)
    for (_, by, text), changes in together.items():
        yield Group(changes[0].at_s, by, [record.links[change.link] for change in changes], text)


def _change_text(change: LinkChange) -> str:
    after = shape_text(change.after)
    if change.before is None or change.by == "cut":
        return after
    return f"{shape_text(change.before)} → {after}"


# --- rows -------------------------------------------------------------------------------------------


def rows(record: Recording, scale: Scale, hosts: Sequence[str]) -> list[Row]:
    """Return the rows: cuts, changes, replays and further events, then hosts with processes, ordered as ``hosts``."""
    cuts = record.cuts()
    shown_rows = [*_cut_rows(cuts, scale), *_change_rows(record, scale), *_happening_rows(record, scale)]
    by_host: dict[str, list[Process]] = {host: [] for host in hosts}
    for process in record.processes:
        by_host.setdefault(process.host, []).append(process)
    shown = [(host, processes) for host, processes in by_host.items() if processes]
    shown_rows += [_host_row(host, processes, cuts, scale) for host, processes in shown[:HOST_ROWS]]
    if len(shown) > HOST_ROWS:
        shown_rows.append(Row(f"{len(shown) - HOST_ROWS} more hosts: see the table", [], kind="host"))
    return shown_rows


def cut_groups(cuts: Iterable[Cut]) -> list[tuple[list[Link], Cut]]:
    """Return the cuts grouped by begin and end: the links of a group, and its first cut."""
    together: dict[tuple[int, int | None], list[Cut]] = {}
    for cut in cuts:
        together.setdefault((cut.began, cut.ended), []).append(cut)
    return [([cut.link for cut in group], group[0]) for group in together.values()]


def cut_text(cut: Cut) -> str:
    """Return when a cut was, and its cause."""
    if cut.end_s is None:
        return f"cut since {moment(cut.begin_s)} ({cut.by})"
    return f"cut from {moment(cut.begin_s)} to {moment(cut.end_s)}, {format_time(cut.end_s - cut.begin_s)} ({cut.by})"


def _cut_rows(cuts: Iterable[Cut], scale: Scale) -> Iterator[Row]:
    named: dict[str, list[Bar]] = {}
    for links, cut in cut_groups(cuts):
        name = links_text(links)
        bar = scale.bar(cut.begin_s, cut.end_s, "cut", f"{name} {cut_text(cut)}", _lasted(cut))
        named.setdefault(name, []).append(bar)
    most = CUT_ROWS if len(named) <= CUT_ROWS else CUT_ROWS - 1
    listed = [*named.items()]
    for name, bars in listed[:most]:
        yield Row(f"✂ {name}", bars[:BARS], kind="cuts")
    if rest := [bar for _, bars in listed[most:] for bar in bars]:
        yield Row(f"✂ {len(listed) - most} others", rest[:BARS], kind="cuts")


def _lasted(cut: Cut) -> str:
    return "still cut" if cut.end_s is None else format_time(cut.end_s - cut.begin_s)


def _change_rows(record: Recording, scale: Scale) -> Iterator[Row]:
    marks = [
        scale.bar(group.at_s, group.at_s, group.by, f"{moment(group.at_s)}: {group_text(group)}")
        for group in groups(record)
    ]
    marks += [
        scale.bar(
            change.at_s,
            change.at_s,
            "set",
            f"{moment(change.at_s)}: {change.name} {host_text(change.direction, change.rate_bps)}",
        )
        for change in record.host_changes
    ]
    if marks:
        yield Row("changes", marks[-BARS:], kind="marks")


def group_text(group: Group) -> str:
    """Return a group of changes in words."""
    return f"{group.by} {links_text(group.links)}: {group.text}"


def host_text(direction: str, rate_bps: float | None) -> str:
    """Return the change of a host's rate in words."""
    limit = "without limit" if rate_bps is None else f"at most {format_rate(rate_bps)} in all"
    return f"{'sends' if direction == 'up' else 'receives'} {limit}"


def _happening_rows(record: Recording, scale: Scale) -> Iterator[Row]:
    kinds = {
        "play": "played", "verify": "verified", "carrier": "no carrier", "reset": "reset", "end": "hosts ended",
    }  # fmt: skip
    for kind, name in kinds.items():
        bars = [
            scale.bar(
                happening.begin_s,
                happening.end_s,
                kind,
                f"{name} from {moment(happening.begin_s)}{_until(happening.end_s)}",
                happening.note,
            )
            for happening in record.happenings
            if happening.kind == kind
        ]
        if bars:
            yield Row(name, bars[-BARS:], kind="going")


def _until(end_s: float | None) -> str:
    return " on" if end_s is None else f" to {moment(end_s)}"


def _host_row(host: str, processes: Sequence[Process], cuts: Iterable[Cut], scale: Scale) -> Row:
    """Return the row of a host. Processes that ran at one time have separate sub-rows, at most ``STACKED``.

    The last sub-row has the remaining processes.
    """
    free_s: list[float] = []  # by sub-row: the end of its last process
    bars = []
    for process in sorted(processes, key=lambda one: one.begin_s)[-BARS:]:
        row = next((i for i, at_s in enumerate(free_s) if at_s <= process.begin_s), len(free_s))
        row = min(row, STACKED - 1)
        end_s = math.inf if process.end_s is None else process.end_s
        free_s[row : row + 1] = [end_s]
        bars.append(scale.bar(process.begin_s, process.end_s, tint_of(process), process_text(process),
                              command_text(process, 60), row))  # fmt: skip
    concerned = [cut for cut in cuts if host in cut.link.hosts]
    return Row(host, bars, max(1, len(free_s)), shades(concerned, scale), "host")


def process_text(process: Process) -> str:
    """Return a process in words: command, how it ended, and when."""
    when = f"from {moment(process.begin_s)}{_until(process.end_s)}"
    return f"{command_text(process)}: {ended_text(process)} ({when})"


def shades(cuts: Iterable[Cut], scale: Scale) -> list[Bar]:
    """Return the times of cuts. Cuts of the same time are returned once."""
    times: Mapping[tuple[float, float | None], Cut] = {
        (round(cut.begin_s, 2), cut.end_s and round(cut.end_s, 2)): cut for cut in cuts
    }
    return [scale.bar(cut.begin_s, cut.end_s, "shade", f"{cut.link.text} {cut_text(cut)}") for cut in times.values()][
        :BARS
    ]
