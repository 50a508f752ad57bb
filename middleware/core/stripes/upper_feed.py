"""What runs once above the trees of a stream is fed here, at the client, with what came over the trees.

That run (``protocol.split_graph``) is one as any other. The nodes of the trunk are its sources, which no code makes:
partition *i* of each is that part of the stream's partition *i* which the node of the trees made. Which part that is
says the source's place.

Rules:

R1. The stream is asked for its next partition when a source wants it. What slower sources have not taken is kept, as
    many partitions at most as can be under way in the run above: the slowest sets the pace. A source that has ended
    keeps nobody waiting.
R2. Nothing is kept for the run above to begin anew from, in its next generation: who wants an earlier partition than is
    here has the stream begin anew with that. Trees have no state, and make the same again. So has a source that is new
    there, of what came from trees that did not make its part.
R3. A source ends with the first partition that its node was not given, as some of its own sources had ended
    (``PAST_END``), and others go on. Where only some had, sinks that end with it are told so.
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
    """What of the stream's partitions feeds a source, and of which run that is."""

    name: str
    place: int

    def of(self, part: e.Deliver) -> tuple[Any, int] | None:
        """That part, and its bytes; None where the trees did not make it."""
        at = self.place if part.places is None else part.places.get(self.place, -1)
        if at < 0 or at >= max(len(part.sizes), 1):
            return None
        return (part.value[at], part.sizes[at]) if len(part.sizes) > 1 else (part.value, part.size_bytes)


class UpperFeed:
    """What came of the stream, and which source wants what. ``names``: the sources that ``run`` has at first."""

    def __init__(self, run: RunId, names: Iterable[str], first: int, runs: StreamRuns) -> None:
        self._run, self._runs = run, runs
        self.next = first  # of the stream
        self.kept: dict[int, e.Deliver] = {}  # before that, for who has not taken them
        self._wanted: dict[Inlet, e.RunOperator] = {}
        self._upto = dict.fromkeys(names, first)  # by source, the partition that it takes next
        self._asked = False  # the stream, for its next one
        self._uneven: dict[str, int] = {}  # R3: by source, the partition at which only some of its sources had ended

    def want(self, command: e.RunOperator, place: int) -> StreamNotes:
        """The source at that place wants a partition."""
        source, index = Inlet(command.node, place), command.index
        self._wanted[source], self._upto[source.name] = command, index
        part = self.kept.get(index)
        if index < self.next and (part is None or not (part.end or source.of(part))):
            yield from self._again(index)
        yield from self.go_on()

    def _again(self, index: int) -> StreamNotes:
        """R2: have the stream begin anew with partition ``index``."""
        self.kept = {position: part for position, part in self.kept.items() if position < index}
        self.next = index
        yield StreamRestarted(index)

    def take(self, part: e.Deliver) -> StreamNotes:
        """The stream's next partition is here, or its end."""
        self._asked = False
        if part.index == self.next:  # else it has begun anew meanwhile
            self.kept[part.index] = part
            self.next += 1
        yield from self.go_on()

    def go_on(self) -> StreamNotes:
        """Give what is here to who wants it, and ask for more."""
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
        # R1: the slowest source sets the pace
        if wanted and not self._asked and len(self.kept) < self._runs.depth(self._run):
            self._asked = True
            yield PartitionNeeded()

    @property
    def waits(self) -> bool:
        """Whether somebody waits for who may have ended meanwhile (R1)."""
        return bool(self._wanted) and not self._asked

    def _lives(self, source: str) -> bool:
        return self._runs.lives(self._run, source)

    def _answer(self, source: Inlet, command: e.RunOperator, part: e.Deliver) -> e.OperatorFinished:
        name, index = command.node, command.index
        extract = None if part.end else source.of(part)
        if extract is None or is_past_end(extract[0]):
            # R3: the source ends with the first partition that its node was not given
            if extract is not None and extract[0].body != PAST_END.body:
                self._uneven[name] = index
            return e.OperatorFinished(command.run, name, index, end=True)
        return e.OperatorFinished(command.run, name, index, *extract)

    def mark_uneven(self, end: e.Deliver, below: set[str]) -> e.Deliver:
        """R3: the end of a sink that is made of ``below``, with what is to be said of it."""
        if end.uneven or not any(self._uneven.get(name) == end.index for name in below):
            return end
        return msgspec.structs.replace(end, uneven=unevenly(end.index))

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        assert len(self.kept) <= self._runs.depth(self._run), f"{len(self.kept)} partitions are kept"
        assert sorted(self.kept) == list(range(self.next - len(self.kept), self.next)), (self.next, sorted(self.kept))


def unevenly(index: int) -> str:
    """What is told of a stream over several trees that ends where some of its sources do."""
    return f"sources do not end together: partition {index} is missing from some"
