"""Feed of a striped stream's upper graph, at the client, with the partitions delivered by the trees.

The upper graph (``protocol.split_graph``) is an ordinary run. Its sources without code are inlets, which stand for
nodes of the trees. Partition *i* of an inlet is a part of the stream's partition *i*: the output of its node in the
trees. The place of the inlet says which part.

Rules:

R1. When an inlet needs a partition that is not here, the stream is asked for its next partition. Partitions are kept
    for slower inlets, at most as many as the upper run can have under way. So the slowest inlet sets the pace. An inlet
    that has ended delays nothing.
R2. Nothing is kept for the next generation of the upper run. If an inlet needs an earlier partition than the kept ones,
    the stream restarts with it. Trees have no state, and make the same partitions again. The stream also restarts for a
    new inlet, if the trees did not make the inlet's part of a partition.
R3. An inlet ends with the first partition that its node did not make, because sources of the node had ended
    (``PAST_END``). The remaining inlets go on. If only some of the sources had ended, sinks that end with the inlet
    report this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from thalweg.middleware.core.stripes.notes import PartitionNeeded, StreamNotes, StreamRestarted
from thalweg.middleware.core.stripes.stream_runs import StreamRuns
from thalweg.middleware.parcels import PAST_END, is_past_end
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId


class Inlet(NamedTuple):
    """Inlet of the upper graph: its name, and the place of its part in the stream's partitions."""

    name: str
    place: int

    def of(self, part: e.Deliver) -> tuple[Any, int] | None:
        """Return the inlet's part of a partition with the bytes of the part. None: the trees did not make the part."""
        at = self.place if part.places is None else part.places.get(self.place, -1)
        if at < 0 or at >= max(len(part.sizes), 1):
            return None
        return (part.value[at], part.sizes[at]) if len(part.sizes) > 1 else (part.value, part.size_bytes)


class UpperFeed:
    """Feed of the inlets of one upper run: kept partitions, and the inlets that wait for partitions.

    ``names``: the inlets that ``run`` has at first.
    """

    def __init__(self, run: RunId, names: Iterable[str], first: int, runs: StreamRuns) -> None:
        self._run, self._runs = run, runs
        self.next = first  # next partition of the stream
        self.kept: dict[int, e.Deliver] = {}  # earlier partitions, for slower inlets
        self._wanted: dict[Inlet, e.RunOperator] = {}
        self._upto = dict.fromkeys(names, first)  # by inlet, its next partition
        self._asked = False  # the stream is asked for its next partition
        self._uneven: dict[str, int] = {}  # R3: by inlet, the partition for which only some of its sources had ended

    def want(self, command: e.RunOperator, place: int) -> StreamNotes:
        """Handle the call of an inlet's code as its need of a partition. ``place``: the place of the inlet."""
        source, index = Inlet(command.node, place), command.index
        self._wanted[source], self._upto[source.name] = command, index
        part = self.kept.get(index)
        if index < self.next and (part is None or not (part.end or source.of(part))):
            yield from self._again(index)
        yield from self.go_on()

    def _again(self, index: int) -> StreamNotes:
        """Restart the stream with partition ``index`` (R2)."""
        self.kept = {position: part for position, part in self.kept.items() if position < index}
        self.next = index
        yield StreamRestarted(index)

    def take(self, part: e.Deliver) -> StreamNotes:
        """Handle the stream's next partition, or its end."""
        self._asked = False
        if part.index == self.next:  # otherwise the stream has restarted meanwhile
            self.kept[part.index] = part
            self.next += 1
        yield from self.go_on()

    def go_on(self) -> StreamNotes:
        """Answer waiting inlets from kept partitions. If an inlet needs the stream's next partition, ask for it."""
        for source, command in list(self._wanted.items()):
            part = self.kept.get(command.index)
            if not self._lives(source.name):
                del self._wanted[source]
            elif part is not None and (part.end or source.of(part)):
                del self._wanted[source]
                self._upto[source.name] += 1
                yield self._answer(source, command, part)
            elif part is not None:
                yield from self._again(command.index)
        living = [index for name, index in self._upto.items() if self._lives(name)]
        for index in [index for index in self.kept if index < min(living, default=self.next)]:
            del self.kept[index]
        wanted = any(command.index >= self.next for command in self._wanted.values())
        # R1: the slowest inlet sets the pace
        if wanted and not self._asked and len(self.kept) < self._runs.depth(self._run):
            self._asked = True
            yield PartitionNeeded()

    @property
    def waits(self) -> bool:
        """Return whether an inlet waits although the stream is not asked.

        A slower inlet may have ended meanwhile (R1).
        """
        return bool(self._wanted) and not self._asked

    def _lives(self, source: str) -> bool:
        return self._runs.lives(self._run, source)

    def _answer(self, source: Inlet, command: e.RunOperator, part: e.Deliver) -> e.OperatorFinished:
        name, index = command.node, command.index
        extract = None if part.end else source.of(part)
        if extract is None or is_past_end(extract[0]):
            # R3: the inlet ends with the first partition that its node did not make
            if extract is not None and extract[0].body != PAST_END.body:
                self._uneven[name] = index
            return e.OperatorFinished(command.run, name, index, end=True)
        return e.OperatorFinished(command.run, name, index, *extract)

    def mark_uneven(self, end: e.Deliver, below: set[str]) -> e.Deliver:
        """Return the end of a sink, with a remark if only some sources of an inlet below the sink had ended (R3).

        ``below``: names of the nodes below the sink.
        """
        if end.uneven or not any(self._uneven.get(name) == end.index for name in below):
            return end
        return msgspec.structs.replace(end, uneven=unevenly(end.index))

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError for one that does not hold."""
        assert len(self.kept) <= self._runs.depth(self._run), f"{len(self.kept)} partitions are kept"
        assert sorted(self.kept) == list(range(self.next - len(self.kept), self.next)), (self.next, sorted(self.kept))


def unevenly(index: int) -> str:
    """Return the remark for a striped stream that ends at ``index``, where only some of its sources have ended."""
    return f"sources do not end together: partition {index} is missing from some"
