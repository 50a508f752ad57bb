"""What runs once above the trees of a stream is fed here, at the client, with what came over the trees.

That run (``protocol.parts``) is one as any other. The nodes of the trunk are its sources, which no code makes:
partition *i* of each is that part of the stream's partition *i* which the node of the trees made.

Rules:

R1. The stream is asked for its next partition when a source wants it. What slower sources have not taken is kept, as
    many partitions at most as can be under way in the run above: the slowest sets the pace. A source that has ended
    keeps nobody waiting.
R2. Nothing is kept for the run above to begin anew from, in its next generation: who wants an earlier partition than is
    here has the stream begin anew with that. Trees have no state, and make the same again.
R3. A source ends with the first partition that its node was not given, as some of its own sources had ended
    (``PAST_END``), and others go on. Where only some had, sinks that end with it are told so.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from thalweg.middleware.parcels import PAST_END, is_past_end
from thalweg.middleware.protocol import events as e


class Hooks(msgspec.Struct, frozen=True):
    """How the two sides are reached.

    ``ask``: have the stream give its next partition; ``again``: and have it begin anew with this one; ``answer``: what
    a source made; ``lives``: whether a source may want more; ``most``: partitions that can be under way above.
    """

    ask: Callable[[], None]
    again: Callable[[int], None]
    answer: Callable[[e.OperatorFinished], None]
    lives: Callable[[str], bool]
    most: Callable[[], int]


class Trunk:
    """What came of the stream, and which source wants what. ``names``: the sources, in the order of the parts."""

    def __init__(self, names: tuple[str, ...], first: int, hooks: Hooks) -> None:
        self.names, self._hooks = names, hooks
        self.next = first  # of the stream
        self.kept: dict[int, e.Deliver] = {}  # before that, for who has not taken them
        self._wanted: dict[str, e.RunOperator] = {}
        self._upto = dict.fromkeys(names, first)  # by source, the partition that it takes next
        self._asked = False  # the stream, for its next one
        self._uneven: dict[str, int] = {}  # R3: sources of which only some had ended, and with which partition

    def want(self, command: e.RunOperator) -> None:
        """A source wants a partition."""
        name, index = command.node, command.index
        self._wanted[name], self._upto[name] = command, index
        if index < self.next and index not in self.kept:  # R2
            self.kept.clear()
            self.next = index
            self._hooks.again(index)
        self.go_on()

    def take(self, part: e.Deliver) -> None:
        """The stream's next partition is here, or its end."""
        self._asked = False
        if part.index == self.next:  # else it has begun anew meanwhile
            self.kept[part.index] = part
            self.next += 1
        self.go_on()

    def go_on(self) -> None:
        """Give what is here to who wants it, and ask for more."""
        for name, command in list(self._wanted.items()):
            part = self.kept.get(command.index)
            if part is not None:
                del self._wanted[name]
                self._upto[name] += 1
                self._give(command, part)
        living = [index for name, index in self._upto.items() if self._hooks.lives(name)]
        for index in [index for index in self.kept if index < min(living, default=self.next)]:
            del self.kept[index]
        wanted = any(command.index >= self.next for command in self._wanted.values())
        if wanted and not self._asked and len(self.kept) < self._hooks.most():  # R1
            self._asked = True
            self._hooks.ask()

    @property
    def waits(self) -> bool:
        """Whether somebody waits for who may have ended meanwhile (R1)."""
        return bool(self._wanted) and not self._asked

    def _give(self, command: e.RunOperator, part: e.Deliver) -> None:
        name, index = command.node, command.index
        value, size_bytes = part.value, part.size_bytes
        if len(self.names) > 1 and not part.end:
            place = self.names.index(name)
            value, size_bytes = part.value[place], part.sizes[place]
        made = e.OperatorFinished(command.run, name, index, value, size_bytes)
        if part.end or is_past_end(value):  # R3
            if not part.end and value.body != PAST_END.body:
                self._uneven[name] = index
            made = e.OperatorFinished(command.run, name, index, end=True)
        self._hooks.answer(made)

    def told(self, end: e.Deliver, below: set[str]) -> e.Deliver:
        """R3: the end of a sink that is made of ``below``, with what is to be said of it."""
        if end.uneven or not any(self._uneven.get(name) == end.index for name in below):
            return end
        return msgspec.structs.replace(end, uneven=unevenly(end.index))

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        assert len(self.kept) <= self._hooks.most(), f"{len(self.kept)} partitions are kept"
        assert sorted(self.kept) == list(range(self.next - len(self.kept), self.next)), (self.next, sorted(self.kept))


def unevenly(index: int) -> str:
    """What is told of a stream over several trees that ends where some of its sources do."""
    return f"sources do not end together: partition {index} is missing from some"
