"""Locations of operators over time: the placements of a run from its records, as rows, bars and marks of a picture.

Seconds are emulated. A tree changes at one moment, with the first partition of the new tree. Operators that disappear
stay until then, or until the old tree's last partition came. New operators begin then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from thalweg.experiments.records.analysis import natural
from thalweg.experiments.records.log import Row, read_log
from thalweg.experiments.records.moves import Move, TreeChange, changes_of, moves_of
from thalweg.experiments.records.records import RunInfo
from thalweg.experiments.records.recoveries import recoveries_of
from thalweg.middleware.errors import counted
from thalweg.middleware.network.view import NET, Link, Pair

SHORT_S = 180.0  # longest placement that is shown in seconds
HOST_COLOURS = (  # Tol's muted and bright colours, neighbours far apart
    "#4477AA", "#EE8866", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#997700", "#BBCC33", "#332288", "#EE99AA",
    "#44AA99", "#882255", "#99DDFF", "#555555",
)  # fmt: skip
CLIENT_COLOUR = "#BBBBBB"


class Befell(msgspec.Struct, frozen=True):
    """Event of a scenario that changed a host's links for a time."""

    host: str
    at_s: float
    until_s: float
    name: str

    def during(self, begin_s: float, until_s: float) -> bool:
        return self.at_s < until_s and self.until_s > begin_s


class Course(msgspec.Struct, frozen=True):
    """One placement of a run: the nodes' first hosts, the moves, the end, and the bytes over links.

    ``transfers``: time (emulated seconds), link and bytes of transfers between different hosts. A transfer over relays
    is listed for each link of the route. ``relayed``: first and last hosts of such routes. ``inputs``: of every
    operator and sink. ``changes``: of the tree.
    """

    name: str
    start: dict[str, str]
    moves: list[Move]
    end_s: float
    transfers: list[tuple[float, Link, int]]
    befell: list[Befell] = []
    inputs: dict[str, list[str]] = {}
    changes: list[TreeChange] = []
    relayed: frozenset[Pair] = frozenset()

    @property
    def operators(self) -> list[str]:
        """Operators of the first tree, and nodes that moved and belong to no later tree.

        Records without inputs have the names of the tree builders: an operator is neither ``source@HOST`` at its host,
        nor ``sink``.
        """
        moved = {move.node for move in self.moves} - {name for change in self.changed for name in change.operators}
        named = (node for node, host in self.start.items() if node not in (f"source@{host}", "sink"))
        return sorted({*(self.inputs.keys() - {*self.sinks} if self.inputs else named), *moved}, key=natural)

    @property
    def sinks(self) -> list[str]:
        """Nodes without a consumer."""
        producers = {name for names in self.inputs.values() for name in names}
        return [name for name in self.inputs if name not in producers] or ["sink"]

    @property
    def changed(self) -> list[TreeChange]:
        """Changes of the tree that came about."""
        return [change for change in self.changes if change.changed]

    @property
    def stayed(self) -> bool:
        """Return whether no operator moved or was to move, and the tree stayed the same."""
        return not self.moves and not self.changed

    @property
    def client(self) -> str:
        return self.start.get(self.sinks[0], "client")

    @property
    def title(self) -> str:
        """Text of the number of changes of the tree, and of operators that moved and stayed."""
        moved, turns = sum(move.moved for move in self.moves), len(self.changed)
        parts = [f"the tree changed {counted(turns, 'time')}"] if turns else []
        if self.moves or not turns:
            parts.append(f"{moved} moved, {len(self.moves) - moved} stayed")
        return "; ".join(parts)

    def hosts(self) -> set[str]:
        """Return the hosts that a node was on or came to, and the ends of transfers."""
        ends = {host for move in self.moves for host in (move.source, move.target)}
        ends |= {host for _, link, _ in self.transfers for host in link.hosts}
        ends |= {host for change in self.changed for host in change.hosts.values()}
        return set(self.start.values()) | ends

    def operators_hosts(self) -> set[str]:
        """Return the hosts that an operator was on."""
        began = {life.host for life in lives(self) if life.host is not None}
        return began | {host for move in self.moves for host in (move.source, move.target)[: 1 + move.moved]}


def read_courses(folder: Path, info: RunInfo, *, transfers: bool = True) -> dict[str, Course]:
    """Return the courses of a run's placements, by name. ``transfers``: include the bytes over links.

    A placement without locations in its records is left out.
    """
    start: dict[str, Row] = {}
    by_kind: defaultdict[str, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    carried: defaultdict[str, list[tuple[float, Link, int]]] = defaultdict(list)
    relayed: defaultdict[str, set[Pair]] = defaultdict(set)
    end_s: defaultdict[str, float] = defaultdict(float)
    kinds = (
        "placed",
        "delivered",
        "relocated",
        "reshaped",
        "scenario",
        "recovered",
        "befallen",
        *(("transfer", "relayed") if transfers else ()),
    )
    for row in read_log(folder, *kinds):
        name = row.placement
        if name is None:
            continue
        if row.kind == "placed":
            start.setdefault(name, row)
        elif row.kind == "delivered":
            end_s[name] = max(end_s[name], row.t_s)
        elif row.kind not in ("transfer", "relayed"):
            by_kind[name][row.kind].append(row)
        elif row.peer is not None and row.peer != row.host:
            first = row.peer
            if row.kind == "transfer" and row.detail.relays:
                first = row.detail.relays[0]
                relayed[name].add((row.host, row.peer))
            carried[name].append((row.t_s, Link(row.host, first, row.detail.via or NET), row.size_bytes or 0))
    courses = {}
    for name in dict.fromkeys([*info.placements, *start, *by_kind]):
        course = _course(name, start.get(name), by_kind[name], end_s[name], carried[name], relayed[name])
        if course is not None:
            courses[name] = course
    return courses


def _course(
    name: str,
    placed: Row | None,
    said: Mapping[str, Sequence[Row]],
    delivered_s: float,
    transfers: list[tuple[float, Link, int]],
    relayed: Iterable[Pair],
) -> Course | None:
    """Return the course of one placement. None: its records do not have the locations of operators."""
    moves, changes = moves_of(said["relocated"]), changes_of(said["reshaped"])
    recoveries = recoveries_of(said["recovered"], said["befallen"])
    moves = sorted([*moves, *(move for entry in recoveries for move in entry.moves(name))], key=lambda each: each.at_s)
    if placed is None and not moves and not changes:
        return None
    last_s = max([delivered_s, *(move.settled_s for move in moves), *(change.at_s for change in changes)])
    befell = [
        Befell(row.host, row.detail.at_s, row.detail.until_s, row.detail.scenario)
        for row in said["scenario"]
        if row.detail.at_s is not None and row.detail.until_s is not None
    ]
    befell += [Befell(entry.host, entry.at_s, entry.until_s, "recovery") for entry in recoveries]
    placement, inputs = ({}, {}) if placed is None else (placed.detail.placement, placed.detail.inputs)
    return Course(name, placement, moves, last_s, transfers, befell, inputs, changes, frozenset(relayed))


# --- rows, bars and marks ---------------------------------------------------------------------------


class Life(msgspec.Struct, frozen=True):
    """Life of an operator in the tree: its first host, its start and end, and its row in a picture."""

    node: str
    host: str | None
    born_s: float
    died_s: float
    row: int


class Stay(msgspec.Struct, frozen=True):
    """Stay of an operator on a host."""

    node: str
    host: str
    begin_s: float
    until_s: float
    row: int


class Mark(msgspec.Struct, frozen=True):
    """Mark of a hand-over. ``kind``: ``stayed``, or the protocol of the move."""

    at_s: float
    kind: str
    row: int


class Turn(msgspec.Struct, frozen=True):
    """Moment that concerns every operator: the tree changes (``turn``), or a scenario begins or ends (``mark``)."""

    at_s: float
    kind: str
    what: str


class Timeline(msgspec.Struct, frozen=True):
    """Stays of a placement's operators until ``end_s``, for a picture.

    ``rows``: names of the rows. ``turns``: lines across the rows.
    """

    rows: list[str]
    stays: list[Stay]
    marks: list[Mark]
    turns: list[Turn]
    end_s: float


def timeline(course: Course) -> Timeline:
    """Return the time line of a placement. Rows are operators.

    If the tree changes, rows are places in the tree, which new operators take over.
    """
    living = lives(course)
    moves: dict[Life, list[Move]] = {life: [] for life in living}
    for move in course.moves:
        own = [life for life in living if life.node == move.node]  # several lives if the operator came again
        if own:
            moves[max(own, key=lambda life: (life.born_s <= move.settled_s, life.born_s))].append(move)
    height = 1 + max((life.row for life in living), default=-1)
    return Timeline(
        rows=[str(row + 1) for row in range(height)] if course.changed else [life.node for life in living],
        stays=[stay for life in living for stay in stays(life, moves[life])],
        marks=[Mark(move.at_s, mark(move), life.row) for life in living for move in moves[life]],
        turns=[turn for turn in _turns(course) if 0 < turn.at_s < course.end_s],
        end_s=max(course.end_s, 1e-9),
    )


def _turns(course: Course) -> Iterator[Turn]:
    for change in course.changed:
        yield Turn(change.at_s, "turn", "another tree")
    for event in course.befell:
        for at_s, when in ((event.at_s, ""), (event.until_s, "end of ")):
            yield Turn(at_s, "mark", f"{when}{event.name} of {event.host}")


def lives(course: Course) -> list[Life]:
    """Return the lives of a placement's operators, in the order of their start.

    A new operator takes the row of an operator that has disappeared. So there are no more rows than operators at a
    time.
    """
    present: dict[str, tuple[float, str | None, int]] = {
        name: (0.0, course.start.get(name), row) for row, name in enumerate(course.operators)
    }
    ended: list[Life] = []
    rows = len(present)
    for change in course.changed:
        wanted = change.operators
        for name in [name for name in present if name not in wanted]:
            born_s, host, row = present.pop(name)
            ended.append(Life(name, host, born_s, change.drained_s, row))
        for name, host in wanted.items():
            if name not in present:
                row = min(set(range(rows + 1)) - {used for *_, used in present.values()})
                rows = max(rows, row + 1)
                present[name] = (change.at_s, host, row)
    ended += [Life(name, host, born_s, course.end_s, row) for name, (born_s, host, row) in present.items()]
    return sorted(ended, key=lambda life: (life.born_s, life.row))


def stays(life: Life, moves: Sequence[Move]) -> list[Stay]:
    """Return the stays of an operator by its moves: at its first host, then at every target. Gaps are moves."""
    begin_s, host = life.born_s, life.host
    result = []
    for move in moves:
        if move.moved:
            result.append(Stay(life.node, move.source, begin_s, move.at_s, life.row))
            begin_s, host = move.settled_s, move.target
    if host is not None:
        result.append(Stay(life.node, host, begin_s, life.died_s, life.row))
    return [stay for stay in result if stay.until_s > stay.begin_s]


def mark(move: Move) -> str:
    return (move.protocol or "moved") if move.moved else "stayed"


# --- colours ----------------------------------------------------------------------------------------


def host_colours(courses: Iterable[Course], hosts: Iterable[str] = ()) -> dict[str, str]:
    """Return a colour for every host. The client is grey. Hosts of operators that may move get the first colours."""
    known = list(courses)
    clients = {course.client for course in known}
    everything = set(hosts).union(*(course.hosts() for course in known))
    involved = set().union(*(course.operators_hosts() for course in known if not course.stayed))
    servers = sorted(involved - clients, key=natural) + sorted(everything - involved - clients, key=natural)
    tints = {host: HOST_COLOURS[i % len(HOST_COLOURS)] for i, host in enumerate(servers)}
    return tints | dict.fromkeys(sorted(clients), CLIENT_COLOUR)


def readable_on(tint: str) -> str:
    """Return black or white: the colour that reads better on ``tint``."""
    red, green, blue = (int(tint[i : i + 2], 16) for i in (1, 3, 5))
    return "#222222" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
