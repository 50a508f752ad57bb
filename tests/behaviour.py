"""Text of a virtual run as its user sees it: deliveries, transfers, moves, plans, checkpoints, recoveries and faults.

Rules:

- R1: A line has a time, a host, a word of this module and figures with labels of this module. No name of a class, a
  message or a field of the runtime is in it, and no control message.
- R2: The lines are made of the event log (``docs/reference/run-folders.md``) and of the deliveries. ``SHOWN`` lists the
  kinds of records and the columns that count. Other kinds (repeated demands, estimates, probes) are no behaviour.
- R3: Times and figures are exact: ``repr`` of a float. The virtual clock adds, multiplies and divides floats in one
  order. Planners use ``middleware.arithmetic``, which gives the same bits on every processor.
- R4: Events of one instant have no order. Lines are sorted by time, host and text.
- R5: Reasons and errors are left out, except for the hosts that they name: better words are no other behaviour.
- R6: Tables and sets are sorted.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.parcels import is_nothing
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.protocol.split_graph import SINK
from thalweg.middleware.shell.packing import opened

COLUMNS = {"node": "node", "peer": "peer", "index": "index", "size_bytes": "bytes", "duration_s": "s", "value": "value"}
USUAL = ("node", "peer", "index", "size_bytes", "duration_s")


class Show(NamedTuple):
    """Form in which a record is shown: first word, detail with the second word, further details, columns."""

    word: str
    second: str = ""
    details: tuple[str, ...] = ()
    columns: tuple[str, ...] = USUAL


SHOWN: Mapping[str, Show] = {
    "produced": Show("source"),
    "nothing": Show("nothing"),
    "late": Show("late", columns=("node", "index")),
    "left-out": Show("left-out", columns=("node", "index")),
    "uneven": Show("uneven", details=("ended", "went_on")),
    "transfer": Show("transfer", "via", ("relays",)),
    "relayed": Show("relay", "via", ("source", "target", "relays")),
    "carried": Show("carried", details=("stripe", "kept")),
    "asked again": Show("requested-again", details=("stripe",)),
    "asked ahead": Show("requested-ahead", details=("stripe",)),
    "relocated": Show("move", "outcome", ("protocol", "version", "ago")),
    "arrived": Show("arrival", details=("version", "ago")),
    "proposal": Show("change", "outcome", ("moves", "stayed", "ways")),
    "reshaped": Show("tree", "outcome", ("before", "after", "ago")),
    "merged": Show("merge", details=("of",)),
    "query": Show("query", "outcome", ("query", "guest", "node", "names", "apart_s")),
    "plan": Show("plan", "decision", ("placement", "inputs", "current_s", "predicted_s", "probed", "rounds")),
    "epoch": Show("epoch", "decision", ("best", "candidates", "critical", "later", "sends"), (*USUAL, "value")),
    "look": Show("look", "decision", ("best", "best_usage"), (*USUAL, "value")),
    "checkpoint": Show("checkpoint", details=("since",)),
    "recovered": Show("recovery", details=("generation", "hosts", "moved", "again", "went_on", "missing", "ago")),
    "replaced": Show("replacement", details=("placement",)),
    "joined": Show("host joined"),
    "drained": Show("host drained"),
    "fault": Show("fault", "about", ("via", "relays", "state")),
}
ONLY_NAMES = frozenset({"hosts", "missing", "stayed"})  # the values of these tables are words


class Behaviour:
    """Lines of a run. ``allow``: packages whose values may be opened."""

    def __init__(self, allow: Collection[str] = ()) -> None:
        self.allow = (*DEFAULT_ALLOW, *allow)
        self.counts: Counter[str] = Counter()  # number of lines by their words, and by the first of two words
        self._lines: list[tuple[float, str, str]] = []

    def on_record(self, host: str, now: float, record: e.Record) -> None:
        """Add the line of a host's record."""
        show = SHOWN.get(record.kind)
        if show is None:
            return
        fields = record.fields
        detail = fields.get("detail") or {}
        figures = {COLUMNS[column]: fields.get(column) for column in show.columns}
        figures |= {
            key: sorted(detail[key]) if key in ONLY_NAMES else detail[key] for key in show.details if detail.get(key)
        }
        self._add(now, host, show.word, str(detail.get(show.second, "")), _of_run(record.run) | figures)

    def on_delivered(self, delivered: e.Deliver, now: float) -> None:
        """Add the line of a delivery to the application."""
        figures = {"node": delivered.sink, "index": delivered.index, "bytes": delivered.size_bytes}
        value = hashlib.sha256(_value(delivered.value, self.allow)).hexdigest()[:16]
        self._add(now, "application", "delivered", "", figures | {"value": value})

    def on_plan(self, flow: Dataflow, placement: Mapping[str, str], predicted_s: float) -> None:
        """Add the line of the plan with which a run begins."""
        shape = {node.name: node.inputs for node in flow.nodes if node.inputs}
        figures = {"placement": placement, "inputs": shape, "predicted_s": predicted_s}
        self._add(0.0, "application", "plan", "first", figures)

    def on_end(self, world: FaultyWorld) -> None:
        """Add the end of the run and the last placement, at the time of the failure or of the last line."""
        flow, placement = world.tree
        shape = {node.name: node.inputs for node in flow.nodes if node.inputs}
        last_s = max(now for now, _, _ in self._lines)
        for query, why in world.queries_failed.items():
            self._add(last_s, "application", "query", "failed", {"query": query, "hosts": named(why, world.hosts)})
        for (guest, number), why in world.dismissed.items():
            figures = {"guest": guest, "query": number, "hosts": named(why, world.hosts)}
            self._add(last_s, "application", "query", "dismissed", figures)
        figures = {"placement": placement, "inputs": shape}
        if world.failed is None or world.failed_s is None:
            self._add(last_s, "application", "over", "", figures)
        else:
            self._add(
                world.failed_s, "application", "failed", "", figures | {"hosts": named(world.failed, world.hosts)}
            )

    def _add(self, now: float, host: str, word: str, second: str, figures: Mapping[str, Any]) -> None:
        words = f"{word} {second}".rstrip()
        self.counts.update({word, words})
        shown = " ".join(f"{label}={plain(value)}" for label, value in figures.items() if value not in (None, "", ()))
        self._lines.append((float(now), host, f"{words} {shown}".rstrip()))

    @property
    def text(self) -> str:
        """Return the lines in order (R4)."""
        return "".join(f"{now!r} {host} {line}\n" for now, host, line in sorted(self._lines))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def named(text: str, hosts: Collection[str]) -> list[str]:
    """Return the hosts that a text names in quotation marks (R5)."""
    return sorted({*re.findall(r"'([^']*)'", text)} & {*hosts})


def plain(value: Any) -> str:
    """Return a figure as text: floats exact, tables and sets sorted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{plain(key)}:{plain(value[key])}" for key in sorted(value, key=plain)) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(map(plain, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(plain, value)) + "]"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return repr(float(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, m.LinkEnd):
        return f"{value.host}/{value.via}"
    if isinstance(value, str) or value is None:
        return "tree-sink" if value == SINK else str(value)
    raise TypeError(f"{type(value).__name__} has no text in a golden run: {value!r}; add it to plain()")


def _of_run(run: RunId) -> dict[str, Any]:
    """Return the tree and the generation of a record, if the run has several."""
    stripe, generation = run.stripe, run.generation
    return {"tree": stripe, "generation": generation or None}


def _value(value: Any, allow: Collection[str]) -> bytes:
    """Return bytes that identify a delivered value."""
    if isinstance(value, tuple):
        return b"(" + b",".join(_value(part, allow) for part in value) + b")"
    value = opened(value, allow)
    if is_nothing(value):
        return b"nothing"
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {value.shape} ".encode() + value.tobytes()
    if isinstance(value, bytes):
        return value
    return msgspec.json.encode(value)
