"""Trees that change: in one line, as the records tell of them, and which operators there were when.

Seconds are emulated. A tree that changes is another from one moment on, that of its first partition; operators that
disappear are there until then, or until the old tree's last partition came, and those that appear from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from thalweg.experiments.records.moves import read_rows
from thalweg.experiments.records.placed_trees import as_line
from thalweg.experiments.records.records import EVENTS
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import UsageError

Row = tuple[str, list[str], str]  # of a tree: name, inputs and host of an operator or the sink


class Change(msgspec.Struct, frozen=True):
    """The tree changed, or with another outcome than ``reshaped`` it was to and did not.

    ``at_s``: when its first partition came (it was given up); ``drained_s``: when the old tree's last one had come.
    ``tree`` has every operator and the sink, in one that did not change too: what it was to be.
    """

    placement: str
    at_s: float
    drained_s: float
    pause_s: float | None
    outcome: str
    reason: str
    why: str
    tree: tuple[Row, ...]

    @property
    def changed(self) -> bool:
        return self.outcome == "reshaped"

    @property
    def hosts(self) -> dict[str, str]:
        """Where the nodes of the tree are, but for its sources."""
        return {name: host for name, _, host in self.tree}

    @property
    def inputs(self) -> dict[str, list[str]]:
        return {name: inputs for name, inputs, _ in self.tree}

    @property
    def operators(self) -> dict[str, str]:
        """Where the tree has its operators: all but the sink, which is last."""
        return {name: host for name, _, host in self.tree[:-1]}


class _Detail(msgspec.Struct):
    outcome: str = "stayed"
    reason: str = ""
    why: str = ""
    ago: dict[str, float] = {}
    after: tuple[Row, ...] = ()


def read_changes(folder: Path) -> list[Change]:
    """Every change of the tree in a run, those that did not come about too, by placement and then in order of time."""
    events, decode = folder / EVENTS, msgspec.json.Decoder(_Detail).decode
    found = []
    for placement, kind, t_s, pause_s, text in read_rows(
        events, ["placement", "kind", "t_s", "duration_s", "detail"], ["reshaped"]
    ):
        try:
            detail = decode(text or "{}")
        except msgspec.DecodeError as error:
            raise UsageError(f"{events}: the detail of a record {kind!r} is damaged ({error}); run it again") from None
        at_s = t_s - detail.ago.get("first", 0.0)
        drained_s = at_s if pause_s is None else at_s - max(0.0, pause_s)
        said = (detail.outcome, detail.reason, detail.why, detail.after)
        found.append(Change(placement, at_s, drained_s, pause_s, *said))
    return sorted(found, key=lambda change: (change.placement, change.at_s))


def line_of(change: Change) -> str:
    """The tree of a change in one line; see :func:`as_line`."""
    nodes: dict[str, Node] = {}
    for name, inputs, _ in change.tree:
        for each in inputs:
            nodes.setdefault(each, Node(each, "source"))
        nodes[name] = Node(name, "operator", tuple(inputs))
    if not change.tree:
        return ""
    last = change.tree[-1][0]
    nodes[last] = msgspec.structs.replace(nodes[last], kind="sink")
    return as_line(Dataflow(tuple(nodes.values())), {**_sources(nodes), **change.hosts})


def _sources(names: Collection[str]) -> dict[str, str]:
    """Where sources are, by the names that the tree builders give them (``source@h1``); of others nothing is known."""
    return {name: name.removeprefix("source@") for name in names}


class Life(msgspec.Struct, frozen=True):
    """An operator: where it began and when, until when it was in the tree, and its row in a picture."""

    node: str
    host: str | None
    born_s: float
    died_s: float
    row: int


def lives(operators: Sequence[str], start: Mapping[str, str], changes: Sequence[Change], end_s: float) -> list[Life]:
    """The operators of a placement, in the order in which they came.

    ``operators``: those of the tree that it began with, in the order of their rows, ``start`` where they were. One that
    appears takes the row of one that has disappeared, so there are no more rows than operators at a time.
    """
    there: dict[str, tuple[float, str | None, int]] = {
        name: (0.0, start.get(name), row) for row, name in enumerate(operators)
    }
    found: list[Life] = []
    rows = len(there)
    for change in changes:
        if not change.changed:
            continue
        wanted = change.operators
        gone = [name for name in there if name not in wanted]
        for name in gone:
            born_s, host, row = there.pop(name)
            found.append(Life(name, host, born_s, change.drained_s, row))
        for name, host in wanted.items():
            if name not in there:
                row = min(set(range(rows + 1)) - {each for *_, each in there.values()})
                rows = max(rows, row + 1)
                there[name] = (change.at_s, host, row)
    found += [Life(name, host, born_s, end_s, row) for name, (born_s, host, row) in there.items()]
    return sorted(found, key=lambda life: (life.born_s, life.row))
