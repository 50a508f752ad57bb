"""Drawings of placements over time: hosts on a circle with their operators, and a strip of the operators' hosts.

Everything is inline SVG. A *frame* is the placement between two changes. Events within ``TOGETHER`` of the whole time
count as one change, so a barrier, which moves several operators at once, makes one frame.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from thalweg.emulation.links.units import format_size
from thalweg.emulation.reports.page import coordinate
from thalweg.experiments.command import clipped
from thalweg.experiments.records.analysis import natural
from thalweg.experiments.records.moves import Move, TreeChange
from thalweg.experiments.reports.page import render, spread_out
from thalweg.experiments.views.style import COLOURS
from thalweg.experiments.views.tables import seconds
from thalweg.experiments.views.timelines import CLIENT_COLOUR, SHORT_S, Course, lives, readable_on, timeline
from thalweg.middleware.network.view import NET, Link

FRAMES = 8  # frames drawn for a placement
TOGETHER = 0.02
PILED = 12  # operators of a host that are drawn as dots; for more, only the number is drawn
ROW = 3  # dots side by side
DOT = 6.0
STEP = 13.5  # between two dots
LARGE = 20  # with more hosts drawings are larger
NAMED = 40  # hosts that are all named; with more hosts, only hosts with operators are named
TALLIED = 1_500  # bars of a strip with tooltips
_BOX_H = 16.0
_LETTER = 5.4  # mean width of a letter in a host's box


class Frame(msgspec.Struct, frozen=True):
    """Placement from ``at_s`` until ``until_s``, the operators that had just moved, and the bytes that links carried.

    ``inputs``: of every operator and sink. ``changes``: number of changes of the tree just before the frame.
    """

    at_s: float
    until_s: float
    placement: dict[str, str]
    moved: tuple[str, ...] = ()
    carried: dict[Link, int] = {}
    inputs: dict[str, list[str]] = {}
    changes: int = 0


# --- what is drawn ----------------------------------------------------------------------------------


def frames(course: Course) -> list[Frame]:
    """Return all placements of a course in the order of time, with the bytes carried during each."""
    limit_s = TOGETHER * course.end_s
    moves = [move for move in course.moves if move.moved]
    events: list[Move | TreeChange] = sorted([*moves, *course.changed], key=_when)
    together: list[list[Move | TreeChange]] = []
    for event in events:
        if together and _when(event) - _when(together[-1][0]) <= limit_s:
            together[-1].append(event)
        else:
            together.append([event])
    now = Frame(0.0, 0.0, dict(course.start), inputs=course.inputs)
    sequence: list[Frame] = []
    for some in together:
        until_s = _when(some[-1])
        sequence.append(msgspec.structs.replace(now, until_s=until_s))
        now = _after(now, some, until_s)
    sequence.append(msgspec.structs.replace(now, until_s=max(now.at_s, course.end_s)))
    starts = [frame.at_s for frame in sequence]
    carried: list[dict[Link, int]] = [defaultdict(int) for _ in sequence]
    for at_s, link, size_bytes in course.transfers:
        carried[max(0, bisect_right(starts, at_s) - 1)][link] += size_bytes
    return [msgspec.structs.replace(frame, carried=dict(own)) for frame, own in zip(sequence, carried, strict=True)]


def _when(event: Move | TreeChange) -> float:
    return event.settled_s if isinstance(event, Move) else event.at_s


def _after(frame: Frame, events: Sequence[Move | TreeChange], at_s: float) -> Frame:
    """Return the frame that begins with the given events."""
    placement, inputs, moved = dict(frame.placement), frame.inputs, []
    for event in events:
        if isinstance(event, Move):
            placement[event.node] = event.target
            moved.append(event.node)
        else:
            operators = event.operators
            remaining = [name for name in placement if name in event.inputs or f"source@{placement[name]}" == name]
            moved += [name for name in operators if name not in placement]
            placement = {name: placement[name] for name in remaining} | operators
            inputs = event.inputs
    moved = [name for name in dict.fromkeys(moved) if name in placement]
    changes = sum(isinstance(event, TreeChange) for event in events)
    return Frame(at_s, at_s, placement, tuple(moved), inputs=inputs, changes=changes)


def choose(found: Sequence[Frame], most: int = FRAMES) -> list[Frame]:
    """Return at most ``most`` evenly spread frames, with the first and last. Moves since the previous one are
    marked.
    """
    chosen = [found[0]]
    for before, now in itertools.pairwise(spread_out(len(found), most)):
        since = found[before + 1 : now + 1]
        changes = sum(frame.changes for frame in since)
        moved = (node for frame in since for node in frame.moved if not changes or node in found[now].placement)
        chosen.append(msgspec.structs.replace(found[now], moved=tuple(dict.fromkeys(moved)), changes=changes))
    return chosen


def short_names(operators: Sequence[str]) -> dict[str, str]:
    """Return the label of every operator: the number in the name if the names are alike, else the position."""
    split = [re.fullmatch(r"(\D*)(\d{1,3})", name) for name in operators]
    if all(split) and len({match[1] for match in split if match}) == 1:
        return {name: match[2] for name, match in zip(operators, split, strict=True) if match}
    return {name: str(i) for i, name in enumerate(operators, 1)}


def time_text(at_s: float, end_s: float) -> str:
    """Return an emulated time as text, in minutes if the whole placement took long."""
    return f"{seconds(at_s / 60)} min" if end_s > SHORT_S else f"{seconds(at_s)} s"


# --- the drawing of the hosts -----------------------------------------------------------------------


class Drawing:
    """Drawings of one placement's frames ``shown``, at the same scale."""

    def __init__(
        self,
        course: Course,
        shown: Sequence[Frame],
        hosts: Sequence[str],
        tints: Mapping[str, str],
    ) -> None:
        self.course, self.shown, self.tints = course, shown, tints
        if course.changed:  # an operator has the number of its row in the strip
            rows = {life.node: f"{life.row + 1}" for life in lives(course)}
            self.operators, self.short = list(rows), rows
            self.dots = {name: COLOURS[(int(row) - 1) % len(COLOURS)] for name, row in rows.items()}
        else:
            self.operators = course.operators
            self.short = short_names(self.operators)
            self.dots = dict(zip(self.operators, itertools.cycle(COLOURS), strict=False))
        servers = sorted({*hosts, *course.hosts()} - {course.client}, key=natural)
        self.hosts = [course.client, *servers]
        self.crowded = len(self.hosts) > NAMED
        self.radius = max(78.0, min(len(self.hosts), NAMED) * 29 / (2 * math.pi))
        most = max(max(Counter(map(frame.placement.get, self.operators)).values(), default=1) for frame in shown)
        self.margin = 36.0 + (2 if most > PILED else -(-most // ROW)) * STEP
        self.side = round(2 * (self.radius + self.margin))
        self.style = "frames large" if len(self.hosts) > LARGE else "frames"
        self.at = {host: self._place(i) for i, host in enumerate(self.hosts)}

    def _place(self, number: int) -> tuple[float, float, float, float]:
        """Return x, y and the outward direction of a host. The client is at the bottom, as the tree's root."""
        angle = math.pi / 2 + 2 * math.pi * number / len(self.hosts)
        out_x, out_y = math.cos(angle), math.sin(angle)
        return self.side / 2 + self.radius * out_x, self.side / 2 + self.radius * out_y, out_x, out_y

    def svg(self, frame: Frame) -> Markup:
        """Return the drawing of one frame. An edge's width shows its bytes relative to the frame's busiest link."""
        here: dict[str, list[str]] = {}
        for node in self.operators:
            if node in frame.placement:
                here.setdefault(frame.placement[node], []).append(node)
        wanted = {
            Link(frame.placement[producer], frame.placement[node])
            for node, producers in frame.inputs.items()
            for producer in producers
            if node in frame.placement and producer in frame.placement
        }
        busy = {link.hosts for link, size_bytes in frame.carried.items() if size_bytes} | self.course.relayed
        idle = {link for link in wanted if link[0] != link[1] and link not in busy}
        return render(
            "frame.svg",
            side=self.side,
            radius=self.radius,
            box=_BOX_H,
            what=", ".join(f"{node} at {host}" for node, host in frame.placement.items() if node in self.short),
            idle=[self._curve(link)[0] for link in sorted(idle)],
            edges=self._carried(frame),
            # the client last: its box is the widest and covers its neighbours' edges
            hosts=[self._host(host, host in here, frame) for host in reversed(self.hosts)],
            dots=[dot for host, nodes in here.items() for dot in self._dots(host, nodes, frame)],
        )

    def _carried(self, frame: Frame) -> Iterator[dict[str, Any]]:
        busiest = max(frame.carried.values(), default=0)
        for link, size_bytes in sorted(frame.carried.items(), key=lambda item: item[1]):
            if link[0] in self.at and link[1] in self.at and size_bytes:
                width = 0.8 + 6.2 * size_bytes / busiest
                path, head = self._curve(link, head=4.5 + width * 0.9)
                text = f"{link.text}: {format_size(size_bytes)}"
                yield {"told": text, "width": width, "path": path, "head": head, "other": link.via != NET}

    def _curve(self, link: Link, head: float = 0.0) -> tuple[str, str]:
        """Return a link's path, and a triangle for the direction. Bows keep directions and networks apart."""
        (x0, y0, *_), (x2, y2, *_) = self.at[link.source], self.at[link.target]
        bow = 0.13 if link.via == NET else 0.26
        x1, y1 = (x0 + x2) / 2 - (y2 - y0) * bow, (y0 + y2) / 2 + (x2 - x0) * bow
        path = f"M{coordinate(x0)} {coordinate(y0)}Q{coordinate(x1)} {coordinate(y1)} {coordinate(x2)} {coordinate(y2)}"
        t = 0.6
        x = (1 - t) ** 2 * x0 + 2 * t * (1 - t) * x1 + t * t * x2
        y = (1 - t) ** 2 * y0 + 2 * t * (1 - t) * y1 + t * t * y2
        along = math.atan2((1 - t) * (y1 - y0) + t * (y2 - y1), (1 - t) * (x1 - x0) + t * (x2 - x1))
        corners = [(x + head * math.cos(along + a), y + head * math.sin(along + a)) for a in (0.0, 2.3, -2.3)]
        return path, "M" + "L".join(f"{coordinate(px)} {coordinate(py)}" for px, py in corners) + "Z"

    def _box(self, host: str) -> tuple[str, float]:
        text = clipped(host, 7)
        return text, max(20.0, len(text) * _LETTER + 8)

    def _host(self, host: str, busy: bool, frame: Frame) -> dict[str, Any]:
        x, y, *_ = self.at[host]
        text, width = self._box(host)
        tint, client = self.tints.get(host, CLIENT_COLOUR), host == self.course.client
        hit = any(event.host == host and event.during(frame.at_s, frame.until_s) for event in self.course.befell)
        drawn = {"name": host, "label": text, "x": x, "y": y, "width": width, "tint": tint, "ink": readable_on(tint)}
        return drawn | {"client": client, "small": self.crowded and not busy and not client, "hit": hit}

    def _dots(self, host: str, nodes: Sequence[str], frame: Frame) -> Iterator[dict[str, Any]]:
        """Yield dots of a host's operators in rows outside the circle, or one dot with the number of very many."""
        x, y, out_x, out_y = self.at[host]
        width = self._box(host)[1]
        first = width / 2 * abs(out_x) + _BOX_H / 2 * abs(out_y) + DOT + 2.5
        if len(nodes) > PILED:
            place: dict[str, Any] = {"x": x + out_x * (first + 5), "y": y + out_y * (first + 5), "radius": 11.0}
            yield place | {"told": ", ".join(nodes), "tint": COLOURS[0], "moved": False, "pile": len(nodes)}
            return
        for i, node in enumerate(nodes):
            row, column = divmod(i, ROW)
            across = (column - (min(ROW, len(nodes) - row * ROW) - 1) / 2) * STEP
            dot_x = x + out_x * (first + row * STEP) - out_y * across
            dot_y = y + out_y * (first + row * STEP) + out_x * across
            tint = self.dots[node]
            place = {"x": dot_x, "y": dot_y, "radius": DOT, "tint": tint, "ink": readable_on(tint), "pile": 0}
            yield place | {"told": f"{node} at {host}", "moved": node in frame.moved, "label": self.short[node]}

    def caption(self, frame: Frame) -> str:
        """Return a frame's time span, and the operators that had moved or the number of tree changes."""
        begins, ends = (time_text(at_s, self.course.end_s) for at_s in (frame.at_s, frame.until_s))
        if frame.changes:
            text = "another tree" if frame.changes == 1 else f"the tree changed {frame.changes} times"
            return f"{begins.split()[0]} to {ends}: {text}"
        if not frame.moved:
            return f"start, until {ends}"
        named = [f"{node} → {frame.placement[node]}" for node in frame.moved[:3]]
        more = f" and {len(frame.moved) - 3} more" if len(frame.moved) > 3 else ""
        return f"{begins.split()[0]} to {ends}: {', '.join(named)}{more}"


def drawings(course: Course, hosts: Sequence[str], tints: Mapping[str, str]) -> Markup:
    """Return the frames of a placement side by side, with a key to the operators."""
    course_frames = frames(course)
    chosen = choose(course_frames)
    drawing = Drawing(course, chosen, hosts, tints)
    hint = f"{len(chosen)} of {len(course_frames)} placements. " if len(chosen) < len(course_frames) else ""
    hint += _dashes([course])
    return _beside(drawing, [(drawing.svg(frame), drawing.caption(frame)) for frame in chosen], hint)


def still(courses: Sequence[Course], hosts: Sequence[str], tints: Mapping[str, str]) -> Markup:
    """Return placements without moves side by side."""
    circles = [Drawing(course, frames(course), hosts, tints) for course in courses]
    figures = [
        (circle.svg(frame), f"{course.name}, all {time_text(course.end_s, course.end_s)}")
        for circle, course in zip(circles, courses, strict=True)
        for frame in circle.shown
    ]
    return _beside(circles[0], figures, _dashes(courses))


def _dashes(courses: Sequence[Course]) -> str:
    """Return the explanation of dashed edges. Empty if there are none."""
    networks = sorted({link.via for course in courses for _, link, _ in course.transfers} - {NET})
    return f"Dashed: over {' or '.join(networks)}." if networks else ""


def _beside(made: Drawing, figures: Sequence[tuple[Markup, str]], hint: str = "") -> Markup:
    """Return figures side by side, with a key to the operators, unless there are very many or the tree changes."""
    keyed = not made.course.changed and len(made.operators) <= NAMED
    short = made.short.items() if keyed else ()
    key = [(made.dots[name], name if name.endswith(text) else f"{text} {name}") for name, text in short]
    return render("frames.html", key=key, hint=hint, style=made.style, figures=figures)


# --- the strip --------------------------------------------------------------------------------------

_LEFT, _WIDE, _ROW_H = 76.0, 960.0, 22.0


def strip(course: Course, tints: Mapping[str, str]) -> Markup:
    """Return a strip with a row for each operator, coloured by host. Gaps are moves.

    Lines mark changes of the tree, and begin and end of a scenario.
    """
    drawn = timeline(course)
    end_s = drawn.end_s
    scale, unit_s = (_WIDE - _LEFT - 12) / end_s, 60 if end_s > SHORT_S else 1
    unit = " min" if unit_s == 60 else " s"
    explained = len(drawn.stays) <= TALLIED
    bars = []
    for stay in drawn.stays:
        width, tint = (stay.until_s - stay.begin_s) * scale, tints.get(stay.host, CLIENT_COLOUR)
        span = f"{time_text(stay.begin_s, end_s)} to {time_text(stay.until_s, end_s)}"
        bars.append(
            {
                "x": _LEFT + stay.begin_s * scale,
                "top": stay.row * _ROW_H + 3,
                "width": width,
                "high": _ROW_H - 6,
                "tint": tint,
                "told": f"{stay.node} at {stay.host}, {span}" if explained else "",
                "label": stay.host if explained and width > len(stay.host) * 6 + 8 else "",
                "ink": readable_on(tint),
            }
        )
    return render(
        "strip.svg",
        name=course.name,
        wide=_WIDE,
        high=len(drawn.rows) * _ROW_H + 26,
        left=_LEFT,
        ticks=[
            {"x": _LEFT + at * unit_s * scale, "text": f"{at:g}{'' if at else unit}"} for at in ticks(end_s / unit_s)
        ],
        rows=[{"y": row * _ROW_H + 15, "label": clipped(name, 10)} for row, name in enumerate(drawn.rows)],
        bars=bars,
        lines=[
            {"kind": turn.kind, "x": _LEFT + turn.at_s * scale, "told": f"{turn.what}, {time_text(turn.at_s, end_s)}"}
            for turn in drawn.turns
        ],
    )


def ticks(end: float) -> list[float]:
    """Return about six round numbers from 0 to ``end``."""
    if not (end > 0 and math.isfinite(end)):
        return [0.0]
    rough = end / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [i * step for i in range(int(end / step + 1e-9) + 1)]
