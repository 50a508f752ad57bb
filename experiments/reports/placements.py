"""Placements over time, drawn: hosts on a circle with their operators, and a strip of who was where when.

Everything is inline SVG. A *frame* is the placement between two changes; a change is everything that moved within
``TOGETHER`` of the whole time, so that a barrier, which moves several operators at once, makes one frame.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from thalweg.experiments.records.analysis import natural
from thalweg.experiments.records.moves import Move
from thalweg.experiments.records.trees import Change, Life, lives
from thalweg.experiments.reports.page import esc
from thalweg.experiments.views.plots import CLIENT_COLOUR, COLOURS, HOST_COLOURS, SHORT_S, readable_on, stays_of
from thalweg.experiments.views.tables import seconds, size
from thalweg.middleware.dataflow import TREES, Code
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.network.view import Link

FRAMES = 8  # drawn of a placement
TOGETHER = 0.02
PILED = 12  # operators at a host that are drawn one by one; of more, their number
ROW = 3  # of them side by side
DOT = 6.0
STEP = 13.5  # between two dots
LARGE = 20  # with more hosts drawings are larger
NAMED = 40  # hosts that are all named; of more, those with operators
TALLIED = 1_500  # bars of a strip that are each explained when pointed at
_BOX_H = 16.0
_LETTER = 5.4  # mean width of a letter in a host's box


class Frame(msgspec.Struct, frozen=True):
    """A placement from ``at_s`` until ``until_s``, what had just moved, and the bytes links carried in that time.

    ``inputs``: of every operator and the sink, where the tree is another than the run's; ``changes``: how often it
    had just changed.
    """

    at_s: float
    until_s: float
    placement: dict[str, str]
    moved: tuple[str, ...] = ()
    carried: dict[Link, int] = {}
    inputs: dict[str, list[str]] = {}
    changes: int = 0


class Befell(msgspec.Struct, frozen=True):
    """A scenario: something befell a host's links for a time."""

    host: str
    at_s: float
    until_s: float
    name: str

    def during(self, frame: Frame) -> bool:
        return self.at_s < frame.until_s and self.until_s > frame.at_s


class Course(msgspec.Struct, frozen=True):
    """One placement of a run: where everything was at first, its moves, when it ended, and what links carried.

    ``transfers``: when (emulated seconds), from, to, how many bytes; only between different hosts. ``inputs``: of every
    operator and the sink, where the planner gave the tree a shape of its own. ``changes``: of the tree.
    """

    name: str
    start: dict[str, str]
    moves: list[Move]
    end_s: float
    transfers: list[tuple[float, str, str, int]]
    befell: list[Befell] = []
    inputs: dict[str, list[str]] = {}
    changes: list[Change] = []

    @property
    def operators(self) -> list[str]:
        """The nodes that may move or did, of the tree at first: all but sources at their hosts and the sink."""
        moved = {move.node for move in self.moves} - {name for change in self.changed for name in change.operators}
        own = {node for node, host in self.start.items() if node not in (f"source@{host}", "sink")}
        return sorted(own | moved, key=natural)

    @property
    def changed(self) -> list[Change]:
        """The changes of the tree that came about."""
        return [change for change in self.changes if change.changed]

    def lives(self) -> list[Life]:
        """The operators there were, and from when until when."""
        return lives(self.operators, self.start, self.changed, self.end_s)

    @property
    def client(self) -> str:
        return self.start.get("sink", "client")

    def hosts(self) -> set[str]:
        """Every host that something was at, came to, or was sent between."""
        ends = {host for move in self.moves for host in (move.source, move.target)}
        ends |= {host for _, source, target, _ in self.transfers for host in (source, target)}
        ends |= {host for change in self.changed for host in change.hosts.values()}
        return set(self.start.values()) | ends


# --- what is drawn ----------------------------------------------------------------------------------


def frames(course: Course) -> list[Frame]:
    """Every placement there was, in the order of time, with what was carried during it."""
    limit_s = TOGETHER * course.end_s
    moves = [move for move in course.moves if move.moved]
    events: list[Move | Change] = sorted([*moves, *course.changed], key=_when)
    together: list[list[Move | Change]] = []
    for each in events:
        if together and _when(each) - _when(together[-1][0]) <= limit_s:
            together[-1].append(each)
        else:
            together.append([each])
    now = Frame(0.0, 0.0, dict(course.start), inputs=course.inputs)
    found: list[Frame] = []
    for some in together:
        until_s = _when(some[-1])
        found.append(msgspec.structs.replace(now, until_s=until_s))
        now = _after(now, some, until_s)
    found.append(msgspec.structs.replace(now, until_s=max(now.at_s, course.end_s)))
    starts = [frame.at_s for frame in found]
    carried: list[dict[Link, int]] = [defaultdict(int) for _ in found]
    for at_s, source, target, size_bytes in course.transfers:
        carried[max(0, bisect_right(starts, at_s) - 1)][Link(source, target)] += size_bytes
    return [msgspec.structs.replace(frame, carried=dict(own)) for frame, own in zip(found, carried, strict=True)]


def _when(event: Move | Change) -> float:
    return event.settled_s if isinstance(event, Move) else event.at_s


def _after(frame: Frame, events: Sequence[Move | Change], at_s: float) -> Frame:
    """The frame that begins with these events."""
    placement, inputs, moved = dict(frame.placement), frame.inputs, []
    for event in events:
        if isinstance(event, Move):
            placement[event.node] = event.target
            moved.append(event.node)
        else:
            operators = event.operators
            others = [name for name in placement if name in event.inputs or f"source@{placement[name]}" == name]
            moved += [name for name in operators if name not in placement]
            placement = {name: placement[name] for name in others} | operators
            inputs = event.inputs
    moved = [name for name in dict.fromkeys(moved) if name in placement]
    changes = sum(isinstance(event, Change) for event in events)
    return Frame(at_s, at_s, placement, tuple(moved), inputs=inputs, changes=changes)


def choose(found: Sequence[Frame], most: int = FRAMES) -> list[Frame]:
    """At most ``most`` of them, evenly, the first and the last included; what moved since the one before is marked."""
    if len(found) <= most:
        return list(found)
    picked = [round(i * (len(found) - 1) / (most - 1)) for i in range(most)]
    chosen = [found[0]]
    for before, now in itertools.pairwise(picked):
        since = found[before + 1 : now + 1]
        changes = sum(frame.changes for frame in since)
        moved = (node for frame in since for node in frame.moved if not changes or node in found[now].placement)
        chosen.append(msgspec.structs.replace(found[now], moved=tuple(dict.fromkeys(moved)), changes=changes))
    return chosen


def tree_edges(tree: object, start: Mapping[str, str]) -> list[tuple[str, str]]:
    """(producer, consumer) of the tree by its builder's name; none when the placement is of other nodes."""
    builder = TREES.get(tree) if isinstance(tree, str) else None
    servers = [host for node, host in start.items() if node == f"source@{host}"]
    if builder is None or not servers:
        return []
    try:
        dataflow = builder({host: Code("any") for host in servers}, Code("any"), start.get("sink", "client"))
    except DataflowError:
        return []
    if set(dataflow.by_name) != set(start):
        return []
    return [(name, node.name) for node in dataflow.nodes for name in node.inputs]


def host_colours(courses: Iterable[Course], hosts: Iterable[str]) -> dict[str, str]:
    """A colour for every host, grey for the client; the same as in the picture of the moves."""
    involved: set[str] = set()
    everything, clients = set(hosts), set()
    for course in courses:
        clients.add(course.client)
        everything |= course.hosts()
        if course.moves or course.changed:
            involved |= {life.host for life in course.lives() if life.host is not None}
            involved |= {course.start[node] for node in course.operators if node in course.start}
            involved |= {host for move in course.moves for host in (move.source, move.target)[: 1 + move.moved]}
    servers = sorted(involved - clients, key=natural) + sorted(everything - involved - clients, key=natural)
    tints = {host: HOST_COLOURS[i % len(HOST_COLOURS)] for i, host in enumerate(servers)}
    return tints | dict.fromkeys(clients, CLIENT_COLOUR)


def short_names(operators: Sequence[str]) -> dict[str, str]:
    """What stands in an operator's dot: its number, where all are named alike, or else its place among them."""
    split = [re.fullmatch(r"(\D*)(\d{1,3})", name) for name in operators]
    if all(split) and len({match[1] for match in split if match}) == 1:
        return {name: match[2] for name, match in zip(operators, split, strict=True) if match}
    return {name: str(i) for i, name in enumerate(operators, 1)}


def operator_colours(operators: Sequence[str]) -> dict[str, str]:
    """A colour for every operator; with more of them than colours they come again."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(operators)}


def time_text(at_s: float, end_s: float) -> str:
    """An emulated time, in minutes where the whole took long."""
    return f"{seconds(at_s / 60)} min" if end_s > SHORT_S else f"{seconds(at_s)} s"


# --- the drawing of the hosts -----------------------------------------------------------------------


class Drawing:
    """Draws ``shown``, frames of one placement, all to the same scale."""

    def __init__(
        self,
        course: Course,
        shown: Sequence[Frame],
        hosts: Sequence[str],
        tints: Mapping[str, str],
        tree: object = None,
    ) -> None:
        self.course, self.shown, self.tints = course, shown, tints
        if course.changed:  # an operator is told by its row in the strip
            rows = {life.node: f"{life.row + 1}" for life in course.lives()}
            self.operators, self.short = list(rows), rows
            self.dots = {name: COLOURS[(int(row) - 1) % len(COLOURS)] for name, row in rows.items()}
        else:
            self.operators = course.operators
            self.short, self.dots = short_names(self.operators), operator_colours(self.operators)
        self.edges = tree_edges(tree, course.start)
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
        """x, y, and the direction outwards; the client is at the bottom, where the tree has its root."""
        angle = math.pi / 2 + 2 * math.pi * number / len(self.hosts)
        out_x, out_y = math.cos(angle), math.sin(angle)
        return self.side / 2 + self.radius * out_x, self.side / 2 + self.radius * out_y, out_x, out_y

    def svg(self, frame: Frame) -> str:
        """One frame; what links carried is told by their width, of the busiest one in the frame."""
        here: dict[str, list[str]] = {}
        for node in self.operators:
            if node in frame.placement:
                here.setdefault(frame.placement[node], []).append(node)
        what = ", ".join(f"{node} at {host}" for node, host in frame.placement.items() if node in self.short)
        parts = [
            f'<svg viewBox="0 0 {self.side} {self.side}" role="img" aria-label="{esc(what or "no operators")}">',
            f'<circle class="ring" cx="{_n(self.side / 2)}" cy="{_n(self.side / 2)}" r="{_n(self.radius)}"/>',
            *self._links(frame),
        ]
        for host in reversed(self.hosts):  # the client last: its box is the widest and covers its neighbours' edges
            parts += self._host(host, bool(here.get(host)), frame)
        for host, nodes in here.items():
            parts += self._dots(host, nodes, frame)
        return "".join([*parts, "</svg>"])

    def _links(self, frame: Frame) -> list[str]:
        busiest = max(frame.carried.values(), default=0)
        own = [(producer, node) for node, producers in frame.inputs.items() for producer in producers]
        wanted = {
            Link(frame.placement[a], frame.placement[b])
            for a, b in own or self.edges
            if a in frame.placement and b in frame.placement
        }
        idle = {link for link in wanted if link[0] != link[1] and not frame.carried.get(link)}
        parts = [f'<path class="tree" d="{self._curve(*link)[0]}"/>' for link in sorted(idle)]
        for link, size_bytes in sorted(frame.carried.items(), key=lambda item: item[1]):
            if link[0] not in self.at or link[1] not in self.at or not size_bytes:
                continue
            width = 0.8 + 6.2 * size_bytes / busiest
            path, head = self._curve(*link, head=4.5 + width * 0.9)
            told = f"<title>{esc(link[0])} → {esc(link[1])}: {size(size_bytes)}</title>"
            parts.append(f'<g>{told}<path class="edge" stroke-width="{_n(width)}" d="{path}"/>')
            parts.append(f'<path class="head" d="{head}"/></g>')
        return parts

    def _curve(self, source: str, target: str, head: float = 0.0) -> tuple[str, str]:
        """A bow that passes the one in the other direction, and a triangle on it that tells the direction."""
        (x0, y0, *_), (x2, y2, *_) = self.at[source], self.at[target]
        x1, y1 = (x0 + x2) / 2 - (y2 - y0) * 0.13, (y0 + y2) / 2 + (x2 - x0) * 0.13
        path = f"M{_n(x0)} {_n(y0)}Q{_n(x1)} {_n(y1)} {_n(x2)} {_n(y2)}"
        t = 0.6
        x = (1 - t) ** 2 * x0 + 2 * t * (1 - t) * x1 + t * t * x2
        y = (1 - t) ** 2 * y0 + 2 * t * (1 - t) * y1 + t * t * y2
        along = math.atan2((1 - t) * (y1 - y0) + t * (y2 - y1), (1 - t) * (x1 - x0) + t * (x2 - x1))
        corners = [(x + head * math.cos(along + a), y + head * math.sin(along + a)) for a in (0.0, 2.3, -2.3)]
        return path, "M" + "L".join(f"{_n(px)} {_n(py)}" for px, py in corners) + "Z"

    def _box(self, host: str) -> tuple[str, float]:
        text = host if len(host) <= 7 else host[:6] + "…"
        return text, max(20.0, len(text) * _LETTER + 8)

    def _host(self, host: str, busy: bool, frame: Frame) -> list[str]:
        x, y, *_ = self.at[host]
        tint = self.tints.get(host, CLIENT_COLOUR)
        parts = [f"<g><title>{esc(host)}</title>"]
        if self.crowded and not busy and host != self.course.client:
            parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="2.5" fill="{tint}"/>')
        else:
            text, width = self._box(host)
            kind = ' class="client"' if host == self.course.client else ""
            parts.append(
                f'<rect{kind} x="{_n(x - width / 2)}" y="{_n(y - _BOX_H / 2)}" width="{_n(width)}"'
                f' height="{_n(_BOX_H)}" rx="4" fill="{tint}"/>'
                f'<text x="{_n(x)}" y="{_n(y + 3)}" text-anchor="middle" style="fill:{readable_on(tint)}">'
                f"{esc(text)}</text>"
            )
            if any(
                one.host == host and one.at_s < frame.until_s and one.until_s > frame.at_s for one in self.course.befell
            ):
                grown = f'x="{_n(x - width / 2 - 3)}" y="{_n(y - _BOX_H / 2 - 3)}" width="{_n(width + 6)}"'
                parts.append(f'<rect class="hit" {grown} height="{_n(_BOX_H + 6)}" rx="6"/>')
        return [*parts, "</g>"]

    def _dots(self, host: str, nodes: Sequence[str], frame: Frame) -> list[str]:
        """A host's operators outside the circle, in rows across the direction outwards."""
        x, y, out_x, out_y = self.at[host]
        width = self._box(host)[1]
        first = width / 2 * abs(out_x) + _BOX_H / 2 * abs(out_y) + DOT + 2.5
        if len(nodes) > PILED:
            x, y = x + out_x * (first + 5), y + out_y * (first + 5)
            names = esc(", ".join(nodes))
            return [
                f'<g><title>{names}</title><circle cx="{_n(x)}" cy="{_n(y)}" r="11" fill="{COLOURS[0]}"/>'
                f'<text x="{_n(x)}" y="{_n(y + 3)}" text-anchor="middle" style="fill:#ffffff">×{len(nodes)}</text></g>'
            ]
        parts = []
        for i, node in enumerate(nodes):
            row, column = divmod(i, ROW)
            across = (column - (min(ROW, len(nodes) - row * ROW) - 1) / 2) * STEP
            dot_x = x + out_x * (first + row * STEP) - out_y * across
            dot_y = y + out_y * (first + row * STEP) + out_x * across
            tint = self.dots[node]
            kind = ' class="moved"' if node in frame.moved else ""
            parts.append(
                f'<g><title>{esc(node)} at {esc(host)}</title><circle{kind} cx="{_n(dot_x)}" cy="{_n(dot_y)}"'
                f' r="{_n(DOT)}" fill="{tint}"/><text x="{_n(dot_x)}" y="{_n(dot_y + 2.7)}" text-anchor="middle"'
                f' style="font-size:7.5px;fill:{readable_on(tint)}">{esc(self.short[node])}</text></g>'
            )
        return parts

    def caption(self, frame: Frame) -> str:
        """When, and what had moved, or how often the tree had changed."""
        begins, ends = (time_text(at_s, self.course.end_s) for at_s in (frame.at_s, frame.until_s))
        if frame.changes:
            told = "another tree" if frame.changes == 1 else f"the tree changed {frame.changes} times"
            return f"{begins.split()[0]} to {ends}: {told}"
        if not frame.moved:
            return f"start, until {ends}"
        named = [f"{node} → {frame.placement[node]}" for node in frame.moved[:3]]
        more = f" and {len(frame.moved) - 3} more" if len(frame.moved) > 3 else ""
        return f"{begins.split()[0]} to {ends}: {', '.join(named)}{more}"


HINT = (
    "Lines: bytes moved in that time, the busiest link widest; dashed: in the tree, but nothing moved in that time. A"
    " strong rim: had just moved. A dashed red frame: the scenario befell this host."
)


def drawings(course: Course, hosts: Sequence[str], tints: Mapping[str, str], tree: object = None) -> str:
    """The frames of a placement beside each other, with a key to the operators."""
    found = frames(course)
    chosen = choose(found)
    made = Drawing(course, chosen, hosts, tints, tree)
    some = f'<p class="hint">{len(chosen)} of {len(found)} placements.</p>' if len(chosen) < len(found) else ""
    shown = (_figure(made.svg(frame), made.caption(frame)) for frame in chosen)
    return f'{_key(made)}{some}<div class="{made.style}">{"".join(shown)}</div>'


def still(courses: Sequence[Course], hosts: Sequence[str], tints: Mapping[str, str], tree: object = None) -> str:
    """Placements that nothing moved, beside each other."""
    made = [Drawing(course, frames(course), hosts, tints, tree) for course in courses]
    shown = (
        _figure(one.svg(frame), f"{course.name}, all {time_text(course.end_s, course.end_s)}")
        for one, course in zip(made, courses, strict=True)
        for frame in one.shown
    )
    return f'{_key(made[0])}<div class="{made[0].style}">{"".join(shown)}</div>'


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{esc(caption)}</figcaption></figure>"


def _key(made: Drawing) -> str:
    """Which dot is which operator; of very many, or where the tree changes, it is told by pointing at them."""
    if made.course.changed or not 0 < len(made.operators) <= NAMED:
        return ""
    dots = (
        f'<span><i class="dot" style="background:{made.dots[name]}"></i>'
        + esc(name if name.endswith(text) else f"{text} {name}")
        + "</span>"
        for name, text in made.short.items()
    )
    return f'<div class="key">operators: {"".join(dots)}</div>'


# --- the strip --------------------------------------------------------------------------------------

_LEFT, _WIDE, _ROW_H = 76.0, 960.0, 22.0


def strip(course: Course, tints: Mapping[str, str]) -> str:
    """One row an operator, coloured by its host; gaps are moves.

    Where the tree changes (a line), those that appear take over the rows of those that disappear.
    """
    found, end_s = course.lives(), max(course.end_s, 1e-9)
    scale = (_WIDE - _LEFT - 12) / end_s
    labels = {life.row: f"{life.row + 1}" if course.changed else life.node for life in found}
    high = len(labels) * _ROW_H + 26
    what = f"Where each operator of {course.name} was over the emulated time"
    parts = [f'<svg viewBox="0 0 {_n(_WIDE)} {_n(high)}" role="img" aria-label="{esc(what)}">']
    for at in ticks(end_s / (60 if end_s > SHORT_S else 1)):
        x = _LEFT + at * (60 if end_s > SHORT_S else 1) * scale
        text = f"{at:g}" + ((" min" if end_s > SHORT_S else " s") if at == 0 else "")
        parts.append(f'<line class="axis" x1="{_n(x)}" x2="{_n(x)}" y1="0" y2="{_n(high - 22)}"/>')
        parts.append(f'<text class="name" x="{_n(x)}" y="{_n(high - 8)}" text-anchor="middle">{esc(text)}</text>')
    for row, name in labels.items():
        label, y = name if len(name) <= 10 else name[:9] + "…", _n(row * _ROW_H + 15)
        parts.append(f'<text class="name" x="{_n(_LEFT - 6)}" y="{y}" text-anchor="end">{esc(label)}</text>')
    stays = {
        life.node: stays_of(
            [move for move in course.moves if move.node == life.node], life.host, life.died_s, life.born_s
        )
        for life in found
    }
    told = sum(map(len, stays.values())) <= TALLIED
    for life in found:
        node, top = life.node, life.row * _ROW_H + 3
        for begin_s, until_s, host in stays[node]:
            x, width = _LEFT + begin_s * scale, (until_s - begin_s) * scale
            tint = tints.get(host, CLIENT_COLOUR)
            bar = f'x="{_n(x)}" y="{_n(top)}" width="{_n(max(width, 0.5))}" height="{_n(_ROW_H - 6)}" fill="{tint}"'
            if not told:
                parts.append(f"<rect {bar}/>")
                continue
            span = f"{time_text(begin_s, end_s)} to {time_text(until_s, end_s)}"
            parts.append(f"<rect {bar}><title>{esc(node)} at {esc(host)}, {span}</title></rect>")
            if width > len(host) * 6 + 8:
                style = f"fill:{readable_on(tint)}"
                place = f'x="{_n(x + width / 2)}" y="{_n(top + 11.5)}"'
                parts.append(f'<text class="bar" {place} text-anchor="middle" style="{style}">{esc(host)}</text>')
    for change in course.changed:
        if 0 < change.at_s < end_s:
            across = _n(_LEFT + change.at_s * scale)
            title = f"<title>another tree, {time_text(change.at_s, end_s)}</title>"
            parts.append(f'<line class="turn" x1="{across}" x2="{across}" y1="0" y2="{_n(high - 22)}">{title}</line>')
    for one in course.befell:
        for at_s in (one.at_s, one.until_s):
            if 0 < at_s < end_s:
                across = _n(_LEFT + at_s * scale)
                name = f"<title>{esc(one.name)} of {esc(one.host)}, {time_text(at_s, end_s)}</title>"
                parts.append(
                    f'<line class="mark" x1="{across}" x2="{across}" y1="0" y2="{_n(high - 22)}">{name}</line>'
                )
    return f'<div class="strip">{"".join(parts)}</svg></div>'


def ticks(end: float) -> list[float]:
    """Round numbers from 0 to ``end``, some six of them."""
    if not (end > 0 and math.isfinite(end)):
        return [0.0]
    rough = end / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [i * step for i in range(int(end / step + 1e-9) + 1)]


def _n(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")
